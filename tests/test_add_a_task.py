"""The document docs/add-a-task.md, followed step by step."""

import re
import sys

import pytest

import moat.sources
from moat.executor import MATHS_TOOLS
from moat.importing import gold_fault, import_files
from moat.sources.base import Turn


@pytest.fixture
def blocks(root):
    """The document's blocks of code, by language, in order."""
    found = {}
    text = (root / "docs" / "add-a-task.md").read_text(encoding="utf-8")
    for language, block in re.findall(r"^```(\w+)\n(.*?)^```$", text, re.MULTILINE | re.DOTALL):
        found.setdefault(language, []).append(block)
    return found


def test_a_task_in_the_documented_columns_needs_no_code(tmp_path, blocks):
    path = tmp_path / "tasks.jsonl"
    path.write_text(blocks["json"][0], encoding="utf-8")
    (record,) = import_files("columns", [path]).records
    assert record.turns == (Turn("Multiply the eggs of a day by the days", "R1 = Calculator(3 * 7)"),)
    assert gold_fault(record, MATHS_TOOLS) is None


@pytest.fixture
def riddles(tmp_path, monkeypatch, blocks):
    """The document's module in the package, and the path of its rows."""
    package = tmp_path / "sources"
    package.mkdir()
    (code,) = blocks["python"]
    (package / "riddles.py").write_text(code, encoding="utf-8")
    monkeypatch.setattr(moat.sources, "__path__", [*moat.sources.__path__, str(package)])
    rows = tmp_path / "riddles.jsonl"
    rows.write_text(blocks["json"][1], encoding="utf-8")
    yield rows
    sys.modules.pop("moat.sources.riddles", None)
    if hasattr(moat.sources, "riddles"):
        del moat.sources.riddles


def test_a_module_adds_a_task_and_its_summary_is_the_document_s(riddles, blocks):
    done = import_files("riddles", [riddles])
    assert done.summary() == blocks["text"][0].strip()
    assert [record.gold_answer for record in done.records] == ["16", "4.5"]
    assert [gold_fault(record, MATHS_TOOLS) for record in done.records] == [None, None]


def test_the_module_s_parameters_are_the_source_s_settings(riddles):
    assert import_files("riddles", [riddles], {"longest": 1}).reasons["too many steps"] == 1

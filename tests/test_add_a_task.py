"""The document docs/add-a-task.md, followed step by step."""

import re
import sys
from contextlib import nullcontext

import pytest
from ruamel.yaml import YAML

import moat.sources
from moat.drawing import draw
from moat.executor import Outcome
from moat.importing import import_files
from moat.layout import SOURCES
from moat.params import PARAMS, Imported, Params, check, parse
from moat.sources.base import Turn
from moat.tasks import task_row
from moat.toolbox import Toolbox, goal_of


def gold(record):
    """What a record's gold comes to."""
    row = task_row("s", True, record, "onetime", Toolbox())
    return Toolbox().outcome(row["gold_actions"], goal_of(row))


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
    assert gold(record) is Outcome.REACHED


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
    assert [gold(record) for record in done.records] == [Outcome.REACHED] * 2


def test_the_module_s_parameters_are_the_source_s_settings(riddles):
    assert import_files("riddles", [riddles], {"longest": 1}).reasons["too many steps"] == 1


def test_the_settings_in_the_document_name_the_rows(riddles, blocks, root, tmp_path, monkeypatch):
    """The block stands under `prepare.sources` as it is written, and draws the document's two riddles."""
    path = root / PARAMS
    text = path.read_text(encoding="utf-8")
    above = "  sources:"
    (line,) = [one for one in text.splitlines(keepends=True) if one.startswith(above)]
    (block,) = blocks["yaml"]
    source = check(parse(text.replace(line, line + block), path), Params, path).prepare.sources["riddles"]
    monkeypatch.chdir(tmp_path)
    (tmp_path / SOURCES).mkdir(parents=True)
    riddles.rename(tmp_path / SOURCES / "riddles.jsonl")
    drawn = draw("riddles", source, 0, set(), lambda label, total: nullcontext(lambda n: None), "")
    assert {record.gold_answer for record in (*drawn.train, *drawn.evaluation)} == {"16", "4.5"}
    assert drawn.dropped["the solution is no number"] == 1


@pytest.mark.parametrize("change", [{"n_eval": 5}, {"train": {"importer": "riddles", "files": ["gone.jsonl"]}}])
def test_a_fault_of_a_source_names_it(riddles, blocks, monkeypatch, change):
    """Among several, the reader must know which one."""
    monkeypatch.setattr("moat.drawing.SOURCES", riddles.parent)
    settings = YAML(typ="safe").load(blocks["yaml"][0])["riddles"] | change
    with pytest.raises(ValueError, match="source riddles: "):
        draw("riddles", Imported(**settings), 0, set(), lambda label, total: nullcontext(lambda n: None), "")

"""The document docs/add-a-task.md, followed step by step."""

import re
import sys
from contextlib import contextmanager

import pytest
from ruamel.yaml import YAML

import moat.sources
from moat import drawing
from moat.executor import Outcome
from moat.importing import import_files
from moat.params import Imported
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


@contextmanager
def silent(label, total):
    """A progress bar that shows nothing."""
    yield lambda n: None


def draw_named(settings, monkeypatch, folder):
    """The tasks of the one source that is named, its files in `folder`."""
    monkeypatch.setattr(drawing, "SOURCES", folder)
    ((name, section),) = settings.items()
    return drawing.draw(name, Imported(**section), 0, set(), silent, "")


def test_the_source_can_be_named_as_the_document_says(riddles, blocks, monkeypatch):
    """The settings of the document are those that params.yaml takes, and prepare draws its tasks from them."""
    drawn = draw_named(YAML(typ="safe").load(blocks["yaml"][0]), monkeypatch, riddles.parent)
    assert sorted(record.gold_answer for record in [*drawn.train, *drawn.evaluation]) == ["16", "4.5"]


@pytest.mark.parametrize("change", [{"n_eval": 5}, {"train": {"importer": "riddles", "files": ["gone.jsonl"]}}])
def test_a_fault_of_a_source_names_it(riddles, blocks, monkeypatch, change):
    """Among several, the reader must know which one."""
    settings = YAML(typ="safe").load(blocks["yaml"][0])
    settings["riddles"] |= change
    with pytest.raises(ValueError, match="source riddles: "):
        draw_named(settings, monkeypatch, riddles.parent)

"""Gold through its own executor and grader: stages/check_gold.py."""

import pytest

from moat import corpus, layout, params
from moat.machine import Machine
from moat.schemas.gold import GOLD
from moat.schemas.passages import PASSAGES
from moat.schemas.passages import rows as passage_rows
from moat.schemas.tasks import TASKS
from moat.sources.base import Passage
from moat.stage import Stage
from moat.tables import metadata
from moat.toolbox import Library, Toolbox
from tests.rows import task

SUM = {"gold_actions": "R1 = Calculator(4 + 5)", "gold_answer": "9"}
OWL = [Passage("Owl", "It hunts mice at night.")]
QA = {
    "domain": "qa",
    "metric": "exact_match",
    "gold_actions": "R1 = KnowledgeQuery(Owl); R2 = QA([R1], Question: What does it hunt?)",
    "gold_answer": "mice",
}


@pytest.fixture
def checked(stage_module):
    """Outcomes and messages by task id."""

    def check(rows, toolbox=None, without=""):
        made = stage_module("check_gold").checked("train", rows, toolbox or Toolbox(), without)
        assert [row["task_id"] for row in made] == [row["task_id"] for row in rows]
        return {row["task_id"]: (row["outcome"], row["answer"], row["message"]) for row in made}

    return check


def test_gold_reaches_misses_or_fails(checked):
    """Each task by its own answer: the right one, another one, a failure with its message, no gold at all."""
    rows = [
        task("right", **SUM),
        task("wrong", **SUM | {"gold_answer": "8"}),
        task("fails", **SUM | {"gold_actions": "R1 = Calculator(1 / 0)"}),
        task("none", gold_actions="", gold_answer="1"),
    ]
    found = checked(rows)
    assert (found["right"], found["wrong"]) == (("reached", "9", ""), ("not_reached", "9", ""))
    assert found["fails"][:2] == ("no_result", None)
    assert "R1: Calculator" in found["fails"][2]
    assert found["none"] == ("none", None, "")


def test_a_turns_gold_is_run_after_the_turns_before_it(checked):
    turns = [{"subgoal": "Subgoal 1: Add", "actions": SUM["gold_actions"], "result": "9"}]
    rows = [task("t", turn=1, turns=turns, gold_actions="R2 = Calculator(R1 * 2)", gold_answer="18")]
    assert checked(rows)["t"][0] == "reached"


class Reader:
    """Says the same to every question."""

    def __init__(self, answer):
        self.answer, self.batches = answer, []

    def answer_all(self, questions):
        self.batches.append(len(questions))
        return [self.answer for _ in questions]


@pytest.mark.trap(33)
@pytest.mark.parametrize(("answer", "outcome"), [("mice", "reached"), ("voles", "not_reached"), (None, "no_result")])
def test_gold_of_qa_is_read_and_graded(checked, answer, outcome):
    """All questions in one batch."""
    reader = Reader(answer)
    toolbox = Toolbox(library=Library(corpus.build(OWL), 10, 3, reader=reader))
    found = checked([task("a", **QA), task("b", **QA), task("c", **SUM)], toolbox)
    assert [one[0] for one in found.values()] == [outcome, outcome, "reached"]
    assert reader.batches == [1]


def test_without_a_reader_qa_is_not_run_and_says_why(checked):
    found = checked([task("a", **QA), task("b", **SUM), task("c", **QA | {"gold_actions": ""})], without="nobody reads")
    assert found["a"] == ("not_run", None, "nobody reads")
    assert found["b"][0] == "reached"
    assert found["c"] == ("none", None, "")


def test_the_stage_writes_a_row_for_every_task_and_names_what_misses(tmp_path, monkeypatch, root, stage_module, capsys):
    """Both splits; params name no reader, so QA is told to be not run; what misses is kept and warned of."""
    monkeypatch.chdir(tmp_path)
    TASKS.write(layout.TRAIN_TASKS, [task("a", **SUM), task("b", **SUM | {"gold_answer": "8"})], {})
    TASKS.write(layout.EVAL_TASKS, [task("a", **SUM), task("q", **QA | {"source": "owls"})], {})
    PASSAGES.write(layout.PASSAGES, passage_rows({"owls": OWL}), {})
    settings = params.load(root / "params.yaml")
    for name in ("index", "check_gold"):
        stage_module(name).run(Stage(name, settings, Machine(device="cpu"), tmp_path))
    table = GOLD.read(layout.GOLD)
    assert table.select("split", "task_id", "source", "outcome").rows() == [
        ("eval", "a", "stories", "reached"),
        ("eval", "q", "owls", "not_run"),
        ("train", "a", "stories", "reached"),
        ("train", "b", "stories", "not_reached"),
    ]
    assert metadata(layout.GOLD)["facts"]["counts"] == {"rows_in": 4, "kept": 4, "dropped": {}}
    said = capsys.readouterr().out
    assert "owls: not_run 1" in said
    assert "stories: reached 2, not_reached 1" in said
    assert "warning 1 tasks whose gold misses their answer, the first b of stories: not_reached" in said

"""StrategyQA: moat/sources/strategyqa.py. The rows are our own, in the publisher's format."""

import pytest

from moat.actions import parse
from moat.sources import strategyqa
from moat.sources.base import Metric, Passage, Record, SourceError, Turn

FOUND, OPERATION = [["River Ulm-3"]], ["operation"]
ROW = {
    "qid": "a1",
    "term": "River Ulm",
    "description": "a river",
    "question": "Is the River Ulm longer than the Isle road?",
    "answer": True,
    "facts": ["The River Ulm is 40 km long.", "The Isle road is 30 km long."],
    "decomposition": ["How long is the River Ulm?", "How long is the Isle  road?", "Is #1 greater than #2?"],
    "evidence": [[FOUND, [["Isle road-1", "Isle-2"]], OPERATION], [FOUND, ["no_evidence"], OPERATION]],
}


def turns(*steps, evidence=(), **changes):
    row = ROW | {"decomposition": list(steps), "evidence": list(evidence)} | changes
    (item,) = strategyqa.read([(1, row)], "dev")
    return [turn.actions for turn in item.turns] if isinstance(item, Record) else item.reason


def test_steps_are_subgoals_facts_are_passages_and_answers_are_yes_or_no():
    (record,) = strategyqa.read([(2, ROW)], "dev")
    ulm, road = "How long is the River Ulm?", "How long is the Isle road?"
    looked_up = f"R1 = KnowledgeQuery(River Ulm); R2 = ParagraphRetrieve(R1, Query: {ulm}); R3 = QA([R2], Question: {ulm})"
    road_up = f"R4 = KnowledgeQuery(Isle road); R5 = ParagraphRetrieve(R4, Query: {road}); R6 = QA([R5], Question: {road})"
    compared = "Is the answer to Subgoal 1 greater than the answer to Subgoal 2?"
    assert record == Record(
        number=2,
        text="Is the River Ulm longer than the Isle road?",
        domain="qa",
        metric=Metric.YES_NO,
        gold_answer="yes",
        subgoals=f"Subgoal 1: {ulm}; Subgoal 2: {road}; Subgoal 3: {compared}",
        actions=f"{looked_up}; {road_up}; R7 = Calculator(R3 > R6)",
        turns=(Turn(ulm, looked_up), Turn(road, road_up), Turn(compared, "R7 = Calculator(R3 > R6)")),
        passages=(
            Passage("River Ulm", "The River Ulm is 40 km long."),
            Passage("River Ulm", "The Isle road is 30 km long."),
        ),
        split="dev",
    )
    parse(record.actions)


@pytest.mark.parametrize(
    ("step", "action"),
    [
        ("Is #2 greater than #1?", "R7 = Calculator(R6 > R3)"),
        ("Is #1 smaller than #2?", "R7 = Calculator(R3 < R6)"),
        ("Was #1 greater than or equal to 1,000?", "R7 = Calculator(R3 >= 1,000)"),
        ("Is #1 equal to or less than #2?", "R7 = Calculator(R3 <= R6)"),
        ("Is #1 at least #2?", "R7 = Calculator(R3 >= R6)"),
        ("What is the difference between 100 and #1?", "R7 = Calculator(100 - R3)"),
        ("What is #1 divided by #2", "R7 = Calculator(R3 / R6)"),
        ("Is #1 the same as #2?", "R7 = QA([R2, R5], Question: Is R3 the same as R6?)"),
        ("Is #1 greater than #2 on Mondays?", "R7 = QA([R2, R5], Question: Is R3 greater than R6 on Mondays?)"),
    ],
)
def test_an_operation_is_a_calculation_where_it_is_one(step, action):
    evidence = [[FOUND, FOUND, OPERATION]] * 3
    assert turns("Who?", "What?", step, evidence=evidence)[-1] == action


@pytest.mark.parametrize(
    ("step", "subject"),
    [
        ("Where does river ulm end?", "River Ulm"),
        ("Where does #1 end?", "R3"),
        ("Who swims in the sea?", "Who swims in the sea"),
        ("Who saw the Old River Ulm bridge?", "Old River Ulm"),
    ],
)
def test_what_is_looked_up_stands_in_the_step(step, subject):
    evidence = [[FOUND, [["Old River Ulm-1", "Somewhere else-3"]]]]
    assert turns("Who?", step, evidence=evidence)[-1].startswith(f"R4 = KnowledgeQuery({subject}); R5 = ")


@pytest.mark.trap(29)
def test_step_1_is_not_step_10_without_its_nought():
    steps = [f"Who is number {number}?" for number in range(1, 11)]
    assert turns(*steps, "Did #10 meet #1?")[-1].endswith("R33 = QA([R32], Question: Did R30 meet R3?)")


@pytest.mark.parametrize("step", ["Is #2 red?", "Is #0 red?", "Is #3 red?"])
def test_a_step_cannot_refer_to_itself_or_a_later_one(step):
    assert turns("Who?", step) == strategyqa.NO_SUCH_STEP


@pytest.mark.parametrize("step", ["Is an R8 fast?", "What is :) called?"])
def test_a_step_that_the_action_grammar_would_misread_is_told(step):
    assert turns("Who?", step) == strategyqa.NOT_ACTIONS


def test_a_row_whose_steps_cannot_be_written_is_kept_without_a_plan_when_asked_for():
    row = ROW | {"decomposition": ["Is an R8 fast?"], "evidence": []}
    (record,) = strategyqa.read([(1, row)], "dev", keep_all=True)
    assert (record.gold_answer, record.subgoals, record.actions) == ("yes", "", "")


def test_a_row_without_steps_is_evaluated_on_only():
    row = {name: ROW[name] for name in ("qid", "question", "answer")} | {"facts": "One fact. Another.", "term": None}
    (record,) = strategyqa.read([(1, row)], "dev")
    assert (record.subgoals, record.actions, record.turns) == ("", "", ())
    assert record.passages == (Passage("", "One fact. Another."),)


@pytest.mark.trap(33)
@pytest.mark.parametrize("answer", [None, "true", 1, 0])
def test_an_answer_that_is_neither_true_nor_false_is_not_no(answer):
    (dropped,) = strategyqa.read([(1, ROW | {"answer": answer})], "dev")
    assert dropped.reason == "malformed row"


@pytest.mark.trap(34)
@pytest.mark.parametrize("split", ["", "test", "train+dev", "validation"])
def test_rows_that_may_be_training_rows_are_refused_unless_asked_for(split):
    with pytest.raises(SourceError, match="may have been trained on"):
        list(strategyqa.read([(1, ROW)], split))
    (record,) = strategyqa.read([(1, ROW)], split, mixed=True)
    assert record.split == "train+dev"


@pytest.mark.trap(34)
def test_the_publisher_s_dev_file_tells_the_rows_of_the_usual_test_file_apart():
    dev_ids = strategyqa.qids([(1, {"qid": "a1"})])
    rows = [(1, ROW), (2, ROW | {"qid": "b2", "split": "test"})]
    assert [record.split for record in strategyqa.read(rows, "test", dev_ids)] == ["dev", "train"]


def test_a_row_s_own_split_goes_before_the_setting():
    (record,) = strategyqa.read([(1, ROW | {"split": "train"})], "dev")
    assert record.split == "train"

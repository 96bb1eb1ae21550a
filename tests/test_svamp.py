"""SVAMP: moat/sources/svamp.py. The rows are our own, in the publisher's format."""

import pytest

from moat.executor import execute
from moat.sources import svamp
from moat.sources.base import Metric, Record, Turn
from moat.tools.maths import MATHS_TOOLS

ROW = {
    "ID": "own-1",
    "Body": "Lea has 8 ribbons and loses 3.",
    "Question": "She ties the rest in pairs of 2. How many pairs?",
    "Equation": "( ( 8.0 - 3.0 ) / 2.0 )",
    "Answer": 2.5,
    "Type": "Common-Division",
}


def one(equation, answer, **settings):
    (item,) = svamp.read([(1, ROW | {"Equation": equation, "Answer": answer})], **settings)
    return item


@pytest.mark.trap(32)
def test_each_operation_is_a_turn_and_the_answer_is_not_cut():
    (record,) = svamp.read([(4, ROW)])
    assert record == Record(
        number=4,
        text="Lea has 8 ribbons and loses 3. She ties the rest in pairs of 2. How many pairs?",
        domain="maths",
        metric=Metric.NUMBER,
        gold_answer="2.5",
        subgoals="Subgoal 1: Subtract 3 from 8; Subgoal 2: Divide the result of Subgoal 1 by 2",
        actions="R1 = Calculator(8 - 3); R2 = Calculator(R1 / 2)",
        turns=(
            Turn("Subtract 3 from 8", "R1 = Calculator(8 - 3)"),
            Turn("Divide the result of Subgoal 1 by 2", "R2 = Calculator(R1 / 2)"),
        ),
    )


@pytest.mark.parametrize("answer", [51.0, 51, "51.0", " 51 "])
def test_a_whole_answer_is_written_whole_and_the_hub_s_text_is_read(answer):
    assert one("( 76.0 - 25.0 )", answer).gold_answer == "51"


@pytest.mark.parametrize(
    ("equation", "answer", "actions"),
    [
        ("( 9.0 - ( 3.0 - 2.0 ) )", 8, "R1 = Calculator(3 - 2); R2 = Calculator(9 - R1)"),
        ("9.0 - 3.0 - 2.0", 4, "R1 = Calculator(9 - 3); R2 = Calculator(R1 - 2)"),
        ("2.0 + 3.0 * 4.0", 14, "R1 = Calculator(3 * 4); R2 = Calculator(2 + R1)"),
        ("( 1.5 )", 1.5, "R1 = Calculator(1.5)"),
    ],
)
def test_operations_keep_their_order(equation, answer, actions):
    record = one(equation, answer)
    assert record.actions == actions
    assert execute(actions, MATHS_TOOLS).answer == record.gold_answer


@pytest.mark.parametrize("equation", ["( 1.0 + )", "( 1.0 + 2.0", "1.0 2.0", "1.0 )", "x + 1.0", "( )", "( 1.0 / 0.0 )"])
def test_an_equation_that_is_none_is_told(equation):
    assert one(equation, 1).reason == svamp.UNREADABLE


def test_an_equation_that_misses_the_answer_is_told_or_kept_without_a_plan():
    assert one("( 1.0 + 1.0 )", 3).reason == svamp.ELSEWHERE
    assert one("( 1.0 + 1.0 )", 3, keep_all=True).gold_answer == "3"
    assert one("( 1.0 + 1.0 )", 3, keep_all=True).actions == ""


@pytest.mark.parametrize("answer", [None, True, "many", float("nan"), float("inf")])
def test_an_answer_that_is_no_number_is_malformed(answer):
    assert one("( 1.0 + 1.0 )", answer).reason == "malformed row"

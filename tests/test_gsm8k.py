"""GSM8K: moat/sources/gsm8k.py. The rows are our own, in the publisher's format."""

import pytest

from moat.executor import Outcome, execute, outcome
from moat.sources import gsm8k
from moat.sources.base import Metric, Record, Turn
from moat.tools.maths import MATHS_TOOLS

PEARS = {
    "question": "Ida picks 12 pears a day for 5 days and gives away a third. How many pears are left?",
    "answer": "Ida picks 12 * 5 = <<12*5=60>>60 pears.\nShe gives away 60 / 3 = <<60/3=20>>20 pears.\n"
    "That leaves 60 - 20 = <<60-20=40>>40 pears.\n#### 40",
}
ASKED = {
    "question": PEARS["question"],
    "answer": "How many pears does Ida pick? ** Ida picks 12 * 5 = <<12*5=60>>60 pears.\n"
    "How many are left? ** She gives away 60 / 3 = <<60/3=20>>20, which leaves 60 - 20 = <<60-20=40>>40.\n#### 40",
}


def one(question, *lines, gold, **settings):
    (item,) = gsm8k.read([(1, {"question": question, "answer": "\n".join([*lines, f"#### {gold}"])})], **settings)
    return item


def test_sub_questions_are_subgoals_and_calculations_are_actions():
    (record,) = gsm8k.read([(7, ASKED)], socratic=True)
    assert record == Record(
        number=7,
        text=ASKED["question"],
        domain="maths",
        metric=Metric.NUMBER,
        gold_answer="40",
        subgoals="Subgoal 1: How many pears does Ida pick?; Subgoal 2: How many are left?",
        actions="R1 = Calculator(12*5); R2 = Calculator(R1/3); R3 = Calculator(R1-R2)",
        turns=(
            Turn("How many pears does Ida pick?", "R1 = Calculator(12*5)"),
            Turn("How many are left?", "R2 = Calculator(R1/3); R3 = Calculator(R1-R2)"),
        ),
    )


def test_the_main_configuration_gives_sentences_without_figures():
    (record,) = gsm8k.read([(1, PEARS)])
    assert [turn.subgoal for turn in record.turns] == ["Ida picks pears", "She gives away pears", "That leaves pears"]


@pytest.mark.parametrize(
    ("sentence", "subgoal"),
    [
        ("The cost is 3 x $5 = $<<3*5=15>>15.", "The cost"),
        ("He has 15 because 3 * 5 = <<3*5=15>>15", "He has"),
        ("So, fifteen boats sail: 3*5=<<3*5=15>>15.", "So, boats sail"),
        ("3*5=<<3*5=15>>15", "Work out the next amount"),
        ("So 3 boats+ 5 rafts= 8 and x=3*5=<<3*5=15>>15 craft", "So boats rafts and x craft"),
        (
            "Each of the 3 boats holds 1,500.50 kg, so all hold 3*5=<<3*5=15>>15 kg",
            "Each of the boats holds kg, so all hold kg",
        ),
    ],
)
def test_a_plan_does_not_tell_the_figures(sentence, subgoal):
    assert one("How many?", sentence, gold="15").turns[0].subgoal == subgoal


@pytest.mark.trap(29)
@pytest.mark.parametrize(
    ("question", "calculations", "actions"),
    [
        # A figure of an earlier result's value is that result; within another figure (24 in 240 and 1.24) it is not.
        ("Q", ["48/2=24", "24+240+1.24=265.24"], "R2 = Calculator(R1+240+1.24)"),
        # Of equal results, the latest.
        ("Q", ["2*3=6", "7-1=6", "6*5=30"], "R3 = Calculator(R2*5)"),
        # Values are compared, not spellings.
        ("Q", ["500*2=1000", "1,000.0/4=250"], "R2 = Calculator(R1/4)"),
        # Once in an action.
        ("Q", ["1*2=2", "2*2=4"], "R2 = Calculator(R1*2)"),
        # The question's own figure becomes the result while that is unused, and is the question's afterwards.
        ("Of 3 men", ["9/3=3", "3*4=12", "12+3=15"], "R3 = Calculator(R2+3)"),
        ("Of three men", ["9/3=3", "3*4=12", "12+3=15"], "R3 = Calculator(R2+3)"),
        ("Of 7 men", ["9/3=3", "3*4=12", "12+3=15"], "R3 = Calculator(R2+R1)"),
    ],
)
def test_an_operand_that_is_an_earlier_result_becomes_its_name(question, calculations, actions):
    lines = [f"It is <<{calculation}>>." for calculation in calculations]
    record = one(question, *lines, gold=calculations[-1].rpartition("=")[2])
    assert record.actions.endswith(actions)
    assert outcome(execute(record.actions, MATHS_TOOLS), record.gold_answer) is Outcome.REACHED


@pytest.mark.parametrize(
    ("lines", "gold", "reason"),
    [
        (["He has five."], "5", gsm8k.NO_CALCULATION),
        (["<<2+2=5>>"], "5", gsm8k.WRONG),
        (["<<1/3=0.33>>"], "0.33", gsm8k.WRONG),
        (["<<x+2=5>>"], "5", gsm8k.UNREADABLE),
        (["<<2+3=5>>"], "6", gsm8k.ELSEWHERE),
        (["<<2+3=5>>"], "five", "malformed row"),
    ],
)
def test_a_row_that_does_not_convert_is_dropped_with_a_reason(lines, gold, reason):
    assert one("Q", *lines, gold=gold).reason == reason


def test_a_line_without_its_sub_question_is_not_socratic():
    assert one("Q", "<<2+3=5>>", gold="5", socratic=True).reason == gsm8k.NO_QUESTION


def test_the_rows_of_a_test_file_are_all_kept_when_asked_for():
    record = one("How many?", "He has five.", gold="5", keep_all=True)
    assert (record.text, record.gold_answer, record.subgoals, record.actions, record.turns) == ("How many?", "5", "", "", ())


@pytest.mark.trap(32)
@pytest.mark.parametrize("gold", ["1,200", "1200", "1200.0"])
def test_a_gold_answer_is_compared_by_value(gold):
    assert one("Q", "It is <<600*2=1200>>1,200", gold=gold).gold_answer == gold


@pytest.mark.parametrize("row", [None, [], "x", {}, {"question": "Q"}, {"question": 1, "answer": "#### 1"}])
def test_a_malformed_row_is_dropped(row):
    (dropped,) = gsm8k.read([(3, row)])
    assert (dropped.number, dropped.reason) == (3, "malformed row")

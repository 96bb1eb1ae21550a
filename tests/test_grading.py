"""Grading by metric: moat/grading.py."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moat.answers import parse_number, same_answer
from moat.grading import Grade, grade, normalised
from moat.sources.base import Metric

RIGHT, WRONG = Grade(1.0, True), Grade(0.0, False)
GOLD = {
    Metric.TEXT: "x = 5",
    Metric.NUMBER: "18",
    Metric.YES_NO: "no",
    Metric.EXACT_MATCH: "Chief of Protocol",
    Metric.WEB_STEP: "CLICK [12|57]",
    Metric.REWARD: "1",
}


# --- failures ---------------------------------------------------------------------------------------------------------


@pytest.mark.trap(33)
@pytest.mark.parametrize("answer", [None, "", " ", "\n"])
@pytest.mark.parametrize("metric", list(Metric))
def test_no_answer_is_wrong_under_every_metric(metric, answer):
    """Also where the gold is the word that a missing answer might be taken for, or is blank itself."""
    for gold in (GOLD[metric], "no", "false", "0", "", "None"):
        found = grade(metric, answer, gold)
        assert (found.score, found.correct) == (0.0, False)
        assert {found.f1, found.element} <= {0.0, None}


@pytest.mark.trap(33)
@pytest.mark.parametrize("metric", [Metric.NUMBER, Metric.YES_NO, Metric.EXACT_MATCH, Metric.WEB_STEP])
def test_a_gold_that_cannot_be_read_is_met_by_nothing(metric):
    """Not by itself either, so that a source's gold that its own grader refuses is found."""
    for gold in ("", "  ", "the", "?"):
        assert not grade(metric, gold, gold).correct


# --- numbers ----------------------------------------------------------------------------------------------------------


@pytest.mark.trap(32)
@pytest.mark.parametrize(
    ("answer", "gold", "right"),
    [
        ("18.0", "18", True),
        ("$18", "18", True),
        ("18 dollars", "18", True),
        ("1,000", "1000", True),
        ("9/2", "4.5", True),
        ("10.", "10", True),
        ("3", "-3", False),
        ("4", "4.5", False),
        ("18 or 19", "18", False),
        ("eighteen", "eighteen", False),
    ],
)
def test_numbers_are_equal_by_value(answer, gold, right):
    """A gold that is no number is no gold of this metric, even in the same words."""
    assert grade(Metric.NUMBER, answer, gold) == (RIGHT if right else WRONG)


@given(st.text("0123456789.,-/% $", max_size=8), st.text("0123456789.,-/% $", max_size=8))
def test_number_agrees_with_the_rule_of_answers(answer, gold):
    """For golds that are numbers the grade is that of `same_answer`, by which actions reach their answer."""
    if parse_number(gold) is not None:
        assert grade(Metric.NUMBER, answer, gold).correct is same_answer(answer, gold)


# --- yes and no -------------------------------------------------------------------------------------------------------


@pytest.mark.trap(33)
@pytest.mark.parametrize(
    ("answer", "gold", "right"),
    [
        ("yes", "yes", True),
        ("True", "yes", True),
        (" NO. ", "false", True),
        ("yes", "no", False),
        ("False", "True", False),
        ("none", "no", False),
        ("error", "no", False),
        ("0", "no", False),
        ("not yes", "no", False),
        ("no, because", "no", False),
        ("yes and no", "yes", False),
        ("y", "yes", False),
        ("maybe", "maybe", False),
    ],
)
def test_only_the_words_are_yes_and_no(answer, gold, right):
    """Nothing is taken for `no` because it is not `yes`."""
    assert grade(Metric.YES_NO, answer, gold) == (RIGHT if right else WRONG)


# --- exact match ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "plain"),
    [
        ("The  U.S.A.", "usa"),
        ("An A-team, a team", "ateam team"),
        ("“The”", "“ ”"),  # ASCII punctuation alone
        ("Theatre", "theatre"),
        ("3,677 seated", "3677 seated"),
    ],
)
def test_normalising_by_hand(text, plain):
    """Lower case, then punctuation, then articles as words, then spaces."""
    assert normalised(text) == plain


@pytest.mark.parametrize(
    ("answer", "gold", "score", "f1"),
    [
        ("the Chief of Protocol!", "Chief of Protocol", 1.0, 1.0),
        # two of two words said, two of three wanted: 2 · 1 · ⅔ / (1 + ⅔)
        ("chief protocol", "Chief of Protocol", 0.0, 0.8),
        # the repeated word counts once: 1 of 2, 1 of 1
        ("paris paris", "Paris", 0.0, 2 / 3),
        ("London", "Paris", 0.0, 0.0),
        ("yes", "Yes", 1.0, 1.0),
        ("yes", "yes it is", 0.0, 0.0),
        ("no way", "no", 0.0, 0.0),
        ("noanswer", "noanswer here", 0.0, 0.0),
        ("True", "yes", 1.0, 1.0),  # what a comparison of two results prints
        ("False", "yes", 0.0, 0.0),
        ("True", "True Blood", 0.0, 2 / 3),
        ("no", "False", 0.0, 0.0),
    ],
)
def test_exact_match_and_f1_as_hotpotqa_publishes_them(answer, gold, score, f1):
    """yes, no and noanswer share nothing with another text; F1 is beside and never in the score."""
    found = grade(Metric.EXACT_MATCH, answer, gold)
    assert (found.score, found.correct, found.element) == (score, score == 1, None)
    assert found.f1 == pytest.approx(f1)


# --- steps of a page --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("answer", "gold", "element", "f1"),
    [
        ("CLICK [57]", "CLICK [12|57]", 1.0, 1.0),
        ("CLICK [5]", "CLICK [12|57]", 0.0, 1.0),
        # TYPE Ricky against TYPE Ricky Kej: 2 of 2, 2 of 3
        ("TYPE [7] Ricky", "TYPE [7] Ricky Kej", 1.0, 0.8),
        ("CLICK [7]", "TYPE [7] Ricky Kej", 1.0, 0.0),
        ("CLICK [12|57]", "CLICK [12|57]", 0.0, 0.0),  # a prediction names one element
        ("click 12", "CLICK [12]", 0.0, 0.0),
    ],
)
def test_a_step_succeeds_when_element_and_operation_are_right(answer, gold, element, f1):
    """Mind2Web's three figures of a step."""
    found = grade(Metric.WEB_STEP, answer, gold)
    assert (found.element, found.f1) == (element, pytest.approx(f1))
    assert (found.score, found.correct) == (float(element == f1 == 1), element == f1 == 1)


# --- rewards ----------------------------------------------------------------------------------------------------------


@pytest.mark.trap(36)
@pytest.mark.parametrize(
    ("answer", "score"),
    [
        ("0.75", 0.75),
        ("1.0", 1.0),
        ("1", 1.0),
        ("0", 0.0),
        ("1e-05", 1e-05),
        ("1.5", 0.0),
        ("-0.5", 0.0),
        ("nan", 0.0),
        ("inf", 0.0),
        ("1_0", 0.0),
        ("１", 0.0),
        ("reward 1", 0.0),
    ],
)
def test_a_reward_is_a_number_from_0_to_1(answer, score):
    """Anything else is worth nothing and stays in the mean; full reward alone is success."""
    assert grade(Metric.REWARD, answer, "1") == Grade(score, score == 1)


# --- text -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("answer", "right"), [("x = 5", True), (" X =  5.", True), ("x = -5", False), ("x + 5", False)])
def test_a_result_that_is_no_number_is_compared_with_its_signs(answer, right):
    """Where the metric of questions drops punctuation, equations of other signs would be equal."""
    assert grade(Metric.TEXT, answer, "x = 5").correct is right

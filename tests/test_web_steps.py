"""Steps as text and their scores: moat/web_steps.py."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from moat.web_steps import OPERATIONS, Step, StepScore, parse_step, render_step, score_step, step_metrics

LIGHT = settings(deadline=None, max_examples=100)


@pytest.mark.parametrize(
    ("step", "text"),
    [
        (("CLICK", ["12"]), "CLICK [12]"),
        (("CLICK", ["12", "57"]), "CLICK [12|57]"),
        (("TYPE", ["7"], "Ricky Kej"), "TYPE [7] Ricky Kej"),
        (("TYPE", ["7"], "  a\n b "), "TYPE [7] a b"),
        (("SELECT", ["3"], "[1] x|y"), "SELECT [3] [1] x|y"),
    ],
)
def test_a_step_is_one_line(step, text):
    assert render_step(*step) == text


@given(
    st.sampled_from(OPERATIONS),
    st.lists(st.from_regex(r"[0-9a-z-]{1,5}", fullmatch=True), min_size=1, max_size=3),
    st.text(max_size=20),
)
@LIGHT
def test_a_step_reads_back(operation, elements, value):
    assert parse_step(render_step(operation, elements, value)) == Step(operation, tuple(elements), " ".join(value.split()))


@pytest.mark.parametrize("step", [("HOVER", ["1"]), ("CLICK", []), ("CLICK", ["1 2"]), ("CLICK", ["1]"]), ("CLICK", [""])])
def test_what_is_no_step_is_not_written(step):
    with pytest.raises(ValueError, match="no step"):
        render_step(*step)


@pytest.mark.parametrize("text", ["", "CLICK", "CLICK 12", "CLICK []", "CLICK [1|]", "click [1]", "CLICK [1]x", "GO [1]"])
def test_what_is_no_step_is_not_read(text):
    with pytest.raises(ValueError, match="no step"):
        parse_step(text)


@pytest.mark.parametrize(
    ("predicted", "gold", "element", "f1", "success"),
    [
        ("CLICK [12]", "CLICK [12]", True, 1.0, True),
        ("CLICK [57]", "CLICK [12|57]", True, 1.0, True),
        ("CLICK [5]", "CLICK [12|57]", False, 1.0, False),
        ("TYPE [7] Ricky Kej", "TYPE [7] Ricky Kej", True, 1.0, True),
        # {TYPE, Ricky} and {TYPE, Ricky, Kej}: 2 shared of 2 and 3, F1 = 4/5
        ("TYPE [7] Ricky", "TYPE [7] Ricky Kej", True, 0.8, False),
        # {SELECT, a} and {TYPE, a}: 1 shared of 2 and 2
        ("SELECT [7] a", "TYPE [7] a", True, 0.5, False),
        ("CLICK [7]", "TYPE [7] a", True, 0.0, False),
        # {CLICK} and {TYPE, TYPE's text CLICK}: words of value and operation are one set, as in the authors' code
        ("CLICK [7]", "TYPE [7] CLICK", True, 2 / 3, False),
        # sets: a repeated word counts once, order does not count
        ("TYPE [7] b a", "TYPE [7] a b b", True, 1.0, True),
        ("TYPE [7] ricky kej", "TYPE [7] Ricky Kej", True, 1 / 3, False),  # TYPE alone: 1 shared of 3 and 3
    ],
)
def test_scores_of_a_step_by_hand(predicted, gold, element, f1, success):
    assert score_step(predicted, gold) == StepScore(element, pytest.approx(f1), success)


@pytest.mark.trap(33)
@pytest.mark.parametrize("predicted", [None, "", "no step", "CLICK [12|57]", "CLICK"])
def test_a_failure_scores_nothing_and_is_told_apart(predicted):
    assert score_step(predicted, "CLICK [12|57]") == StepScore(False, 0.0, False, failed=True)


def test_a_bad_gold_is_an_error():
    with pytest.raises(ValueError, match="no step"):
        score_step("CLICK [1]", "nothing")


def test_means_over_steps_and_over_episodes_by_hand():
    """Episode a: right; wrong element with F1 1; failed. Episode b: right element with F1 0.8. Episode c: right.

    Steps: element 3/5, F1 (1 + 1 + 0 + 0.8 + 1) / 5, success 2/5. Episodes: element (1/3 + 1 + 1) / 3, F1
    (2/3 + 0.8 + 1) / 3, success (1/3 + 0 + 1) / 3, whole episodes 1/3.
    """
    found = step_metrics(
        [
            ("a", "CLICK [1]", "CLICK [1]"),
            ("b", "TYPE [7] Ricky", "TYPE [7] Ricky Kej"),
            ("a", "CLICK [2]", "CLICK [1]"),
            ("a", None, "CLICK [1]"),
            ("c", "SELECT [3] x", "SELECT [3|4] x"),
        ]
    )
    assert (found.n, found.failed, found.n_episodes) == (5, 1, 3)
    assert found.element_accuracy == pytest.approx(3 / 5)
    assert found.operation_f1 == pytest.approx(3.8 / 5)
    assert found.step_success == pytest.approx(2 / 5)
    assert found.macro_element_accuracy == pytest.approx((1 / 3 + 1 + 1) / 3)
    assert found.macro_operation_f1 == pytest.approx((2 / 3 + 0.8 + 1) / 3)
    assert found.macro_step_success == pytest.approx((1 / 3 + 0 + 1) / 3)
    assert found.episode_success == pytest.approx(1 / 3)


def test_no_steps_have_no_means():
    with pytest.raises(ValueError, match="no steps"):
        step_metrics([])

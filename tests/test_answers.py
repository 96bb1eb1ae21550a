"""Comparing answers: moat/answers.py."""

from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from moat.answers import parse_number, same_answer

LIGHT = settings(deadline=None, max_examples=100)


@pytest.mark.trap(32)
@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("18", Fraction(18)),
        ("18.0", Fraction(18)),
        ("$18", Fraction(18)),
        ("€ 18", Fraction(18)),
        ("1,000", Fraction(1000)),
        ("1,234,567.50", Fraction(2469135, 2)),
        ("9/2", Fraction(9, 2)),
        ("-9 / 2", Fraction(-9, 2)),
        ("10.", Fraction(10)),
        (".5", Fraction(1, 2)),
        ("007", Fraction(7)),
        ("-3", Fraction(-3)),
        ("+3", Fraction(3)),
        ("−3", Fraction(-3)),
        ("-$3", Fraction(-3)),
        ("$-3", Fraction(-3)),
        ("-.5", Fraction(-1, 2)),
        ("18 dollars", Fraction(18)),
        ("-18 dollars.", Fraction(-18)),
        ("3 square feet", Fraction(3)),
        ("50%", Fraction(1, 2)),
        ("-50 %", Fraction(-1, 2)),
        ("50 percent", Fraction(1, 2)),
        ("  18\n", Fraction(18)),
    ],
)
def test_a_number_is_read_by_value(text, value):
    assert parse_number(text) == value


@pytest.mark.parametrize(
    "text",
    [
        "",
        " ",
        "-",
        "$",
        "eighteen",
        "18 or 19",
        "18 and more",
        "18, 19",
        "18 19",
        "3-4",
        "9/2/3",
        "1 1/2",
        "9/0",
        "12:30",
        "about 18",
        "x = 18",
        "5 million",
        "3 dozen eggs",
        "2 thirds",
        "5 below",
        "18 dollars and fifty",
        "1,00",
        "1,000,5",
        "10..",
        "1e3",
        "1_000",
        "18km",
        "(3)",
        "- 3",
        "--3",
        "-$-3",
        "–3",
        "3-",
        "1/2%",
        "nan",
        "inf",
        "True",
        "１８",
        "٣",
        "1" * 501,
    ],
)
def test_a_text_that_is_not_one_sure_number_is_none(text):
    assert parse_number(text) is None


@LIGHT
@given(st.integers(-(10**9), 10**9), st.sampled_from(["{}", "{}.0", "{}.", "{} dollars", "{}/1", "  {}"]))
def test_every_spelling_of_a_whole_number_keeps_its_value_and_sign(number, spelling):
    assert parse_number(spelling.format(number)) == number
    assert parse_number(spelling.format(f"{number:,}")) == number


@LIGHT
@given(st.text(st.characters()) | st.text("0123456789.,$%/-+− or", max_size=20))
def test_any_text_is_a_number_or_none(text):
    value = parse_number(text)
    assert value is None or isinstance(value, Fraction)


@pytest.mark.trap(32)
@pytest.mark.parametrize(
    ("predicted", "gold"),
    [
        ("18", "18.0"),
        ("$18", "18"),
        ("1000", "1,000"),
        ("4.5", "9/2"),
        ("10", "10."),
        ("-3", "-$3"),
        ("18", "18 dollars"),
        ("0.5", "50%"),
    ],
)
def test_numbers_of_equal_value_are_the_same_answer(predicted, gold):
    assert same_answer(predicted, gold)


@pytest.mark.trap(32)
@pytest.mark.parametrize(
    ("predicted", "gold"),
    [
        ("3", "-3"),
        ("3", "−3"),
        ("4", "4.5"),  # a gold is not cut to an integer
        ("0.33", "1/3"),
        ("18 or 19", "18"),
        ("the answer is 18", "18"),
        ("True", "1"),
        ("no", "0"),
    ],
)
def test_other_values_and_texts_are_not_a_number_gold(predicted, gold):
    assert not same_answer(predicted, gold)


@pytest.mark.parametrize(
    ("predicted", "gold"),
    [
        ("Yes", "yes"),
        ("yes.", "yes"),
        ("True", "yes"),
        ("False", "no"),
        ('"Julius  Caesar"', "julius caesar"),
        ("Beyonce\u0301", "Beyonc\u00e9"),
        ("18 or 19", "18 or 19"),
    ],
)
def test_a_text_gold_is_compared_after_normalising(predicted, gold):
    assert same_answer(predicted, gold)


@pytest.mark.parametrize(
    ("predicted", "gold"), [("no", "yes"), ("5²", "52"), ("52", "5²"), ("yes and no", "yes"), ("not", "no")]
)
def test_another_text_is_another_answer(predicted, gold):
    assert not same_answer(predicted, gold)


@pytest.mark.trap(33)
@pytest.mark.parametrize("predicted", [None, "", "  \n", ".", '""'])
@pytest.mark.parametrize("gold", ["no", "yes", "false", "False", "0", "", "."])
def test_no_answer_is_never_right(predicted, gold):
    assert not same_answer(predicted, gold)

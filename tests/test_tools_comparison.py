"""Comparisons between results: moat/tools/comparison.py. Expected values by hand."""

import pytest

from moat.tools.base import ToolError, ToolErrorKind
from moat.tools.comparison import MAX_DEPTH, MAX_LENGTH, evaluate


def calculate(expression, **results):
    return evaluate(expression, results, lambda text: text.startswith("[Page]"))


@pytest.mark.parametrize(
    ("expression", "results", "value"),
    [
        # numbers, and units that answers ignore
        ("R6 > R3", {"R6": "16", "R3": "3"}, True),
        ("R6 > R3", {"R6": "9", "R3": "16"}, False),  # not as texts
        ("R6 > R3", {"R6": "16 children", "R3": "three kids."}, True),
        ("R1 == R2", {"R1": "8", "R2": "8.0"}, True),
        ("R1 = R2", {"R1": "1,000", "R2": "1000 people"}, True),
        ("R1 != R2", {"R1": "1/2", "R2": "50%"}, False),
        ("R1 >= R2", {"R1": "-3", "R2": "−3"}, True),
        ("R1 ≤ 5", {"R1": "5"}, True),
        ("R1 ≥ 5", {"R1": "4.999"}, False),
        ("R1 ≠ 5", {"R1": "4.999"}, True),
        ("1 < R1 <= 3", {"R1": "3"}, True),
        ("1 < R1 < 3", {"R1": "3"}, False),
        ("R1 > R2", {"R1": "about 1.4 billion", "R2": "328 million people"}, True),
        ("R1 < 1000", {"R1": "~75,000"}, False),
        ("R1 == 1200", {"R1": "twelve hundred"}, True),
        ("R10 > R1", {"R10": "5", "R1": "7"}, False),
        ("R1 - R2 > R3 * 2", {"R1": "100", "R2": "75 m", "R3": "12"}, True),
        ("((R1 + 2) * 3) < 4", {"R1": "-3"}, True),
        # units of a kind
        ("R1 > R2", {"R1": "1.9 m", "R2": "180 cm"}, True),
        ("R1 > R2", {"R1": "1 mile", "R2": "1.6 kilometers"}, True),
        ("R1 == R2", {"R1": "3 feet", "R2": "1 yard"}, True),
        ("R1 == R2", {"R1": "1 pound", "R2": "16 ounces"}, True),
        ("R1 > R2", {"R1": "10 hours", "R2": "1 day"}, False),
        ("R1 > R2", {"R1": "14 months", "R2": "1 year"}, True),
        ("R1 > 150", {"R1": "180 cm"}, True),  # a number without a unit is meant in the other's
        # years and dates
        ("R1 < R2", {"R1": "1206", "R2": "1990"}, True),
        ("R1 < R2", {"R1": "44 BC", "R2": "1206"}, True),
        ("R1 < R2", {"R1": "100 BC", "R2": "44 BCE"}, True),
        ("R1 > R2", {"R1": "AD 33", "R2": "44 BC"}, True),
        ("R1 < R2", {"R1": "12 May 1990", "R2": "June 3rd, 1990"}, True),
        ("R1 == R2", {"R1": "the 12th of May 1990", "R2": "1990-05-12"}, True),
        ("R1 > R2", {"R1": "Sep. 9, 1990", "R2": "10 February 1990"}, True),
        ("R1 < 1991", {"R1": "May 1990"}, True),
        ("R1 >= 1991", {"R1": "12 May 1990"}, False),
        ("R1 != 1991", {"R1": "12 May 1990"}, True),
        # texts
        ("R1 == R2", {"R1": "Paris", "R2": " paris. "}, True),
        ("R1 == R2", {"R1": "Paris", "R2": "Rome"}, False),
        ("R1 != R2", {"R1": "Paris", "R2": "Rome"}, True),
        ('R1 == "Tom and Jerry"', {"R1": "Tom and Jerry"}, True),
        ("R1 == Paris", {"R1": "Paris"}, True),
        # truth
        ("R1 == True", {"R1": "Yes."}, True),
        ("R1 == R2", {"R1": "no", "R2": "False"}, True),
        ("R1 and R2", {"R1": "yes", "R2": "no"}, False),
        ("R1 or R2", {"R1": "yes", "R2": "no"}, True),
        ("not R1", {"R1": "no"}, True),
        ("not R1 or R2", {"R1": "yes", "R2": "yes"}, True),  # not binds most,
        ("R1 or R2 and R3", {"R1": "yes", "R2": "no", "R3": "no"}, True),  # or least
        ("(R1 or R2) AND R3", {"R1": "yes", "R2": "no", "R3": "no"}, False),
        ("(R1 > 3) and not (R2 == R3)", {"R1": "4", "R2": "a", "R3": "b"}, True),
        ("R1", {"R1": "yes"}, True),
    ],
)
def test_comparisons(expression, results, value):
    assert calculate(expression, **results) == str(value)


@pytest.mark.parametrize(
    ("expression", "results", "value"),
    [
        ("2 + 2", {}, "4"),
        ("1/3 * R1", {"R1": "1"}, "1/3"),
        ("R1 ** 2", {"R1": "-3"}, "9"),
        ("100,000 - R1", {"R1": "75,000 people"}, "25000"),
        ("R1 - R2", {"R1": "1990", "R2": "1955"}, "35"),
        ("R1 * 10", {"R1": "2.5 million"}, "25000000"),
        ("R1 + R2", {"R1": "2 cm", "R2": "3 cm"}, "5"),
        ("R1", {"R1": "16 kids"}, "16"),
    ],
)
def test_arithmetic_on_results(expression, results, value):
    assert calculate(expression, **results) == value


@pytest.mark.trap(33)
@pytest.mark.parametrize(
    ("expression", "results"),
    [
        ("R1 == R2", {"R1": "16", "R2": "Paris"}),
        ("R1 > R2", {"R1": "Paris", "R2": "Rome"}),
        ("R1 > R2", {"R1": "yes", "R2": "no"}),
        ("R1 == R2", {"R1": "yes", "R2": "1"}),
        ("R1 > R2", {"R1": "1.9 m", "R2": "3 kg"}),
        ("R1 < R2", {"R1": "1990", "R2": "May 1990"}),
        ("R1 == R2", {"R1": "1990", "R2": "12 May 1990"}),
        ("R1 > R2", {"R1": "3 m", "R2": "12 May 1990"}),
        ("R1 > R2", {"R1": "16 or 17", "R2": "3"}),
        ("R1 > R2", {"R1": "30 February 1990", "R2": "1989"}),
        ("R1 + R2", {"R1": "2 m", "R2": "3 cm"}),
        ("R1 + 2", {"R1": "May 1990"}),
        ("R1 + 2", {"R1": "yes"}),
        ("R1 and R2", {"R1": "3", "R2": "yes"}),
        ("R1 or R2", {"R1": "yes", "R2": "perhaps"}),  # every operand is read
        ("R1 > 3", {"R1": "about"}),
        ("R1 > 3", {"R1": "zero trillion and"}),
        ("R1 < 5 < R2", {"R1": "7", "R2": "x"}),
        ("not", {}),
        ("R1 >", {"R1": "3"}),
        ("R1 == R2", {"R1": "", "R2": ""}),
        ("R1 == R2", {"R1": '"."', "R2": "Rome"}),
        ("R1", {"R1": "Paris"}),
        ("Paris", {}),
        ("", {}),
        ("(R1 > 3", {"R1": "4"}),
        ("R1 > 3)", {"R1": "4"}),
        ("1/0 > 3", {}),
        ("R1 > 3", {"R1": "[Page] 4"}),
        ("__import__('os')", {}),
    ],
)
def test_what_cannot_be_compared_is_a_bad_argument(expression, results):
    """No value is guessed, and in particular none that reads as no."""
    with pytest.raises(ToolError) as caught:
        calculate(expression, **results)
    assert caught.value.kind is ToolErrorKind.BAD_ARGUMENT


@pytest.mark.parametrize(
    ("expression", "results"),
    [
        ("9**9**9 > 1", {}),
        ("not " * (MAX_DEPTH + 2) + "R1", {"R1": "yes"}),
        ("(" * (MAX_DEPTH + 2) + "R1 > 1" + ")" * (MAX_DEPTH + 2), {"R1": "2"}),
        ("1 > 2 or " * MAX_LENGTH, {}),
        ("R1 > 1", {"R1": "2" * (MAX_LENGTH + 1)}),
    ],
)
def test_bounds(expression, results):
    with pytest.raises(ToolError) as caught:
        calculate(expression, **results)
    assert caught.value.kind is ToolErrorKind.SIZE


@pytest.mark.parametrize("text", ["5 > 3", "yes or no", "1) or (1 < 2", "not", "R2", 'a"b', "("])
def test_a_result_is_one_operand(text):
    """Signs, words and names in it are its text: it equals itself, and cannot be put in order."""
    assert calculate("R1 == R3", R1=text, R2="7", R3=text) == "True"
    with pytest.raises(ToolError, match="cannot be compared"):
        calculate("R1 > 1", R1=text, R2="7")

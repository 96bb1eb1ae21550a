"""Solving: moat/tools/equations.py. The tools' own cases are in test_tools_maths.py."""

from fractions import Fraction
from math import sqrt

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from moat.tools.base import ToolError, ToolErrorKind
from moat.tools.equations import Root, roots, solve_one, solve_system
from moat.tools.polynomials import number, ratio, unknown

LIGHT = settings(deadline=None, max_examples=100)
x, y = map(unknown, "xy")


def polynomial(*coefficients):
    """By coefficients from the power 0 up."""
    total = number(0)
    for power, coefficient in enumerate(coefficients):
        total = total + number(coefficient) * x**power
    return total


@LIGHT
@given(st.integers(-30, 30), st.integers(-30, 30), st.integers(-9, 9).filter(bool))
def test_the_roots_of_a_quadratic_are_those_of_the_formula(c, b, a):
    """x = (-b ± sqrt(b² - 4ac)) / 2a, in floating point, and the brackets and texts of ours beside it."""
    found = roots(polynomial(c, b, a), "x")
    discriminant = b * b - 4 * a * c
    expected = sorted({(-b + sign * sqrt(discriminant)) / (2 * a) for sign in (-1, 1)}) if discriminant >= 0 else []
    assert [sum(root.bracket(60)) / 2 for root in found] == pytest.approx(expected)


@pytest.mark.parametrize(
    ("root", "text"),
    [
        (Root((-3, 2)), "1.5"),
        (Root((-2, 0, 1)), "-sqrt(2)"),
        (Root((-12, 0, 1), upper=True), "2*sqrt(3)"),
        (Root((-1, -2, 1)), "1 - sqrt(2)"),
        (Root((-1, 1, 1), upper=True), "(-1 + sqrt(5))/2"),
        (Root((-1, 0, 2), upper=True), "sqrt(2)/2"),
        (Root((-1, 0, 3)), "-sqrt(3)/3"),
        (Root((-5, -4, 4), upper=True), "(1 + sqrt(6))/2"),
    ],
)
def test_a_root_is_printed_shortened(root, text):
    assert str(root) == text


@LIGHT
@given(st.sets(st.fractions(-9, 9, max_denominator=4), min_size=1, max_size=3), st.integers(2, 9))
def test_roots_of_a_product_rise(rationals, square):
    product = polynomial(-square, 0, 1)
    for value in rationals:
        product = product * (x - number(value))
    middles = [sum(root.bracket(60)) / 2 for root in roots(product, "x")]
    assert middles == pytest.approx(sorted({*map(float, rationals), sqrt(square), -sqrt(square)}))


@pytest.mark.parametrize(
    "root", [Root((-2, 0, 1)), Root((-2, 0, 1), upper=True), Root((-1, -1, 3), upper=True), Root((-7, 3, 2))]
)
def test_a_bracket_holds_its_root_and_narrows(root):
    c, b, a = root.factor
    for bits in (1, 8, 64):
        low, high = root.bracket(bits)
        assert low < high <= low + Fraction(1, 2**bits)
        assert (a * low**2 + b * low + c) * (a * high**2 + b * high + c) < 0


def test_a_number_that_makes_a_divisor_zero_is_no_solution():
    assert solve_one([polynomial(-1, 0, 1)], [ratio(x - number(1))], "x") == [Root((1, 1))]


def test_an_irrational_number_that_makes_a_divisor_zero_is_no_solution():
    assert solve_one([polynomial(-2, 0, 1) * x], [ratio(polynomial(-2, 0, 1))], "x") == [Root((0, 1))]


def test_equations_in_one_unknown_share_their_solutions():
    assert solve_one([polynomial(-1, 0, 1), polynomial(1, 1)], [], "x") == [Root((1, 1))]


@LIGHT
@given(st.fractions(-6, 6, max_denominator=3), st.fractions(-6, 6, max_denominator=3), st.sampled_from(["+", "-"]))
def test_a_sum_and_a_product_give_their_numbers_in_both_orders(a, b, sign):
    solutions = solve_system([x + y - number(a + b), x * y - number(a * b)], [])
    assert [(s["x"], s["y"]) for s in solutions] == sorted({(a, b), (b, a)})


@LIGHT
@given(st.integers(-4, 4), st.integers(-4, 4))
def test_elimination_finds_every_solution(a, b):
    """x² + y² and x² - y² fix x² and y²: all signs."""
    solutions = solve_system([x**2 + y**2 - number(a * a + b * b), x**2 - y**2 - number(a * a - b * b)], [])
    assert [(s["x"], s["y"]) for s in solutions] == sorted({(p, q) for p in (a, -a) for q in (b, -b)})


@pytest.mark.parametrize(
    "equations",
    [
        [x + y - number(3)],
        [x * y, x],
        [x**2 + y**2 - number(3), x * y - number(1)],
        [x**2 + y**2],
        [(x + y) * (x - y), (x + y) * (x**2 + number(1))],
    ],
)
def test_what_is_not_determined_or_not_rational_is_refused(equations):
    with pytest.raises(ToolError) as caught:
        solve_system(equations, [])
    assert caught.value.kind == ToolErrorKind.NO_RESULT


def test_a_system_that_contradicts_itself_has_no_solutions():
    assert solve_system([x + y, x * y - number(1), x - number(1)], []) == []


def test_an_unknown_that_only_a_contradiction_leaves_open_is_no_matter():
    """x·y = 6 and x·y = 7: no x can be 0, so it does not matter that y would be open there."""
    assert solve_system([x * y - number(6), x * y - number(7)], []) == []

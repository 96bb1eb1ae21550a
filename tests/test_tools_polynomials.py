"""Polynomials and quotients: moat/tools/polynomials.py, by an independent implementation (sympy, on numbers alone)."""

from fractions import Fraction

import pytest
import sympy
from hypothesis import given, settings
from hypothesis import strategies as st

from moat.tools.base import ToolError, ToolErrorKind
from moat.tools.expressions import parse_one
from moat.tools.polynomials import MAX_DEGREE, MAX_TERMS, Polynomial, divide, number, ratio, unknown

LIGHT = settings(deadline=None, max_examples=100)
x, y, z = map(unknown, "xyz")
X, Y, Z = sympy.symbols("x y z")
SYMBOLS = {"x": X, "y": Y, "z": Z}

exponents = st.tuples(*[st.integers(0, 2)] * 3)
values = st.fractions(-9, 9, max_denominator=5)


@st.composite
def pairs(draw):
    """A polynomial, and the same of sympy."""
    ours, theirs = number(0), sympy.Integer(0)
    for powers, value in draw(st.dictionaries(exponents, values, max_size=4)).items():
        a, b, c = powers
        ours = ours + number(value) * x**a * y**b * z**c
        theirs += sympy.Rational(value.numerator, value.denominator) * X**a * Y**b * Z**c
    return ours, theirs


def as_sympy(quotient):
    def total(polynomial):
        terms = polynomial.terms.items()
        return sympy.Add(
            *(sympy.Rational(c.numerator, c.denominator) * sympy.Mul(*(SYMBOLS[n] ** e for n, e in m)) for m, c in terms)
        )

    return total(quotient.over) / total(quotient.under)


@LIGHT
@given(pairs(), pairs(), st.integers(0, 2))
def test_sums_products_and_powers_are_those_of_sympy(left, right, power):
    ours = left[0] * right[0] + left[0] - right[0] ** power
    theirs = sympy.expand(left[1] * right[1] + left[1] - right[1] ** power)
    assert sympy.expand(as_sympy(ratio(ours)) - theirs) == 0


@settings(deadline=None, max_examples=30)
@given(pairs(), pairs(), pairs())
def test_quotients_are_those_of_sympy(a, b, c):
    if not b[0] or not c[0]:
        return
    ours = ratio(a[0], b[0]) + ratio(a[0], c[0])
    assert sympy.cancel(as_sympy(ours) - a[1] / b[1] - a[1] / c[1]) == 0


@LIGHT
@given(pairs(), pairs())
def test_a_product_divides_into_its_factors(a, b):
    if b[0]:
        assert divide(a[0] * b[0], b[0]) == a[0]


@LIGHT
@given(pairs())
def test_a_printed_polynomial_reads_back(pair):
    assert parse_one(str(pair[0])).sides == (ratio(pair[0]),)


@LIGHT
@given(st.lists(values, max_size=4), st.lists(values, max_size=4), st.lists(values, max_size=2))
def test_a_quotient_in_one_unknown_is_in_lowest_terms(over, under, shared):
    def product(roots):
        result = number(1)
        for root in roots:
            result = result * (x - number(root))
        return result

    quotient = ratio(product(over) * product(shared), product(under) * product(shared))
    left = list(over)
    for root in under:
        if root in left:
            left.remove(root)
    assert quotient.over.total_degree == len(left)
    assert quotient == ratio(product(over), product(under))


@pytest.mark.parametrize(
    ("quotient", "text"),
    [
        (ratio(x * x - number(1), x - number(1)), "x + 1"),
        (ratio(x * x * y, x * y), "x"),
        (ratio(x, y), "x/y"),
        (ratio(x + y, x * y), "(x + y)/(x*y)"),
        (ratio(number(1), x**2), "1/(x^2)"),
        (ratio(-x, number(3)), "-1/3*x"),
        (ratio(x - y, y - x), "-1"),
        (ratio(number(0), x), "0"),
    ],
)
def test_a_quotient_is_printed_shortened(quotient, text):
    assert str(quotient) == text
    assert parse_one(text).sides == (quotient,)


def test_values_are_put_in_place_of_unknowns():
    quotient = ratio(x + y, x - y).bind({"x": ratio(number(Fraction(1, 2))), "y": ratio(z)})
    assert quotient == ratio(number(1) + number(2) * z, number(1) - number(2) * z)


def test_a_value_that_divides_by_zero_is_a_bad_argument():
    with pytest.raises(ToolError) as caught:
        ratio(x, x - number(1)).bind({"x": ratio(number(1))})
    assert caught.value.kind == ToolErrorKind.BAD_ARGUMENT


@pytest.mark.trap(31)
@pytest.mark.parametrize(
    "build",
    [
        lambda: x ** (MAX_DEGREE + 1),
        lambda: ratio(x) ** 10**9,
        lambda: (x + y + z + number(1)) ** 6,
        lambda: number(10**199) * number(10),
        lambda: sum((unknown(f"x{i}") for i in range(9)), number(0)),
    ],
)
def test_what_is_too_large_is_refused_by_its_size(build):
    with pytest.raises(ToolError) as caught:
        build()
    assert caught.value.kind == ToolErrorKind.SIZE


def test_what_is_just_within_the_bounds_is_there():
    assert (x**MAX_DEGREE).total_degree == MAX_DEGREE
    assert len(((x + y + number(1)) ** 9).terms) == 55 <= MAX_TERMS


def test_no_coefficient_is_zero():
    assert (x - x) == Polynomial({})

"""Solving equations, systems of them and inequalities, exactly, for the real numbers.

What is solved: one unknown of a degree up to `polynomials.MAX_DEGREE`, whose solutions are rational or roots of quadratic
factors (`1 + sqrt(2)`); linear systems; and systems in which substitution, unknown by unknown, or in two unknowns a
resultant, leads to one unknown, with rational solutions. Anything else is refused: a solution is never approximated and
a list of solutions never incomplete.

sympy does two things here, on whole-number coefficients, never on text: it factors a polynomial in one unknown, and takes
a resultant of two in two unknowns. The bounds on degrees and digits keep both to well under a second.
"""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import pairwise
from typing import NoReturn

from moat.calculator import format_number
from moat.tools.base import ToolError, ToolErrorKind
from moat.tools.expressions import Statement
from moat.tools.polynomials import Polynomial, Ratio, common_divisor, divide, number, ratio

MAX_EQUATIONS = 8
MAX_PARTS = 40  # polynomials that a system of inequalities compares or divides by
MAX_CUTS = 40  # of the line, in an inequality
MAX_BRANCHES = 60  # substitutions tried in one system
MAX_RESULTANT_DEGREE = 4  # total degree of each of the two polynomials
MAX_RESULTANT_DIGITS = 20  # of a coefficient of theirs
_SQUARES = 1_000  # squares of numbers below this are taken out of a root


@dataclass(frozen=True, slots=True)
class Root:
    """A real root: rational (`factor` is linear), or the lower or upper one of a quadratic without rational roots.

    `factor` holds whole coefficients without a common divisor, from the power 0 up, the last one positive. A root has one
    factor, so two roots are the same number exactly when they are equal as data.
    """

    factor: tuple[int, ...]
    upper: bool = False

    @property
    def rational(self) -> Fraction | None:
        """Its value where that is rational."""
        return Fraction(-self.factor[0], self.factor[1]) if len(self.factor) == 2 else None

    def bracket(self, bits: int) -> tuple[Fraction, Fraction]:
        """Two rational numbers with the root between them, closer to each other the more bits; equal when rational."""
        if (value := self.rational) is not None:
            return value, value
        c, b, a = self.factor
        low = Fraction(math.isqrt((b * b - 4 * a * c) << 2 * bits), 1 << bits)
        ends = (low, low + Fraction(1, 1 << bits))
        values = [(-b + end) / (2 * a) if self.upper else (-b - end) / (2 * a) for end in ends]
        return min(values), max(values)

    def __str__(self) -> str:
        if (value := self.rational) is not None:
            return format_number(value)
        c, b, a = self.factor
        inside, outside = b * b - 4 * a * c, 1
        for factor in range(_SQUARES, 1, -1):
            if inside % (factor * factor) == 0:
                inside, outside = inside // (factor * factor), outside * factor
        shared = math.gcd(b, outside, 2 * a)
        b, outside, under = -b // shared, outside // shared, 2 * a // shared
        root = f"sqrt({inside})" if outside == 1 else f"{outside}*sqrt({inside})"
        sign = "" if self.upper else "-"
        text = f"{sign}{root}" if b == 0 else f"{b} {sign or '+'} {root}"
        return text if under == 1 else f"({text})/{under}" if b else f"{text}/{under}"


Solution = Mapping[str, Fraction]


def roots(polynomial: Polynomial, name: str) -> list[Root]:
    """The distinct real roots of a polynomial in one unknown, not 0, rising. Raises ToolError where one has no form here."""
    found: list[Root] = []
    for factor in _factors(polynomial, name):
        if len(factor) == 2:
            found.append(Root(factor))
        elif len(factor) == 3:
            if factor[1] ** 2 > 4 * factor[0] * factor[2]:
                found += [Root(factor), Root(factor, upper=True)]
        elif _has_real_roots(factor):
            _none(f"a root of a factor of degree {len(factor) - 1} has no exact form here")
    return _rising(found)


def solve_one(equations: Sequence[Polynomial], divisors: Sequence[Ratio], name: str) -> list[Root]:
    """The numbers at which all polynomials in one unknown are 0 and no divisor is. Raises ToolError."""
    shared = equations[0]
    for equation in equations[1:]:
        shared = common_divisor(shared, equation, name)
    if not shared:
        _none("every number is a solution")
    zeros = [divisor.over for divisor in divisors if divisor.unknowns] + [divisor.under for divisor in divisors]
    return [root for root in roots(shared, name) if not any(_is_root(root, zero, name) for zero in zeros)]


def solve_system(equations: Sequence[Polynomial], divisors: Sequence[Ratio]) -> list[Solution]:
    """The solutions of a system in several unknowns, each of which it determines. Raises ToolError."""
    if len(equations) > MAX_EQUATIONS:
        raise ToolError(ToolErrorKind.SIZE, f"{len(equations)} equations, more than {MAX_EQUATIONS}")
    names = tuple(sorted({name for equation in equations for name in equation.unknowns}))
    search = _Search()
    solutions: list[Solution] = []
    for values in search.solutions(list(equations), names):
        if values not in solutions and not any(_vanishes(divisor, values) for divisor in divisors):
            solutions.append(values)
    return sorted(solutions, key=lambda solution: [solution[name] for name in names])


def solve_inequality(statements: Sequence[Statement], divisors: Sequence[Ratio], name: str) -> str:
    """The numbers for which all statements hold, as intervals: `(-oo, 2] U (3, oo)`, `{1}`. Raises ToolError.

    The line is cut at every root of every polynomial that the statements compare or divide by: between two cuts no sign
    changes, so that one point decides, and at a cut a polynomial is 0 or has the sign that it has beside it.
    """
    conditions = [
        (left - right, relation)
        for statement in statements
        for (left, right), relation in zip(pairwise(statement.sides), statement.relations, strict=True)
    ]
    under = [condition.under for condition, _ in conditions]
    under += [part for divisor in divisors for part in (divisor.over, divisor.under)]
    parts = [part for part in [*under, *(condition.over for condition, _ in conditions)] if part.unknowns]
    if len(parts) > MAX_PARTS or sum(part.total_degree for part in parts) > MAX_CUTS:
        raise ToolError(ToolErrorKind.SIZE, f"more than {MAX_PARTS} polynomials, or more than {MAX_CUTS} roots")
    cuts = _rising({root for part in parts for root in roots(part, name)})
    between = _points(cuts)

    def holds(point: Fraction, cut: Root | None = None) -> bool:
        if any(_sign(part, name, point, cut) == 0 for part in under):
            return False
        return all(
            _compare(_sign(condition.over, name, point, cut) * _sign(condition.under, name, point, cut), relation)
            for condition, relation in conditions
        )

    open_parts = [holds(point) for point in between]
    at_cuts = [holds(point, cut) for point, cut in zip(between[1:], cuts, strict=True)]
    intervals: list[str] = []
    start: str | None = "(-oo" if open_parts[0] else None
    for cut, at, after, before in zip(cuts, at_cuts, open_parts[1:], open_parts[:-1], strict=True):
        if before and not (at and after):
            intervals.append(f"{start}, {cut}{']' if at else ')'}")
            start = None
        if at and not before and not after:
            intervals.append(f"{{{cut}}}")
        if after and not (at and before):
            start = f"{'[' if at and not before else '('}{cut}"
    if start is not None:
        intervals.append(f"{start}, oo)")
    if not intervals:
        _none("no number satisfies it")
    return " U ".join(intervals)


# --- one unknown ---------------------------------------------------------------------------------------------------


def _whole(polynomial: Polynomial, name: str) -> list[int]:
    """The coefficients times a number that makes them whole, from the power 0 up."""
    values = [part.constant for part in polynomial.coefficients(name)]
    fractions = [value for value in values if value is not None]
    scale = math.lcm(*(value.denominator for value in fractions))
    return [int(value * scale) for value in fractions]


def _factors(polynomial: Polynomial, name: str) -> list[tuple[int, ...]]:
    whole = _whole(polynomial, name)
    if len(whole) == 1:
        return []
    if len(whole) == 2:
        shared = math.gcd(*whole) * (1 if whole[1] > 0 else -1)
        return [(whole[0] // shared, whole[1] // shared)]
    from sympy import ZZ, Poly, Symbol  # slow to import

    _, factors = Poly(whole[::-1], Symbol("x"), domain=ZZ).factor_list()
    return [tuple(int(value) for value in reversed(factor.all_coeffs())) for factor, _ in factors]


def _has_real_roots(factor: tuple[int, ...]) -> bool:
    from sympy import ZZ, Poly, Symbol

    return bool(Poly(list(factor[::-1]), Symbol("x"), domain=ZZ).count_roots() > 0)


def _is_root(root: Root, polynomial: Polynomial, name: str) -> bool:
    """A factor that does not split, so it shares a root with a polynomial only by dividing it."""
    terms = {((name, power),) if power else (): Fraction(value) for power, value in enumerate(root.factor)}
    factor = Polynomial({monomial: value for monomial, value in terms.items() if value})
    return divide(polynomial, factor) is not None


def _rising(found: Iterable[Root]) -> list[Root]:
    found, bits = list(found), 8
    while True:
        brackets = sorted(((root.bracket(bits), root) for root in found), key=lambda pair: pair[0])
        if all(left[0][1] < right[0][0] for left, right in pairwise(brackets)):
            return [root for _, root in brackets]
        bits *= 2  # ends, because the roots differ


def _points(cuts: Sequence[Root]) -> list[Fraction]:
    """A rational point before, between and after the cuts, which rise."""
    if not cuts:
        return [Fraction(0)]
    bits = 8
    while any(left.bracket(bits)[1] >= right.bracket(bits)[0] for left, right in pairwise(cuts)):
        bits *= 2
    ends = [cut.bracket(bits) for cut in cuts]
    inner = [(left[1] + right[0]) / 2 for left, right in pairwise(ends)]
    return [ends[0][0] - 1, *inner, ends[-1][1] + 1]


def _sign(polynomial: Polynomial, name: str, point: Fraction, cut: Root | None) -> int:
    """The sign at a cut, which is the point's sign unless the polynomial is 0 there; or at a point between cuts."""
    if not polynomial or (cut is not None and polynomial.unknowns and _is_root(cut, polynomial, name)):
        return 0
    value = Fraction(0)
    for part in reversed(polynomial.coefficients(name)):
        value = value * point + (part.constant or 0)
    return (value > 0) - (value < 0)


def _compare(sign: int, relation: str) -> bool:
    return {
        "<": sign < 0,
        "<=": sign <= 0,
        ">": sign > 0,
        ">=": sign >= 0,
        "=": sign == 0,
        "==": sign == 0,
        "!=": sign != 0,
    }[relation]


# --- several unknowns ----------------------------------------------------------------------------------------------


class _Search:
    """All solutions of a system, by substitution."""

    def __init__(self) -> None:
        self.branches = 0

    def solutions(self, equations: list[Polynomial], names: Sequence[str]) -> Iterator[Solution]:
        """The values of `names` at which the equations are 0; each equation has no unknowns but these."""
        self.branches += 1
        if self.branches > MAX_BRANCHES:
            raise ToolError(ToolErrorKind.SIZE, f"more than {MAX_BRANCHES} substitutions")
        equations = [equation for equation in equations if equation]
        if any(equation.constant is not None for equation in equations):
            return
        if not names:
            yield {}
            return
        missing = [name for name in names if not any(name in equation.unknowns for equation in equations)]
        if missing:
            for _ in self.solutions(equations, [name for name in names if name not in missing]):
                _none(f"{missing[0]} is not determined")
            return
        if len(names) == 1:
            yield from ({names[0]: value} for value in self.rational(equations, names[0]))
            return
        choices = [
            (len(parts[1].terms) + len(parts[0].terms), parts[1].constant is None, index, name)
            for index, equation in enumerate(equations)
            for name in equation.unknowns
            if len(parts := equation.coefficients(name)) == 2
        ]
        if choices:
            *_, index, name = min(choices, key=lambda choice: (choice[1], choice[0], choice[2], choice[3]))
            yield from self.substituted(equations, index, name, names)
        elif len(names) == 2 and len(equations) >= 2:
            yield from self.eliminated(equations, names)
        else:
            _none("no substitution leads to one unknown")

    def substituted(self, equations: list[Polynomial], index: int, name: str, names: Sequence[str]) -> Iterator[Solution]:
        """`factor * name + rest = 0`: name is -rest/factor where the factor is not 0, and anything where both are 0."""
        rest, factor = equations[index].coefficients(name)
        others = [equation for position, equation in enumerate(equations) if position != index]
        left = [each for each in names if each != name]
        value = ratio(-rest, factor)
        for values in self.solutions([ratio(e).bind({name: value}).over for e in others], left):
            if (scale := _value(factor, values)) != 0:
                yield {**values, name: -_value(rest, values) / scale}
        if factor.constant is None:
            yield from self.solutions([factor, rest, *others], names)

    def eliminated(self, equations: list[Polynomial], names: Sequence[str]) -> Iterator[Solution]:
        first, second = names
        resultant = _resultant(equations[0], equations[1], first, second)
        if not resultant:
            _none("the equations have a common factor")
        for value in self.rational([resultant], second):
            yield from (
                {**values, second: value}
                for values in self.solutions(
                    [ratio(e).bind({second: ratio(number(value))}).over for e in equations], [first]
                )
            )

    def rational(self, equations: list[Polynomial], name: str) -> list[Fraction]:
        values = [root.rational for root in solve_one(equations, (), name)]
        if None in values:
            _none(f"{name} is not rational")
        return [value for value in values if value is not None]


def _resultant(left: Polynomial, right: Polynomial, first: str, second: str) -> Polynomial:
    """The polynomial in `second` that is 0 wherever both are, by elimination of `first`."""
    for polynomial in (left, right):
        large = any(
            max(abs(value.numerator), value.denominator) >= 10**MAX_RESULTANT_DIGITS for value in polynomial.terms.values()
        )
        if large or polynomial.total_degree > MAX_RESULTANT_DEGREE:
            raise ToolError(ToolErrorKind.SIZE, "too large to eliminate an unknown")
    from sympy import QQ, Poly, symbols

    x, y = symbols("x y")

    def poly(polynomial: Polynomial) -> Poly:
        terms = {
            (dict(monomial).get(first, 0), dict(monomial).get(second, 0)): QQ(value.numerator, value.denominator)
            for monomial, value in polynomial.terms.items()
        }
        return Poly(terms, x, y, domain=QQ)

    result = Poly(poly(left).resultant(poly(right)), y, domain=QQ)
    return Polynomial(
        {
            ((second, power),) if power else (): Fraction(int(value.p), int(value.q))
            for (power,), value in result.terms()
            if value != 0
        }
    )


def _value(polynomial: Polynomial, values: Solution) -> Fraction:
    bound = ratio(polynomial).bind({name: ratio(number(value)) for name, value in values.items()}).constant
    if bound is None:
        raise AssertionError("an unknown without a value")
    return bound


def _vanishes(divisor: Ratio, values: Solution) -> bool:
    return 0 in (_value(divisor.over, values), _value(divisor.under, values))


def _none(message: str) -> NoReturn:
    raise ToolError(ToolErrorKind.NO_RESULT, message)

"""Exact polynomials and their quotients in several unknowns, bounded in size: what an expression with unknowns is.

Coefficients are rational numbers. Every operation checks the bounds below before its result goes anywhere, so that no
chain of operations that a model writes takes long. Nothing is approximated, and no text is read here.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import NoReturn

from moat.calculator import MAX_DIGITS, format_number
from moat.tools.base import ToolError, ToolErrorKind

MAX_TERMS = 60  # terms of a polynomial: a product costs at most the square of it
MAX_DEGREE = 12  # total degree of a polynomial
MAX_UNKNOWNS = 8  # of a polynomial
_LIMIT = 10**MAX_DIGITS

Monomial = tuple[tuple[str, int], ...]
"""(unknown, positive exponent) by name; () is 1."""


def bad(message: str) -> NoReturn:
    """Refuse an argument. Raises ToolError."""
    raise ToolError(ToolErrorKind.BAD_ARGUMENT, message)


@dataclass(frozen=True, slots=True)
class Polynomial:
    """A sum of terms; `terms` holds no coefficient 0. Operations raise ToolError (SIZE) beyond the bounds."""

    terms: Mapping[Monomial, Fraction]

    @property
    def unknowns(self) -> tuple[str, ...]:
        """The unknowns, in alphabetical order."""
        return tuple(sorted({name for monomial in self.terms for name, _ in monomial}))

    @property
    def total_degree(self) -> int:
        """The largest sum of exponents of a term; 0 of a constant."""
        return max((sum(exponent for _, exponent in monomial) for monomial in self.terms), default=0)

    @property
    def constant(self) -> Fraction | None:
        """The value of a polynomial without unknowns, None of any other."""
        return self.terms.get((), Fraction(0)) if set(self.terms) <= {()} else None

    def __bool__(self) -> bool:
        return bool(self.terms)

    def __add__(self, other: "Polynomial") -> "Polynomial":
        terms = dict(self.terms)
        for monomial, coefficient in other.terms.items():
            terms[monomial] = terms.get(monomial, Fraction(0)) + coefficient
        return _polynomial(terms)

    def __neg__(self) -> "Polynomial":
        return Polynomial({monomial: -coefficient for monomial, coefficient in self.terms.items()})

    def __sub__(self, other: "Polynomial") -> "Polynomial":
        return self + -other

    def __mul__(self, other: "Polynomial") -> "Polynomial":
        terms: dict[Monomial, Fraction] = {}
        for left, a in self.terms.items():
            for right, b in other.terms.items():
                monomial = _times(left, right)
                terms[monomial] = terms.get(monomial, Fraction(0)) + a * b
        return _polynomial(terms)

    def __pow__(self, exponent: int) -> "Polynomial":
        power = number(1)
        for _ in range(exponent):
            power = power * self
        return power

    def degree(self, name: str) -> int:
        """The largest exponent of an unknown."""
        return max((dict(monomial).get(name, 0) for monomial in self.terms), default=0)

    def coefficients(self, name: str) -> list["Polynomial"]:
        """The coefficients of the powers of one unknown, from its power 0 up; [0] of the polynomial 0."""
        parts: list[dict[Monomial, Fraction]] = [{} for _ in range(self.degree(name) + 1)]
        for monomial, coefficient in self.terms.items():
            rest = tuple(pair for pair in monomial if pair[0] != name)
            parts[dict(monomial).get(name, 0)][rest] = coefficient
        return [Polynomial(part) for part in parts]

    def __str__(self) -> str:
        """`2*x^2 - x*y + 1`, by falling degree; it reads back as the same polynomial."""
        ordered = sorted(self.terms, key=lambda monomial: (-sum(exponent for _, exponent in monomial), _key(monomial)))
        text = ""
        for monomial in ordered:
            coefficient = self.terms[monomial]
            factors = [name if exponent == 1 else f"{name}^{exponent}" for name, exponent in monomial]
            if abs(coefficient) != 1 or not monomial:
                factors.insert(0, format_number(abs(coefficient)))
            sign = "-" if coefficient < 0 else "+"
            text += f" {sign} {'*'.join(factors)}" if text else f"{'-' if coefficient < 0 else ''}{'*'.join(factors)}"
        return text or "0"


def number(value: Fraction | int) -> Polynomial:
    """The polynomial that is a number."""
    return _polynomial({(): Fraction(value)})


def unknown(name: str) -> Polynomial:
    """The polynomial that is one unknown."""
    return Polynomial({((name, 1),): Fraction(1)})


def divide(dividend: Polynomial, divisor: Polynomial) -> Polynomial | None:
    """The quotient where division leaves nothing, None where it does. The divisor is not 0."""
    names = tuple(sorted({*dividend.unknowns, *divisor.unknowns}))

    def leading(polynomial: Polynomial) -> Monomial:
        return max(polynomial.terms, key=lambda monomial: tuple(dict(monomial).get(name, 0) for name in names))

    lead = leading(divisor)
    quotient: dict[Monomial, Fraction] = {}
    rest = dividend
    while rest and len(quotient) <= MAX_TERMS:
        first = leading(rest)
        exponents = {name: dict(first).get(name, 0) - dict(lead).get(name, 0) for name in names}
        if min(exponents.values(), default=0) < 0:
            return None
        monomial = tuple((name, exponent) for name, exponent in exponents.items() if exponent)
        quotient[monomial] = rest.terms[first] / divisor.terms[lead]
        rest = rest - Polynomial({monomial: quotient[monomial]}) * divisor
    return None if rest else _polynomial(quotient)


def common_divisor(left: Polynomial, right: Polynomial, name: str) -> Polynomial:
    """The greatest common divisor, up to a factor, of two polynomials in no unknown but `name`, not both 0."""
    while right:
        left, right = right, _remainder(left, right, name)
    return left


@dataclass(frozen=True, slots=True)
class Ratio:
    """A quotient of polynomials, in lowest terms where it has one unknown. Made by `ratio`."""

    over: Polynomial
    under: Polynomial

    @property
    def unknowns(self) -> tuple[str, ...]:
        """The unknowns, in alphabetical order."""
        return tuple(sorted({*self.over.unknowns, *self.under.unknowns}))

    @property
    def constant(self) -> Fraction | None:
        """The value of a quotient without unknowns, None of any other."""
        return self.over.constant if self.under.constant is not None else None  # `ratio` makes a constant divisor 1

    def __add__(self, other: "Ratio") -> "Ratio":
        if self.under == other.under:
            return ratio(self.over + other.over, self.under)
        return ratio(self.over * other.under + other.over * self.under, self.under * other.under)

    def __neg__(self) -> "Ratio":
        return Ratio(-self.over, self.under)

    def __sub__(self, other: "Ratio") -> "Ratio":
        return self + -other

    def __mul__(self, other: "Ratio") -> "Ratio":
        return ratio(self.over * other.over, self.under * other.under)

    def __truediv__(self, other: "Ratio") -> "Ratio":
        return ratio(self.over * other.under, self.under * other.over)

    def __pow__(self, exponent: int) -> "Ratio":
        if abs(exponent) > MAX_DEGREE:
            raise ToolError(ToolErrorKind.SIZE, f"an unknown to the power {exponent}, more than {MAX_DEGREE}")
        if exponent < 0:
            return ratio(self.under**-exponent, self.over**-exponent)
        return ratio(self.over**exponent, self.under**exponent)

    def bind(self, values: Mapping[str, "Ratio"]) -> "Ratio":
        """The quotient with values in place of some unknowns. Raises ToolError, also where it divides by zero then."""
        return _bound(self.over, values) / _bound(self.under, values)

    def __str__(self) -> str:
        """`x + 1`, `x/y`, or `(x + 1)/(x - 1)`; it reads back as the same quotient."""
        if self.under == number(1):
            return str(self.over)
        over, under = str(self.over), str(self.under)
        return f"{over if len(self.over.terms) == 1 else f'({over})'}/{under if under.isidentifier() else f'({under})'}"


def ratio(over: Polynomial, under: Polynomial | None = None) -> Ratio:
    """A quotient of polynomials, shortened. Raises ToolError for the divisor 0."""
    under = number(1) if under is None else under
    if not under:
        bad("division by zero")
    if under.constant is None and over:
        over, under = _shortened(over, under)
    if not over or (value := under.constant) is None:
        return Ratio(over, under if over else number(1))
    return Ratio(_polynomial({monomial: c / value for monomial, c in over.terms.items()}), number(1))


def _bound(polynomial: Polynomial, values: Mapping[str, Ratio]) -> Ratio:
    total = ratio(number(0))
    for monomial, coefficient in polynomial.terms.items():
        term = ratio(number(coefficient))
        for name, exponent in monomial:
            term = term * values.get(name, ratio(unknown(name))) ** exponent
        total = total + term
    return total


def _shortened(over: Polynomial, under: Polynomial) -> tuple[Polynomial, Polynomial]:
    names = {*over.unknowns, *under.unknowns}
    if len(names) == 1:
        shared = common_divisor(over, under, *names)
    else:  # the general divisor of several unknowns can take long to find: only the plain cases
        every = [dict(monomial) for monomial in (*over.terms, *under.terms)]
        lowest = {name: min(monomial.get(name, 0) for monomial in every) for name in sorted(names)}
        shared = Polynomial({tuple((name, least) for name, least in lowest.items() if least): Fraction(1)})
        if divide(over, under) is not None:
            shared = under
        elif divide(under, over) is not None:
            shared = over
    short_over, short_under = divide(over, shared), divide(under, shared)
    if short_over is None or short_under is None:
        raise AssertionError("a common divisor does not divide")
    lead = short_under.terms[min(short_under.terms, key=lambda monomial: (-sum(e for _, e in monomial), _key(monomial)))]
    scale = number(1 / lead)
    return short_over * scale, short_under * scale


def _remainder(dividend: Polynomial, divisor: Polynomial, name: str) -> Polynomial:
    *_, lead = divisor.coefficients(name)
    while dividend and dividend.degree(name) >= divisor.degree(name):
        *_, first = dividend.coefficients(name)
        factor = first.terms[()] / lead.terms[()]
        gap = dividend.degree(name) - divisor.degree(name)
        dividend = dividend - Polynomial({((name, gap),) if gap else (): factor}) * divisor
    return dividend


def _times(left: Monomial, right: Monomial) -> Monomial:
    if not left or not right:
        return left or right
    exponents = dict(left)
    for name, exponent in right:
        exponents[name] = exponents.get(name, 0) + exponent
    return tuple(sorted(exponents.items()))


def _key(monomial: Monomial) -> list[tuple[str, int]]:
    return [(name, -exponent) for name, exponent in monomial]


def _polynomial(terms: dict[Monomial, Fraction]) -> Polynomial:
    """The polynomial of these terms, less those that are 0. Raises ToolError beyond the bounds."""
    polynomial = Polynomial({monomial: coefficient for monomial, coefficient in terms.items() if coefficient})
    if len(polynomial.terms) > MAX_TERMS:
        raise ToolError(ToolErrorKind.SIZE, f"{len(polynomial.terms)} terms, more than {MAX_TERMS}")
    if polynomial.total_degree > MAX_DEGREE:
        raise ToolError(ToolErrorKind.SIZE, f"a polynomial of degree {polynomial.total_degree}, more than {MAX_DEGREE}")
    if len(polynomial.unknowns) > MAX_UNKNOWNS:
        raise ToolError(ToolErrorKind.SIZE, f"{len(polynomial.unknowns)} unknowns, more than {MAX_UNKNOWNS}")
    if any(abs(c.numerator) >= _LIMIT or c.denominator >= _LIMIT for c in polynomial.terms.values()):
        raise ToolError(ToolErrorKind.SIZE, f"a number of more than {MAX_DIGITS} digits")
    return polynomial

"""Maths text with unknowns, read into exact quotients of polynomials: expressions, equations, inequalities, lists of them.

Reads what `moat.calculator` reads, with the same precedence, and moreover:

- unknowns: a letter, or a word (`p`, `x1`, `total_cost`); a word is a product of letters where each of its letters stands
  alone elsewhere in the text (`x*y` in `x + y = 5, xy = 6`);
- products without a sign: `2p/5`, `3(x + 1)`, `(x + 1)(x - 1)`; after a division they are refused, because `1/2x` is read
  in two ways;
- units: words after a number and a space (`5 apples * 3`, `18 dollars`), which are left out. Words that count (`dozen`),
  two units in a sum or a comparison, and units beside unknowns are refused: there the value depends on them;
- `50% of 20`; the functions of FUNCTIONS, on numbers alone; sums, products and so on of equations, side by side.

Text is cut into tokens, bounded in number and depth, and read by a descent of its own into `moat.tools.polynomials`,
whose values are bounded. Nothing is evaluated as code, and no other library reads the text (trap 31).
"""

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from typing import NoReturn

from moat.calculator import MAX_DEPTH, MAX_DIGITS, NUMBER, CalculationError, CalculationErrorKind, operate
from moat.tools.base import ToolError, ToolErrorKind
from moat.tools.polynomials import Ratio, bad, number, ratio, unknown

MAX_LENGTH = 4_000  # characters of a text, results put in
MAX_NAME = 100  # characters of an unknown's name
MAX_OPERATORS = 200  # signs, operators and products without a sign
MAX_FACTORIAL = 120  # 120! has 199 digits

RELATIONS = ("<", "<=", ">", ">=", "=", "==", "!=")
_TOKEN = re.compile(
    rf"(?P<number>{NUMBER}\.?)|(?P<word>[A-Za-z][A-Za-z0-9_]*)"
    r"|(?P<operator>\*\*|//|<=|>=|==|!=|[-+*/^%=<>×÷−≤≥≠])|(?P<other>[(),$])|(?P<gap>\s+)"
)
_PLAIN = {"×": "*", "÷": "/", "−": "-", "^": "**", "≤": "<=", "≥": ">=", "≠": "!="}
_IMPLICIT = "implicit"  # a product without a sign
# Words that say how many, or join, so that a number before them is not the whole of it.
_COUNTING = frozenset(
    re.findall(
        r"\w+",
        """dozen dozens pair pairs score hundred thousand million billion half halves third thirds quarter quarters fourth
        fifth tenth percent twice double triple squared cubed times plus minus mod and or not is to by of over from than
        if else""",
    )
)


@dataclass(frozen=True, slots=True)
class Statement:
    """An expression (one side), or sides with a relation between each two: `1 < x <= 5` has three sides."""

    sides: tuple[Ratio, ...]
    relations: tuple[str, ...] = ()

    @property
    def unknowns(self) -> tuple[str, ...]:
        """The unknowns of all sides, in alphabetical order."""
        return tuple(sorted({name for side in self.sides for name in side.unknowns}))

    @property
    def is_equation(self) -> bool:
        """Whether it is `left = right`, or more sides that are all equal."""
        return bool(self.relations) and all(relation in ("=", "==") for relation in self.relations)

    def bind(self, values: Mapping[str, Ratio]) -> "Statement":
        """The same with values in place of unknowns. Raises ToolError."""
        return Statement(tuple(side.bind(values) for side in self.sides), self.relations)

    def __str__(self) -> str:
        text = str(self.sides[0])
        for relation, side in zip(self.relations, self.sides[1:], strict=True):
            text += f" {relation} {side}"
        return text


@dataclass(frozen=True, slots=True)
class Parsed:
    """The statements of a text, between its outer commas, and what it divides by: no solution may make that 0."""

    statements: tuple[Statement, ...]
    divisors: tuple[Ratio, ...]


def parse(text: str) -> Parsed:
    """Read statements with commas between them. Raises ToolError: BAD_ARGUMENT with the position, or SIZE."""
    if len(text) > MAX_LENGTH:
        _size(f"{len(text)} characters, more than {MAX_LENGTH}")
    reader = _Reader(_joined(_tokens(text)))
    try:
        return reader.read()
    except RecursionError as error:  # a caller that is itself deep in the stack
        raise ToolError(ToolErrorKind.SIZE, "nested too deeply for the interpreter") from error


def parse_one(text: str) -> Statement:
    """Read one statement. Raises ToolError, also where the text holds several."""
    statements = parse(text).statements
    if len(statements) != 1:
        bad(f"{len(statements)} expressions, expected one")
    return statements[0]


def binding(statement: Statement) -> tuple[str, Ratio] | None:
    """The unknown and its value, of a statement `x = 3`; None of any other."""
    if statement.relations != ("=",) or len(statement.sides) != 2:
        return None
    left, right = statement.sides
    if len(left.unknowns) == 1 and left == ratio(unknown(left.unknowns[0])) and left.unknowns[0] not in right.unknowns:
        return left.unknowns[0], right
    return None


# --- tokens --------------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class _Token:
    kind: str  # number, word, operator, other, end
    text: str
    position: int
    spaced: bool  # white space before it


def _tokens(text: str) -> list[_Token]:
    tokens: list[_Token] = []
    position, spaced = 0, False
    while position < len(text):
        match = _TOKEN.match(text, position)
        if match is None or match.lastgroup is None:
            bad(f"{text[position]!a} at character {position} is not maths")
        if match.lastgroup != "gap":
            tokens.append(_Token(match.lastgroup, _PLAIN.get(match[0], match[0]), position, spaced))
        spaced = match.lastgroup == "gap"
        position = match.end()
    tokens.append(_Token("end", "", len(text), True))
    return tokens


def _joined(tokens: list[_Token]) -> list[_Token]:
    """The tokens with products made explicit, words that are products split, and units left out."""
    letters = {token.text for token in tokens if token.kind == "word" and len(token.text) == 1}
    out: list[_Token] = []
    units: list[_Token] = []
    index = 0
    while index < len(tokens):
        token = tokens[index]
        before = out[-1] if out else None
        follows = before is not None and (before.kind in ("number", "word") or before.text == ")")
        split = token.kind == "word" and len(token.text) > 1 and set(token.text) <= letters
        if token.kind == "word" and token.text == "of" and before is not None and before.text == "%":
            out.append(_Token("operator", "*", token.position, token.spaced))
        elif token.kind == "word" and follows and before is not None:
            if before.kind == "word" or (before.kind == "number" and token.text in FUNCTIONS):
                _unexpected(token)
            if len(token.text) == 1 or split:
                _append_product(out, token, split)
            elif token.spaced:
                index = _unit(tokens, index, units)
                continue
            else:
                bad(f"{token.text[:40]!r} at character {token.position}: write a `*` between a number and a name")
        elif token.text == "(" and follows and before is not None and not (before.text in FUNCTIONS and not token.spaced):
            if token.spaced or before.kind == "word":
                _unexpected(token)
            out += [_Token("operator", _IMPLICIT, token.position, False), token]
        elif split:
            _append_product(out, token, split)
        else:
            if follows and (token.kind == "number" or token.text == "$"):
                _unexpected(token)
            out.append(token)
        index += 1
    _check_units(out, units)
    return out


def _append_product(out: list[_Token], token: _Token, split: bool) -> None:
    """Append a word that is a factor, or each of its letters; a product sign stands between it and what it follows."""
    for letter in token.text if split else (token.text,):
        if out and (out[-1].kind in ("number", "word") or out[-1].text == ")"):
            out.append(_Token("operator", _IMPLICIT, token.position, False))
        out.append(_Token("word", letter, token.position, token.spaced))


def _unit(tokens: list[_Token], start: int, units: list[_Token]) -> int:
    """Note the unit whose words begin at `start`; the index after it."""
    end = start
    while tokens[end].kind == "word":
        if tokens[end].text.lower() in _COUNTING:
            bad(f"{tokens[end].text!r} at character {tokens[end].position} is no unit; write the number out")
        end += 1
    if tokens[end].kind == "number" or tokens[end].text in ("(", "$"):
        _unexpected(tokens[end])
    words = " ".join(token.text.lower() for token in tokens[start:end])
    units.append(_Token("word", words.removesuffix("s"), tokens[start].position, True))
    return end


def _check_units(tokens: list[_Token], units: list[_Token]) -> None:
    if not units:
        return
    names = [token.text for token in tokens if token.kind == "word" and token.text not in FUNCTIONS]
    if names:
        bad(f"{units[0].text[:40]!r} at character {units[0].position}: a unit, or an unknown beside {names[0][:40]!r}?")
    different = {unit.text for unit in units}
    if len(different) > 1 and any(token.text in ("+", "-", *RELATIONS) for token in tokens):
        bad(f"different units, {', '.join(sorted(different))[:80]}, in one sum or comparison")


# --- the descent ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Pair:
    """An equation as an operand: what is done to it is done to both sides."""

    left: Ratio
    right: Ratio


_Value = Ratio | _Pair


@dataclass(slots=True)
class _Reader:
    tokens: list[_Token]
    index: int = 0
    depth: int = 0
    operators: int = 0
    divisors: list[Ratio] = field(default_factory=list)

    def read(self) -> Parsed:
        self.operators = sum(token.kind == "operator" for token in self.tokens)
        if self.operators > MAX_OPERATORS:
            _size(f"{self.operators} operators, more than {MAX_OPERATORS}")
        statements = [self.statement()]
        while self.take(","):
            statements.append(self.statement())
        if self.next.kind != "end":
            _unexpected(self.next)
        return Parsed(tuple(statements), tuple(self.divisors))

    @property
    def next(self) -> _Token:
        return self.tokens[self.index]

    def take(self, *texts: str) -> str | None:
        """The text of the next token, read over, if it is one of these."""
        token = self.next
        if token.kind in ("operator", "other") and token.text in texts:
            self.index += 1
            return token.text
        return None

    def statement(self) -> Statement:
        sides, relations = [self.sum()], []
        while relation := self.take(*RELATIONS):
            relations.append(relation)
            sides.append(self.sum())
        if not relations and isinstance(sides[0], _Pair):
            return Statement((sides[0].left, sides[0].right), ("=",))
        return Statement(tuple(_single(side) for side in sides), tuple(relations))

    def sum(self) -> _Value:
        value = self.product()
        while sign := self.take("+", "-"):
            value = self.combine(sign, value, self.product())
        return value

    def product(self) -> _Value:
        value, last = self.signed(), "*"
        while True:
            percent = self.next.text == "%" and not self.is_percentage()
            sign = self.take("*", "/", "//", _IMPLICIT) or (self.take("%") if percent else None)
            if sign is None:
                return value
            if sign == _IMPLICIT and last not in ("*", _IMPLICIT):
                bad(f"a product without a sign after `{last}`, at character {self.next.position}: write `*` and parentheses")
            value, last = self.combine("*" if sign == _IMPLICIT else sign, value, self.signed()), sign

    def signed(self) -> _Value:
        negative = False
        while sign := self.take("+", "-"):
            negative ^= sign == "-"
        value = self.power()
        return self.combine("*", ratio(number(-1)), value) if negative else value

    def power(self) -> _Value:
        value = self.operand()
        while self.next.text == "%" and self.is_percentage():
            if self.tokens[self.index - 1].text == "%":
                _unexpected(self.next)
            self.index += 1
            value = self.combine("/", value, ratio(number(100)))
        return self.combine("**", value, self.signed()) if self.take("**") else value

    def operand(self) -> _Value:
        token = self.next
        if self.take("$"):
            if self.next.text == "$":
                _unexpected(self.next)
            return self.signed() if self.next.text in ("+", "-") else self.operand()
        self.index += 1
        if token.kind == "number":
            if len(token.text) > 2 * MAX_DIGITS:
                _size(f"a number of {len(token.text)} characters")
            return ratio(number(Fraction(token.text.rstrip(".").replace(",", ""))))
        if token.kind == "word" and token.text in FUNCTIONS:
            return self.call(token)
        if token.kind == "word":
            if len(token.text) > MAX_NAME:
                _size(f"a name of {len(token.text)} characters, more than {MAX_NAME}")
            if re.match(r"R[0-9]", token.text) or token.text.lower() in _COUNTING:
                bad(f"{token.text[:40]!r} at character {token.position} is no name of an unknown")
            return ratio(unknown(token.text))
        if token.text != "(":
            _unexpected(token)
        with_in = self.nested(self.statement)
        if not with_in.relations:
            return with_in.sides[0]
        if len(with_in.sides) != 2 or not with_in.is_equation:
            bad(f"a comparison used as a number, at character {token.position}")
        return _Pair(*with_in.sides)

    def nested(self, read: Callable[[], Statement]) -> Statement:
        """What `read` reads, inside parentheses of which the first is read."""
        self.depth += 1
        if self.depth > MAX_DEPTH:
            _size(f"more than {MAX_DEPTH} parentheses open at once")
        inner = read()
        if not self.take(")"):
            _unexpected(self.next)
        self.depth -= 1
        return inner

    def call(self, name: _Token) -> Ratio:
        if not self.take("("):
            _unexpected(self.next)

        def arguments() -> Statement:
            sides = [_single(self.sum())]
            while self.take(","):
                sides.append(_single(self.sum()))
            return Statement(tuple(sides))

        values = [side.constant for side in self.nested(arguments).sides]
        if None in values:
            bad(f"{name.text} of an unknown, at character {name.position}")
        return ratio(number(call(name.text, [value for value in values if value is not None])))

    def is_percentage(self) -> bool:
        """Whether the `%` that is next is a percentage, by the rule of `moat.calculator`."""
        token, after = self.next, self.tokens[self.index + 1]
        if after.kind in ("number", "word") or after.text in ("(", "$"):
            if after.spaced and not token.spaced:
                bad(f"`%` at character {token.position} is a percentage or a modulo: write `50/100 * 20` or `50 % 20`")
            return False
        if after.text in ("+", "-") and token.spaced:
            bad(f"`%` at character {token.position} is a percentage or a modulo: write `17% - 5` or `17 % (-5)`")
        return True

    def combine(self, sign: str, left: _Value, right: _Value) -> _Value:
        if isinstance(left, _Pair) or isinstance(right, _Pair):
            a = left if isinstance(left, _Pair) else _Pair(left, left)
            b = right if isinstance(right, _Pair) else _Pair(right, right)
            return _Pair(self.numbers(sign, a.left, b.left), self.numbers(sign, a.right, b.right))
        return self.numbers(sign, left, right)

    def numbers(self, sign: str, left: Ratio, right: Ratio) -> Ratio:
        if left.constant is not None and right.constant is not None:
            return ratio(number(exactly(sign, left.constant, right.constant)))
        if sign == "**":
            exponent = right.constant
            if exponent is None or exponent.denominator != 1:
                bad("an exponent must be a whole number")
            if exponent <= 0:
                self.divisors.append(left)  # 0 has no such power
            return left ** int(exponent)
        if sign == "/":
            if right.unknowns:
                self.divisors.append(right)
            return left / right
        if sign in ("//", "%"):
            bad(f"`{sign}` of an unknown")
        return left * right if sign == "*" else left + right if sign == "+" else left - right


def _single(value: _Value) -> Ratio:
    if isinstance(value, _Pair):
        bad("an equation used as a number")
    return value


# --- numbers -------------------------------------------------------------------------------------------------------


def exactly(sign: str, left: Fraction, right: Fraction) -> Fraction:
    """`moat.calculator.operate`, with ToolError in place of its error."""
    try:
        return operate(sign, left, right)
    except CalculationError as error:
        raise tool_error(error) from error


def tool_error(error: CalculationError) -> ToolError:
    """The ToolError that a CalculationError comes to."""
    too_large = error.kind is CalculationErrorKind.TOO_LARGE
    return ToolError(ToolErrorKind.SIZE if too_large else ToolErrorKind.BAD_ARGUMENT, f"{error.kind}: {error.message}")


def call(name: str, values: Sequence[Fraction]) -> Fraction:
    """The value of a function of FUNCTIONS. Raises ToolError."""
    function, fewest, most = FUNCTIONS[name]
    if not fewest <= len(values) <= most:
        bad(f"{name} of {len(values)} numbers")
    return function(*values)


def _root(value: Fraction) -> Fraction:
    if value < 0:
        raise ToolError(ToolErrorKind.NO_RESULT, "the square root of a negative number")
    root = Fraction(math.isqrt(value.numerator), math.isqrt(value.denominator))
    if root * root != value:
        raise ToolError(ToolErrorKind.NO_RESULT, f"sqrt({str(value)[:40]}) is not rational")
    return root


def _round(value: Fraction, places: Fraction = Fraction(0)) -> Fraction:
    if places.denominator != 1 or not 0 <= places <= MAX_DIGITS:
        bad("round to no whole number of places")
    scaled = value * 10 ** int(places)
    if scaled.denominator == 2:
        bad("a value half-way between two is rounded up or to the even one: use floor or ceil")
    return Fraction(round(scaled), 10 ** int(places))


def _whole(value: Fraction) -> int:
    if value.denominator != 1:
        bad(f"{str(value)[:40]} is no whole number")
    return int(value)


def _factorial(value: Fraction) -> Fraction:
    if _whole(value) < 0:
        bad("the factorial of a negative number")
    if value > MAX_FACTORIAL:
        _size(f"the factorial of more than {MAX_FACTORIAL}")
    return Fraction(math.factorial(int(value)))


def _bounded_lcm(*values: Fraction) -> Fraction:
    total = Fraction(1)
    for value in values:
        total = exactly("*", Fraction(math.lcm(int(total), _whole(value))), Fraction(1))
    return total


FUNCTIONS: Mapping[str, tuple[Callable[..., Fraction], int, int]] = {
    "sqrt": (_root, 1, 1),
    "abs": (abs, 1, 1),
    "min": (min, 1, 100),
    "max": (max, 1, 100),
    "round": (_round, 1, 2),
    "floor": (lambda value: Fraction(math.floor(value)), 1, 1),
    "ceil": (lambda value: Fraction(math.ceil(value)), 1, 1),
    "gcd": (lambda *values: Fraction(math.gcd(*map(_whole, values))), 2, 100),
    "lcm": (_bounded_lcm, 2, 100),
    "factorial": (_factorial, 1, 1),
}
"""(function, fewest arguments, most arguments) by name."""


def _unexpected(token: _Token) -> NoReturn:
    what = "the end" if token.kind == "end" else f"{token.text[:20]!r}"
    bad(f"{what} at character {token.position} is not expected there")


def _size(message: str) -> NoReturn:
    raise ToolError(ToolErrorKind.SIZE, message)

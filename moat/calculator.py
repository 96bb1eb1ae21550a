"""Exact arithmetic on text that a model wrote.

Covers: + - * / // % **, unary signs, parentheses, comparisons (chained ones too), whole numbers and decimals; and as
maths texts write them ``×``, ``÷``, ``−``, ``^``, ``≤``, ``≥``, ``≠``, ``1,000``, ``$18`` and ``50%``. Values are
rational numbers, so ``1/3 * 3`` is 1. Precedence is Python's: ``-2^2`` is -4 and ``2^3^2`` is 512.

Does not cover: names, calls, strings, scientific notation (``1e6``), fractional exponents, and implicit products
(``2(3)``, whose precedence readers dispute).

A ``%`` is a modulo when a number or ``(`` follows it, and a percentage (a hundredth) otherwise. Two spellings read
either way and are refused: ``17 % -5`` (a space before it, a sign after it) and ``50% 20`` (a space after it only).

How model text is kept from harm (trap 31): it is never evaluated as Python. It is cut into the tokens above, which have
no letters; those are bounded in number and depth, written as an expression of whole numbers, parsed to a syntax tree,
and the tree is folded over an allow-list of nodes, each intermediate value bounded in digits, and each exponent before
its power is computed.
"""

import ast
import operator
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from fractions import Fraction
from itertools import pairwise

MAX_LENGTH = 2_000  # characters of an expression
MAX_DEPTH = 50  # parentheses open at once
MAX_OPERATORS = 100  # signs and operators of an expression: bounds the depth of its tree, so of the recursion
MAX_EXPONENT = 1_000  # absolute value of an exponent
MAX_DIGITS = 200  # decimal digits of a numerator or denominator, of any value on the way too
MAX_PLACES = 12  # decimal places up to which `format_number` writes a decimal

NUMBER = r"(?:(?:[1-9][0-9]{0,2}(?:,[0-9]{3})+(?![0-9])|[0-9]+)(?:\.[0-9]+)?|\.[0-9]+)"
"""Pattern of an unsigned number: `1000`, `1,000`, `1,000.5`, `0.5`, `.5`, in ASCII digits."""


class CalculationErrorKind(StrEnum):
    """Why an expression has no value."""

    SYNTAX = "syntax"
    NOT_ALLOWED = "not_allowed"
    TOO_LARGE = "too_large"
    DIVISION_BY_ZERO = "division_by_zero"


class CalculationError(ValueError):
    """An expression has no value; `kind` says why, for counting, and the message says where."""

    def __init__(self, kind: CalculationErrorKind, message: str) -> None:
        super().__init__(message)
        self.kind = kind
        self.message = message


Value = Fraction | bool

_TOKEN = re.compile(
    rf"(?P<number>{NUMBER}\.?)|(?P<operator>\*\*|//|<=|>=|==|!=|[-+*/<>^×÷−≤≥≠])|(?P<other>[()$%])|(?P<gap>\s+)"
)
_AS_PYTHON = {"×": "*", "÷": "/", "−": "-", "^": "**", "≤": "<=", "≥": ">=", "≠": "!="}
_LIMIT = 10**MAX_DIGITS

OPERATORS: Mapping[type[ast.operator], str] = {
    ast.Add: "+",
    ast.Sub: "-",
    ast.Mult: "*",
    ast.Div: "/",
    ast.FloorDiv: "//",
    ast.Mod: "%",
    ast.Pow: "**",
}
_ARITHMETIC: dict[str, Callable[[Fraction, Fraction], Fraction | int]] = {
    "+": operator.add,
    "-": operator.sub,
    "*": operator.mul,
    "/": operator.truediv,
    "//": operator.floordiv,
    "%": operator.mod,
}
_COMPARISONS: dict[type[ast.cmpop], Callable[[Fraction, Fraction], bool]] = {
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
}


def calculate(expression: str) -> Value:
    """The exact value of an expression: a rational number, or the truth of a comparison.

    Raises CalculationError, and nothing else, for every text that has no value within the bounds of this module.
    """
    if len(expression) > MAX_LENGTH:
        raise _too_large(f"{len(expression)} characters, more than {MAX_LENGTH}")
    source = _as_python(_tokens(expression))
    try:
        return _value(ast.parse(source, mode="eval").body)
    except SyntaxError as error:
        raise _syntax("an operand is missing") from error
    except (RecursionError, MemoryError) as error:  # a caller that is itself deep in the stack
        raise _too_large("nested too deeply for the interpreter") from error


def operate(symbol: str, left: Fraction, right: Fraction) -> Fraction:
    """The exact value of one operation, `symbol` being one of + - * / // % **, within this module's bounds on digits.

    Raises CalculationError.
    """
    if symbol == "**":
        return _power(left, right)
    try:
        return _bounded(Fraction(_ARITHMETIC[symbol](left, right)))
    except ZeroDivisionError as error:
        raise _division_by_zero() from error


def format_number(value: Value) -> str:
    """The text of a value, without loss: `calculate(format_number(v)) == v` for numbers.

    Whole numbers are plain (`-3`); a decimal that ends within MAX_PLACES places is written out (`0.125`); any other
    number is a fraction in lowest terms (`-1/3`). A truth value is `True` or `False`. A sign and a fraction bind less
    than what may surround them, so put the text in parentheses before placing it in an expression.
    """
    if isinstance(value, bool):
        return str(value)
    if value.denominator == 1:
        return str(value.numerator)
    scale = 10**MAX_PLACES
    if scale % value.denominator:
        return f"{value.numerator}/{value.denominator}"
    digits = str(abs(value.numerator) * (scale // value.denominator)).zfill(MAX_PLACES + 1)
    sign = "-" if value < 0 else ""
    return f"{sign}{digits[:-MAX_PLACES]}.{digits[-MAX_PLACES:].rstrip('0')}"


@dataclass(frozen=True, slots=True)
class _Token:
    kind: str  # number, operator or other
    text: str
    spaced: bool  # white space before it


def _tokens(expression: str) -> list[_Token]:
    tokens: list[_Token] = []
    position, spaced, operators = 0, False, 0
    while position < len(expression):
        match = _TOKEN.match(expression, position)
        if match is None or match.lastgroup is None:
            character = expression[position]
            raise CalculationError(
                CalculationErrorKind.NOT_ALLOWED, f"{character!a} at character {position} is not arithmetic"
            )
        if match.lastgroup != "gap":
            tokens.append(_Token(match.lastgroup, match[0], spaced))
        operators += match.lastgroup == "operator" or match[0] == "%"
        spaced = match.lastgroup == "gap"
        position = match.end()
    if operators > MAX_OPERATORS:
        raise _too_large(f"{operators} operators, more than {MAX_OPERATORS}")
    return tokens


def _as_python(tokens: list[_Token]) -> str:
    """The tokens as a Python expression of whole numbers, operators and balanced parentheses."""
    out: list[str] = []
    opened: list[int] = []  # where in `out` each open parenthesis stands
    operand: int | None = None  # where in `out` the operand just ended begins; None after an operator
    for index, token in enumerate(tokens):
        after = tokens[index + 1] if index + 1 < len(tokens) else None
        if operand is not None and (token.kind == "number" or token.text in ("(", "$")):
            raise _syntax(f"no operator before {token.text[:20]!r}")
        if token.kind == "number":
            operand = len(out)
            out.append(_literal(token.text))
        elif token.text == "(":
            opened.append(len(out))
            out.append("(")
            if len(opened) > MAX_DEPTH:
                raise _too_large(f"more than {MAX_DEPTH} parentheses open at once")
        elif token.text == ")":
            if operand is None or not opened:
                raise _syntax("`)` without an operand or without its `(`")
            operand = opened.pop()
            out.append(")")
        elif token.text == "$":
            if after is None or not (after.kind == "number" or after.text in ("(", "+", "-", "−")):
                raise _syntax("`$` without a number after it")
        elif token.text == "%" and _is_percentage(token, after):
            if operand is None or out[-1] == "/100)":
                raise _syntax("`%` without a number before it")
            out.insert(operand, "(")
            out.append("/100)")
        else:
            operand = None
            out.append(_AS_PYTHON.get(token.text, token.text))
    if opened:
        raise _syntax("`(` is never closed")
    return " ".join(out)


def _is_percentage(token: _Token, after: _Token | None) -> bool:
    """Whether a `%` is a percentage, by the rule in the module's docstring."""
    if after is not None and (after.kind == "number" or after.text in ("(", "$")):
        if after.spaced and not token.spaced:
            raise _syntax("`%` is a percentage or a modulo: write `50/100 * 20` or `50 % 20`")
        return False
    if after is not None and after.text in ("+", "-", "−") and token.spaced:
        raise _syntax("`%` is a percentage or a modulo: write `17% - 5` or `17 % (-5)`")
    return True


def _literal(text: str) -> str:
    if len(text) > 2 * MAX_DIGITS:
        raise _too_large(f"a number of {len(text)} characters")
    value = _bounded(Fraction(text.rstrip(".").replace(",", "")))
    return f"({value.numerator}/{value.denominator})"


def _value(node: ast.expr) -> Value:
    match node:
        case ast.Constant(value=int(number)):
            return Fraction(number)
        case ast.UnaryOp(op=ast.USub()):
            return -_number(node.operand)
        case ast.UnaryOp(op=ast.UAdd()):
            return _number(node.operand)
        case ast.BinOp() if type(node.op) in OPERATORS:
            return operate(OPERATORS[type(node.op)], _number(node.left), _number(node.right))
        case ast.Compare() if all(type(op) in _COMPARISONS for op in node.ops):
            values = [_number(side) for side in (node.left, *node.comparators)]
            return all(_COMPARISONS[type(op)](*pair) for op, pair in zip(node.ops, pairwise(values), strict=True))
    raise CalculationError(CalculationErrorKind.NOT_ALLOWED, f"{type(node).__name__} is not arithmetic")


def _number(node: ast.expr) -> Fraction:
    value = _value(node)
    if isinstance(value, bool):
        raise CalculationError(CalculationErrorKind.NOT_ALLOWED, "a comparison used as a number")
    return value


def _power(base: Fraction, exponent: Fraction) -> Fraction:
    if exponent.denominator != 1:
        raise CalculationError(CalculationErrorKind.NOT_ALLOWED, "an exponent must be a whole number")
    if base == 0 and exponent < 0:
        raise _division_by_zero()
    # Before computing it (trap 31: 9**9**9), so that no number of more than about twice the digits is ever made.
    if abs(exponent) > MAX_EXPONENT:
        raise _too_large(f"a power with the exponent {format_number(exponent)[:20]}")
    bits = max(abs(base.numerator), base.denominator).bit_length() - 1
    if bits * abs(exponent) > _LIMIT.bit_length():
        raise _too_large(f"a number of more than {MAX_DIGITS} digits")
    return _bounded(Fraction(base**exponent.numerator))


def _bounded(value: Fraction) -> Fraction:
    if abs(value.numerator) >= _LIMIT or value.denominator >= _LIMIT:
        raise _too_large(f"a number of more than {MAX_DIGITS} digits")
    return value


def _syntax(message: str) -> CalculationError:
    return CalculationError(CalculationErrorKind.SYNTAX, message)


def _too_large(message: str) -> CalculationError:
    return CalculationError(CalculationErrorKind.TOO_LARGE, message)


def _division_by_zero() -> CalculationError:
    return CalculationError(CalculationErrorKind.DIVISION_BY_ZERO, "division by zero")

"""Comparisons and truth values over results that are texts, for the Calculator of `qa`.

    expression  := conjunction ("or" conjunction)*
    conjunction := negation ("and" negation)*
    negation    := "not" negation | comparison
    comparison  := operand [sign operand]*           sign := > < >= <= == != = ≥ ≤ ≠
    operand     := "(" expression ")" | a result name | arithmetic (moat/calculator.py) | a literal, quoted or not

The expression is cut up before results go into it, so no sign or word inside a result means anything. What a text
stands for is decided by the whole of it:

* truth      `True`, `yes`, `False`, `no`, a full stop aside
* number     as moat/answers.py reads it, also after `about` (around, approximately, roughly, nearly, ~), as a word up to
             twelve, and times hundred … trillion: `75,000 people`, `about 1.4 billion`, `three`
* date       `12 May 1990`, `May 12, 1990`, `May 1990`, `1990-05-12`, `44 BC`, `AD 33`; a whole number from 1 to 9999 is a
             year when it is compared with a date
* text       anything else, equal or not as answers are

Lengths, weights and spans of time are compared in one unit (`1.9 m > 180 cm`); any other unit is ignored, as in answers.

Refused instead of guessed: values of two kinds (`16 == Paris`), an order of texts or truth values, lengths with weights,
dates whose order the coarser one leaves open (`1990 < May 1990`), a number used as a truth value, passages.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import date
from fractions import Fraction
from itertools import pairwise

from moat.actions import references, substitute
from moat.answers import parse_number, same_answer
from moat.calculator import CalculationError, CalculationErrorKind, calculate, format_number
from moat.tools.base import ToolError, ToolErrorKind

MAX_LENGTH = 2_000  # characters of an expression, and of a result that goes into it
MAX_DEPTH = 50  # parentheses and `not` around an operand

_SIGNS = re.compile(r">=|<=|==|!=|[><=≥≤≠]")
_NAMES = {"=": "==", "≥": ">=", "≤": "<=", "≠": "!="}
_COMPARE: dict[str, Callable[..., bool]] = {
    ">": operator.gt,
    "<": operator.lt,
    ">=": operator.ge,
    "<=": operator.le,
    "==": operator.eq,
    "!=": operator.ne,
}
_QUOTED = re.compile(r"\"[^\"]*\"|“[^”]*”")
_LOGIC = re.compile(r"(?<!\w)(?:and|or|not)(?!\w)", re.IGNORECASE)
_TRUTH = {"true": True, "yes": True, "false": False, "no": False}

_NUMBERS = ["zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve"]
_SCALES = {"hundred": 100, "thousand": 10**3, "million": 10**6, "billion": 10**9, "trillion": 10**12}
_HEDGE = re.compile(r"(?:about|around|approximately|roughly|nearly|~)\s*", re.IGNORECASE)
_SCALED = re.compile(rf"(?P<number>[^A-Za-z]*\d)\s*(?P<scale>{'|'.join(_SCALES)})\b(?P<rest>.*)", re.IGNORECASE)
_UNIT = re.compile(r"[^\W\d_]+")

_UNITS: dict[str, tuple[str, Fraction]] = {
    word: (dimension, Fraction(size))
    for dimension, sizes in {
        "length": {
            "mm millimeter millimetre": "0.001",
            "cm centimeter centimetre": "0.01",
            "m meter metre": "1",
            "km kilometer kilometre": "1000",
            "inch inche": "0.0254",
            "ft foot feet": "0.3048",
            "yard": "0.9144",
            "mi mile": "1609.344",
        },
        "weight": {
            "g gram": "0.001",
            "kg kilogram": "1",
            "oz ounce": "0.028349523125",
            "lb pound": "0.45359237",
            "tonne": "1000",
        },
        "time": {
            "second": "1",
            "minute": "60",
            "hour": "3600",
            "day": "86400",
            "week": "604800",
            "month": "2629746",  # a twelfth of a year
            "year": "31556952",  # the mean of the calendar's 400 years
        },
    }.items()
    for names, size in sizes.items()
    for word in names.split()
}

_MONTHS = ["january", "february", "march", "april", "may", "june", "july", "august"]
_MONTHS += ["september", "october", "november", "december"]
_MONTH = "(?P<month>" + "|".join(f"{name[:3]}(?:{name[3:]})?" if len(name) > 3 else name for name in _MONTHS) + r")\.?"
_DAY = r"(?P<day>[0-9]{1,2})(?:st|nd|rd|th)?"
_YEAR = r"(?P<year>[0-9]{1,4})"
_DATES = [
    re.compile(pattern, re.IGNORECASE)
    for pattern in (
        rf"(?:the\s+)?{_DAY}\s+(?:of\s+)?{_MONTH},?\s+{_YEAR}",
        rf"{_MONTH}\s+{_DAY},?\s+{_YEAR}",
        rf"{_MONTH},?\s+{_YEAR}",
        r"(?P<year>[0-9]{4})-(?P<month>[0-9]{2})(?:-(?P<day>[0-9]{2}))?",
        rf"{_YEAR}\s*(?P<era>BCE|BC|B\.C\.|CE|AD|A\.D\.)",
        rf"(?P<era>AD|A\.D\.)\s*{_YEAR}",
    )
]


@dataclass(frozen=True, slots=True)
class Quantity:
    """A number as written, and its unit when that is a known one: dimension, and size in metres, kilograms or seconds."""

    plain: Fraction
    dimension: str | None = None
    size: Fraction = Fraction(1)


@dataclass(frozen=True, slots=True)
class Day:
    """A date as far as it is known: (year,), (year, month) or (year, month, day); 1 BC is the year 0."""

    parts: tuple[int, ...]


Meaning = bool | Quantity | Day | str


def evaluate(expression: str, results: Mapping[str, str], is_passages: Callable[[str], bool]) -> str:
    """The result of Calculator on raw arguments: a number as moat/calculator.py writes it, or `True` or `False`.

    `is_passages` says of a result that it is passages, which have no value. Raises ToolError.
    """
    if len(expression) > MAX_LENGTH:
        raise ToolError(ToolErrorKind.SIZE, f"{len(expression)} characters, more than {MAX_LENGTH}")
    for name in references(expression):
        if is_passages(results[name]):
            raise _bad(f"{name} is passages and no value: read them with QA first")
        if len(results[name]) > MAX_LENGTH:
            raise ToolError(ToolErrorKind.SIZE, f"{name} has {len(results[name])} characters, more than {MAX_LENGTH}")
    found = _expression(expression, results, 0)
    if isinstance(found, bool):
        return str(found)
    if isinstance(found, Quantity):
        return format_number(found.plain)
    raise _bad(f"{expression.strip()[:50]!r} is no arithmetic and no comparison")


def meaning(text: str) -> Meaning:
    """What a whole text stands for. Raises ToolError when it is blank."""
    text = text.strip()
    if not text:
        raise _bad("an operand is missing or blank")
    truth = _TRUTH.get(text.casefold().removesuffix("."))
    if truth is not None:
        return truth
    return _day(text.removesuffix(".")) or _quantity(text) or text


def compare(left: Meaning, sign: str, right: Meaning) -> bool:
    """Whether `left sign right`. Raises ToolError when that has no answer."""
    if isinstance(left, Day) or isinstance(right, Day):
        first, second = _as_day(left), _as_day(right)
        if first is not None and second is not None:
            shared = min(len(first.parts), len(second.parts))
            a, b = first.parts[:shared], second.parts[:shared]
            if a == b and len(first.parts) != len(second.parts):
                raise _bad(f"which of two dates is later is open: one says no more than {a}")
            return _COMPARE[sign](a, b)
    if isinstance(left, Quantity) and isinstance(right, Quantity):
        if left.dimension and right.dimension:
            if left.dimension != right.dimension:
                raise _bad(f"a {left.dimension} and a {right.dimension} cannot be compared")
            return _COMPARE[sign](left.plain * left.size, right.plain * right.size)
        return _COMPARE[sign](left.plain, right.plain)
    if type(left) is not type(right):
        raise _bad(f"{_kind(left)} and {_kind(right)} cannot be compared")
    if sign not in ("==", "!="):
        raise _bad(f"{_kind(left)} has no order: `{sign}` takes numbers or dates")
    for side in (left, right):
        if isinstance(side, str) and not same_answer(side, side):
            raise _bad(f"{side[:50]!r} says nothing that could be compared")
    equal = same_answer(left, right) if isinstance(left, str) and isinstance(right, str) else left == right
    return equal is (sign == "==")


def _expression(text: str, results: Mapping[str, str], depth: int) -> Meaning:
    if depth > MAX_DEPTH:
        raise ToolError(ToolErrorKind.SIZE, f"nested deeper than {MAX_DEPTH}")
    outer = _outermost(text)
    for word, decide in (("or", any), ("and", all)):
        parts = _split(text, [m for m in _LOGIC.finditer(outer) if m[0].lower() == word])
        if len(parts) > 1:
            values = [_truth(_expression(part, results, depth + 1)) for part, _ in parts]
            return decide(values)
    negated = _LOGIC.match(outer.lstrip())
    if negated is not None:
        return not _truth(_expression(text.lstrip()[negated.end() :], results, depth + 1))
    parts = _split(text, list(_SIGNS.finditer(outer)))
    if len(parts) == 1:
        return _operand(text, results, depth)
    operands = [_operand(part, results, depth) for part, _ in parts]
    signs = [_NAMES.get(sign, sign) for _, sign in parts[:-1]]
    held = [compare(a, sign, b) for (a, b), sign in zip(pairwise(operands), signs, strict=True)]  # every one, for its errors
    return all(held)


def _operand(text: str, results: Mapping[str, str], depth: int) -> Meaning:
    text = text.strip()
    if text in results and references(text) == [text]:
        return meaning(results[text])
    if text.startswith("(") and text.endswith(")") and not _outermost(text)[1:-1].strip("\0"):
        inside = _outermost(text[1:-1])
        if _LOGIC.search(inside) or _SIGNS.search(inside) or (text[1:-1].strip() in results):
            return _expression(text[1:-1], results, depth + 1)
    if _QUOTED.fullmatch(text):
        return meaning(text[1:-1])
    names = dict.fromkeys(references(text))
    if not names:
        literal = meaning(text)
        if not isinstance(literal, str):
            return literal
    read = {name: meaning(results[name]) for name in names}
    numbers = {name: value for name, value in read.items() if isinstance(value, Quantity)}
    try:
        if len(numbers) < len(read):  # what is wrong with the text comes first, then what is wrong with its results
            calculate(substitute(text, dict.fromkeys(names, "(1)")))
            raise _bad(f"{next(name for name in read if name not in numbers)} is no number")
        if len({(number.dimension, number.size) for number in numbers.values() if number.dimension}) > 1:
            raise _bad("results in different units: no arithmetic on them")
        value = calculate(substitute(text, {name: f"({format_number(numbers[name].plain)})" for name in names}))
    except CalculationError as error:
        if names or error.kind not in (CalculationErrorKind.NOT_ALLOWED, CalculationErrorKind.SYNTAX):
            kind = ToolErrorKind.SIZE if error.kind is CalculationErrorKind.TOO_LARGE else ToolErrorKind.BAD_ARGUMENT
            raise ToolError(kind, f"{error.kind}: {error.message}") from error
        return text  # a literal
    return value if isinstance(value, bool) else Quantity(value)


def _outermost(text: str) -> str:
    """The text at equal length, with what stands in parentheses or quotes blanked out by NULs. Raises ToolError."""
    out, depth = list(_QUOTED.sub(lambda m: "\0" * len(m[0]), text)), 0
    for index, character in enumerate(out):
        depth -= character == ")"
        if depth < 0:
            raise _bad("`)` without its `(`")
        if depth:
            out[index] = "\0"
        depth += character == "("
    if depth:
        raise _bad("`(` is never closed")
    return "".join(out)


def _split(text: str, marks: list[re.Match[str]]) -> list[tuple[str, str]]:
    """The pieces of a text between marks, each with the mark after it (the last: none)."""
    starts, ends = [0, *(m.end() for m in marks)], [*(m.start() for m in marks), len(text)]
    return [(text[a:b], m) for a, b, m in zip(starts, ends, [*(m[0] for m in marks), ""], strict=True)]


def _truth(value: Meaning) -> bool:
    if not isinstance(value, bool):
        raise _bad(f"{_kind(value)} is neither true nor false")
    return value


def _quantity(text: str) -> Quantity | None:
    text = _HEDGE.sub("", text, count=1) if _HEDGE.match(text) else text
    first, gap, others = text.partition(" ")
    if first.lower() in _NUMBERS:
        text = str(_NUMBERS.index(first.lower())) + gap + others
    scaled, scale = _SCALED.fullmatch(text), 1
    if scaled is not None:
        text, scale = scaled["number"] + scaled["rest"], _SCALES[scaled["scale"].lower()]
    value = parse_number(text)
    if value is None:
        return None
    value *= scale
    unit = _UNIT.search(text)
    dimension, size = _UNITS.get(unit[0].lower().removesuffix("s"), (None, Fraction(1))) if unit else (None, Fraction(1))
    return Quantity(value, dimension, size)


def _day(text: str) -> Day | None:
    match = next((found for pattern in _DATES if (found := pattern.fullmatch(text))), None)
    if match is None:
        return None
    given = match.groupdict()
    year = int(given["year"])
    if (given.get("era") or "").upper().startswith("B"):
        return Day((1 - year,))
    if not given.get("month"):
        return Day((year,))
    name = given["month"].lower()[:3]
    month = int(name) if name.isdigit() else [m[:3] for m in _MONTHS].index(name) + 1
    day = int(given.get("day") or 1)
    try:
        date(year, month, day)
    except ValueError:
        return None
    return Day((year, month, day) if given.get("day") else (year, month))


def _as_day(value: Meaning) -> Day | None:
    if isinstance(value, Quantity) and value.dimension is None and value.plain.denominator == 1 and 1 <= value.plain <= 9999:
        return Day((int(value.plain),))
    return value if isinstance(value, Day) else None


def _kind(value: Meaning) -> str:
    names: dict[type, str] = {bool: "a truth value", Quantity: "a number", Day: "a date", str: "a text"}
    shown = f" ({value[:50]!r})" if isinstance(value, str) else ""
    return names[type(value)] + shown


def _bad(message: str) -> ToolError:
    return ToolError(ToolErrorKind.BAD_ARGUMENT, message)

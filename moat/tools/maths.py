"""The tools of the maths domain: Calculator, SetEquation, SolveEquation, SolveInequality, Count, Define and Code.

Results flow as text: `Define(p)` gives `p`, `Calculator(R1 * 40%)` gives `0.4*p`, `SetEquation(R2 = 80)` gives
`0.4*p = 80`, `SolveEquation(R3)` gives `200`. Several values are given as `-2, 2`, those of several unknowns as
`x = 1, y = 2`, several solutions of these with `;` between; `moat.actions.split_values` takes them apart.

How a result goes into an expression: in parentheses, so that it stays one operand; `x = 3` as its number 3, except where
it stands alone between commas, where it is the equation; several values only alone between commas. `R1(R2)`, `R1(2, 3)`
and `R1(x = 2)` put values in place of the unknowns of R1, by name or in alphabetical order.

All numbers are exact. What a tool accepts is bounded in length, depth, unknowns, degree, digits and steps, so that each
call ends within about a second; nothing is evaluated as code.
"""

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from fractions import Fraction
from types import MappingProxyType

from moat.actions import references, split_values, substitute
from moat.calculator import CalculationError, CalculationErrorKind, calculate, format_number
from moat.tools import equations, expressions, pseudocode
from moat.tools.base import Tool, ToolError, ToolErrorKind
from moat.tools.expressions import Statement, binding, parse, parse_one
from moat.tools.polynomials import Polynomial, Ratio, bad, ratio

MAX_LENGTH = expressions.MAX_LENGTH  # characters of arguments, with the results put in
MAX_COUNT = 10**15  # what Count gives at most

_REFERENCE = re.compile(r"(?<!\w)R[1-9][0-9]*(?!\w)")
_PHRASE = re.compile(r"[A-Za-z][A-Za-z0-9_]*(?:[ \t]+[A-Za-z0-9_]+)*")
_DOTS = ("...", "…", "..")
_ROOT = r"(?:(?P<a>-?[0-9]+) )?(?P<sign>[-+])? ?(?:(?P<m>[0-9]+)\*)?sqrt\((?P<n>[0-9]+)\)"
_END = re.compile(rf"(?P<open>\()?{_ROOT}(?(open)\))(?:/(?P<c>[0-9]+))?")  # of an interval, where it is no number
_INTERVAL = re.compile(r"(?P<left>[(\[])(?P<low>[^,]+), (?P<high>[^,]+)(?P<right>[)\]])|\{(?P<point>[^,]+)\}")


# --- Calculator ----------------------------------------------------------------------------------------------------


def arithmetic(arguments: str, results: Mapping[str, str]) -> str:
    """The Calculator of the `arithmetic` domain: `moat.calculator` and nothing more. Raises ToolError.

    Each result goes in inside parentheses, so that it stays one operand: `R1 ** 2` of -3 is 9, and `R1.5` is an error.
    """
    operands = {name: f"({results[name]})" for name in references(arguments)}
    try:
        return format_number(calculate(substitute(arguments, operands)))
    except CalculationError as error:
        raise expressions.tool_error(error) from error


def calculator(arguments: str, results: Mapping[str, str]) -> str:
    """Calculator: the value of an expression; the truth of a comparison; with unknowns the simplified expression.

    `Calculator(x + y, x = 1, y = 2)` puts values in place of unknowns. What `arithmetic` takes has the same value here.
    Raises ToolError.
    """
    try:
        return arithmetic(arguments, results)
    except ToolError as error:
        if error.kind is ToolErrorKind.SIZE:
            raise
    statement, *where = parse(_insert(arguments, results)).statements
    values = _bindings(where) if where else {}
    statement = statement.bind(values) if values else statement
    if len(statement.sides) == 1 or (statement.relations == ("=",) and statement.unknowns):
        return str(statement)
    if statement.unknowns:
        bad(f"a comparison of the unknown {statement.unknowns[0]}; SolveInequality solves it")
    if "=" in statement.relations:
        bad("`=` between numbers; compare with `==`")
    text = "".join(f"({side}) {relation} " for side, relation in zip(statement.sides, statement.relations, strict=False))
    return format_number(calculate(f"{text}({statement.sides[-1]})"))


# --- equations -----------------------------------------------------------------------------------------------------


def define(arguments: str, results: Mapping[str, str]) -> str:
    """Define: a quantity by its name (`p`; `price of a pen` becomes `price_of_a_pen`), a number, an expression such as
    `n + 2`, or `x = 3`. Raises ToolError."""
    text = _insert(arguments, results)
    if _PHRASE.fullmatch(text.strip()) and len(text.split()) > 1:
        return str(parse_one("_".join(text.split())))
    return str(parse_one(text))


def set_equation(arguments: str, results: Mapping[str, str]) -> str:
    """SetEquation: an equation or an inequality, simplified on each side; several with commas. Raises ToolError."""
    statements = parse(_insert(arguments, results)).statements
    for statement in statements:
        if not statement.relations:
            bad(f"no equation: {str(statement)[:60]}")
    return ", ".join(map(str, statements))


def solve_equation(arguments: str, results: Mapping[str, str]) -> str:
    """SolveEquation: the real solutions of one equation or several, rising.

    One unknown gives `5` or `-2, 2`; several give `x = 1, y = 2`, with `;` between solutions. Names after the equations
    choose the unknowns and their order: `SolveEquation(x + y = 3, x - y = 1, y)`; one equation is then solved for its name
    in terms of the others, if it is linear in it. An expression without unknowns gives its value. Raises ToolError.
    """
    parsed = parse(_insert(arguments, results))
    given = [statement for statement in parsed.statements if statement.relations]
    wanted = [_name(statement) for statement in parsed.statements if not statement.relations and statement.unknowns]
    if not given and not wanted and len(parsed.statements) == 1:
        return str(parsed.statements[0])
    if not given or any(not statement.unknowns for statement in parsed.statements if not statement.relations):
        bad("no equation: expected `left = right`")
    if not all(statement.is_equation for statement in given):
        bad("an inequality; SolveInequality solves it")
    differences = [left - right for s in given for left, right in zip(s.sides, s.sides[1:], strict=False)]
    zeros = [difference.over for difference in differences]
    divisors = [*parsed.divisors, *(Ratio(difference.under, difference.under) for difference in differences)]
    unknowns = sorted({name for statement in given for name in statement.unknowns})
    for name in wanted:
        if name not in unknowns:
            bad(f"{name} is in no equation")
    if not unknowns:
        bad("no unknown")
    if len(unknowns) == 1:
        return _several(map(str, equations.solve_one(zeros, divisors, unknowns[0])))
    if len(wanted) == 1 and len(zeros) == 1:
        return str(_in_terms(zeros[0], wanted[0]))
    names = wanted or unknowns
    lines = [
        format_number(solution[names[0]])
        if len(names) == 1
        else ", ".join(f"{n} = {format_number(solution[n])}" for n in names)
        for solution in equations.solve_system(zeros, divisors)
    ]
    lines = list(dict.fromkeys(lines))
    return _several(lines, ", " if len(names) == 1 else "; ")


def solve_inequality(arguments: str, results: Mapping[str, str]) -> str:
    """SolveInequality: the numbers for which one inequality holds, or several at once, as intervals.

    `(2, oo)`; `[-1, 1]`; `(-oo, -2) U (2, oo)`; a single number as `{3}`. Raises ToolError.
    """
    parsed = parse(_insert(arguments, results))
    unknowns = sorted({name for statement in parsed.statements for name in statement.unknowns})
    if len(unknowns) != 1:
        bad(f"an inequality in {len(unknowns)} unknowns, expected one")
    if not all(statement.relations for statement in parsed.statements):
        bad("no inequality: expected `left < right`")
    return equations.solve_inequality(parsed.statements, parsed.divisors, unknowns[0])


# --- Count ---------------------------------------------------------------------------------------------------------


def count(arguments: str, results: Mapping[str, str]) -> str:
    """Count: how many elements a list has, as written: repeats count, and nothing is computed of them.

    `a, b, ..., z` counts a sequence with equal steps (or, where three or more are written before the dots, equal
    quotients); `1, ..., 10` has steps of 1 or -1; letters run through the alphabet. A result alone may be intervals, whose
    whole numbers are counted, or solutions with `;` between, which are. Raises ToolError.
    """
    text = _unwrapped(_put(arguments, {name: results[name] for name in references(arguments)}))
    if not text:
        return "0"
    if _REFERENCE.fullmatch(arguments.strip()):  # a user's own `[1, 5]` is a list
        pieces = [_INTERVAL.fullmatch(piece) for piece in results[arguments.strip()].split(" U ")]
        if all(pieces):
            return str(sum(_whole_numbers(piece) for piece in pieces if piece))
    items = _items(text, ";")
    if len(items) == 1:
        items = _items(text, ",", glued="," in text and not re.search(r",\s", text))
    if not all(items):
        bad("a list with an empty element")
    dots = [index for index, item in enumerate(items) if item in _DOTS]
    if not dots:
        return str(len(items))
    if len(dots) > 1 or dots[0] not in range(1, len(items) - 1):
        bad("dots stand once in a list, between its first elements and its last ones")
    return str(_sequence(items[: dots[0]], items[dots[0] + 1 :]))


def _sequence(first: list[str], last: list[str]) -> int:
    alphabet = all(len(item) == 1 and item.isascii() and item.isalpha() for item in [*first, *last])
    start, *more = [Fraction(ord(item)) if alphabet else _constant(item) for item in first]
    ends = [Fraction(ord(item)) if alphabet else _constant(item) for item in last]
    end = ends[-1]
    step = more[0] - start if more else Fraction(1 if end >= start else -1)
    if step and (end - start) / step >= 0 and ((end - start) / step).denominator == 1:
        steps = int((end - start) / step)
        written = [start + step * index for index in range(len(more) + 1)]
        written += [end - step * index for index in reversed(range(len(ends)))]
        if written == [start, *more, *ends] and steps + 1 >= len(first) + len(last) and steps < MAX_COUNT:
            return steps + 1
    if len(more) >= 2 and start and more[0]:
        return _geometric([start, *more], ends)
    raise ToolError(ToolErrorKind.BAD_ARGUMENT, "the elements around the dots are of no sequence with equal steps")


def _geometric(first: list[Fraction], ends: list[Fraction]) -> int:
    """How many elements a sequence has whose quotients are equal. Its values double, at least, or halve: few steps."""
    quotient, values = first[1] / first[0], [first[0]]
    while len(values) < 1_000 and (len(values) < len(first) or values[-1] != ends[-1]):
        values.append(expressions.exactly("*", values[-1], quotient))
        if values[: len(first)] != first[: len(values)]:
            break
    if values[: len(first)] != first or values[-len(ends) :] != ends or len(values) < len(first) + len(ends):
        bad("the elements around the dots are of no sequence with equal quotients")
    return len(values)


def _whole_numbers(interval: re.Match[str]) -> int:
    """How many whole numbers an interval holds."""
    if interval["point"] is not None:
        low, whole = _floor(interval["point"])
        return int(whole)
    if "oo" in (interval["low"].strip("-"), interval["high"]):
        raise ToolError(ToolErrorKind.NO_RESULT, "an interval without an end has no last whole number")
    low, whole = _floor(interval["low"])
    least = low if whole and interval["left"] == "[" else low + 1
    high, whole = _floor(interval["high"])
    return max(0, high - (whole and interval["right"] == ")") - least + 1)


def _floor(end: str) -> tuple[int, bool]:
    """The greatest whole number up to an end of an interval, and whether it is the end."""
    match = _END.fullmatch(end)
    if match is None:
        value = _constant(end)
        return value.numerator // value.denominator, value.denominator == 1
    root = math.isqrt(int(match["m"] or 1) ** 2 * int(match["n"]))  # what it is the floor of is not whole
    whole = int(match["a"] or 0) + (-root - 1 if match["sign"] == "-" else root)
    return whole // int(match["c"] or 1), False


# --- Code ----------------------------------------------------------------------------------------------------------


def code(arguments: str, results: Mapping[str, str]) -> str:
    """Code: the value that pseudo-code gives (`moat.tools.pseudocode`), results being its variables. Raises ToolError.

    A result that holds a number, also with a unit or as `x = 3`, is that number; several numbers are a list; `True` and
    `False` are truth values; any other result is a text.
    """
    variables = {name: _code_value(results[name]) for name in references(arguments)}
    text = _code_text(pseudocode.run(arguments, variables))
    if not text.strip():
        raise ToolError(ToolErrorKind.NO_RESULT, "the value is a text without a character that shows")
    return text


def _code_value(result: str) -> pseudocode.Value:
    if result.strip().lower() in ("true", "false"):
        return result.strip().lower() == "true"
    if len(result) <= MAX_LENGTH:
        try:
            numbers = tuple(_constant(value) for value in split_values(result))
        except ToolError:
            return result
        return numbers[0] if len(numbers) == 1 else numbers
    return result


def _code_text(value: pseudocode.Value) -> str:
    if isinstance(value, str):
        return value
    return ", ".join(map(_code_text, value)) if isinstance(value, tuple) else format_number(value)


# --- results in arguments ------------------------------------------------------------------------------------------


def _insert(arguments: str, results: Mapping[str, str]) -> str:
    """The arguments with the results put in, as this module's docstring says. Raises ToolError."""
    if len(arguments) > MAX_LENGTH:
        raise ToolError(ToolErrorKind.SIZE, f"{len(arguments)} characters, more than {MAX_LENGTH}")
    out: list[str] = []
    position = 0
    for match in _REFERENCE.finditer(arguments):
        if match.start() < position:  # inside the parentheses of a result before it
            continue
        out.append(arguments[position : match.start()])
        position = match.end()
        if arguments.startswith("(", position):
            end = _closing(arguments, position)
            out.append(f"({_applied(match[0], results, arguments[position + 1 : end])})")
            position = end + 1
        else:
            alone = arguments[: match.start()].rstrip()[-1:] in ("", ",") and arguments[position:].lstrip()[:1] in ("", ",")
            out.append(_operand(match[0], results[match[0]], alone))
    text = "".join([*out, arguments[position:]])
    if len(text) > MAX_LENGTH:
        raise ToolError(ToolErrorKind.SIZE, f"{len(text)} characters with the results put in, more than {MAX_LENGTH}")
    return text


def _operand(name: str, result: str, alone: bool) -> str:
    values = split_values(result)
    if len(values) > 1 or ";" in result:
        if not alone or ";" in result:
            bad(f"{name} holds several values: {result[:60]}")
        return result
    if not alone and "=" in result and len(result) <= MAX_LENGTH:
        bound = binding(parse_one(result))
        if bound is not None and bound[1].constant is not None:
            return f"({bound[1]})"
    return f"({result})"


def _applied(name: str, results: Mapping[str, str], arguments: str) -> Statement:
    """`R1(2)`: the result with values in place of its unknowns."""
    statement = parse_one(results[name])
    if not statement.unknowns:
        bad(f"{name} has no unknown: write `*` for a product")
    given = parse(_insert(arguments, results)).statements
    if all(binding(each) for each in given):
        return statement.bind(_bindings(given))
    if len(given) != len(statement.unknowns):
        bad(f"{len(given)} values for the unknowns {', '.join(statement.unknowns)} of {name}")
    if any(each.relations for each in given):
        bad(f"{name} of an equation")
    return statement.bind({unknown: each.sides[0] for unknown, each in zip(statement.unknowns, given, strict=True)})


def _closing(text: str, opening: int) -> int:
    depth = 0
    for position in range(opening, len(text)):
        depth += (text[position] == "(") - (text[position] == ")")
        if depth == 0:
            return position
    raise ToolError(ToolErrorKind.BAD_ARGUMENT, f"`(` at character {opening} is never closed")


def _put(text: str, results: Mapping[str, str]) -> str:
    if sum(map(len, results.values()), len(text)) > MAX_LENGTH:
        raise ToolError(ToolErrorKind.SIZE, f"more than {MAX_LENGTH} characters with the results put in")
    put = substitute(text, results)
    if len(put) > MAX_LENGTH:
        raise ToolError(ToolErrorKind.SIZE, f"{len(put)} characters with the results put in, more than {MAX_LENGTH}")
    return put.strip()


def _bindings(statements: Sequence[Statement]) -> dict[str, Ratio]:
    values: dict[str, Ratio] = {}
    for statement in statements:
        bound = binding(statement)
        if bound is None:
            bad(f"expected `name = value` after the expression, not {str(statement)[:60]!r}")
        if bound[0] in values:
            bad(f"{bound[0]} has two values")
        values[bound[0]] = bound[1]
    return values


def _name(statement: Statement) -> str:
    """The unknown that a statement is."""
    if str(statement) != statement.unknowns[0]:
        bad(f"no equation: {str(statement)[:60]}; expected `left = right`, or the name of an unknown")
    return statement.unknowns[0]


def _in_terms(zero: Polynomial, name: str) -> Ratio:
    """`name` by the other unknowns, from an equation that is linear in it."""
    parts = zero.coefficients(name)
    if len(parts) != 2:
        raise ToolError(ToolErrorKind.NO_RESULT, f"the equation is not linear in {name}")
    return ratio(-parts[0], parts[1])


def _several(values: Iterable[str], separator: str = ", ") -> str:
    found = list(values)
    if not found:
        raise ToolError(ToolErrorKind.NO_RESULT, "no real solution")
    return separator.join(found)


def _constant(text: str) -> Fraction:
    try:
        value = calculate(text)
        if isinstance(value, Fraction):
            return value
    except CalculationError as error:
        if error.kind is CalculationErrorKind.TOO_LARGE:
            raise expressions.tool_error(error) from error
    statement = parse_one(text)
    bound = binding(statement)
    side = bound[1] if bound else statement.sides[0]
    if side.constant is None or (statement.relations and not bound):
        bad(f"{text[:60]!r} is no number")
    return side.constant


def _items(text: str, separator: str, glued: bool = False) -> list[str]:
    """The elements between separators outside brackets; a comma between the digits of `1,000` separates only in a list
    whose commas all have no space after them."""
    items, depth, start = [], 0, 0
    for position, character in enumerate(text):
        depth += (character in "([{") - (character in ")]}")
        thousands = separator == "," and not glued and not re.match(r",\s", text[position:] + " ")
        if character == separator and depth == 0 and not (thousands and re.match(r",[0-9]{3}(?![0-9])", text[position:])):
            items.append(text[start:position].strip())
            start = position + 1
    return [*items, text[start:].strip()]


def _unwrapped(text: str) -> str:
    """A list without the brackets around the whole of it."""
    while len(text) >= 2 and text[0] + text[-1] in ("[]", "{}", "()"):
        depth = 0
        for position, character in enumerate(text):
            depth += (character in "([{") - (character in ")]}")
            if depth == 0 and position < len(text) - 1:
                return text
        text = text[1:-1].strip()
    return text


CALCULATOR_TOOLS: Mapping[str, Tool] = MappingProxyType({"Calculator": arithmetic})
"""The tools of the domain `arithmetic`."""

MATHS_TOOLS: Mapping[str, Tool] = MappingProxyType(
    {
        "Calculator": calculator,
        "SetEquation": set_equation,
        "SolveEquation": solve_equation,
        "SolveInequality": solve_inequality,
        "Count": count,
        "Define": define,
        "Code": code,
    }
)
"""The tools of the domain `maths`."""

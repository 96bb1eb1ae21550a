"""Pseudo-code that a model wrote, run by an interpreter of its own, in bounded steps.

Covers: assignments (`x = 1`, `x += 1`), arithmetic, comparisons, `and`, `or`, `not`, `a if c else b`, the functions of
`expressions.FUNCTIONS` with `sum` and `len`, lists of numbers, `if`/`elif`/`else`, `while`, `for x in range(...)` or over a
list, `break`, `continue`, `pass`, `return`, `print(value)`. Statements stand on lines, or are separated by `;`: a `;` after
`if c:` stays in its block until an `else` or the end of the line, as in Python. The public data's own short form is
`If c, a, b`: a where c holds, b where not, b maybe another `If`. `then` may stand for the colon, `else if` for `elif`, `^`
for `**`, and key words may be written large. What is given is the value of `return`, or of the variable `answer` or
`result`, or else the value last assigned or stated.

Numbers are exact rationals; texts can be compared for equality and given. Nothing else is there: no attributes, no
subscripts, no definitions, no other calls.

How it is kept from harm (trap 31): the text is parsed to a syntax tree and never compiled; each node is on an allow-list;
lengths, nesting, digits, list lengths and the number of steps are bounded.
"""

import ast
import re
import warnings
from collections.abc import Iterator, Mapping, Sequence
from fractions import Fraction
from itertools import pairwise
from typing import NoReturn

from moat.calculator import MAX_DIGITS, OPERATORS
from moat.tools.base import ToolError, ToolErrorKind
from moat.tools.expressions import FUNCTIONS, call, exactly
from moat.tools.polynomials import bad

MAX_LENGTH = 4_000  # characters
MAX_BRACKETS = 30  # open at once
MAX_NESTING = 10  # blocks inside blocks
MAX_TREE = 100  # levels of the syntax tree: bounds the recursion
MAX_STEPS = 20_000  # nodes of the tree that are visited
MAX_ELEMENTS = 1_000  # of a list
_GIVEN = ("answer", "result")  # the variables that hold what is given

Value = Fraction | bool | str | tuple["Value", ...]

_KEYWORDS = re.compile(r"\b(if|elif|else|while|for|in|and|or|not|return|then|range|print|break|continue|pass)\b", re.I)
_TRUTHS = re.compile(r"\b(true|false)\b", re.I)
_PLAIN = {"×": "*", "÷": "/", "−": "-", "^": "**", "≤": "<=", "≥": ">=", "≠": "!=", "←": "="}
_QUOTED = re.compile(r"'[^'\n]*'|\"[^\"\n]*\"")
_INLINE_ELSE = re.compile(r"[;\s]+(else\s*:|elif\b|else\s+if\b)", re.I)
_HEADER = re.compile(r"(?:if|elif|else|while|for)\b")
_DECIMAL = re.compile(r"(?<![\w.])(?:[0-9]+\.[0-9]*|\.[0-9]+)(?![\w.])")


def run(text: str, variables: Mapping[str, Value]) -> Value:
    """The value that pseudo-code gives, some of its variables being given.

    Raises ToolError: BAD_ARGUMENT, NO_RESULT, TIME (too many steps) or SIZE.
    """
    if len(text) > MAX_LENGTH:
        _size(f"{len(text)} characters, more than {MAX_LENGTH}")
    _check_depth(text)
    if not text.isascii():
        text = "".join(_PLAIN.get(character, character) for character in text)
    source = _as_python(text)
    try:
        with warnings.catch_warnings():  # such as `1if`, which is of no interest to anybody
            warnings.simplefilter("ignore")
            tree = ast.parse(source)
    except SyntaxError as error:
        bad(f"line {error.lineno}: {error.msg}")
    except ValueError as error:  # a null character
        bad(f"cannot be read: {error}")
    except (RecursionError, MemoryError) as error:
        raise ToolError(ToolErrorKind.SIZE, "nested too deeply to be read") from error
    _check_tree(tree)
    machine = _Machine(variables)
    try:
        returned = machine.block(tree.body, 0) is _RETURNED
    except RecursionError as error:
        raise ToolError(ToolErrorKind.SIZE, "nested too deeply for the interpreter") from error
    except _Jump as jump:
        bad(f"`{jump.kind}` outside a loop")
    given = [machine.variables[name] for name in _GIVEN if name in machine.variables]
    value = given[0] if given and not returned else machine.last
    if value is None:
        raise ToolError(ToolErrorKind.NO_RESULT, "no value is assigned or stated")
    return value


# --- from pseudo-code to Python's grammar --------------------------------------------------------------------------


def _as_python(text: str) -> str:
    lines: list[str] = []
    for line in text.replace("\r\n", "\n").expandtabs(4).split("\n"):
        body = line.lstrip(" ")
        indent = line[: len(line) - len(body)]
        for statement in _statements(body):
            lines.append(indent + statement)
    while lines and not lines[0].strip():
        del lines[0]
    margin = min((len(line) - len(line.lstrip(" ")) for line in lines if line.strip()), default=0)
    return "\n".join(line[margin:] for line in lines)


def _statements(body: str) -> Iterator[str]:
    """The Python lines that one line of pseudo-code is."""
    if re.match(r"if\b", body, re.I):
        body = _INLINE_ELSE.sub(r"; \1", body)
    line = ""
    for piece in _split(body, ";"):
        statement = _spelled(piece.strip())
        if _HEADER.match(statement) or not line:
            if line:
                yield line
            line = statement
        elif statement:
            line += f"{' ' if line.endswith(':') else '; '}{statement}"
    yield line


def _spelled(statement: str) -> str:
    """One statement in Python's spelling; quoted text stays as it is."""
    quoted: list[str] = []

    def keep(match: re.Match[str]) -> str:
        quoted.append(match[0])
        return f"\x00{len(quoted) - 1}\x00"

    plain = _QUOTED.sub(keep, statement)
    plain = _KEYWORDS.sub(lambda match: match[0].lower(), plain).replace("^", "**").replace("$", "")
    plain = _DECIMAL.sub(_fraction, plain)
    plain = _TRUTHS.sub(lambda match: match[0].capitalize(), plain)
    plain = re.sub(r"\Aelse\s+if\b", "elif", plain)
    plain = re.sub(r"\Aelse\b(?!\s*:)", "else:", plain)
    plain = re.sub(r"\A(if|elif|while)\b(.*?)\s+then\b:?", r"\1\2:", plain)
    if plain.startswith("if ") and ":" not in plain:
        plain = _short_form(plain)
    return re.sub("\x00([0-9]+)\x00", lambda match: quoted[int(match[1])], plain)


def _fraction(match: re.Match[str]) -> str:
    """A decimal as an exact quotient: a syntax tree would hold the nearest float."""
    if len(match[0]) > MAX_DIGITS:
        _size(f"a number of {len(match[0])} characters")
    value = Fraction(match[0].rstrip("."))
    return f"({value.numerator}/{value.denominator})"


def _short_form(statement: str) -> str:
    """`if c, a, b` as the expression `(a) if (c) else (b)`; also `if c, a, if d, b, e`."""
    parts = [part.strip() for part in _split(statement, ",")]
    text, rest = "", parts
    while len(rest) >= 3 and rest[0].startswith("if "):
        text += f"({rest[1]}) if ({rest[0][3:]}) else "
        rest = rest[2:]
    if len(rest) != 1 or not text:
        bad("expected `If condition, value, value`, or `if condition:` and statements")
    return f"{text}({rest[0].removeprefix('else ')})"


def _split(text: str, separator: str) -> list[str]:
    """The parts of a text between separators that stand outside brackets and quotes."""
    marks = _QUOTED.sub(lambda match: "_" * len(match[0]), text)
    parts, depth, start = [], 0, 0
    for position, character in enumerate(marks):
        depth += (character in "([{") - (character in ")]}")
        if character == separator and depth == 0:
            parts.append(text[start:position])
            start = position + 1
    return [*parts, text[start:]]


def _check_depth(text: str) -> None:
    depth = 0
    for character in text:
        depth += (character in "([{") - (character in ")]}")
        if depth > MAX_BRACKETS:
            _size(f"more than {MAX_BRACKETS} brackets open at once")


def _check_tree(tree: ast.AST) -> None:
    level, depth = [tree], 0
    while level:
        level = [child for node in level for child in ast.iter_child_nodes(node)]
        depth += 1
        if depth > MAX_TREE:
            _size(f"more than {MAX_TREE} levels of operations inside each other")


# --- the interpreter -----------------------------------------------------------------------------------------------


class _Jump(Exception):  # noqa: N818 - no error, but a way out of a loop
    def __init__(self, kind: str) -> None:
        self.kind = kind


_RETURNED = object()


class _Machine:
    """Variables, the value last assigned or stated, and the steps taken."""

    def __init__(self, variables: Mapping[str, Value]) -> None:
        self.variables = dict(variables)
        self.last: Value | None = None
        self.steps = 0

    def step(self, steps: int = 1) -> None:
        self.steps += steps
        if self.steps > MAX_STEPS:
            raise ToolError(ToolErrorKind.TIME, f"more than {MAX_STEPS} steps")

    def block(self, statements: Sequence[ast.stmt], depth: int) -> object:
        """Run statements; _RETURNED after a `return`, else None."""
        if depth > MAX_NESTING:
            _size(f"more than {MAX_NESTING} blocks inside each other")
        for statement in statements:
            if self.statement(statement, depth) is _RETURNED:
                return _RETURNED
        return None

    def statement(self, node: ast.stmt, depth: int) -> object:
        self.step()
        match node:
            case ast.Assign(targets=[ast.Name(id=name)], value=value):
                self.assign(name, self.value(value))
            case ast.AugAssign(target=ast.Name(id=name) as target, op=op, value=value):
                self.assign(name, self.operation(op, self.value(target), self.value(value)))
            case ast.Expr(value=ast.Call(func=ast.Name(id="print"), args=[value], keywords=[])):
                self.last = self.value(value)
            case ast.Expr(value=value):
                self.last = self.value(value)
            case ast.Return(value=ast.expr() as value):
                self.last = self.value(value)
                return _RETURNED
            case ast.If(test=test, body=body, orelse=orelse):
                if self.truth(test):
                    return self.block(body, depth + 1)
                is_elif = len(orelse) == 1 and isinstance(orelse[0], ast.If)
                return self.block(orelse, depth if is_elif else depth + 1)
            case ast.While(test=test, body=body, orelse=[]):
                while self.truth(test):
                    if (came := self.turn(body, depth)) is not None:
                        return came if came is _RETURNED else None
            case ast.For(target=ast.Name(id=name), iter=over, body=body, orelse=[]):
                for element in self.elements(over):
                    self.variables[name] = element
                    if (came := self.turn(body, depth)) is not None:
                        return came if came is _RETURNED else None
            case ast.Break() | ast.Continue():
                raise _Jump(type(node).__name__.lower())
            case ast.Pass():
                pass
            case _:
                bad(f"line {node.lineno}: {type(node).__name__} is not part of the pseudo-code")
        return None

    def turn(self, body: Sequence[ast.stmt], depth: int) -> object:
        """One turn of a loop: None to go on."""
        self.step()
        try:
            return self.block(body, depth + 1)
        except _Jump as jump:
            return None if jump.kind == "continue" else jump

    def assign(self, name: str, value: Value) -> None:
        self.variables[name] = self.last = value

    def elements(self, node: ast.expr) -> Iterator[Value]:
        match node:
            case ast.Call(func=ast.Name(id="range"), args=args, keywords=[]) if 1 <= len(args) <= 3:
                bounds = [self.whole(arg) for arg in args]
                if len(bounds) == 3 and bounds[2] == 0:
                    bad("a range with the step 0")
                yield from (Fraction(number) for number in range(*bounds))  # a step is counted for each
            case _:
                values = self.value(node)
                if not isinstance(values, tuple):
                    bad("a loop over what is no list and no range")
                yield from values

    def value(self, node: ast.expr) -> Value:
        self.step()
        match node:
            case ast.Constant(value=bool() | str() as value):
                return value
            case ast.Constant(value=int(value)):
                return exactly("*", Fraction(value), Fraction(1))
            case ast.Name(id=name):
                if name not in self.variables:
                    bad(f"{name[:40]!r} has no value")
                return self.variables[name]
            case ast.List(elts=elements) | ast.Tuple(elts=elements):
                if len(elements) > MAX_ELEMENTS:
                    _size(f"a list of more than {MAX_ELEMENTS}")
                found = tuple(self.value(element) for element in elements)
                if any(isinstance(value, tuple) for value in found):
                    bad("a list inside a list")
                return found
            case ast.UnaryOp(op=ast.Not(), operand=operand):
                return not self.truth(operand)
            case ast.UnaryOp(op=ast.USub(), operand=operand):
                return -self.number(operand)
            case ast.UnaryOp(op=ast.UAdd(), operand=operand):
                return self.number(operand)
            case ast.BinOp(left=left, op=op, right=right):
                return self.operation(op, self.value(left), self.value(right))
            case ast.BoolOp(op=ast.And(), values=values):
                return all(self.truth(value) for value in values)
            case ast.BoolOp(op=ast.Or(), values=values):
                return any(self.truth(value) for value in values)
            case ast.Compare(left=left, ops=ops, comparators=others):
                sides = [self.value(side) for side in (left, *others)]
                self.step(sum(len(side) for side in sides if isinstance(side, tuple)))
                return all(_compare(op, *pair) for op, pair in zip(ops, pairwise(sides), strict=True))
            case ast.IfExp(test=test, body=body, orelse=orelse):
                return self.value(body if self.truth(test) else orelse)
            case ast.Call(func=ast.Name(id=name), args=args, keywords=[]):
                return self.call(name, [self.value(arg) for arg in args])
        raise ToolError(ToolErrorKind.BAD_ARGUMENT, f"{type(node).__name__} is not part of the pseudo-code")

    def call(self, name: str, values: list[Value]) -> Value:
        if len(values) == 1 and isinstance(values[0], tuple):
            values = list(values[0])
            self.step(len(values))
            if name == "len":
                return Fraction(len(values))
        if name not in FUNCTIONS and name != "sum":
            bad(f"no function {name[:40]!r}; there are {', '.join(FUNCTIONS)}, sum, and len of a list")
        numbers = [_as_number(value) for value in values]
        if name == "sum":
            total = Fraction(0)
            for number in numbers:
                total = exactly("+", total, number)
            return total
        return exactly("*", call(name, numbers), Fraction(1))

    def operation(self, op: ast.operator, left: Value, right: Value) -> Fraction:
        if type(op) not in OPERATORS:
            bad(f"{type(op).__name__} is not part of the pseudo-code")
        return exactly(OPERATORS[type(op)], _as_number(left), _as_number(right))

    def truth(self, node: ast.expr) -> bool:
        value = self.value(node)
        if not isinstance(value, bool):
            bad("a condition that is neither true nor false")
        return value

    def number(self, node: ast.expr) -> Fraction:
        return _as_number(self.value(node))

    def whole(self, node: ast.expr) -> int:
        value = self.number(node)
        if value.denominator != 1:
            bad("a range of numbers that are not whole")
        return int(value)


def _as_number(value: Value) -> Fraction:
    if not isinstance(value, Fraction):
        bad("a text, a list or a truth value used as a number")
    return value


def _compare(op: ast.cmpop, left: Value, right: Value) -> bool:
    if isinstance(op, ast.Eq | ast.NotEq):
        same = type(left) is type(right) and left == right
        return same is isinstance(op, ast.Eq)
    if isinstance(op, ast.In | ast.NotIn) and isinstance(right, tuple):
        return (left in right) is isinstance(op, ast.In)
    a, b = _as_number(left), _as_number(right)
    match op:
        case ast.Lt():
            return a < b
        case ast.LtE():
            return a <= b
        case ast.Gt():
            return a > b
        case ast.GtE():
            return a >= b
    raise ToolError(ToolErrorKind.BAD_ARGUMENT, f"{type(op).__name__} is not part of the pseudo-code")


def _size(message: str) -> NoReturn:
    raise ToolError(ToolErrorKind.SIZE, message)

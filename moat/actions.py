"""The action grammar: the text that a grounder writes, as data, and back.

    actions    := action (separator action)* [";"]      separator := ";" or a line break
    action     := names "=" tool "(" arguments ")"      R1 = Calculator(28 * 1/7)
                | name "=" name                         R5 = R4
    names      := name ("," name)*                      R1, R2 = SolveEquation(x + y = 3, x - y = 1)
    name       := "R" and a number from 1, in ASCII digits, without leading zeros
    tool       := an ASCII letter, then letters, digits and "_"; not itself a name
    arguments  := any text whose brackets balance

Arguments are free text (a question, a quoted title, code), and a separator inside brackets separates nothing. Brackets
are counted whatever their kind, because maths texts hold half-open intervals such as ``(0, 1]``; only the outermost pair
must be ``(`` and ``)``. Spaces and blank lines around actions are ignored.

Apostrophes and single double-quotes (``12"``) are common in free text, so a text is first read as if quotes meant
nothing. Only a text that is no sequence of actions this way is read again with the brackets between two double quotes of
one line left out of the count: ``R1 = QA([R0], Question: what does ":)" mean?)``. What reads without quotes never reads
differently with them.

Not covered: an argument with a bracket that never closes outside quotes (``:)``) is a syntax error; a result name that a
title happens to contain (the motorcycle R1) reads as a reference.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

MAX_LENGTH = 500_000  # characters of a whole action text: 10,000 actions of 50 each; a scan, so a fraction of a second
MAX_DEPTH = 64  # brackets open at once, the outermost pair included

_NAME = r"R[1-9][0-9]*"
_REFERENCE = re.compile(rf"(?<!\w){_NAME}(?!\w)")
_LEFT_SIDE = re.compile(rf"({_NAME}(?:\s*,\s*{_NAME})*)\s*=\s*")
_WORD = re.compile(r"[A-Za-z][A-Za-z0-9_]*")
_BLANKS = re.compile(r"[^\S\n]*")
_WHITE = re.compile(r"\s*")
_BRACKET = re.compile(r"[()\[\]{}]")
_VALUE_NAME = re.compile(r"\A[A-Za-z]\w*\s*=(?!=)\s*")
_QUOTED = re.compile(r'"[^"\n]*"')


class ActionSyntaxError(ValueError):
    """The text is not in the action grammar. `position` is the offset in characters at which reading stopped."""

    def __init__(self, message: str, position: int) -> None:
        super().__init__(f"{message} (at character {position})")
        self.message = message
        self.position = position


class UndefinedReference(LookupError):  # noqa: N818 - the design's word for it
    """The text refers to a result that no earlier action gave. `name` is that result's name."""

    def __init__(self, name: str) -> None:
        super().__init__(f"no earlier action gives {name}")
        self.name = name


@dataclass(frozen=True, slots=True)
class Action:
    """One action.

    `name` is the result's name ("R1"). `tool` is None for an assignment (`R5 = R4`). `arguments` is the text between
    the outer parentheses exactly as written, or an assignment's right-hand name. `others` are the further names of an
    action that gives several results (`R1, R2 = SolveEquation(...)`); `split_values` gives each its value.
    """

    name: str
    tool: str | None
    arguments: str
    others: tuple[str, ...] = ()

    @property
    def names(self) -> tuple[str, ...]:
        """All its result names, in the order written."""
        return (self.name, *self.others)


def parse(text: str) -> tuple[Action, ...]:
    """Read an action text, the whole of it: one action or more, in order, each result name once.

    Raises ActionSyntaxError for any other text: empty, longer than MAX_LENGTH, nested deeper than MAX_DEPTH, or with
    anything before, between or after its actions.
    """
    if len(text) > MAX_LENGTH:
        raise ActionSyntaxError(f"{len(text)} characters, more than {MAX_LENGTH}", MAX_LENGTH)
    try:
        return _parse(text, text)
    except ActionSyntaxError:
        unquoted = _QUOTED.sub(lambda quoted: "_" * len(quoted[0]), text)
        if unquoted == text:
            raise
        try:
            return _parse(text, unquoted)
        except ActionSyntaxError:
            pass
        raise  # the first reading's error: its position is where a reader who ignores quotes would look


def render(actions: Iterable[Action]) -> str:
    """Write actions as canonical text, `R1 = Calculator(28 * 1/7); R2 = Calculator(28 - R1)`.

    `parse` gives back the same actions. Raises ValueError for actions that no text in the grammar stands for.
    """
    actions = tuple(actions)
    text = "; ".join(
        f"{', '.join(a.names)} = {a.arguments if a.tool is None else f'{a.tool}({a.arguments})'}" for a in actions
    )
    if parse(text) != actions:
        raise ValueError(f"no action text stands for {actions!r}")
    return text


def references(text: str) -> list[str]:
    """The result names in a text, in order of appearance, repeats kept. `R1` is in `R1 + 2`, not in `R10` or `AR1`."""
    return _REFERENCE.findall(text)


def substitute(text: str, results: Mapping[str, str]) -> str:
    """Put each referenced result in place of its name, in one pass (an inserted text is not read again).

    Raises UndefinedReference for a name that is not in `results`.
    """

    def result(match: re.Match[str]) -> str:
        if match[0] not in results:
            raise UndefinedReference(match[0])
        return results[match[0]]

    return _REFERENCE.sub(result, text)


def split_values(result: str) -> tuple[str, ...]:
    """The values of a result that may hold several, in order.

    `-2, 2` holds -2 and 2; `x = 1, y = 2` holds 1 and 2; `6` holds 6. A comma inside brackets separates nothing.
    """
    parts, depth, start = [], 0, 0
    for position, character in enumerate(result):
        depth += (character in "([{") - (character in ")]}")
        if character == "," and depth == 0:
            parts.append(result[start:position])
            start = position + 1
    parts.append(result[start:])
    return tuple(_VALUE_NAME.sub("", part.strip()) for part in parts)


def _parse(text: str, marks: str) -> tuple[Action, ...]:
    """The actions of `text`, whose brackets are those of `marks`: a text of the same length."""
    actions: list[Action] = []
    names: set[str] = set()
    position = _skip(_WHITE, text, 0)
    while position < len(text) or not actions:
        action, end = _action(text, position, marks)
        for name in action.names:
            if name in names:
                raise ActionSyntaxError(f"{name} is given twice", position)
            names.add(name)
        actions.append(action)
        position = _separator(text, end)
    return tuple(actions)


def _action(text: str, start: int, marks: str) -> tuple[Action, int]:
    """The action that begins at `start`, and the position after it."""
    left = _LEFT_SIDE.match(text, start)
    if left is None:
        raise ActionSyntaxError("expected an action such as `R1 = Tool(...)`", start)
    word = _WORD.match(text, left.end())
    if word is None:
        raise ActionSyntaxError("expected a tool or a result name", left.end())
    name, *others = (part.strip() for part in left[1].split(","))
    opening = _skip(_BLANKS, text, word.end())
    is_name = _REFERENCE.fullmatch(word[0]) is not None
    if not text.startswith("(", opening):
        if not is_name:
            raise ActionSyntaxError(f"expected `(` after {word[0]}", word.end())
        if others:
            raise ActionSyntaxError("expected a tool, because one result has one name", left.end())
        return Action(name, None, word[0]), word.end()
    if is_name:
        raise ActionSyntaxError(f"{word[0]} is a result, not a tool", left.end())
    closing = _closing(marks, opening)
    return Action(name, word[0], text[opening + 1 : closing], tuple(others)), closing + 1


def _closing(text: str, opening: int) -> int:
    """The position of the `)` that closes the `(` at `opening`; a scan, so that depth costs no recursion."""
    depth = 0
    for bracket in _BRACKET.finditer(text, opening):
        character, position = bracket[0], bracket.start()
        if character in "([{":
            depth += 1
            if depth > MAX_DEPTH:
                raise ActionSyntaxError(f"more than {MAX_DEPTH} brackets open at once", position)
        else:
            depth -= 1
            if depth == 0:
                if character != ")":
                    raise ActionSyntaxError(f"`(` closed by `{character}`", position)
                return position
    raise ActionSyntaxError("`(` is never closed", opening)


def _separator(text: str, start: int) -> int:
    """The position after the separator at `start`, which is where the next action begins or the text ends."""
    end = _skip(_WHITE, text, start)
    broken = "\n" in text[start:end]
    if text.startswith(";", end):
        return _skip(_WHITE, text, end + 1)
    if end < len(text) and not broken:
        raise ActionSyntaxError("expected `;` or a line break after an action", end)
    return end


def _skip(pattern: re.Pattern[str], text: str, start: int) -> int:
    match = pattern.match(text, start)
    return start if match is None else match.end()

"""The action grammar: the text that a grounder writes, as data, and back.

    actions    := action (separator action)* [";"]      separator := ";" or a line break
    action     := name "=" tool "(" arguments ")"       R1 = Calculator(28 * 1/7)
                | name "=" name                         R5 = R4
    name       := "R" and a number from 1, in ASCII digits, without leading zeros
    tool       := an ASCII letter, then letters, digits and "_"; not itself a name
    arguments  := any text whose brackets balance

Arguments are free text (a question, a quoted title, code), so quotes mean nothing, and a separator inside brackets
separates nothing. Brackets are counted whatever their kind, because maths texts hold half-open intervals such as
``(0, 1]``; only the outermost pair must be ``(`` and ``)``. Spaces and blank lines around actions are ignored.

Not covered: an argument with a bracket that never closes (``:)``) is a syntax error; a result name that a title happens
to contain (the motorcycle R1) reads as a reference.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

MAX_LENGTH = 20_000  # characters of a whole action text
MAX_DEPTH = 64  # brackets open at once, the outermost pair included

_NAME = r"R[1-9][0-9]*"
_REFERENCE = re.compile(rf"(?<!\w){_NAME}(?!\w)")
_LEFT_SIDE = re.compile(rf"({_NAME})\s*=\s*")
_WORD = re.compile(r"[A-Za-z][A-Za-z0-9_]*")
_BLANKS = re.compile(r"[^\S\n]*")
_WHITE = re.compile(r"\s*")


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
    the outer parentheses exactly as written, or an assignment's right-hand name.
    """

    name: str
    tool: str | None
    arguments: str


def parse(text: str) -> tuple[Action, ...]:
    """Read an action text, the whole of it: one action or more, in order, each result name once.

    Raises ActionSyntaxError for any other text: empty, longer than MAX_LENGTH, nested deeper than MAX_DEPTH, or with
    anything before, between or after its actions.
    """
    if len(text) > MAX_LENGTH:
        raise ActionSyntaxError(f"{len(text)} characters, more than {MAX_LENGTH}", MAX_LENGTH)
    actions: list[Action] = []
    names: set[str] = set()
    position = _skip(_WHITE, text, 0)
    while position < len(text) or not actions:
        action, end = _action(text, position)
        if action.name in names:
            raise ActionSyntaxError(f"{action.name} is given twice", position)
        names.add(action.name)
        actions.append(action)
        position = _separator(text, end)
    return tuple(actions)


def render(actions: Iterable[Action]) -> str:
    """Write actions as canonical text, `R1 = Calculator(28 * 1/7); R2 = Calculator(28 - R1)`.

    `parse` gives back the same actions. Raises ValueError for actions that no text in the grammar stands for.
    """
    actions = tuple(actions)
    text = "; ".join(f"{a.name} = {a.arguments if a.tool is None else f'{a.tool}({a.arguments})'}" for a in actions)
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


def _action(text: str, start: int) -> tuple[Action, int]:
    """The action that begins at `start`, and the position after it."""
    left = _LEFT_SIDE.match(text, start)
    if left is None:
        raise ActionSyntaxError("expected an action such as `R1 = Tool(...)`", start)
    word = _WORD.match(text, left.end())
    if word is None:
        raise ActionSyntaxError("expected a tool or a result name", left.end())
    opening = _skip(_BLANKS, text, word.end())
    is_name = _REFERENCE.fullmatch(word[0]) is not None
    if not text.startswith("(", opening):
        if not is_name:
            raise ActionSyntaxError(f"expected `(` after {word[0]}", word.end())
        return Action(left[1], None, word[0]), word.end()
    if is_name:
        raise ActionSyntaxError(f"{word[0]} is a result, not a tool", left.end())
    closing = _closing(text, opening)
    return Action(left[1], word[0], text[opening + 1 : closing]), closing + 1


def _closing(text: str, opening: int) -> int:
    """The position of the `)` that closes the `(` at `opening`; a scan, so that depth costs no recursion."""
    depth = 0
    for position in range(opening, len(text)):
        character = text[position]
        if character in "([{":
            depth += 1
            if depth > MAX_DEPTH:
                raise ActionSyntaxError(f"more than {MAX_DEPTH} brackets open at once", position)
        elif character in ")]}":
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

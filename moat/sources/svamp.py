"""SVAMP, as its publisher's JSON or with the hub's columns: Body, Question, Equation, Answer.

The equation, `( ( 8.0 - 3.0 ) * 2.0 )`, gives one action and one subgoal for each operation, innermost first. Figures
are written without a `.0`, and the answer is what the publisher says, not cut to an integer (trap 32). A row whose equation
does not come to its answer is dropped, or by `keep_all` kept with question and answer alone.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from fractions import Fraction
from typing import Any

from moat.answers import same_answer
from moat.calculator import CalculationError, calculate, format_number
from moat.sources.base import Dropped, Imported, Metric, Record, Turn, plan
from moat.sources.fields import MALFORMED, Unusable, mapping, text

UNREADABLE = "the equation cannot be read"
ELSEWHERE = "the equation is not the answer"

DOMAIN = "maths"
_TOKEN = re.compile(r"\s*(?:([0-9]+(?:\.[0-9]+)?)|([-+*/()]))")
_BINDS = {"+": 1, "-": 1, "*": 2, "/": 2}
_WORDS = {
    "+": "Add {1} to {0}",
    "-": "Subtract {1} from {0}",
    "*": "Multiply {0} by {1}",
    "/": "Divide {0} by {1}",
}


def read(rows: Iterable[tuple[int, Any]], keep_all: bool = False) -> Imported:
    """Records of SVAMP's rows."""
    for number, row in rows:
        try:
            yield _record(number, mapping(row), keep_all)
        except Unusable as error:
            yield Dropped(number, error.reason, error.detail)


def _record(number: int, row: Mapping[str, Any], keep_all: bool) -> Record:
    gold = _gold(row.get("Answer"))
    try:
        turns, answer = _turns(text(row, "Equation"))
        if not same_answer(answer, gold):
            raise Unusable(ELSEWHERE, f"it comes to {answer}, the answer is {gold}")
    except Unusable:
        if not keep_all:
            raise
        turns = []
    return Record(
        number=number,
        text=f"{text(row, 'Body')} {text(row, 'Question')}",
        domain=DOMAIN,
        metric=Metric.NUMBER,
        gold_answer=gold,
        subgoals=plan([turn.subgoal for turn in turns]),
        actions="; ".join(turn.actions for turn in turns),
        turns=tuple(turns),
    )


def _gold(answer: Any) -> str:
    """The answer, a number or its text: 51.0 is `51`, 2.5 stays `2.5`."""
    if isinstance(answer, bool) or not isinstance(answer, (int, float, str)):
        raise Unusable(MALFORMED, "`Answer` is neither a number nor its text")
    try:
        return format_number(Fraction(str(answer).strip()))
    except ValueError as error:
        raise Unusable(MALFORMED, f"`Answer` is {str(answer)[:50]!r}, not a number") from error


def _turns(equation: str) -> tuple[list[Turn], str]:
    """A turn for each operation, innermost first, and what the equation comes to."""
    turns: list[Turn] = []
    operands: list[tuple[str, str]] = []  # as an action and as a subgoal write it
    waiting: list[str] = []

    def operate() -> None:
        operation = waiting.pop()
        if operation == "(" or len(operands) < 2:
            raise Unusable(UNREADABLE, equation)
        right, left = operands.pop(), operands.pop()
        name = f"R{len(turns) + 1}"
        subgoal = _WORDS[operation].format(left[1], right[1])
        turns.append(Turn(subgoal, f"{name} = Calculator({left[0]} {operation} {right[0]})"))
        operands.append((name, f"the result of Subgoal {len(turns)}"))

    for figure, sign in _tokens(equation):
        if figure:
            operands.append((format_number(Fraction(figure)),) * 2)
        elif sign == "(":
            waiting.append(sign)
        elif sign == ")":
            while waiting and waiting[-1] != "(":
                operate()
            if not waiting:
                raise Unusable(UNREADABLE, equation)
            waiting.pop()
        else:
            while waiting and _BINDS.get(waiting[-1], 0) >= _BINDS[sign]:
                operate()
            waiting.append(sign)
    while waiting:
        operate()
    if len(operands) != 1:
        raise Unusable(UNREADABLE, equation)
    if not turns:
        turns.append(Turn(f"Take {operands[0][1]} from the task", f"R1 = Calculator({operands[0][0]})"))
    try:
        return turns, format_number(calculate(equation))
    except CalculationError as error:
        raise Unusable(UNREADABLE, f"{equation}: {error}") from error


def _tokens(equation: str) -> list[tuple[str, str]]:
    tokens: list[tuple[str, str]] = []
    position = 0
    while position < len(equation):
        match = _TOKEN.match(equation, position)
        if match is None:
            raise Unusable(UNREADABLE, f"{equation!r} at character {position}")
        tokens.append((match[1] or "", match[2] or ""))
        position = match.end()
    return tokens

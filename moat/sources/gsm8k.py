"""GSM8K, its main and its socratic configuration: `{"question": …, "answer": …}`.

A line of the solution with calculations in it (`<<48/2=24>>`) is one subgoal with an action for each of them. The subgoal is
the line's sub-question (socratic: `How many clips …? ** Natalia sold …`), or, in the main configuration, the line's sentence
without its figures and results, so that a plan does not give away what is to be calculated. Other lines only remark on
something; they give no subgoal.

An operand equal to an earlier result becomes that result's name, the latest one's, once in an action, because that is how
the solutions are meant. A figure that the question gives as well is the exception: it stays a figure if that result has been
used before, and else becomes the name, so that no result stands idle beside its equal.

A row is converted when every calculation is right, exactly, and the last one comes to the answer after `####`. The others
are dropped, or kept with question and answer alone by `keep_all`: right for a test file, whose every row counts.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from fractions import Fraction
from itertools import groupby
from typing import Any

from moat.answers import parse_number, same_answer
from moat.calculator import NUMBER, CalculationError, calculate, format_number
from moat.sources.base import Dropped, Imported, Metric, Record, Turn, plan
from moat.sources.fields import MALFORMED, Unusable, mapping, text

NO_CALCULATION = "no calculation"
WRONG = "a calculation is wrong"
UNREADABLE = "a calculation cannot be read"
ELSEWHERE = "the last calculation is not the answer"
NO_QUESTION = "a line without its sub-question"

DOMAIN = "maths"
UNNAMED = "Work out the next amount"  # for a line that is a formula and nothing else

_CALCULATION = re.compile(r"<<([^<>]*)>>")
_FIGURE = re.compile(NUMBER)
# A run of figures, signs and currency, whatever spaces are in it: `48/2 = $`, `(5 x 3)`, `20%`.
_FORMULA = re.compile(rf"[$€£(]*\s*[-−]?(?:{NUMBER})(?:\s*(?:[-+−*/×÷=^%$€£().,]|[xX](?=[\s\d$(])|{NUMBER}))*")
_LEFT_OVER = re.compile(r"(?<!\S)[-−/^%$€£().,:]+(?!\S)|[=+*×÷]+")
_EDGES = " .,;:=-+*/$%"
_WORDS = re.findall(
    r"\w+",
    "zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen seventeen "
    "eighteen nineteen twenty",
)
# What a sentence must not end on once its figures are gone: `The cost is`, `He eats pieces because`.
_DANGLING = re.compile(
    r"(?:\s+|^)(?:is|are|was|were|be|because|since|so|for|and|of|only|by|at|to|with|which|that|a|an|the|than|x)$", re.I
)


def read(rows: Iterable[tuple[int, Any]], socratic: bool = False, keep_all: bool = False) -> Imported:
    """Records of the main configuration, or with `socratic` of the other one, whose lines must all have a sub-question."""
    for number, row in rows:
        try:
            yield _record(number, mapping(row), socratic, keep_all)
        except Unusable as error:
            yield Dropped(number, error.reason, error.detail)


def _record(number: int, row: Mapping[str, Any], socratic: bool, keep_all: bool) -> Record:
    question, solution = text(row, "question"), text(row, "answer")
    body, mark, gold = solution.rpartition("####")
    if not mark or parse_number(gold) is None:
        raise Unusable(MALFORMED, "`answer` does not end in `####` and a number")
    try:
        turns = _turns(question, body, gold, socratic)
    except Unusable:
        if not keep_all:
            raise
        turns = []
    return Record(
        number=number,
        text=question,
        domain=DOMAIN,
        metric=Metric.NUMBER,
        gold_answer=gold.strip(),
        subgoals=plan([turn.subgoal for turn in turns]),
        actions="; ".join(turn.actions for turn in turns),
        turns=tuple(turns),
    )


def _turns(question: str, body: str, gold: str, socratic: bool) -> list[Turn]:
    actions = _Actions(question)
    turns: list[Turn] = []
    for line in filter(_CALCULATION.search, body.splitlines()):
        asked, _, sentence = line.rpartition(" ** ")
        if socratic and not asked.strip():
            raise Unusable(NO_QUESTION, line.strip())
        wrote = [actions.add(calculation) for calculation in _CALCULATION.findall(sentence)]
        turns.append(Turn(asked.strip() if socratic else _without_figures(sentence), "; ".join(wrote)))
    if not turns:
        raise Unusable(NO_CALCULATION, "the solution has no `<<…=…>>`")
    answer = format_number(actions.results[-1])
    if not same_answer(answer, gold):
        raise Unusable(ELSEWHERE, f"it comes to {answer}, the answer is {gold.strip()}")
    return turns


class _Actions:
    """The actions of a solution, calculation by calculation; each is checked by working it out."""

    def __init__(self, question: str) -> None:
        self.results: list[Fraction] = []
        spelled = {word: Fraction(value) for value, word in enumerate(_WORDS)}
        self._given = {_value(figure) for figure in _FIGURE.findall(question)}
        self._given |= {spelled[word] for word in re.findall(r"\w+", question.casefold()) if word in spelled}
        self._used: set[int] = set()  # results that an earlier action refers to

    def add(self, calculation: str) -> str:
        """`48/2=24` as the next action."""
        expression, _, stated = calculation.rpartition("=")
        try:
            came, claimed = calculate(expression), calculate(stated)
        except CalculationError as error:
            raise Unusable(UNREADABLE, f"<<{calculation}>>: {error}") from error
        if came != claimed or isinstance(came, bool):
            raise Unusable(WRONG, f"<<{calculation}>> comes to {format_number(came)}")
        here: set[int] = set()

        def operand(figure: re.Match[str]) -> str:
            value = _value(figure[0])
            latest = max((index for index, result in enumerate(self.results, 1) if result == value), default=None)
            if latest is None or latest in here or (value in self._given and latest in self._used):
                return figure[0]
            here.add(latest)
            return f"R{latest}"

        written = _FIGURE.sub(operand, expression.strip())
        self._used |= here
        self.results.append(came)
        return f"R{len(self.results)} = Calculator({written})"


def _value(figure: str) -> Fraction:
    return Fraction(figure.replace(",", ""))


def _without_figures(sentence: str) -> str:
    """A solution's sentence without its formulas and figures, and without results that are spelled out."""
    for calculation in _CALCULATION.findall(sentence):
        value = parse_number(calculation.rpartition("=")[2])
        if value is not None and value.denominator == 1 and 0 <= value < len(_WORDS):
            sentence = re.sub(rf"\b{_WORDS[int(value)]}\b", " ", sentence, flags=re.IGNORECASE)
    sentence = _FORMULA.sub(" ", _CALCULATION.sub(" 0 ", sentence))
    words = " ".join(word for word, _ in groupby(_LEFT_OVER.sub(" ", sentence).split())).strip(_EDGES)
    while words != (shorter := _DANGLING.sub("", words).strip(_EDGES)):
        words = shorter
    if sum(word.isalpha() for word in words.split()) < 2:
        return UNNAMED
    return words[0].upper() + words[1:]

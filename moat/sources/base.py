"""What every importer gives: records, and why a row gave none."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum


class Metric(StrEnum):
    """How an answer is graded."""

    NUMBER = "number"  # equal value
    TEXT = "text"  # equal text after normalising case, spaces and quotes: of results that a question's answer is not
    YES_NO = "yes_no"  # exact match of yes or no; a failure is neither
    EXACT_MATCH = "exact_match"  # equal text after normalising; word F1 beside it
    WEB_STEP = "web_step"  # the right element, operation and text of a step on a page
    REWARD = "reward"  # the environment's reward, 0 to 1


@dataclass(frozen=True, slots=True)
class Turn:
    """One subgoal (without its `Subgoal n: `) and the actions that reach it, as written in the action grammar.

    `result` is what the publisher says they came to; blank where nothing is said, which is executed.
    """

    subgoal: str
    actions: str
    result: str = ""


@dataclass(frozen=True, slots=True)
class Passage:
    """A text that the tools of `qa` may find."""

    title: str
    text: str


@dataclass(frozen=True, slots=True)
class Record:
    """A task with its gold.

    `subgoals` and `actions` are the whole plan and all actions, as a planner and a grounder answer them at once; blank
    where the publisher gives none (the task can then be evaluated on, and neither demonstrated nor scored). `turns` is
    the same turn by turn, empty where it is not known which actions belong to which subgoal. `number` is the row's place
    in its file, from 1. `step` says that the task is one step of the episode `episode`: its last turn is what is asked,
    the turns before it are the history. `context` is JSON for the tools (the elements of a page), or empty. `split` is
    the publisher's name of the row's split, or empty.
    """

    number: int
    text: str
    domain: str
    metric: Metric
    gold_answer: str
    subgoals: str = ""
    actions: str = ""
    turns: tuple[Turn, ...] = ()
    episode: str = ""
    step: bool = False
    context: str = ""
    passages: tuple[Passage, ...] = ()
    split: str = ""


@dataclass(frozen=True, slots=True)
class Dropped:
    """A row that gives no record: its place in the file, from 1, a reason to count by, and what is wrong with it."""

    number: int
    reason: str
    detail: str


Imported = Iterator[Record | Dropped]
"""What an importer yields, row by row."""


class SourceError(ValueError):
    """A source that cannot be read at all; the message names the file or data set, the place, and what to do."""


def plan(subgoals: list[str]) -> str:
    """Subgoals as a planner writes them, `Subgoal 1: …; Subgoal 2: …`."""
    return "; ".join(f"Subgoal {number}: {text}" for number, text in enumerate(subgoals, 1))

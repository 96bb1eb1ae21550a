"""The turns of iterative planning: one subgoal a turn, executed, its result told, until the planner stops.

The wording of results and of the decision to stop is that of the public Lumos data, so that its iterative rows and ours are
the same conversation.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

KEEP = "No, I will keep planning. "
STOP = "Yes, I will stop planning."
RESULT_SHOWN = 300  # characters of a result that a turn tells; a longer one (passages) goes on as an ellipsis


@dataclass(frozen=True, slots=True)
class Done:
    """A turn that is over: its subgoal (`Subgoal 2: …`), the actions for it, and the result of the last of them."""

    subgoal: str
    actions: str
    result: str


def numbered(number: int, subgoal: str) -> str:
    """A subgoal with its number, from 1, as the grounder reads it."""
    return f"Subgoal {number}: {subgoal}"


def planned(number: int, subgoal: str) -> str:
    """The planner's answer that names subgoal `number` (from 1; `subgoal` carries it already): from the second turn on it
    first decides to go on.
    """
    return subgoal if number == 1 else KEEP + subgoal


def told(number: int, result: str) -> str:
    """What the planner is told after turn `number`, and asked."""
    return f"The executed result for Subgoal {number} is {shown(result)}. Should we stop planning?"


def shown(result: str) -> str:
    """A result as turns tell it."""
    return result if len(result) <= RESULT_SHOWN else result[: RESULT_SHOWN - 1] + "…"


def subgoal_of(answer: str) -> str | None:
    """The subgoal that a planner's answer names, as the grounder reads it; None when it decides to stop."""
    text = answer.strip()
    if text.startswith(STOP.split(",")[0]):
        return None
    return text.removeprefix(KEEP.strip()).strip()


def history(row: Mapping[str, Any]) -> tuple[Done, ...] | None:
    """The turns before the one that a table's row is about; None for a row of a whole task."""
    if row["turn"] is None:
        return None
    return done(row["turns"][: row["turn"]])


def done(turns: Sequence[Mapping[str, str]]) -> tuple[Done, ...]:
    """Turns of a table's cell."""
    return tuple(Done(turn["subgoal"], turn["actions"], turn["result"]) for turn in turns)

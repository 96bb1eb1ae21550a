"""What an actor's turn is: an action, a reflection, or neither; and what the other side answers where no environment does.

A reflection is one of ten sentences, as a thought without an action. It takes no step in the environment, is answered by a
fixed acknowledgement, and counts as a turn. One directly after another is no reflection: nobody gets far by saying
that he was wrong. A turn from which no action can be read is answered by a fixed line, and counts as a turn too. Training,
search, replays and evaluations all read and answer turns here.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from moat.react import Several, TurnError, parse
from moat.seeds import seed_of

REFLECTIONS = (
    "I made a mistake. I should try something else.",
    "That was wrong. Let me do it another way.",
    "My last step did not help. I will correct it.",
    "I went off the path. I have to go back to the goal.",
    "This does not lead to the goal. I need a new approach.",
    "I chose badly. Let me fix that now.",
    "Something went wrong here. I will change what I do.",
    "I see my error. The next step must be a better one.",
    "That step was a mistake. I will put it right.",
    "I took a wrong turn. Let me start from what I know.",
)
ACKNOWLEDGED = "Go on."
NOT_READ = "No action was read. Write one line: Action: and the action."


class Kind(StrEnum):
    """What a turn is."""

    ACTION = "action"  # goes to the environment
    REFLECTION = "reflection"  # acknowledged
    UNREADABLE = "unreadable"  # told so


@dataclass(frozen=True, slots=True)
class Said:
    """A turn as it was read; `action` is None where it is none, and `answer` then is what the actor is told."""

    kind: Kind
    action: str | None = None
    answer: str | None = None


def reflection(*parts: object) -> str:
    """A reflection turn's text, drawn by what it is for."""
    return f"Thought: {REFLECTIONS[seed_of('reflection', *parts) % len(REFLECTIONS)]}"


_TURNS = frozenset(f"Thought: {sentence}" for sentence in REFLECTIONS)


def read(text: str, several: Several, after: Kind | None) -> Said:
    """What a turn is, by its text and by what the turn before it was (None: it is the first)."""
    if text.strip() in _TURNS:
        if after is Kind.REFLECTION:
            return Said(Kind.UNREADABLE, answer=NOT_READ)
        return Said(Kind.REFLECTION, answer=ACKNOWLEDGED)
    try:
        return Said(Kind.ACTION, parse(text, several).action)
    except TurnError:
        return Said(Kind.UNREADABLE, answer=NOT_READ)


def normal(action: str) -> str:
    """An action's text, by which two are told apart: without case and spacing (trap 44: the thought does not count)."""
    return " ".join(action.casefold().split())

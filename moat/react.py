"""What an agent says in a turn (ReAct: Yao et al. 2022, arXiv 2210.03629): a thought, then one action.

    Thought: I need planks first.
    Action: get 2 oak logs

A label stands at the start or after a blank, in this spelling, on a line of its own or not. An action is what follows its
label, up to the end of that line or the next label; where the line is empty, the next line that is not. What a model
adds after it, an observation that it made up among it, is no part of the turn. What the environment makes of an action is the
environment's affair: every text that is not empty is one.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import StrEnum

_LABEL = re.compile(r"(?<!\S)(Thought|Action|Observation):")


class Several(StrEnum):
    """What becomes of a turn with more than one action."""

    LAST = "last"  # the last one counts
    REFUSE = "refuse"  # none does


class TurnErrorKind(StrEnum):
    """Why a turn has no action."""

    NONE = "none"  # no `Action:`
    EMPTY = "empty"  # nothing after it
    SEVERAL = "several"  # more than one, and `Several.REFUSE`


class TurnError(ValueError):
    """A turn without an action to take; `kind` says why, for counting."""

    def __init__(self, kind: TurnErrorKind, message: str) -> None:
        super().__init__(message)
        self.kind = kind


@dataclass(frozen=True, slots=True)
class Turn:
    """A thought, which may be empty, and an action on one line, which is not."""

    thought: str
    action: str

    @property
    def text(self) -> str:
        """The turn in its usual form, which `parse` reads back."""
        return f"Thought: {self.thought}\nAction: {self.action}" if self.thought else f"Action: {self.action}"


def parse(text: str, several: Several = Several.LAST) -> Turn:
    """The thought and the action of a turn; the thought is what stands before its action, without the label.

    Raises TurnError.
    """
    labels = list(_LABEL.finditer(text))
    actions = [number for number, label in enumerate(labels) if label[1] == "Action"]
    made_up = next((number for number, label in enumerate(labels) if label[1] == "Observation"), len(labels))
    actions = [number for number in actions if number < made_up]
    if not actions:
        raise TurnError(TurnErrorKind.NONE, f"no `Action:` in {_short(text)}")
    if len(actions) > 1 and several is Several.REFUSE:
        raise TurnError(TurnErrorKind.SEVERAL, f"{len(actions)} actions in {_short(text)}, where one is wanted")
    place = actions[-1]
    end = labels[place + 1].start() if place + 1 < len(labels) else len(text)
    said = text[labels[place].end() : end].strip()
    if not said:
        raise TurnError(TurnErrorKind.EMPTY, f"nothing after `Action:` in {_short(text)}")
    start = labels[place - 1].end() if place and labels[place - 1][1] == "Thought" else 0
    return Turn(text[start : labels[place].start()].strip(), said.splitlines()[0].strip())


def _short(text: str) -> str:
    return repr(text if len(text) <= 80 else text[:80] + "…")

"""What an agent says in a turn (ReAct: Yao et al. 2022, arXiv 2210.03629): a thought, then one action.

    Thought: I need planks first.
    Action: get 2 oak logs

A label stands at the start or after a blank, in this spelling, on a line of its own or not. An action is what follows its
label, up to the end of that line or the next label; where the line is empty, the next line that is not. What a model
adds after it is no part of the turn, but for further actions. What the environment makes of an action is the environment's
affair: every text that is not empty is one.
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
    """The action of a turn, and the last thought before it; without `Thought:`, what stands before the first label.

    Raises TurnError.
    """
    labels = list(_LABEL.finditer(text))
    actions = [number for number, label in enumerate(labels) if label[1] == "Action"]
    if not actions:
        raise TurnError(TurnErrorKind.NONE, f"no `Action:` in {_short(text)}")
    if len(actions) > 1 and several is Several.REFUSE:
        raise TurnError(TurnErrorKind.SEVERAL, f"{len(actions)} actions in {_short(text)}, where one is wanted")
    ends = [*(label.start() for label in labels[1:]), len(text)]
    said = text[labels[actions[-1]].end() : ends[actions[-1]]].strip()
    if not said:
        raise TurnError(TurnErrorKind.EMPTY, f"nothing after `Action:` in {_short(text)}")
    thoughts = [number for number, label in enumerate(labels[: actions[-1]]) if label[1] == "Thought"]
    thought = text[labels[thoughts[-1]].end() : ends[thoughts[-1]]] if thoughts else text[: labels[0].start()]
    return Turn(thought.strip(), said.splitlines()[0].strip())


def _short(text: str) -> str:
    return repr(text if len(text) <= 80 else text[:80] + "…")

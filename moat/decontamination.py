"""The gate between training and evaluation: no question stands in both, and near repeats are told of."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

N = 8  # words of an overlap worth telling of

_WORD = re.compile(r"\w+")


class ContaminatedError(ValueError):
    """A question stands in training and in evaluation; the message names the first one's tasks and what to do."""


@dataclass(frozen=True, slots=True)
class Overlap:
    """Two tasks that share a run of words: their ids, the first such run, and how many runs they share."""

    train_id: str
    eval_id: str
    words: str
    count: int


def normalised(text: str) -> str:
    """A question's form for the gate: case and spacing do not make another question."""
    return " ".join(text.casefold().split())


def decontaminate(train: Iterable[Mapping[str, Any]], evaluation: Iterable[Mapping[str, Any]]) -> None:
    """Raises ContaminatedError when a question (`text` of rows with a `task_id`) stands in both splits."""
    asked = {normalised(row["text"]): row["task_id"] for row in train}
    shared = [(asked[n], row["task_id"]) for row in evaluation if (n := normalised(row["text"])) in asked]
    if shared:
        raise ContaminatedError(
            f"{len(shared)} questions stand in train and eval, the first as task {shared[0][0]} and {shared[0][1]}: "
            "change the draw of one source in params.yaml, or take the rows out"
        )


def overlaps(train: Iterable[Mapping[str, Any]], evaluation: Iterable[Mapping[str, Any]], n: int = N) -> Sequence[Overlap]:
    """Pairs of a training and an evaluation task that share a run of `n` words, for a warning; in evaluation's order.

    Each evaluation task is named once, beside the training task that it shares most runs with. Words are compared without
    case and punctuation; a text of fewer than `n` words has no run.
    """
    runs = [(row["task_id"], _runs(row["text"], n)) for row in evaluation]
    wanted = {run for _, mine in runs for run in mine}
    holders: dict[str, list[str]] = {}
    for row in train:
        for run in _runs(row["text"], n):
            if run in wanted:
                holders.setdefault(run, []).append(row["task_id"])
    found = []
    for eval_id, mine in runs:
        shared: dict[str, list[str]] = {}
        for run in mine:
            for train_id in holders.get(run, ()):
                shared.setdefault(train_id, []).append(run)
        if shared:
            train_id = max(sorted(shared), key=lambda one: len(shared[one]))
            found.append(Overlap(train_id, eval_id, shared[train_id][0], len(shared[train_id])))
    return found


def _runs(text: str, n: int) -> list[str]:
    """The distinct runs of `n` words of a text, in order."""
    words = _WORD.findall(text.casefold())
    return list(dict.fromkeys(" ".join(words[at : at + n]) for at in range(len(words) - n + 1)))

"""Which tasks are trained on, demonstrated and evaluated on: drawn by content and seed, so that others do not move them.

Each task has a rank in each split, a hash of the seed, the split's name and its own content. The evaluation split is the
lowest-ranked tasks of all; the training split the lowest-ranked of the rest; the demonstrations those of what is left.
The order of the source's rows does not matter, and an added task takes the place of at most one other in a split.

Tasks that belong together are drawn together: the steps of an episode, and questions that are the same but for case and
spacing.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from moat.decontamination import normalised
from moat.seeds import seed_of
from moat.sources.base import Record


class SplitError(ValueError):
    """A source has fewer tasks than its splits ask for; the message gives both numbers."""


@dataclass(frozen=True, slots=True)
class Splits:
    """Disjoint records, each split in the order of its ranks (an episode's steps in their own order)."""

    train: tuple[Record, ...]
    demos: tuple[Record, ...]
    evaluation: tuple[Record, ...]


def draw(records: Iterable[Record], seed: int | str, n_train: int, n_demos: int, n_eval: int) -> Splits:
    """Draw disjoint splits. Numbers count tasks; an episode is one task, whatever its steps.

    Raises SplitError when there are fewer tasks than n_train + n_demos + n_eval. Records without a gold answer, which only
    demonstrate, and records without a plan, which cannot, are drawn for the splits that they can serve.
    """
    groups: dict[str, list[Record]] = {}
    for record in records:
        groups.setdefault(_group(record), []).append(record)
    drawn: dict[str, list[str]] = {}
    left = set(groups)
    for split, n in (("eval", n_eval), ("train", n_train), ("demos", n_demos)):
        able = [key for key in left if all(_serves(record, split) for record in groups[key])]
        if len(able) < n:
            raise SplitError(
                f"{n} tasks are asked for {split}, and {len(able)} of {len(groups)} are left that can serve: lower n_train, "
                "n_demos or n_eval of the source"
            )
        drawn[split] = sorted(able, key=lambda key: (seed_of(seed, split, key), key))[:n]
        left = left - set(drawn[split])

    def chosen(split: str) -> tuple[Record, ...]:
        return tuple(record for key in drawn[split] for record in groups[key])

    return Splits(train=chosen("train"), demos=chosen("demos"), evaluation=chosen("eval"))


def _group(record: Record) -> str:
    return f"episode {record.episode}" if record.step else f"text {normalised(record.text)}"


def _serves(record: Record, split: str) -> bool:
    """An evaluated task has an answer; a demonstrated one has a plan and actions; a trained one, which is scored, both."""
    answered, shown = bool(record.gold_answer), bool(record.subgoals and record.actions)
    return {"eval": answered, "train": answered and shown, "demos": shown}[split]

"""The grounder's training set: judged candidates, and as many initial demonstrations (MOAT, section 4.2: 1:1)."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import TypeVar

import numpy as np

Row = TypeVar("Row")


def draw_initial(demos: Sequence[Row], count: int, seed: int) -> list[Row]:
    """Draw `count` demonstrations by seed, without replacement; when there are fewer, go round again (whole rounds first).

    Raises ValueError when there is none to draw from.
    """
    if count and not demos:
        raise ValueError("no initial demonstrations to mix with: set mix.initial_ratio to 0, or add demonstrations")
    rng = np.random.default_rng(seed)
    drawn: list[Row] = []
    while len(drawn) < count:
        order = rng.permutation(len(demos))
        drawn += [demos[index] for index in order[: count - len(drawn)]]
    return drawn


def first_of_equal(rows: Sequence[Row], keys: Sequence[Hashable]) -> list[Row]:
    """Keep the first of the rows whose keys are equal."""
    first: dict[Hashable, Row] = {}
    for row, key in zip(rows, keys, strict=True):
        first.setdefault(key, row)
    return list(first.values())

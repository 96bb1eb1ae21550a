"""Two Parquet files cut alike into pieces that fit into memory: rows of one key are in the same piece on both sides."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow.parquet as pq

ROWS = 262_144  # of a piece of sorted files
UNSORTED = 1_048_576  # of a piece of others, each of which is a pass over the whole file
TASK = "task_id"  # rows of one task stay together

Group = tuple[int, Any, Any]  # a row group: rows, least and greatest value of the key's first column


def pieces(first: Path, second: Path, key: Sequence[str], rows: int = ROWS, unsorted: int = UNSORTED) -> list[pl.Expr]:
    """Filters of both files that together let every row through once.

    Files sorted by the key are cut at row groups, so that a piece reads only its own; others by a hash of the key.
    """
    sides = [_groups(path, key[0]) for path in (first, second)]
    if all(groups is not None and _sorted(groups, 2 * rows) for groups in sides):
        return _ranges(
            key[0], max((groups or [] for groups in sides), key=lambda groups: sum(n for n, _, _ in groups)), rows
        )
    most = max(pq.read_metadata(path).num_rows for path in (first, second))
    count = -(-most // unsorted)
    if count < 2:
        return [pl.lit(True)]
    hashed = pl.col(TASK).hash(0) if TASK in key else pl.struct(key).hash(0)
    return [hashed % count == number for number in range(count)]


def _groups(path: Path, column: str) -> list[Group] | None:
    """The row groups that have rows; None where a group does not say its least and greatest value."""
    meta = pq.read_metadata(path)
    found: list[Group] = []
    for number in range(meta.num_row_groups):
        group = meta.row_group(number)
        one = next(one for n in range(group.num_columns) if (one := group.column(n)).path_in_schema == column)
        if one.statistics is None or not one.statistics.has_min_max:
            return None
        found.append((group.num_rows, one.statistics.min, one.statistics.max))
    return found


def _sorted(groups: Sequence[Group], most: int) -> bool:
    """Whether no group has rows that belong before those of the group before it, or more than `most`."""
    follow = all(groups[n][2] <= groups[n + 1][1] for n in range(len(groups) - 1))
    return follow and all(rows <= most for rows, _, _ in groups)


def _ranges(column: str, groups: Sequence[Group], rows: int) -> list[pl.Expr]:
    bounds, held = [], 0
    for count, least, _ in groups:
        if held and held + count > rows and least not in bounds:
            bounds.append(least)
            held = 0
        held += count
    key = pl.col(column)
    if not bounds:
        return [pl.lit(True)]
    between = [(key >= low) & (key < high) for low, high in pairwise(bounds)]
    return [(key < bounds[0]) | key.is_null(), *between, key >= bounds[-1]]

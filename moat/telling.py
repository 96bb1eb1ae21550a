"""Which changed rows say the most: those where a name or a truth value turned too, and of these the fewest words."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from operator import or_
from typing import Any

import polars as pl

from moat.words import Part, changed, parts

SHOWN = 3  # rows that are kept
LOOKED_AT = 30  # rows of a piece whose texts are compared word by word
FAR = 20_000  # characters of a text that are compared

Row = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Example:
    """A changed row: its key, values (before, after; no lists) and texts that changed. Least `weight` says most."""

    key: Row
    values: dict[str, tuple[Any, Any]]
    texts: dict[str, list[Part]]
    weight: tuple[Any, ...]


def order(row: Row, key: Sequence[str]) -> tuple[Any, ...]:
    """What rows are sorted by: their key, nulls last."""
    return tuple((row[name] is None, row[name]) for name in key)


def best(found: Iterable[Example]) -> list[Example]:
    """The most telling of them."""
    return sorted(found, key=lambda example: example.weight)[:SHOWN]


def examples(
    one: pl.DataFrame, other: pl.DataFrame, masks: Mapping[str, pl.Series], key: Sequence[str], texts: Sequence[str]
) -> list[Example]:
    """The most telling of matching rows; `masks` say which values differ.

    Only LOOKED_AT rows are compared word by word: most turned first, then those whose lengths differ least.
    """
    rows = reduce(or_, (masks[name] for name in texts))
    turning = [name for name in masks if name not in texts and one[name].dtype in (pl.Boolean, pl.String)]
    flags = pl.DataFrame(dict(masks)).filter(rows)
    one, other = one.filter(rows), other.filter(rows)
    turned = flags.select(pl.sum_horizontal(pl.col(turning).cast(pl.Int32))).to_series() if turning else None
    chosen = (
        one.select(key)
        .with_columns(
            pl.sum_horizontal(_longer(one[name], other[name]) for name in texts).alias("at longer"),
            (pl.lit(0) if turned is None else turned).alias("at turned"),
        )
        .with_row_index("at")
        .sort("at turned", "at longer", *key, descending=[True, False, *[False for _ in key]], nulls_last=True)
        .head(LOOKED_AT)["at"]
    )
    found = zip(*(frame[chosen].iter_rows(named=True) for frame in (one, other, flags)), strict=True)
    return best(_example(before, after, differ, key, texts, turning) for before, after, differ in found)


def _longer(one: pl.Series, other: pl.Series) -> pl.Series:
    lengths = [column.list.len() if isinstance(column.dtype, pl.List) else column.str.len_chars() for column in (one, other)]
    before, after = (length.cast(pl.Int64).fill_null(0) for length in lengths)
    return (after - before).abs()


def _example(
    before: Row, after: Row, differ: Mapping[str, bool], key: Sequence[str], texts: Sequence[str], turning: Sequence[str]
) -> Example:
    told = {name: parts(text(before[name]), text(after[name])) for name in texts if differ[name]}
    others = [name for name in differ if differ[name] and name not in texts and not isinstance(before[name], list)]
    values = {name: (before[name], after[name]) for name in others}
    words = sum(changed(found) for found in told.values())
    row = {name: before[name] for name in key}
    return Example(row, values, told, (-sum(name in turning for name in values), words, order(row, key)))


def text(value: Any) -> str:
    """A text as it is, a list as lines, nothing for null."""
    if isinstance(value, list):
        return "\n".join(_line(one) for one in value)[:FAR]
    return "" if value is None else str(value)[:FAR]


def _line(value: Any) -> str:
    return ", ".join(f"{name}: {one}" for name, one in value.items()) if isinstance(value, dict) else str(value)

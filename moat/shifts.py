"""What a table's columns hold, as figures that two tables can be compared by: means, quantiles, shares.

Each is one pass over the file by polars' streaming engine; one column at a time is held in memory, and no text.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import polars as pl

QUANTILES = {"p10": 0.1, "p50": 0.5, "p90": 0.9}
VALUES = 12  # different values that a column of names may have for its shares to be told
NAME = 40  # characters of the longest such name
TEXTS = {  # columns that hold texts, however few and short these are
    *("text", "instruction", "first", "observation", "action", "reasons"),
    *("subgoals", "gold_subgoals", "corrected_subgoals", "chosen", "rejected"),
    *("actions", "gold_actions", "corrected_actions"),
}
PLANS = "subgoals"  # the column whose styles are told
DISTINCT = 20_000  # different plans whose styles are told; of more, none
STYLE = "style of subgoals"

Shares = dict[str | None, float]


@dataclass(frozen=True, slots=True)
class Figures:
    """A column: its nulls, and the mean of `of`, which is value, share (of true), characters or items (of a list).

    `quantiles` are of numbers, `shares` of a column of few short names (null: the share of rows without one).
    """

    of: str
    nulls: int
    mean: float | None
    quantiles: dict[str, float | None]
    shares: Shares | None


def unit(dtype: pl.DataType) -> str | None:
    """What the mean of a column of this type is of; None where there is none."""
    if dtype.is_numeric():
        return "value"
    if isinstance(dtype, pl.List):
        return "items"
    return {pl.Boolean: "share", pl.String: "characters"}.get(dtype.base_type())


def figures(frame: pl.LazyFrame, columns: Sequence[str]) -> dict[str, Figures]:
    """The figures of those of the columns that can have some. NaN is left out of means and quantiles."""
    schema = frame.collect_schema()
    units = {name: of for name in columns if (of := unit(schema[name])) is not None}
    asked = [expr.alias(f"{what}:{name}") for name in units for what, expr in _asked(name, schema[name]).items()]
    row = frame.select(pl.len().alias("rows"), *asked).collect(engine="streaming").row(0, named=True)
    return {
        name: Figures(
            of,
            row[f"nulls:{name}"],
            row[f"mean:{name}"],
            _quantiles(frame, name) if of == "value" else {},
            _shares(frame, name, row["rows"]) if of == "characters" and _named(row, name) else None,
        )
        for name, of in units.items()
    }


def styles(frame: pl.LazyFrame) -> Shares | None:
    """Shares of the annotators' styles among a table's plans; None where it has none, or all are in no known style."""
    if frame.collect_schema().get(PLANS) != pl.String:
        return None
    if frame.select(pl.col(PLANS).approx_n_unique()).collect(engine="streaming").item() > DISTINCT:
        return None
    from moat.worlds.stories import style_of

    counts: dict[str | None, int] = {}
    for plan, n in frame.group_by(PLANS).len().collect(engine="streaming").iter_rows():
        style = style_of(plan or "")
        counts[style] = counts.get(style, 0) + n
    return _divided(counts) if set(counts) - {"other"} else None


def _asked(name: str, dtype: pl.DataType) -> dict[str, pl.Expr]:
    column = pl.col(name)
    asked = {"nulls": column.null_count()}
    if isinstance(dtype, pl.String):
        asked |= {"mean": column.str.len_chars().mean(), "longest": column.str.len_chars().max()}
        return asked if name in TEXTS else asked | {"different": column.approx_n_unique()}
    measured = column.list.len() if isinstance(dtype, pl.List) else column.fill_nan(None) if dtype.is_float() else column
    return asked | {"mean": measured.mean()}


def _named(row: dict[str, Any], name: str) -> bool:
    return name not in TEXTS and row[f"different:{name}"] <= 2 * VALUES and (row[f"longest:{name}"] or 0) <= NAME


def _quantiles(frame: pl.LazyFrame, name: str) -> dict[str, float | None]:
    column = pl.col(name).cast(pl.Float64).fill_nan(None)
    asked = [column.quantile(at, "linear").alias(label) for label, at in QUANTILES.items()]
    return frame.select(asked).collect(engine="streaming").row(0, named=True)


def _shares(frame: pl.LazyFrame, name: str, rows: int) -> Shares | None:
    """Shares of a column's values; None when they are too many after all, or as many as there are rows."""
    found = frame.group_by(name).len().collect(engine="streaming")
    if len(found) > VALUES + 1 or len(found) == rows > 1:
        return None
    return _divided(dict(found.iter_rows()))


def _divided(counts: dict[str | None, int]) -> Shares:
    total = sum(counts.values())
    return {value: n / total for value, n in sorted(counts.items(), key=lambda one: (-one[1], one[0] or ""))}

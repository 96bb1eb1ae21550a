"""Two tables compared by key: rows added, removed and changed, what turned right or wrong, the most telling texts.

Pure: frames in, counts and a few rows out. A piece of both tables is compared at a time, so that large ones fit.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import reduce
from operator import or_
from typing import Any

import numpy as np
import polars as pl

from moat import telling
from moat.telling import Example, Row

SHOWN = 5  # keys and moves of a kind that are kept
LISTED = 1000  # keys of what turned that are kept
RIGHT: dict[str, Any] = {"success": True, "outcome": "reached"}  # the value of a column that says that a row is right
NLL = ("nll", "chosen_nll")  # columns whose exponential is the task's PPL
TASK = "task_id"
WHOLE = (pl.lit(value=True),)

Move = tuple[str, float, float]  # a task, its PPL before and after


class DiffError(ValueError):
    """Two sides that cannot be compared; the message says what, where and what to do."""


@dataclass(frozen=True, slots=True)
class SchemaChange:
    """A column that only one table has, or whose type differs; types as polars names them, None: no such column."""

    column: str
    before: str | None
    after: str | None


@dataclass(frozen=True, slots=True)
class Turned:
    """How many rows turned right or wrong by a column, and their keys (the first LISTED)."""

    column: str
    n_right: int
    n_wrong: int
    right: list[Row]
    wrong: list[Row]


@dataclass(frozen=True, slots=True)
class Perplexity:
    """PPL of the `n` tasks that both tables have, each the geometric mean over the task's rows.

    The sums are of the tasks' mean NLL, in nats; `fell` and `rose` are the largest moves.
    """

    column: str
    n: int
    n_lower: int
    n_higher: int
    sum_before: float
    sum_after: float
    fell: list[Move]
    rose: list[Move]

    @property
    def before(self) -> float:
        """The geometric mean over the tasks, in the first table."""
        return math.exp(self.sum_before / self.n) if self.n else math.nan

    @property
    def after(self) -> float:
        """The same in the second table."""
        return math.exp(self.sum_after / self.n) if self.n else math.nan


@dataclass(frozen=True, slots=True)
class Comparison:
    """What differs between two tables' rows. `columns` counts the changed rows by column; keys are the first SHOWN."""

    rows: tuple[int, int]
    n_added: int
    n_removed: int
    n_changed: int
    columns: dict[str, int]
    added: list[Row]
    removed: list[Row]
    turned: Turned | None
    perplexity: Perplexity | None
    examples: list[Example]

    @property
    def equal(self) -> bool:
        """Whether both have the same rows, in the columns that were compared."""
        return not (self.n_added or self.n_removed or self.n_changed)


@dataclass(frozen=True, slots=True)
class What:
    """What is compared: `columns` besides the `key`, both in both tables, of comparable types.

    `texts` of them are told word by word; floats may differ by `tolerance`; `names` are the tables' own, for errors.
    """

    key: Sequence[str]
    columns: Sequence[str]
    texts: Sequence[str] = ()
    tolerance: float = 0.0
    names: tuple[str, str] = ("the first table", "the second table")

    @property
    def right(self) -> str | None:
        """The column that says whether a row is right, if there is one."""
        return next((name for name in RIGHT if name in self.columns), None)

    @property
    def nll(self) -> str | None:
        """The column of NLL of a table of tasks, if there is one."""
        return next((name for name in NLL if name in self.columns and TASK in self.key), None)


def schema_changes(first: pl.Schema, second: pl.Schema) -> list[SchemaChange]:
    """Columns that are not alike, in the order of the first table, then of the second."""
    types = {name: (first.get(name), second.get(name)) for name in dict.fromkeys([*first, *second])}
    return [
        SchemaChange(name, None if one is None else str(one), None if other is None else str(other))
        for name, (one, other) in types.items()
        if one != other
    ]


def comparable(one: pl.DataType, other: pl.DataType) -> bool:
    """Whether values of two types can be compared: equal types, or two of numbers."""
    return one == other or (one.is_numeric() and other.is_numeric())


def unequal(one: pl.Series, other: pl.Series, tolerance: float = 0.0) -> pl.Series:
    """Where two columns differ. Nulls equal nulls, NaN equals NaN; floats, also in lists, may differ by `tolerance`."""
    differ = one.ne_missing(other)
    if not tolerance:
        return differ
    if isinstance(one.dtype, pl.List) and one.dtype.inner.is_float():
        return differ & ~_lists_near(one, other, tolerance)
    if one.dtype.is_float() or other.dtype.is_float():
        return differ & ~((one - other).abs() <= tolerance).fill_null(value=False)
    return differ


def _lists_near(one: pl.Series, other: pl.Series, tolerance: float) -> pl.Series:
    """Which lists are as long as each other, and equal within `tolerance` value by value."""
    lists = pl.DataFrame({"one": one, "other": other}).with_row_index("row")
    alike = (pl.col("one").list.len() == pl.col("other").list.len()).fill_null(value=False)
    values = lists.filter(alike).explode("one", "other")
    far = values.filter(unequal(values["one"], values["other"], tolerance)).select("row").unique()
    return lists.select(alike & ~pl.col("row").is_in(far["row"].implode())).to_series()


def compare(first: pl.LazyFrame, second: pl.LazyFrame, what: What, pieces: Sequence[pl.Expr] = WHOLE) -> Comparison:
    """Compare two tables by key, one piece (a filter of both) after the other. Raises DiffError for a key that is twice."""

    def part(frame: pl.LazyFrame, piece: pl.Expr) -> pl.DataFrame:
        return frame.filter(piece).select(*what.key, *what.columns).collect(engine="streaming")

    return merged((compare_piece(part(first, piece), part(second, piece), what) for piece in pieces), what)


def compare_piece(first: pl.DataFrame, second: pl.DataFrame, what: What) -> Comparison:
    """Compare two frames. Raises DiffError for a key that one has twice."""
    for frame, name in zip((first, second), what.names, strict=True):
        _check_key(frame.select(what.key), name)
    one, other, removed, added = _matched(first, second, what.key)
    masks = {name: unequal(one[name], other[name], what.tolerance) for name in what.columns}
    rows = reduce(or_, masks.values(), pl.repeat(value=False, n=len(one), dtype=pl.Boolean, eager=True))
    return Comparison(
        rows=(len(first), len(second)),
        n_added=len(added),
        n_removed=len(removed),
        n_changed=int(rows.sum()),
        columns={name: int(mask.sum()) for name, mask in masks.items()},
        added=_head(added, what.key, SHOWN),
        removed=_head(removed, what.key, SHOWN),
        turned=_turned(one, other, what.right, what.key) if what.right else None,
        perplexity=_perplexity(first, second, what.nll, what.tolerance) if what.nll else None,
        examples=telling.examples(one, other, masks, what.key, what.texts) if what.texts else [],
    )


def merged(parts: Iterable[Comparison], what: What) -> Comparison:
    """The comparison of whole tables from those of their pieces, of which there is one at least."""
    return reduce(lambda one, other: _both(one, other, what), parts)


def _both(one: Comparison, other: Comparison, what: What) -> Comparison:
    return Comparison(
        rows=(one.rows[0] + other.rows[0], one.rows[1] + other.rows[1]),
        n_added=one.n_added + other.n_added,
        n_removed=one.n_removed + other.n_removed,
        n_changed=one.n_changed + other.n_changed,
        columns={name: n + other.columns[name] for name, n in one.columns.items()},
        added=_ordered([*one.added, *other.added], what.key, SHOWN),
        removed=_ordered([*one.removed, *other.removed], what.key, SHOWN),
        turned=_both_turned(one.turned, other.turned, what.key),
        perplexity=_both_perplexities(one.perplexity, other.perplexity),
        examples=telling.best([*one.examples, *other.examples]),
    )


def _both_turned(one: Turned | None, other: Turned | None, key: Sequence[str]) -> Turned | None:
    if one is None or other is None:
        return None
    right = _ordered([*one.right, *other.right], key, LISTED)
    wrong = _ordered([*one.wrong, *other.wrong], key, LISTED)
    return Turned(one.column, one.n_right + other.n_right, one.n_wrong + other.n_wrong, right, wrong)


def _both_perplexities(one: Perplexity | None, other: Perplexity | None) -> Perplexity | None:
    if one is None or other is None:
        return None
    return Perplexity(
        one.column,
        one.n + other.n,
        one.n_lower + other.n_lower,
        one.n_higher + other.n_higher,
        one.sum_before + other.sum_before,
        one.sum_after + other.sum_after,
        sorted([*one.fell, *other.fell], key=lambda move: (move[2] / move[1], move[0]))[:SHOWN],
        sorted([*one.rose, *other.rose], key=lambda move: (-move[2] / move[1], move[0]))[:SHOWN],
    )


def _check_key(keys: pl.DataFrame, name: str) -> None:
    if _ascend(keys) or keys.n_unique() == len(keys):
        return
    twice = keys.filter(keys.is_duplicated()).unique().sort(keys.columns)
    more = f", as it has {len(twice) - 1:,} other(s)" if len(twice) > 1 else ""
    raise DiffError(
        f"{name} has the key {twice.row(0, named=True)} more than once{more}; rows are compared by key: run the stage that "
        "wrote it again (`dvc repro`), or name the columns that tell its rows apart with --key"
    )


def _ascend(keys: pl.DataFrame) -> bool:
    """Whether every key is greater than the one before it, as in our own tables: then none is twice."""
    ascend = pl.lit(value=False)
    for name in reversed(keys.columns):
        here, before = pl.col(name), pl.col(name).shift(1)
        ascend = (here > before) | ((here == before) & ascend)
    return bool(keys.select(ascend.slice(1).fill_null(value=False).all()).item())


def _matched(
    first: pl.DataFrame, second: pl.DataFrame, key: Sequence[str]
) -> tuple[pl.DataFrame, pl.DataFrame, pl.DataFrame, pl.DataFrame]:
    """The rows whose key is in both, in one order, of each; the keys that only the first has; those only the second has."""
    one, other = first.select(key), second.select(key)
    if one.equals(other):
        return first, second, one.clear(), one.clear()
    numbered = [keys.lazy().with_row_index(name) for keys, name in ((one, "at one"), (other, "at other"))]
    both = numbered[0].join(numbered[1], on=key, how="inner", nulls_equal=True).select("at one", "at other").collect()
    at = both["at one"], both["at other"]
    return first[at[0]], second[at[1]], _without(one, at[0]), _without(other, at[1])


def _without(keys: pl.DataFrame, at: pl.Series) -> pl.DataFrame:
    left = np.ones(len(keys), dtype=bool)
    left[at.to_numpy()] = False
    return keys.filter(pl.Series(left))


def _ordered(rows: list[Row], key: Sequence[str], count: int) -> list[Row]:
    return sorted(rows, key=lambda row: telling.order(row, key))[:count]


def _head(keys: pl.DataFrame, key: Sequence[str], count: int) -> list[Row]:
    return keys.sort(key).head(count).to_dicts()


def _turned(one: pl.DataFrame, other: pl.DataFrame, column: str, key: Sequence[str]) -> Turned:
    before, after = (frame[column].eq_missing(pl.Series([RIGHT[column]])) for frame in (one, other))
    right, wrong = one.filter(after & ~before).select(key), one.filter(before & ~after).select(key)
    return Turned(column, len(right), len(wrong), _head(right, key, LISTED), _head(wrong, key, LISTED))


def _perplexity(first: pl.DataFrame, second: pl.DataFrame, column: str, tolerance: float) -> Perplexity:
    finite = pl.col(column).is_finite().fill_null(value=False)
    one, other = (frame.filter(finite).group_by(TASK).agg(pl.col(column).mean()) for frame in (first, second))
    tasks = one.join(other, on=TASK, suffix=" after").rename({column: "before", f"{column} after": "after"})
    moved = tasks.with_columns(by=pl.col("after") - pl.col("before")).filter(pl.col("by").abs() > tolerance)

    def moves(sign: int) -> list[Move]:
        found = moved.filter(pl.col("by") * sign > 0).sort(pl.col("by").abs(), TASK, descending=[True, False]).head(SHOWN)
        return [(task, math.exp(before), math.exp(after)) for task, before, after, _ in found.iter_rows()]

    lower, higher = (int((moved["by"] * sign > 0).sum()) for sign in (-1, 1))
    sums = float(tasks["before"].sum()), float(tasks["after"].sum())
    return Perplexity(column, len(tasks), lower, higher, *sums, moves(-1), moves(1))

"""`moat diff`: the tables of two sides, paired and compared, as a report for the terminal, for a page and for programs."""

from __future__ import annotations

import filecmp
import importlib
import pkgutil
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from functools import cache
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow as pa

from moat import schemas
from moat.diff import WHOLE, Comparison, DiffError, SchemaChange, What, comparable, compare, schema_changes
from moat.pieces import pieces
from moat.shifts import Figures, Shares, figures, styles
from moat.sides import Kind, Side, Source
from moat.tables import Table, metadata


class Status(StrEnum):
    """What became of a table."""

    EQUAL = "equal"
    DIFFERS = "differs"
    FIRST = "only in the first"
    SECOND = "only in the second"


@dataclass(frozen=True, slots=True)
class ColumnShift:
    """A column of both tables: how many rows changed in it, and its figures on each side, where it has some."""

    name: str
    doc: str
    type: str
    changed: int
    before: Figures | None
    after: Figures | None


@dataclass(frozen=True, slots=True)
class TableDiff:
    """A table of both sides, or of one. What is None was not looked at: the bytes are equal, or one side lacks it."""

    name: str
    status: Status
    key: tuple[str, ...] = ()
    versions: tuple[int | None, int | None] = (None, None)
    schema: list[SchemaChange] = field(default_factory=list)
    docs: dict[str, str] = field(default_factory=dict)
    comparison: Comparison | None = None
    columns: list[ColumnShift] = field(default_factory=list)
    styles: tuple[Shares | None, Shares | None] = (None, None)

    @property
    def turned_p(self) -> float | None:
        """McNemar's p of what turned; None where nothing is told of it, or rows are not tasks of their own."""
        if self.comparison is None or self.comparison.turned is None or len(self.key) > 1:
            return None
        from moat.figures import mcnemar

        return mcnemar(self.comparison.turned.n_right, self.comparison.turned.n_wrong)


@dataclass(frozen=True, slots=True)
class Report:
    """Two sides and their tables."""

    first: str
    second: str
    tables: list[TableDiff]

    @property
    def equal(self) -> bool:
        """Whether no table differs, and both sides have all."""
        return all(table.status is Status.EQUAL for table in self.tables)

    def to_json(self) -> dict[str, Any]:
        """For `--json`."""
        return {
            "first": self.first,
            "second": self.second,
            "equal": self.equal,
            "tables": [_plain(one) for one in self.tables],
        }


def _plain(table: TableDiff) -> dict[str, Any]:
    found: Any = _lists(asdict(table))
    for side, shares in zip(("before", "after"), table.styles, strict=True):
        found |= {f"styles_{side}": shares and [[value, share] for value, share in shares.items()]}
    del found["styles"], found["docs"]
    for column in found["columns"]:
        for side in (column["before"], column["after"]):
            if side and side["shares"] is not None:
                side["shares"] = [[value, share] for value, share in side["shares"].items()]
    if table.comparison is not None:
        for example in found["comparison"]["examples"]:
            del example["weight"]
        if table.turned_p is not None:
            found["comparison"]["turned"]["mcnemar_p"] = table.turned_p
        if (ppl := table.comparison.perplexity) is not None:
            found["comparison"]["perplexity"] |= {"before": ppl.before, "after": ppl.after}
            for name in ("sum_before", "sum_after"):
                del found["comparison"]["perplexity"][name]
    return dict(found)


def _lists(value: Any) -> Any:
    """The same with tuples as lists and what JSON lacks as text."""
    if isinstance(value, dict):
        return {name: _lists(one) for name, one in value.items()}
    if isinstance(value, (list, tuple)):
        return [_lists(one) for one in value]
    return value if value is None or isinstance(value, (bool, int, float, str)) else str(value)


def report(
    first: Side,
    second: Side,
    *,
    tables: Sequence[str] = (),
    key: Sequence[str] = (),
    tolerance: float = 0.0,
    begin: Callable[[str], None] = lambda name: None,
) -> Report:
    """Compare two sides; `tables` are the kinds or paths of those to compare, `begin` is told each before it is read.

    Raises DiffError or SideError, naming the side and what to do.
    """
    found = []
    for name, one, other in _pairs(first, second, tables):
        begin(name)
        found.append(_table(name, one, other, key, tolerance))
    return Report(first.text, second.text, found)


def _pairs(first: Side, second: Side, tables: Sequence[str]) -> Iterator[tuple[str, Source | None, Source | None]]:
    one, other = _chosen(first, tables), _chosen(second, tables)
    if {first.kind, second.kind} == {Kind.ROUND, Kind.ALL}:
        whole = first if first.kind is Kind.ALL else second
        raise DiffError(f"a round and all tables of {whole.text} are not alike: name its round, as 1@{whole.text}")
    if Kind.FILE in (first.kind, second.kind):
        for side, chosen in ((first, one), (second, other)):
            if len(chosen) != 1:
                raise DiffError(
                    f"{side.text} has {len(chosen)} tables, and a file is one: name it with --table ({_names(side)})"
                )
        (name, a), (_, b) = next(iter(one.items())), next(iter(other.items()))
        if first.kind is not second.kind:
            name = b.kind if first.kind is Kind.FILE else a.kind
        yield name, a, b
        return
    for name in dict.fromkeys([*one, *other]):
        yield name, one.get(name), other.get(name)


def _chosen(side: Side, tables: Sequence[str]) -> dict[str, Source]:
    """The tables that were asked for; all of a file, or where none were named. Raises DiffError for one the side lacks."""
    if not tables or side.kind is Kind.FILE:
        return side.tables
    for name in tables:
        if not any(name in (path, source.kind) for path, source in side.tables.items()):
            raise DiffError(f"{side.text} has no table {name!r}: it has {_names(side)}")
    return {path: source for path, source in side.tables.items() if path in tables or source.kind in tables}


def _names(side: Side) -> str:
    return ", ".join(dict.fromkeys(source.kind for source in side.tables.values()))


def _table(name: str, one: Source | None, other: Source | None, key: Sequence[str], tolerance: float) -> TableDiff:
    if one is None or other is None:
        return TableDiff(name, Status.SECOND if one is None else Status.FIRST)
    if one.digest is not None and one.digest == other.digest:
        return TableDiff(name, Status.EQUAL)
    paths = one.fetch(), other.fetch()
    if filecmp.cmp(*paths, shallow=False):
        return TableDiff(name, Status.EQUAL)
    return _compared(name, paths, (one.label, other.label), key, tolerance)


@dataclass(frozen=True, slots=True)
class _Pair:
    """A table's files on both sides, opened: what it is a table of, its key, and what both have to compare."""

    paths: tuple[Path, Path]
    labels: tuple[str, str]
    schema: Table | None
    versions: tuple[int | None, int | None]
    key: tuple[str, ...]
    frames: tuple[pl.LazyFrame, pl.LazyFrame]
    types: tuple[pl.Schema, pl.Schema]

    @property
    def shared(self) -> list[str]:
        """The columns besides the key that can be compared."""
        one, other = self.types
        return [name for name in one if name in other and name not in self.key and comparable(one[name], other[name])]


def _opened(paths: tuple[Path, Path], labels: tuple[str, str], given: Sequence[str]) -> _Pair:
    """Open a table's two files. Raises DiffError where they cannot be read, or not be compared."""
    said = [_said(path, label) for path, label in zip(paths, labels, strict=True)]
    schema = _schema(said, labels, given)
    key = tuple(given) or (schema.key if schema else ())
    one, other = (_scanned(path, label) for path, label in zip(paths, labels, strict=True))
    types = one.collect_schema(), other.collect_schema()
    _check_keys(key, types, labels)
    alike = _common(key, types)
    versions = said[0].get("version"), said[1].get("version")
    return _Pair(paths, labels, schema, versions, key, (one.with_columns(alike), other.with_columns(alike)), types)


def _compared(
    name: str, paths: tuple[Path, Path], labels: tuple[str, str], given: Sequence[str], tolerance: float
) -> TableDiff:
    pair = _opened(paths, labels, given)
    docs = {column.name: column.doc for column in pair.schema.columns} if pair.schema else {}
    changes = schema_changes(*pair.types)
    try:
        shifts = figures(pair.frames[0], pair.shared), figures(pair.frames[1], pair.shared)
        found = _rows(pair, shifts, tolerance)
        told = styles(pair.frames[0]), styles(pair.frames[1])
    except (pl.exceptions.ComputeError, OSError) as error:
        raise DiffError(
            f"{labels[0]} or {labels[1]} cannot be read to its end ({error}): `dvc checkout --force`, or `dvc repro`"
        ) from error
    columns = [
        ColumnShift(
            column,
            docs.get(column, ""),
            str(pair.types[1][column]),
            found.columns[column],
            shifts[0].get(column),
            shifts[1].get(column),
        )
        for column in pair.shared
    ]
    differs = changes or pair.versions[0] != pair.versions[1] or not found.equal
    status = Status.DIFFERS if differs else Status.EQUAL
    return TableDiff(name, status, pair.key, pair.versions, changes, docs, found, columns, told)


def _rows(pair: _Pair, shifts: Sequence[dict[str, Figures]], tolerance: float) -> Comparison:
    one, other = pair.types
    texts = [column for column in pair.shared if _is_text(one[column]) and not _has_shares(column, shifts)]
    alike = one[pair.key[0]] == other[pair.key[0]]
    cut = pieces(pair.paths[0], pair.paths[1], pair.key) if alike else WHOLE
    return compare(*pair.frames, What(pair.key, pair.shared, texts, tolerance, pair.labels), cut)


@cache
def known() -> dict[str, Table]:
    """Every table of `moat.schemas` by its name."""
    modules = (importlib.import_module(f"{schemas.__name__}.{one.name}") for one in pkgutil.iter_modules(schemas.__path__))
    tables = [value for module in modules for value in vars(module).values() if isinstance(value, Table)]
    return {table.name: table for table in tables}


def _said(path: Path, label: str) -> dict[str, Any]:
    try:
        return metadata(path)
    except (pa.ArrowInvalid, OSError) as error:
        raise DiffError(
            f"{label} is not a readable Parquet file ({error}): `dvc checkout --force` brings a recorded one back, "
            "`dvc repro` makes it anew"
        ) from error


def _schema(said: Sequence[dict[str, Any]], labels: tuple[str, str], key: Sequence[str]) -> Table | None:
    """What both files are tables of. Raises DiffError where they are of two, or of an unknown one without a key."""
    names = [one.get("table") for one in said]
    if None not in names and names[0] != names[1]:
        raise DiffError(f"{labels[0]} is table {names[0]!r} and {labels[1]} is {names[1]!r}: compare two of one kind")
    found = known().get(names[0]) if names[0] == names[1] and names[0] is not None else None
    if found is None and not key:
        unknown = next((label for label, name in zip(labels, names, strict=True) if name not in known()), labels[0])
        raise DiffError(f"{unknown} does not say which table it is: name the columns that tell its rows apart with --key")
    return found


def _scanned(path: Path, label: str) -> pl.LazyFrame:
    try:
        frame = pl.scan_parquet(path, glob=False)
        types = frame.collect_schema()
    except (pl.exceptions.PolarsError, OSError) as error:
        raise DiffError(f"{label} is not a table that polars can read ({error})") from error
    return frame.with_columns(pl.col(name).cast(pl.String) for name, of in types.items() if of in (pl.Categorical, pl.Enum))


def _check_keys(key: Sequence[str], types: Sequence[pl.Schema], labels: tuple[str, str]) -> None:
    for column in key:
        for schema, label in zip(types, labels, strict=True):
            if column not in schema:
                raise DiffError(
                    f"{label} has no column {column!r} to compare rows by; it has {', '.join(schema)}: use --key"
                )
            if schema[column].is_nested():
                raise DiffError(
                    f"the key {column!r} of {label} is {schema[column]}: name columns of plain values with --key"
                )
        if not comparable(types[0][column], types[1][column]):
            raise DiffError(
                f"the key {column!r} is {types[0][column]} in {labels[0]} and {types[1][column]} in {labels[1]}: "
                "name other columns with --key"
            )


def _common(key: Sequence[str], types: Sequence[pl.Schema]) -> list[pl.Expr]:
    """The columns of the key that are numbers of two types, as one."""
    differ = [column for column in key if types[0][column] != types[1][column]]
    return [
        pl.col(column).cast(pl.Float64 if any(schema[column].is_float() for schema in types) else pl.Int64)
        for column in differ
    ]


def _is_text(dtype: pl.DataType) -> bool:
    return dtype == pl.String or (isinstance(dtype, pl.List) and not dtype.inner.is_numeric() and dtype.inner != pl.Boolean)


def _has_shares(column: str, shifts: Sequence[dict[str, Figures]]) -> bool:
    return all(side[column].shares is not None for side in shifts)

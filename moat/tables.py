"""Tables: typed, keyed Parquet files with reproducible bytes.

A table is described once, in `moat/schemas/`: columns with a sentence each, a key, a version. Writing sorts by key and uses
fixed settings and no times, so equal rows are equal bytes and DVC sees that nothing changed. Reading refuses a file whose
columns, types, version or key are not what the schema says, and names the file and the column.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq

from moat.publish import publish

ROW_GROUP = 65_536
METADATA_KEY = b"moat"


class TableError(ValueError):
    """A table that is not what its schema says; the message names file, column and remedy."""


@dataclass(frozen=True, slots=True)
class Column:
    """A column: name, Arrow type, one sentence on what it holds."""

    name: str
    type: pa.DataType
    doc: str
    nullable: bool = False


@dataclass(frozen=True)
class Table:
    """A table's contract. `key` identifies a row and is the sort order."""

    name: str
    version: int
    key: tuple[str, ...]
    columns: tuple[Column, ...]
    schema: pa.Schema = field(init=False)

    def __post_init__(self) -> None:
        fields = [pa.field(column.name, column.type, column.nullable) for column in self.columns]
        object.__setattr__(self, "schema", pa.schema(fields))

    def write(self, path: Path, rows: pl.DataFrame | Sequence[Mapping[str, Any]], facts: Mapping[str, Any]) -> None:
        """Write `rows` to `path`, sorted by key. `facts` (JSON, stable between runs) goes to the file's metadata.

        Raises TableError for a missing or unknown column, a null or a value that does not fit, or a repeated key.
        """
        table = self._arrow(rows, path)
        self._check_key(table, path)
        table = table.sort_by([(name, "ascending") for name in self.key])
        meta = {"table": self.name, "version": self.version, "facts": dict(facts)}
        table = table.replace_schema_metadata({METADATA_KEY: json.dumps(meta, sort_keys=True).encode()})
        with publish(path) as temporary:
            pq.write_table(
                table,
                temporary,
                row_group_size=ROW_GROUP,
                compression="zstd",
                compression_level=3,
                version="2.6",
                data_page_version="1.0",
                store_schema=True,
            )

    def _arrow(self, rows: pl.DataFrame | Sequence[Mapping[str, Any]], path: Path) -> pa.Table:
        """The rows as an Arrow table of exactly this schema; nothing is converted on the way."""
        names = self.schema.names
        for found in [rows.columns] if isinstance(rows, pl.DataFrame) else rows:
            if set(found) != set(names):
                raise TableError(
                    f"{path}: table '{self.name}' takes the columns {names}; missing {sorted(set(names) - set(found))}, "
                    f"unknown {sorted(set(found) - set(names))}"
                )
        empty = pl.from_arrow(self.schema.empty_table())
        assert isinstance(empty, pl.DataFrame)
        series = []
        for name, dtype in empty.schema.items():
            if isinstance(rows, pl.DataFrame):
                column = rows[name]
                if column.dtype == pl.Null or (column.dtype.is_integer() and dtype.is_integer()):
                    column = self._narrow(column, dtype, path)
                if column.dtype != dtype:
                    raise TableError(f"{path}: column '{name}' of table '{self.name}' takes {dtype}, not {column.dtype}")
            else:
                try:
                    values = [row[name] for row in rows]
                    if dtype.is_integer() and any(isinstance(value, bool) for value in values):
                        raise TypeError("a truth value is no number")
                    if isinstance(dtype, pl.List) and any(isinstance(value, str) for value in values):
                        raise TypeError("a text is no list")
                    column = pl.Series(name, values, dtype=dtype, strict=True)
                except (TypeError, ValueError, OverflowError, pl.exceptions.PolarsError) as error:
                    raise TableError(f"{path}: column '{name}' of table '{self.name}' takes {dtype}: {error}") from error
            series.append(column)
        frame = pl.DataFrame(series)
        self._check_nulls(frame, path)
        return frame.to_arrow().cast(self.schema)

    def _narrow(self, column: pl.Series, dtype: pl.DataType, path: Path) -> pl.Series:
        """Another width of the same integers, or an error when a value does not fit."""
        try:
            return column.cast(dtype, strict=True)
        except pl.exceptions.PolarsError as error:
            raise TableError(f"{path}: column '{column.name}' of table '{self.name}' takes {dtype}: {error}") from error

    def _check_nulls(self, frame: pl.DataFrame, path: Path) -> None:
        for column in self.columns:
            values = frame[column.name]
            empty = values.null_count() if not column.nullable else 0
            if isinstance(values.dtype, pl.List):
                empty += int((values.list.len() - values.list.drop_nulls().list.len()).sum())
            if empty:
                raise TableError(f"{path}: column '{column.name}' of table '{self.name}' has empty values")

    def _check_key(self, table: pa.Table, path: Path) -> None:
        keys = pl.from_arrow(table.select(list(self.key)))
        assert isinstance(keys, pl.DataFrame)
        repeated = keys.filter(keys.is_duplicated())
        if len(repeated):
            raise TableError(
                f"{path}: table '{self.name}' has the key {dict(zip(self.key, repeated.row(0), strict=True))} twice"
            )

    def read(self, path: Path) -> pl.DataFrame:
        """Read and check a table. Raises FileNotFoundError or TableError, naming the file and what to do."""
        if not path.is_file():
            raise FileNotFoundError(
                f"{path} is missing (table '{self.name}'): run the stage that writes it (`dvc repro`), or `dvc pull`"
            )
        try:
            table = pq.read_table(path)
        except (pa.ArrowInvalid, OSError) as error:
            raise TableError(
                f"{path} is not a readable Parquet file ({error}): delete it, then `dvc checkout` or `dvc repro`"
            ) from error
        meta = metadata(path)
        if (meta.get("table"), meta.get("version")) != (self.name, self.version):
            raise TableError(
                f"{path} says it is table '{meta.get('table')}' version {meta.get('version')}; "
                f"this code reads '{self.name}' version {self.version}: rerun the stage that wrote it (`dvc repro`)"
            )
        for column in self.columns:
            if column.name not in table.schema.names:
                raise TableError(f"{path}: column '{column.name}' of table '{self.name}' is missing")
            found = table.schema.field(column.name).type
            if found != column.type:
                raise TableError(f"{path}: column '{column.name}' holds {found}, not {column.type}")
        unknown = sorted(set(table.schema.names) - set(self.schema.names))
        if unknown:
            raise TableError(f"{path}: unknown columns {unknown} in table '{self.name}'")
        frame = pl.from_arrow(table)
        assert isinstance(frame, pl.DataFrame)
        self._check_nulls(frame, path)
        self._check_key(table, path)
        return frame


def metadata(path: Path) -> dict[str, Any]:
    """What a table's file says of itself: `table`, `version` and `facts`; empty when it is not one of ours."""
    raw = (pq.read_schema(path).metadata or {}).get(METADATA_KEY, b"{}")
    try:
        said = json.loads(raw)
    except ValueError:  # damaged
        return {}
    return said if isinstance(said, dict) else {}

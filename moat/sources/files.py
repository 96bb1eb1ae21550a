"""Rows of a file or of a hub data set, one at a time, with their numbers.

A local file may be JSON lines, one JSON array of objects, or Parquet; the first two also gzip- or zstd-compressed. What it
is is read from its first bytes, never from its name. Memory: one line, one element of an array, or one batch of a
Parquet file, whatever the file's size; a row longer than MAX_ROW characters is refused.

Not covered: a JSON array inside an object (`{"data": [...]}`), Parquet inside gzip, text that is not UTF-8.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from io import TextIOWrapper
from pathlib import Path
from typing import Any, BinaryIO, NoReturn, cast

import pyarrow as pa
import pyarrow.parquet as pq

from moat.sources.base import SourceError

MAX_ROW = 1 << 28  # characters of a row: a Mind2Web task with its pages has some ten million
BATCH = 256  # rows of a Parquet file in memory at once
CHUNK = 1 << 20  # characters read at once from a JSON array
NEAR_END = 16  # a JSON error this near to the end of what was read may come of the cut, not of the text

Rows = Iterator[tuple[int, Any]]
"""(number from 1, row): for JSON lines the number is the line's, else the place in the array or table."""

Advance = Callable[[int], None]
"""Told, as reading goes on, of how much was read since the last call: bytes of a file, rows of a hub data set."""


def open_rows(path: Path, advance: Advance | None = None) -> Rows:
    """The rows of a local file. `advance` is told of the bytes read, which come to the file's size.

    Raises SourceError (when the first row is asked for, or at the row that is broken), naming the file and the line or row.
    """
    if not path.is_file():
        raise SourceError(f"{path}: there is no such file: correct the path, or put the publisher's file there")
    tell = advance or (lambda _: None)
    with path.open("rb") as raw, _told(path):
        start = raw.read(4)
        raw.seek(0)
        if start == b"PAR1":
            yield from _parquet(path, raw, tell)
            return
        codec = "gzip" if start[:2] == b"\x1f\x8b" else "zstd" if start == b"\x28\xb5\x2f\xfd" else None
        stream = cast(BinaryIO, pa.CompressedInputStream(raw, codec)) if codec else raw
        text = TextIOWrapper(stream, encoding="utf-8-sig", newline="\n")
        before = 0
        for number, row in _json(path, text):
            tell(raw.tell() - before)
            before = raw.tell()
            yield number, row
        tell(path.stat().st_size - before)


def hub_rows(
    name: str, config: str | None, split: str, revision: str, advance: Advance | None = None, data_file: str | None = None
) -> Rows:
    """The rows of a split of a hub data set at a fixed revision, streamed. `data_file` picks one file of the data set.

    Raises SourceError when the revision is not a full commit, and when the hub gives no rows: without a network, it says
    which data set to download and where its file goes.
    """
    if not re.fullmatch("[0-9a-f]{40}", revision):
        raise SourceError(
            f"{name}: the revision {revision!r} may change under the same name: set the commit, 40 hexadecimal digits"
        )
    from datasets import load_dataset

    number = 0
    try:
        stream = load_dataset(name, config, split=split, revision=revision, streaming=True, data_files=data_file)
        for number, row in enumerate(stream, 1):
            if advance is not None:
                advance(1)
            yield number, row
    except Exception as error:  # what a hub client raises without a network depends on its version
        what = " ".join(filter(None, (name, config, split and f"split {split}", data_file)))
        raise SourceError(
            f"the hub data set {what} at revision {revision} gave no row after row {number} "
            f"({type(error).__name__}: {str(error)[:200]}). Without a network: download it elsewhere "
            f"(`hf download {name} --repo-type dataset --revision {revision}`), put its file here under data/sources, and "
            "name it in `files` in place of `hub`"
        ) from error


@contextmanager
def _told(path: Path) -> Iterator[None]:
    """Turn what a broken file raises into a SourceError that names it."""
    try:
        yield
    except UnicodeDecodeError as error:
        raise SourceError(f"{path}: the byte 0x{error.object[error.start]:02x} is not UTF-8: convert the file") from error
    except (EOFError, OSError, pa.ArrowException) as error:
        raise SourceError(f"{path}: cannot be read ({error}): the file is cut or damaged, fetch it again") from error


def _parquet(path: Path, raw: BinaryIO, tell: Advance) -> Rows:
    file = pq.ParquetFile(raw)
    size, rows, told, number = path.stat().st_size, file.metadata.num_rows, 0, 0
    for batch in file.iter_batches(batch_size=BATCH):
        for row in batch.to_pylist():
            number += 1
            yield number, row
        tell(size * number // rows - told)
        told = size * number // rows


def _json(path: Path, text: TextIOWrapper) -> Rows:
    start, lines = "", 0
    while not start.strip():
        lines += start.count("\n")
        start = text.readline(MAX_ROW)
        if not start:
            return
    if start.lstrip().startswith("["):
        yield from _array(path, text, start.lstrip()[1:], lines + 1)
    else:
        yield from _lines(path, text, start, lines + 1)


def _lines(path: Path, text: TextIOWrapper, line: str, number: int) -> Rows:
    while line:
        if len(line) >= MAX_ROW:
            _refuse(path, f"line {number}", f"longer than {MAX_ROW} characters")
        if line.strip():
            try:
                row = _DECODER.decode(line)
            except (ValueError, RecursionError) as error:
                _refuse(path, f"line {number}", f"not a JSON value ({error})")
            yield number, row
        line, number = text.readline(MAX_ROW), number + 1


def _array(path: Path, text: TextIOWrapper, buffer: str, line: int) -> Rows:
    """The elements of an array whose `[` has been read. An element that is cut is decoded again with more text."""
    number, position, ended = 0, 0, False
    while True:
        try:
            position = _SPACE.match(buffer, position).end()  # type: ignore[union-attr]  # it matches anywhere
            if buffer.startswith("]", position):
                break
            begin = position
            if number:
                if not buffer.startswith(",", position):
                    raise json.JSONDecodeError("expected `,` or `]` after a row", buffer, position)
                begin = _SPACE.match(buffer, position + 1).end()  # type: ignore[union-attr]
            row, end = _DECODER.raw_decode(buffer, begin)
        except (ValueError, RecursionError) as error:
            # What is wrong in the middle of the text stays wrong with more of it; what is wrong at its end may be a cut.
            cut = isinstance(error, json.JSONDecodeError) and (
                error.pos > len(buffer) - NEAR_END or error.msg.startswith("Unterminated string")
            )
            if ended or not cut or len(buffer) - position > MAX_ROW:
                _refuse(path, f"row {number + 1}, near line {line}", f"not a JSON array of rows ({error})")
            buffer, position = buffer[position:], 0
            more = text.read(max(CHUNK, len(buffer)))
            ended = not more
            buffer += more
            continue
        line += buffer.count("\n", position, end)
        number, position = number + 1, end
        yield number, row
    if buffer[position + 1 :].strip() or text.read(CHUNK).strip():
        _refuse(path, f"after row {number}, near line {line}", "more text after the array's `]`")


def _refuse(path: Path, where: str, what: str) -> NoReturn:
    raise SourceError(f"{path}, {where}: {what}: mend the row, or fetch the file again")


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no JSON number")


_SPACE = re.compile(r"[ \t\r\n]*")
_DECODER = json.JSONDecoder(parse_constant=_no_constant)

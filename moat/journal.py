"""The journal of row work: finished batches, kept outside DVC's outputs, so that nothing is asked twice.

A folder of JSON Lines files. A line is one finished batch: a checksum, then {request key: answer}. A process appends to a
file of its own (locked while it lives) and reads all of them, so runs may share a folder. A line that was torn by a kill is
cut off when its file is next appended to, and its batch is asked again; a damaged line anywhere else is an error. The
folder may be deleted whenever no stage runs: it costs computing again, and no result.
"""

from __future__ import annotations

import json
import os
import zlib
from collections.abc import Iterator, Mapping
from itertools import count
from pathlib import Path
from typing import Any, BinaryIO

from moat.lock import first_free
from moat.publish import disk_full_at


class JournalError(ValueError):
    """A journal with a damaged line; the message names file and line, and what to do."""


def _line(rows: Mapping[str, Any]) -> bytes:
    body = json.dumps(rows, separators=(",", ":"), sort_keys=True).encode()
    return b"%08x %s\n" % (zlib.crc32(body), body)


def _parse(line: bytes) -> dict[str, Any] | None:
    """The batch of a line, or None when it is torn or damaged."""
    checksum, _, body = line.rstrip(b"\n").partition(b" ")
    if not line.endswith(b"\n") or checksum != b"%08x" % zlib.crc32(body):
        return None
    rows: dict[str, Any] = json.loads(body)
    return rows


def _read(file: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """Sound lines of a file, each with the offset at which it ends. Raises JournalError; a torn last line is left out."""
    with file.open("rb") as lines:
        end, torn = 0, 0
        for number, line in enumerate(lines, 1):
            if torn:
                raise JournalError(f"{file}, line {torn} is damaged: delete the file; its rows are then asked again")
            rows = _parse(line)
            if rows is None:
                torn = number
                continue
            end += len(line)
            yield end, rows


class Journal:
    """Answers by request key, those of earlier runs among them.

    Raises JournalError on a damaged file. Not for use by several threads.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._answers: dict[str, Any] = {}
        self._file: BinaryIO | None = None
        for path in sorted(folder.glob("*.jsonl")):
            for _, rows in _read(path):
                self._answers.update(rows)

    def __contains__(self, key: str) -> bool:
        return key in self._answers

    def __getitem__(self, key: str) -> Any:
        return self._answers[key]

    def add(self, rows: Mapping[str, Any]) -> None:
        """Keep a finished batch: on disk when this returns. Raises DiskFullError."""
        with disk_full_at(self.folder):
            file = self._file or self._open()
            file.write(_line(rows))
            file.flush()
            os.fsync(file.fileno())
        self._answers.update(rows)

    def _open(self) -> BinaryIO:
        """The first file of the folder that no living process writes to, without its torn end."""
        path, file = first_free(self.folder / f"{number}.jsonl" for number in count())
        file.truncate(max((end for end, _ in _read(path)), default=0))
        self._file = file
        return file

    def close(self) -> None:
        """Let the file go."""
        if self._file:
            self._file.close()
            self._file = None

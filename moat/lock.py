"""Locks that their holder's death releases: one stage at a time in a checkout, one run at a time in a checkpoint folder."""

from __future__ import annotations

import fcntl
import json
import os
import sys
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

import psutil


class BusyError(RuntimeError):
    """Another stage is at work in this checkout; the message says which process, since when, and what to do."""


def _holder(path: Path) -> str:
    """Who holds the lock, in words, from what the holder wrote into it."""
    try:
        told = json.loads(path.read_text(encoding="utf-8"))
        process = psutil.Process(told["pid"])
        parents = [parent.name() for parent in process.parents()]
    except (OSError, ValueError, KeyError, psutil.Error):
        return "another process is at work in this checkout: wait until it ends, then run again"
    said = f"process {told['pid']} ({told['command']}) is at work in this checkout since {told['since']}"
    if told["parent"] != process.ppid():  # adopted: what started it is gone
        return f"{said}, left behind by a dvc that was killed: end it (`kill {told['pid']}`), then run again"
    return f"{said}, started by {' < '.join(parents[:2])}: wait until it ends, then run again"


@contextmanager
def hold(path: Path, command: str) -> Iterator[None]:
    """Hold the lock file `path` while the block runs. Raises BusyError at once when another process holds it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a+", encoding="utf-8") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise BusyError(_holder(path)) from None
        file.truncate(0)
        since = time.strftime("%Y-%m-%d %H:%M:%S")
        json.dump({"pid": os.getpid(), "parent": os.getppid(), "since": since, "command": command}, file)
        file.flush()
        yield


def first_free(paths: Iterable[Path]) -> tuple[Path, BinaryIO]:
    """The first of the `paths` that no living process holds, and the open file, which holds it until it is closed."""
    for path in paths:
        path.parent.mkdir(parents=True, exist_ok=True)
        file = path.open("ab")
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            file.close()
            continue
        return path, file
    raise AssertionError("every path is held: the paths should have no end")


def command_line() -> str:
    """This process's stage and arguments, as `stages/sample.py --round 1`."""
    return " ".join(sys.argv)

"""Where an artifact comes from: hashes of what went in, which are stable, and a side note of what is not.

What is stable (input hashes, parameters, engine, dtype, versions) goes into the artifact itself. What is not (commit, host,
times, counts of requests) goes to a note in the scratch folder, which is no DVC output and may be missing after a pull.
"""

from __future__ import annotations

import hashlib
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def file_hashes(path: Path) -> dict[str, str]:
    """SHA-256 of a file (under the name ""), or of every file of a folder by its name there. Raises FileNotFoundError."""
    if not path.is_dir():
        return {"": _digest(path)}
    return {file.relative_to(path).as_posix(): _digest(file) for file in sorted(path.rglob("*")) if file.is_file()}


def combined(hashes: Mapping[str, str]) -> str:
    """One hash of some files' hashes: a lone file's own, else of names and hashes."""
    if list(hashes) == [""]:
        return hashes[""]
    return hashlib.sha256("\n".join(f"{name} {digest}" for name, digest in sorted(hashes.items())).encode()).hexdigest()


def content_hash(path: Path, without: str | None = None) -> str:
    """SHA-256 of a file, or of a folder's file names and contents (but the file `without`). Raises FileNotFoundError."""
    return combined({name: digest for name, digest in file_hashes(path).items() if name != without})


def checkout(root: Path) -> dict[str, Any]:
    """The commit that `root` stands at and whether the work tree differs from it; empty outside git."""
    said = []
    for command in (("rev-parse", "HEAD"), ("status", "--porcelain", "--untracked-files=no")):
        try:
            done = subprocess.run(["git", *command], cwd=root, capture_output=True, text=True, check=False)
        except FileNotFoundError:  # no git on this machine
            return {}
        if done.returncode:
            return {}
        said.append(done.stdout.strip())
    return {"commit": said[0], "dirty": bool(said[1])}

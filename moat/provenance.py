"""Where an artifact comes from: hashes of what went in, which are stable, and a side note of what is not.

What is stable (input hashes, parameters, engine, dtype, versions) goes into the artifact itself. What is not (commit, host,
times, counts of requests) goes to a note in the scratch folder, which is no DVC output and may be missing after a pull.
"""

from __future__ import annotations

import hashlib
import subprocess
from pathlib import Path
from typing import Any


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def content_hash(path: Path) -> str:
    """SHA-256 of a file, or of a folder's file names and contents. Raises FileNotFoundError."""
    if not path.is_dir():
        return _digest(path)
    lines = [f"{file.relative_to(path).as_posix()} {_digest(file)}" for file in sorted(path.rglob("*")) if file.is_file()]
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()


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

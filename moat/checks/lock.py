"""dvc.lock against the files on disk, by size and md5.

The md5 is worked out here and not by DVC, whose import alone takes seconds: of a file, its bytes'; of a folder, that of
DVC's own list of its files, JSON `[{"md5": …, "relpath": …}, …]` sorted by path, with `.dir` behind it.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

from moat.checkout import Absent, Checkout, Findings


def agrees(checkout: Checkout[Any]) -> Findings:
    """Every output that is there has the size and md5 that dvc.lock records"""
    if not checkout.lock:
        raise Absent
    for name, stage in checkout.stages.items():
        for out in stage.get("outs", []):
            path = Path(out["path"])
            file = checkout.root / path
            if not file.exists() or out.get("hash") != "md5":
                continue
            size = sum(part.stat().st_size for part in files_in(file))
            if size != out.get("size", size):
                what = f"{size:,} bytes, dvc.lock says {out['size']:,}"
            elif md5(file) != out.get("md5"):
                what = "other content than dvc.lock records"
            else:
                continue
            yield checkout.fault(
                path,
                what,
                f"`dvc checkout --force {path}` for the recorded one, or `dvc commit {name}` if this one is right",
            )


def files_in(path: Path) -> list[Path]:
    """A file, or all files of a folder, by path."""
    return sorted(part for part in path.rglob("*") if part.is_file()) if path.is_dir() else [path]


def md5(path: Path) -> str:
    """The md5 that DVC 3 gives to a file or a folder."""
    if path.is_file():
        with path.open("rb") as file:
            return hashlib.file_digest(file, "md5").hexdigest()
    entries = [{"md5": md5(part), "relpath": part.relative_to(path).as_posix()} for part in files_in(path)]
    entries.sort(key=lambda entry: entry["relpath"])
    return hashlib.md5(json.dumps(entries).encode()).hexdigest() + ".dir"

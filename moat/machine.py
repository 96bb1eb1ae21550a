"""The machine: `machine.yaml`, which says where a run happens and never what it computes.

It is no dependency of any stage, so artifacts made elsewhere are not stale here. A missing file means: this computer, one
process, the `hf` engine, the one GPU if there is one, else the CPU in float32.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Literal

from pydantic import Field

from moat.params import ParamsError, Section, check, parse, read_text

MACHINE = "machine.yaml"


class Machine(Section):
    """Settings of this computer; see machine.example.yaml for a sentence on each."""

    engine: Literal["hf"] = "hf"
    device: Literal["auto", "cpu", "cuda"] = "auto"
    dtype: Literal["auto", "float32", "bfloat16"] = "auto"
    threads: int = Field(default=1, ge=1)
    processes: Literal[1] = 1
    generate_batch: int = Field(default=256, ge=1)
    score_batch: int = Field(default=256, ge=1)
    micro_batch: int | None = Field(default=None, ge=1)
    retry: int = Field(default=3, ge=1)
    checkpoint: int = Field(default=600, ge=0)
    webshop: str = Field(default="", pattern="^$|^https?://")
    scratch: str = Field(default=".scratch", min_length=1)


def load(root: Path) -> Machine:
    """Read `root`/machine.yaml, or the defaults when there is none. Raises ParamsError naming the key."""
    path = root / MACHINE
    if not path.exists() and not path.is_symlink():  # what is there and cannot be read is a fault, and no default
        return Machine()
    raw = parse(read_text(path), path)
    return check({} if raw is None else raw, Machine, path)  # all lines may be comments


def scratch(root: Path, machine: Machine) -> Path:
    """Folder of journals, checkpoints and side notes: outside DVC's outputs, and one for a checkout and its experiments.

    `dvc exp run --temp` works in copies below .dvc/tmp/exps of the checkout; they use the checkout's own folder. The folder
    need not be there, but must be one that can be made and written. Raises ParamsError naming machine.yaml and the key.
    """
    for parent in root.parents:
        if parent.parts[-3:] == (".dvc", "tmp", "exps"):
            root = parent.parents[2]
            break
    folder = root / machine.scratch
    fault = _unusable(folder)
    if fault:
        raise ParamsError(f"{root / MACHINE}: scratch: {str(folder)!r} {fault}: name a folder that can be written")
    return folder


def _unusable(folder: Path) -> str | None:
    """Why `folder` cannot be made or written, judged by the nearest part of its path that is there; None when it can."""
    if "\0" in str(folder):
        return "is no path that can be used (it holds a null character)"
    try:
        above = next(path for path in (folder, *folder.parents) if path.exists())
    except OSError as error:  # too long, or not to be looked at
        return f"is no path that can be used ({error.strerror})"
    if not above.is_dir():
        return f"cannot be a folder, for {str(above)!r} is a file"
    if not os.access(above, os.W_OK | os.X_OK):
        return "cannot be written" if above == folder else f"cannot be made, for {str(above)!r} cannot be written"
    return None

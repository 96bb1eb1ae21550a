"""The machine: `machine.yaml`, which says where a run happens and never what it computes.

It is no dependency of any stage, so artifacts made elsewhere are not stale here. A missing file means: this computer, one
process, the `hf` engine, the one GPU if there is one, else the CPU in float32.
"""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pydantic import Field

from moat.params import Section, check, parse, read_text

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
    if not path.is_file():
        return Machine()
    raw = parse(read_text(path), path)
    return check({} if raw is None else raw, Machine, path)  # all lines may be comments


def scratch(root: Path, machine: Machine) -> Path:
    """Folder of journals, checkpoints and side notes: outside DVC's outputs, and one for a checkout and its experiments.

    `dvc exp run --temp` works in copies below .dvc/tmp/exps of the checkout; they use the checkout's own folder.
    """
    for parent in root.parents:
        if parent.parts[-3:] == (".dvc", "tmp", "exps"):
            root = parent.parents[2]
            break
    return root / machine.scratch

"""How to open an engine, in this process or in another: a description that can be pickled.

It is resolved (no `auto`, no relative path), so that wherever it is opened the same engine comes of it: in the stage, in a
child process (`moat.engines.child`), in an actor on another machine that sees the same folders.
"""

from __future__ import annotations

import importlib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from moat.engines.base import Engine
from moat.machine import VLLM, Machine


@dataclass(frozen=True)
class Spec:
    """One model and what runs it.

    `model` is an absolute folder, of a whole model or of an adapter alone, whose base lies in `base`. `machine` has `device`
    and `dtype` resolved; of it, what loading a model reads counts (these two, threads). `vllm` is that of the role, with
    `longest` set. Which GPUs it may use is the business of whoever starts the process (CUDA_VISIBLE_DEVICES).
    """

    engine: Literal["hf", "vllm"]
    model: Path
    base: Path
    machine: Machine
    vllm: VLLM = field(default_factory=VLLM)

    def prepare(self) -> bool:
        """Import what opening needs. True: open it before it is asked, for it takes a minute (vllm).

        A model of hf is there in seconds, and takes memory which until then is another's.
        """
        importlib.import_module(f"moat.engines.{self.engine}")
        return self.engine == "vllm"

    def open(self) -> Engine:
        """Load the model. Raises OSError for a folder that is missing or torn, EngineError for what another try may mend."""
        if self.engine == "vllm":
            from moat.engines.vllm import VLLMEngine  # in a process of its own: it never gives its memory back

            return VLLMEngine(self)
        from moat import models  # torch: only where an engine is opened

        return models.open_hf(self)

"""Engines without a model, for child processes: what they answer can be foretold, and they die on demand."""

from __future__ import annotations

import os
import signal
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from moat.engines.base import EngineError, FinishReason, Generation
from moat.machine import Machine

DIES, FAILS, BUG, ENDS, ODD, TOGETHER, HELD = 666, 500, 404, 3, 13, 60, 61  # first tokens of prompts that do so


class OddError(Exception):
    """Cannot be made again from what pickle keeps of it."""

    def __init__(self, *, why):
        super().__init__(why)


def answer(prompt, seed):
    """What any of these engines makes of a request."""
    return Generation([sum(prompt) % 1000, seed % 1000], FinishReason.STOP, -1.0)


@dataclass(frozen=True)
class Spec:
    """Stands for moat.engines.spec.Spec. `notes`: every process leaves a line of what it was asked there.

    `deaths` is how often a prompt that begins with DIES kills before it is answered; one that begins with TOGETHER waits
    until so many processes have been asked, with HELD until there is a file beside the notes; `opens`: what opening does.
    """

    notes: Path
    deaths: int = 10**9
    opens: str = "well"
    early: bool = False
    together: int = 2
    model: Path = Path("model")
    machine: Machine = field(default_factory=Machine)

    def prepare(self):
        return self.early

    def open(self):
        print("opening", flush=True)
        if self.opens == "dies":
            os.kill(os.getpid(), signal.SIGKILL)
        if self.opens == "refuses":
            raise OSError("the model in model cannot be loaded")
        if self.opens == "fails":
            raise EngineError("vllm cannot open model: no room")
        return Engine(self)


class Engine:
    """Says on its standard output what it does, which must not get to the stage's."""

    def __init__(self, spec):
        self.spec = spec

    def generate(self, prompts, seeds, decoding):
        with self.spec.notes.open("a") as file:
            file.write(f"{os.getpid()} {len(prompts)} {os.environ.get('CUDA_VISIBLE_DEVICES')}\n")
        kinds = [prompt[0] for prompt in prompts]
        if DIES in kinds:
            died = self.spec.notes.with_suffix(".died")
            count = len(died.read_text()) if died.exists() else 0
            if count < self.spec.deaths:
                died.write_text("x" * (count + 1))
                print("about to die", file=sys.stderr, flush=True)
                os.kill(os.getpid(), signal.SIGKILL)
        if ENDS in kinds:
            raise SystemExit("no more")
        if FAILS in kinds:
            raise EngineError("out of memory")
        if BUG in kinds:
            raise KeyError("a bug")
        if ODD in kinds:
            raise OddError(why="it is odd")
        if TOGETHER in kinds:
            self._wait(lambda: len({line.split()[0] for line in self.spec.notes.open()}) >= self.spec.together)
        if HELD in kinds:
            self._wait(self.spec.notes.with_suffix(".go").exists)
        return [answer(prompt, seed) for prompt, seed in zip(prompts, seeds, strict=True)]

    def _wait(self, done):
        until = time.monotonic() + 60
        while not done():
            if time.monotonic() > until:
                raise TimeoutError("what it waits for did not come")
            time.sleep(0.01)

    def score(self, prompts, completions):
        return [
            np.full(len(completion), -float(len(prompt)), dtype=np.float32)
            for prompt, completion in zip(prompts, completions, strict=True)
        ]

"""Scores of another engine, taken only when they are those of `hf`, the reference."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import numpy as np

from moat.engines.base import EngineError
from moat.machine import MACHINE
from moat.workers import Reply, Work, Workers

SAMPLE = 16  # rows that are compared


class Compared:
    """vLLM's engines, whose scores are first compared with hf's, on rows of the very call.

    Raises EngineError, with the figures, when a row's NLL (mean over its tokens) differs by more than `tolerance` nats.
    """

    def __init__(self, workers: Workers, reference: Workers, tolerance: float, tell: Callable[[str], None]) -> None:
        self.workers = workers
        self.reference = reference
        self.tolerance = tolerance
        self.tell = tell
        self._done = False

    def start(self) -> None:
        """hf comes first, and is gone before vLLM is opened."""
        self.reference.start()

    def close(self) -> None:
        """End the processes."""
        self.reference.close()
        self.workers.close()

    def run(self, works: Sequence[Work]) -> Iterator[tuple[int, Reply]]:
        """As the workers do."""
        if works and works[0].decoding is None and not self._done:
            self._compare(works)
            self._done = True
        self.reference.close()
        yield from self.workers.run(works)

    def _compare(self, works: Sequence[Work]) -> None:
        rows = [(prompt, own) for work in works for prompt, own in zip(work.prompts, work.completions, strict=True)]
        n = min(SAMPLE, len(rows))  # of every length, for batches are planned by it
        some = [rows[i * (len(rows) - 1) // max(1, n - 1)] for i in range(n)]
        sample = Work([prompt for prompt, _ in some], completions=[own for _, own in some])
        self.workers.close()
        ((_, theirs),) = self.reference.run([sample])
        self.reference.close()
        ((_, ours),) = self.workers.run([sample])
        pairs = [(a, b) for a, b in zip(ours.answers, theirs.answers, strict=True) if a is not None and b is not None]
        if len(pairs) < n:
            raise EngineError(
                f"vllm's scores cannot be compared with hf's: {n - len(pairs)} of {n} rows have none: "
                f"{theirs.failure or ours.failure}"
            )
        # numpy's maximum is NaN where there is one, and no NaN is within a tolerance
        gap = float(np.max([abs(np.mean(a, dtype="f8") - np.mean(b, dtype="f8")) for a, b in pairs]))
        token = float(np.max([np.abs(a - b).max() for a, b in pairs]))
        told = f"{gap:.2g} nats in a row's mean, {token:.2g} in a token ({len(pairs)} rows)"
        if not gap <= self.tolerance:
            raise EngineError(
                f"vllm's scores differ from hf's by up to {told}, over vllm.tolerance {self.tolerance}: set vllm.score to "
                f"false in {MACHINE}, so that hf scores; or, in a coarse dtype, vllm.tolerance to what pairs may rest on"
            )
        self.tell(f"vllm's scores are hf's within {told}")

"""Which rows make up which update, on which process, in which micro-batch. Pure: every process works out the same plan.

An update is made of an effective batch. It is shared out over all processes and accumulation steps, as evenly as its rows
allow, in micro-batches that all have the same number of places; a place without a row holds a filler, which counts for
nothing. So the processes stay in step, whatever the number of rows: each makes as many forward passes of the same shape as
the others, and no row is lost or seen twice. Only the last batch of an epoch can need fillers.

An epoch's order is the one that the Trainer of transformers draws in one process: torch's permutation, seeded with the
run's seed plus the epoch's number.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache

import torch

FILLER = -1  # the number of a place that no row has


@lru_cache(maxsize=4)
def order(rows: int, seed: int, epoch: int) -> list[int]:
    """The numbers of all rows, in the order in which an epoch learns from them."""
    generator = torch.Generator().manual_seed(seed + epoch)
    drawn: list[int] = torch.randperm(rows, generator=generator).tolist()
    return drawn


@dataclass(frozen=True)
class Plan:
    """`updates` updates over `rows` rows in effective batches of `batch` rows, epoch after epoch."""

    rows: int
    batch: int
    updates: int
    seed: int
    processes: int = 1
    accumulation: int = 1

    def whole(self, update: int) -> list[int]:
        """The rows of an update (numbered from 0), those of all processes; the last one of an epoch may have fewer."""
        epoch, number = divmod(update, -(-self.rows // self.batch))
        return order(self.rows, self.seed, epoch)[number * self.batch : (number + 1) * self.batch]

    def micro_batches(self, update: int) -> list[list[list[int]]]:
        """The rows of an update by accumulation step, then by process; FILLER where a place has no row."""
        rows = self.whole(update)
        parts = self.processes * self.accumulation
        size, larger = divmod(len(rows), parts)
        places = size + bool(larger)
        found, start = [], 0
        for part in range(parts):
            end = start + size + (part < larger)
            found.append(rows[start:end] + [FILLER] * (places - (end - start)))
            start = end
        return [found[step : step + self.processes] for step in range(0, parts, self.processes)]

    def of(self, process: int) -> Iterator[list[int]]:
        """The micro-batches of one process, in order: as many as `updates` times `accumulation`."""
        for update in range(self.updates):
            for step in self.micro_batches(update):
                yield step[process]

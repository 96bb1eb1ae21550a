"""Which rows make up which update, on which process, in which micro-batch. Pure: every process works out the same plan.

An update is made of an effective batch. It is shared out over all processes and accumulation steps, as evenly as its rows
allow, in micro-batches that all have the same number of places; a place without a row holds a filler, which counts for
nothing. So the processes stay in step, whatever the number of rows: each makes as many forward passes of the same shape as
the others, and no row is lost or seen twice. Only the last batch of an epoch can need fillers.

An epoch's order is the one that the Trainer of transformers draws in one process: torch's permutation, seeded with the
run's seed plus the epoch's number. Grouped by length, the rows of an update are similar in length, so that little of a
batch is padding; which ones meet still changes from epoch to epoch.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import torch

FILLER = -1  # the number of a place that no row has
PARTS = 4  # grouped by length, an epoch is sorted in at least so many parts,
LARGEST = 50  # each of at most so many batches


def order(rows: int, seed: int, epoch: int) -> list[int]:
    """The numbers of all rows, in the order in which an epoch learns from them."""
    return _shuffled(rows, torch.Generator().manual_seed(seed + epoch))


def _shuffled(n: int, generator: torch.Generator) -> list[int]:
    drawn: list[int] = torch.randperm(n, generator=generator).tolist()
    return drawn


def grouped(lengths: Sequence[int], batch: int, seed: int, epoch: int) -> list[int]:
    """An epoch's order in which every `batch` rows are similar in length (tokens).

    The rows are shuffled, cut into parts of some batches, each part sorted by length and cut into batches, and the batches
    shuffled; one that is not full stays last. Fewer rows than eight batches are only shuffled.
    """
    generator = torch.Generator().manual_seed(seed + epoch)
    rows = _shuffled(len(lengths), generator)
    part = batch * max(1, min(LARGEST, len(rows) // (batch * PARTS)))
    parts = [sorted(rows[at : at + part], key=lengths.__getitem__) for at in range(0, len(rows), part)]
    batches = [one[at : at + batch] for one in parts for at in range(0, len(one), batch)]
    rest = batches.pop() if len(batches[-1]) < batch else []
    return [row for number in _shuffled(len(batches), generator) for row in batches[number]] + rest


@dataclass
class Plan:
    """`updates` updates over `rows` rows in effective batches of `batch` rows, epoch after epoch.

    With `lengths` (tokens of each row) the rows of an update are similar in length.
    """

    rows: int
    batch: int
    updates: int
    seed: int
    processes: int = 1
    accumulation: int = 1
    lengths: Sequence[int] | None = None
    _order: tuple[int, list[int]] = field(default=(-1, []), init=False, repr=False)  # the last epoch that was asked for

    def _of_epoch(self, epoch: int) -> list[int]:
        if self._order[0] != epoch:
            if self.lengths is None:
                self._order = (epoch, order(self.rows, self.seed, epoch))
            else:
                self._order = (epoch, grouped(self.lengths, self.batch, self.seed, epoch))
        return self._order[1]

    def whole(self, update: int) -> list[int]:
        """The rows of an update (numbered from 0), those of all processes; the last one of an epoch may have fewer."""
        epoch, number = divmod(update, -(-self.rows // self.batch))
        return self._of_epoch(epoch)[number * self.batch : (number + 1) * self.batch]

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

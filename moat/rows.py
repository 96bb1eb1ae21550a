"""Row work: many independent requests to one engine, in planned batches, equal requests asked once.

Batches are planned from the whole request list, by length, so that padding is small and the same requests always meet the
same batch: float32 log-probabilities differ in their last bits with the batch's shape.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence

import numpy as np

from moat.engines.hf import Decoding, Generation, HFEngine
from moat.stage import Advance
from moat.tokens import Example


def plan_batches(lengths: Sequence[int], groups: Sequence[Hashable], size: int) -> list[list[int]]:
    """Split row indices into batches of at most `size` rows, similar in length; a group is never split if it fits.

    Rows of one group (one task's candidates) share a batch, so that their scores are compared under one shape.
    """
    members: dict[Hashable, list[int]] = {}
    for index, group in enumerate(groups):
        members.setdefault(group, []).append(index)
    ordered = sorted(members.values(), key=lambda rows: (max(lengths[i] for i in rows), rows[0]))
    batches: list[list[int]] = []
    for rows in ordered:
        for start in range(0, len(rows), size):
            piece = rows[start : start + size]
            if batches and len(batches[-1]) + len(piece) <= size:
                batches[-1].extend(piece)
            else:
                batches.append(list(piece))
    return batches


def generate(
    engine: HFEngine,
    prompts: Sequence[Sequence[int]],
    seeds: Sequence[int],
    decoding: Decoding,
    batch_size: int,
    advance: Advance,
) -> list[Generation]:
    """Continue every prompt; results in the order of `prompts`. Greedy requests with equal prompts are asked once."""
    keys = [(tuple(p), s if decoding.temperature else 0) for p, s in zip(prompts, seeds, strict=True)]
    unique = list(dict.fromkeys(keys))
    answers: dict[tuple[tuple[int, ...], int], Generation] = {}
    repeats = len(keys) - len(unique)
    for batch in plan_batches([len(p) for p, _ in unique], range(len(unique)), batch_size):
        rows = [unique[i] for i in batch]
        made = engine.generate([list(p) for p, _ in rows], [s for _, s in rows], decoding)
        answers.update(zip(rows, made, strict=True))
        advance(len(batch))
    advance(repeats)
    return [answers[key] for key in keys]


def score(
    engine: HFEngine, examples: Sequence[Example], tasks: Sequence[str], batch_size: int, advance: Advance
) -> list[np.ndarray]:
    """Log-probabilities (nats) of every completion token of every example, in order. Equal examples are asked once."""
    keys = [(tuple(e.prompt), tuple(e.completion)) for e in examples]
    first = {key: index for index, key in reversed(list(enumerate(keys)))}
    unique = sorted(first.values())
    answers: dict[tuple[tuple[int, ...], tuple[int, ...]], np.ndarray] = {}
    for batch in plan_batches([len(examples[i]) for i in unique], [tasks[i] for i in unique], batch_size):
        rows = [unique[i] for i in batch]
        made = engine.score([examples[i].prompt for i in rows], [examples[i].completion for i in rows])
        answers.update((keys[i], logprobs) for i, logprobs in zip(rows, made, strict=True))
        advance(len(batch))
    advance(len(keys) - len(unique))
    return [answers[key] for key in keys]

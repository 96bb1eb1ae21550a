"""How far a score moves when its batch does (trap 6).

Log-probabilities differ in their last bits with a batch's shape. A pair whose gap lies that close to `pairs.min_gap` was
kept or dropped by rounding; `moat.pairs.near_gap` counts them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from moat.scoring import mean_nll, perplexity
from moat.seeds import content_id
from moat.tokens import Example

SAMPLE = 64  # examples that are scored again

Alone = Callable[[Sequence[Example]], Sequence[np.ndarray | None]]
"""Log-probabilities of each example's completion, each scored by itself; None for what the engine could not answer."""


@dataclass(frozen=True, slots=True)
class Noise:
    """Largest differences between a score in its batch and the same alone, over `n` examples; None when there are none.

    `nll` is in nats a token.
    """

    n: int
    nll: float | None
    ppl: float | None


def measure(alone: Alone, examples: Sequence[Example], batched: Sequence[np.ndarray], include_end: bool, seed: int) -> Noise:
    """Score at most SAMPLE of `examples`, drawn by `seed`, again one by one, and compare with `batched`.

    `alone` is a runner's `score_alone`; `batched` [tokens] are the log-probabilities found before, in the examples' order.
    Left out are examples without a finite PPL, of which no pair is made, and those without an answer. A score that is
    finite in its batch and not alone differs infinitely. Raises ValueError for lists of two lengths.
    """
    if len(examples) != len(batched):
        raise ValueError(f"{len(examples)} examples, but scores of {len(batched)}")
    ranks = [content_id("noise", seed, *one.prompt, 0, *one.completion) for one in examples]  # so that others do not move it
    drawn = sorted(sorted(range(len(examples)), key=ranks.__getitem__)[:SAMPLE])
    nlls, ppls = [], []
    for index, again in zip(drawn, alone([examples[index] for index in drawn]), strict=True):
        before = mean_nll(batched[index], include_end)
        if again is not None and math.isfinite(perplexity(before)):
            after = mean_nll(again, include_end)
            nlls.append(_distance(before, after))
            ppls.append(_distance(perplexity(before), perplexity(after)))
    return Noise(len(nlls), max(nlls, default=None), max(ppls, default=None))


def _distance(first: float, second: float) -> float:
    return abs(first - second) if math.isfinite(second) else math.inf

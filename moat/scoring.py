"""NLL and PPL of gold actions (MOAT, section on subgoal ranking: PPL = exp of the mean negative log-likelihood)."""

from __future__ import annotations

import math

import numpy as np


def mean_nll(logprobs: np.ndarray, include_end: bool) -> float:
    """Mean negative log-likelihood per supervised token, in nats.

    `logprobs` [tokens] ends with the end token, which counts only when `include_end` (|a| of the paper is read as the action
    tokens alone). Raises ValueError when nothing is left to average.
    """
    counted = logprobs if include_end else logprobs[:-1]
    if not len(counted):
        raise ValueError("no action tokens to average over")
    return float(-np.mean(counted, dtype=np.float64))


def perplexity(nll: float) -> float:
    """exp(nll); infinite, not an error, when it overflows."""
    return math.inf if nll >= 700 else math.exp(nll)

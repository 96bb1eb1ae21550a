"""Figures that judge a round: intervals, rank measures, means. Small, exact, on plain numbers."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

import numpy as np
from scipy.stats import binomtest, bootstrap, rankdata

Z95 = 1.959963984540054  # the standard normal's 97.5% point
RESAMPLES = 9_999  # of a bootstrap
RESAMPLED = 500_000  # values that a bootstrap holds at once


def wilson(successes: int, n: int) -> tuple[float, float]:
    """95% score interval of a proportion (Wilson 1927); (0, 1) when n is 0."""
    if not n:
        return 0.0, 1.0
    p, z2 = successes / n, Z95**2
    centre = (p + z2 / (2 * n)) / (1 + z2 / n)
    half = Z95 / (1 + z2 / n) * math.sqrt(p * (1 - p) / n + z2 / (4 * n * n))
    return max(0.0, centre - half), min(1.0, centre + half)


def bootstrap_mean(values: Sequence[float], seed: int = 0) -> tuple[float, float]:
    """95% bootstrap interval of a mean, bias-corrected and accelerated (Efron 1987); equal seeds give equal intervals.

    For the difference of two models give the differences of their scores on each task: the tasks are what is resampled.
    Where all values are equal the interval is that value alone: the values say nothing of their spread. Raises ValueError
    for no value, or one that is not finite.
    """
    sample = np.asarray(values, dtype=np.float64)
    if not len(sample) or not np.isfinite(sample).all():
        raise ValueError("an interval of a mean takes one finite value or more")
    if (sample == sample[0]).all():  # for which BCa is not defined
        return float(sample[0]), float(sample[0])
    found = bootstrap(
        (sample,),
        np.mean,
        n_resamples=RESAMPLES,
        batch=max(1, RESAMPLED // len(sample)),
        vectorized=True,
        method="BCa",
        rng=np.random.default_rng(seed),
    ).confidence_interval
    return float(found.low), float(found.high)


def mcnemar(turned_right: int, turned_wrong: int) -> float:
    """Two-sided exact p of McNemar's test (1947): that as many tasks turned right as turned wrong by chance; 1 for none.

    Tasks that both models solve, or neither, say nothing about which is better.
    """
    n = turned_right + turned_wrong
    return float(binomtest(turned_right, n, 0.5).pvalue) if n else 1.0


def auc(scores: Sequence[float], positive: Sequence[bool]) -> float | None:
    """Probability that a positive's score exceeds a negative's, ties counted half; None when one class is missing."""
    labels = np.asarray(positive, dtype=bool)
    n_positive, n_negative = int(labels.sum()), int((~labels).sum())
    if not n_positive or not n_negative:
        return None
    ranks = rankdata(np.asarray(scores, dtype=float))
    return float((ranks[labels].sum() - n_positive * (n_positive + 1) / 2) / (n_positive * n_negative))


def pearson(x: np.ndarray, y: np.ndarray) -> float | None:
    """Correlation, or None when one of the two does not vary."""
    if len(x) < 2 or x.std() == 0 or y.std() == 0:
        return None
    return float(np.corrcoef(x, y)[0, 1])


def within_task_correlation(groups: Iterable[tuple[Sequence[float], Sequence[bool]]]) -> tuple[float | None, int]:
    """Mean over tasks of the rank correlation between score and success, and how many tasks have one."""
    values = []
    for scores, reached in groups:
        value = pearson(rankdata(np.asarray(scores, dtype=float)), np.asarray(reached, dtype=float))
        if value is not None:
            values.append(value)
    return (float(np.mean(values)) if values else None), len(values)


def geometric_mean_ppl(nlls: Sequence[float | None]) -> float | None:
    """exp of the mean NLL over the finite ones; None when there is none."""
    finite = [nll for nll in nlls if nll is not None and math.isfinite(nll)]
    return math.exp(sum(finite) / len(finite)) if finite else None

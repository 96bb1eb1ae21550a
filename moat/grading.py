"""Grading: what an answer is worth, by the metric of its task."""

from __future__ import annotations

from dataclasses import dataclass

from moat.answers import same_answer
from moat.sources.base import Metric


@dataclass(frozen=True, slots=True)
class Grade:
    """`score` in [0, 1]; `correct` is the full score; `f1` and `element` beside it where the metric has them."""

    score: float
    correct: bool
    f1: float | None = None
    element: float | None = None


def grade(metric: Metric, answer: str | None, gold: str) -> Grade:
    """Grade one answer; None is a failure, which is wrong in every metric."""
    right = same_answer(answer, gold)
    return Grade(float(right), right)

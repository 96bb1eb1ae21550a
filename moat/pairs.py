"""Preference pairs: the best plan of a task against its worst (MOAT, section 4.1).

chosen = lowest score, rejected = highest; kept when the difference reaches `min_gap` in the unit of the score (PPL or NLL).
With `executed`, a pair is a candidate that reached the gold answer against one that did not (the best and the worst of
each by PPL), and the gap does not apply.
"""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

NO_USABLE, NOT_FINITE, ALL_EQUAL = "no usable candidate", "no finite score", "all candidates equal"
GAP, SAME_OUTCOME = "gap below min_gap", "all candidates reached the answer, or none did"


@dataclass(frozen=True, slots=True)
class Candidate:
    """One sampled plan of one task, scored; `reached` tells whether the grounder's actions for it met the gold answer."""

    k: int
    subgoals: str
    nll: float
    ppl: float
    reached: bool


@dataclass(frozen=True, slots=True)
class Pair:
    """The outcome for one task: both candidates, or the reason why there is no pair."""

    n_candidates: int
    n_distinct: int
    chosen: Candidate | None
    rejected: Candidate | None
    dropped: str | None


def normalised(subgoals: str) -> str:
    """The form under which two plans count as equal: spacing does not matter."""
    return " ".join(subgoals.split())


def pick(
    candidates: Sequence[Candidate],
    score: Literal["ppl", "nll", "executed"],
    min_gap: float,
    select: Literal["extremes", "random"],
    seed: int,
) -> Pair:
    """Choose a task's pair. Ties go to the lower k; a candidate whose score is not finite is no candidate.

    `select="random"` is the control: two different plans in an order drawn by `seed`, without regard to score and gap.
    """
    usable = [c for c in candidates if c.subgoals.strip()]
    n_distinct = len({normalised(c.subgoals) for c in usable})

    def none(reason: str) -> Pair:
        return Pair(len(usable), n_distinct, None, None, reason)

    if not usable:
        return none(NO_USABLE)
    finite = [c for c in usable if math.isfinite(c.nll) and math.isfinite(c.ppl)]
    if not finite:
        return none(NOT_FINITE)
    first = {normalised(c.subgoals): c for c in sorted(finite, key=lambda c: -c.k)}  # the lowest k of equal plans
    distinct = sorted(first.values(), key=lambda c: c.k)
    if len(distinct) < 2:
        return none(ALL_EQUAL)
    if select == "random":
        chosen, rejected = random.Random(seed).sample(distinct, 2)
        return Pair(len(usable), n_distinct, chosen, rejected, None)

    def value(candidate: Candidate) -> float:
        return candidate.nll if score == "nll" else candidate.ppl

    if score == "executed":
        reached, missed = [c for c in distinct if c.reached], [c for c in distinct if not c.reached]
        if not reached or not missed:
            return none(SAME_OUTCOME)
        return Pair(len(usable), n_distinct, min(reached, key=value), max(missed, key=value), None)
    chosen, rejected = min(distinct, key=value), max(distinct, key=value)
    if chosen is rejected:
        return none(ALL_EQUAL)
    dropped = GAP if value(rejected) - value(chosen) < min_gap else None
    return Pair(len(usable), n_distinct, chosen, rejected, dropped)


def near_gap(gaps: Sequence[float], min_gap: float, noise: float) -> tuple[int, int]:
    """How many kept and how many dropped pairs have a gap within `noise` of `min_gap`, ends included.

    All three in the unit of the score; `noise` is how far a gap may be off (`moat.noise`). Which side of `min_gap` these
    pairs fall on is up to rounding (trap 6).
    """
    near = [gap for gap in gaps if abs(gap - min_gap) <= noise]
    kept = sum(gap >= min_gap for gap in near)
    return kept, len(near) - kept

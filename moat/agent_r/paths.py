"""Pairs of a bad and a good path of a tree, which begin alike.

A path goes from the root to a node that ends it, and its reward is that node's. It is good when its reward is over alpha
(at alpha = 1: when it is 1), and bad when it is not: what is trained on as good is never the bad half of a pair. Every two
paths of a tree with different rewards are looked at, and counted: as a pair, or under what removed them.

What two paths share is the nodes that are in both, which may be none but the root.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import takewhile
from typing import Any, Literal

from moat.agent_r.params import Pairs, good
from moat.agent_r.play import Turn

ALPHA = "alpha: the better path is not good"
BOTH_GOOD = "both paths are good"
BETA = "beta: the paths are not far enough apart"
CAP = "over pairs.max_per_tree"
# why a tree has no pair at all
NO_PATH, NO_GOOD, NO_BAD = "without a finished path", "without a path over alpha", "without a failed path"
NOT_APART = "without a pair over beta"
LAST_BITS = 1e-9  # 0.9 - 0.7 is over 0.2 in float64


@dataclass(frozen=True, slots=True)
class Path:
    """A finished path: the node that ends it, its nodes without the root, their turns, and its final reward."""

    end: int
    nodes: tuple[int, ...]
    turns: tuple[Turn, ...]
    reward: float


@dataclass(frozen=True, slots=True)
class Pair:
    """A bad and a good path, and how many turns both begin with."""

    bad: Path
    good: Path
    shared: int

    @property
    def gap(self) -> float:
        """How much higher the good path's reward is."""
        return self.good.reward - self.bad.reward


@dataclass(frozen=True, slots=True)
class Found:
    """The pairs of a tree, in order; how many twos of paths were removed, by reason; why there is no pair, None if any."""

    pairs: tuple[Pair, ...]
    removed: Mapping[str, int]
    empty: str | None


def finished(rows: Sequence[Mapping[str, Any]]) -> list[Path]:
    """The finished paths of a tree, by the number of their last node; `rows` are its rows of the table of nodes."""
    nodes = {row["node"]: row for row in rows}

    def back(number: int) -> Iterator[int]:
        while nodes[number]["parent"] is not None:
            yield number
            number = nodes[number]["parent"]

    paths = []
    for end in sorted(number for number, row in nodes.items() if row["end"]):
        numbers = tuple(back(end))[::-1]
        paths.append(Path(end, numbers, tuple(Turn.of(nodes[one]) for one in numbers), nodes[end]["reward"]))
    return paths


def shared(one: Path, other: Path) -> int:
    """How many turns two paths of a tree begin with together."""
    return sum(1 for _ in takewhile(lambda two: two[0] == two[1], zip(one.nodes, other.nodes, strict=False)))


def apart(bad: float, better: float, beta: float, rule: Literal["gap", "threshold"]) -> bool:
    """Whether two rewards are far enough apart: by more than beta, or by the other rule, the lower at most beta."""
    return better - bad > beta + LAST_BITS if rule == "gap" else bad <= beta


def pairs(paths: Sequence[Path], alpha: float, settings: Pairs) -> Found:
    """The pairs of a tree's finished paths, at most `settings.max_per_tree` (trap 45).

    Every bad path gets a partner before any gets a second. Of its partners and of the bad paths the first is that of the
    longest common history, then of the largest gap, then of the lowest node numbers.
    """
    removed: Counter[str] = Counter()
    partners: dict[int, list[Pair]] = {}
    for bad in paths:
        for better in paths:
            if better.reward <= bad.reward:
                continue
            if not good(better.reward, alpha):
                removed[ALPHA] += 1
            elif good(bad.reward, alpha):
                removed[BOTH_GOOD] += 1
            elif not apart(bad.reward, better.reward, settings.beta, settings.beta_rule):
                removed[BETA] += 1
            else:
                partners.setdefault(bad.end, []).append(Pair(bad, better, shared(bad, better)))
    ranked = [(turn, pair) for own in partners.values() for turn, pair in enumerate(sorted(own, key=_order))]
    ranked.sort(key=lambda one: (one[0], _order(one[1])))
    chosen = [pair for _, pair in ranked[: settings.max_per_tree]]
    removed[CAP] = len(ranked) - len(chosen)
    return Found(tuple(chosen), +removed, None if chosen else _why(paths, alpha))


def _order(pair: Pair) -> tuple[float, ...]:
    return -pair.shared, -pair.gap, pair.bad.end, pair.good.end


def _why(paths: Sequence[Path], alpha: float) -> str:
    """Why a tree has no pair."""
    if not paths:
        return NO_PATH
    are_good = [good(path.reward, alpha) for path in paths]
    return NO_GOOD if not any(are_good) else NO_BAD if all(are_good) else NOT_APART

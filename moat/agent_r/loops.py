"""Loops: how often an actor does the same again.

Two figures. The loop rate is of states: the share of the actions that were taken before in the same state of the same play
(`repeated` of a turn), as an inventory that is asked for twice with nothing done between.

The histogram is of texts alone, so that it can be taken of training trajectories too, whose states are not known. It counts
repeats by length: a block of L actions that is followed at once by the same L actions is one repeat of length L.

* Actions are compared without case and spacing. Reflections and turns without an action are left out before: who reflects
  and then does the same again repeats it, and a reflection itself is neither an action nor a repeat.
* For each length the sequence is read once from its begin, one action further each time, and after a repeat from the begin
  of its second block: A A A are two repeats of length 1; A B A B A is one of length 2 (and not one more of B A).
* A block that is itself a shorter block said several times does not count: A A A A are three repeats of A and none of A A.

So a block said k times over is k - 1 repeats, and every repeat stands for one more saying that led nowhere new, or that was
wanted: `get 1 stick` twice is a repeat too. What is a bad habit, the histogram of gold trajectories beside it tells.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from moat.agent_r.turns import Kind, normal, read
from moat.react import Several


def actions(turns: Iterable[Mapping[str, Any]]) -> list[str]:
    """The actions of a play's turns (rows of a table), in order, as they are compared."""
    return [normal(turn["action"]) for turn in turns if turn["kind"] == Kind.ACTION]


def learned_actions(texts: Sequence[str], supervised: Sequence[bool], several: Several) -> list[str]:
    """The actions of a conversation that are learned from; what is context alone, as a bad action, is left out."""
    found: list[str] = []
    before: Kind | None = None
    for text, learned in list(zip(texts, supervised, strict=True))[1::2]:
        said = read(text, several, before)
        before = said.kind
        if learned and said.action is not None:
            found.append(normal(said.action))
    return found


def repeats(taken: Sequence[str]) -> Counter[int]:
    """How many repeats of each length there are in a sequence of actions; see above. Lengths without any are left out."""
    found: Counter[int] = Counter()
    for length in range(1, len(taken) // 2 + 1):
        start = 0
        while start + 2 * length <= len(taken):
            block = taken[start : start + length]
            if block == taken[start + length : start + 2 * length] and not _shorter(block):
                found[length] += 1
                start += length
            else:
                start += 1
    return found


def _shorter(block: Sequence[str]) -> bool:
    """Whether a block is a shorter one said several times."""
    n = len(block)
    return any(n % part == 0 and block[part:] == block[:-part] for part in range(1, n // 2 + 1))


def histogram(sequences: Iterable[Sequence[str]]) -> dict[int, int]:
    """Repeats by length over many sequences of actions, each on its own."""
    total: Counter[int] = Counter()
    for taken in sequences:
        total.update(repeats(taken))
    return dict(sorted(total.items()))


def loop_rate(plays: Iterable[Iterable[Mapping[str, Any]]]) -> float | None:
    """Share of the actions of all plays that repeat one in the same state; None without an action."""
    taken = [turn["repeated"] for turns in plays for turn in turns if turn["kind"] == Kind.ACTION]
    return sum(taken) / len(taken) if taken else None

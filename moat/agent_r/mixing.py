"""The actor's training set of a round: which trajectories, and how much each token counts.

L = eta (L_good + L_revision) + (1 - eta) L_general (Agent-R, section 3.3), each L the mean negative log-likelihood over the
supervised tokens of its whole set. So a token of a set of T tokens counts the set's weight over T, in whatever batch it is.
Without general data the loss is L_good + L_revision; a set without rows has no part in it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from moat.agent_r.actor import conversation
from moat.agent_r.play import Turn
from moat.agent_r.turns import Kind
from moat.mixing import first_of_equal

Row = dict[str, Any]
PLAYED = ("gold", "slip")  # origins of demonstrations that are trajectories


def weights(tokens: Mapping[str, int], eta: float) -> dict[str, float]:
    """What a supervised token of each origin counts, by the number of such tokens."""
    general = tokens.get("general", 0) > 0
    share = {origin: (1 - eta if origin == "general" else eta) if general else 1.0 for origin in tokens}
    return {origin: share[origin] / n for origin, n in tokens.items() if n}


def tokens_by_origin(rows: Sequence[Row]) -> Counter[str]:
    """Supervised tokens of each origin."""
    found: Counter[str] = Counter()
    for row in rows:
        found[row["origin"]] += row["n_supervised"]
    return found


def good_row(goal: Row, end: int, turns: Sequence[Turn]) -> Row:
    """A good trajectory: every action is learned from; what could not be read is not, nor are reflections on nothing."""
    texts = conversation(goal["instruction"], goal["first"], [(turn.text, turn.observation) for turn in turns])[:-1]
    learned = [turn.kind == Kind.ACTION for turn in turns]
    return _row(f"good/{goal['task_id']}/{end}", "good", goal, turns[-1].reward, texts, learned)


def revision_row(goal: Row, revision: Row) -> Row:
    """A revised trajectory: what is learned from begins with the reflection; the turns before it are context."""
    turns, start = revision["turns"], revision["reflection"]
    texts = conversation(goal["instruction"], goal["first"], [(turn["text"], turn["observation"]) for turn in turns])[:-1]
    learned = [number == start or (number > start and turn["kind"] == Kind.ACTION) for number, turn in enumerate(turns)]
    name = f"revision/{goal['task_id']}/{revision['bad']}/{revision['good']}"
    return _row(name, "revision", goal, revision["reward"], texts, learned)


def lessons(goals: Mapping[str, Row], revisions: Iterable[Row]) -> list[Row]:
    """The rows of kept revisions; of those of a task that differ in the drawn reflection alone the first.

    Bad paths that part after their turning point, each with the same good path, would else say one thing several times.
    """
    kept = list(revisions)
    turns = [[turn["text"] for number, turn in enumerate(one["turns"]) if number != one["reflection"]] for one in kept]
    keys = [(one["task_id"], one["reflection"], *said) for one, said in zip(kept, turns, strict=True)]
    return [revision_row(goals[one["task_id"]], one) for one in first_of_equal(kept, keys)]


def shown_row(dialogue: Row) -> Row:
    """A demonstration or a general conversation, as it is."""
    return {name: dialogue[name] for name in ("row_id", "origin", "task_id", "environment", "texts", "supervised")} | {
        "reward": 1.0 if dialogue["origin"] in PLAYED else None
    }


def _row(name: str, origin: str, goal: Row, reward: float, texts: Sequence[str], learned: Sequence[bool]) -> Row:
    return {
        "row_id": name,
        "origin": origin,
        "task_id": goal["task_id"],
        "environment": goal["environment"],
        "reward": reward,
        "texts": list(texts),
        "supervised": [bool(number % 2) and learned[number // 2] for number in range(len(texts))],
    }

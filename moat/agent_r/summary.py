"""A round's figures of Agent-R, from its tables; `agent_r/metrics.json` holds them.

    {"rounds": {"0": {"main": …, "recovery": …, "search": …, "revisions": …, "judge": …, "trained": …}, "1": …},
     "recovery_set": …, "final": …}

`main` and `recovery` are what the actor of that round does, from the start and from inside failed trajectories of the base
actor: two tests, never averaged with each other. The other four are of the round's tables, which the actor of the round
before made; round 0 has none, and they are null. A figure of nothing is null, too, as all of a mode that does not search.

Every one of them is of all rows, with `environments` by name in it, and `kinds` of tasks by name in those (`trained` has no
kinds). Beside all rows of `main` and `recovery` stand `reward_avg` and `success_avg`, the plain mean of the environments'
values, as the paper's averages are.

main, recovery (plays that were dropped are counted in `dropped` by reason, and in nothing else):
    n, tasks                     plays, and the tasks that they are of: plays of one task are alike, so that the intervals of
                                 a recovery set with several cuts of a task are narrower than they should be
    success, reward              share of plays with the full reward; mean final reward from 0 to 1. `_low` and `_high`: the
                                 95% interval, Wilson's and a bootstrap's
    loop_rate, loops             `moat.agent_r.loops`: share of actions that repeat one in the same state; repeats by length
    invalid_rate                 share of the turns but reflections that could not be read or that the environment refused
    reflections, turns           mean number of a play
    ended                        share of plays by what ended them: terminal, turns (the limit), length (max_length)
search:
    trees, rollouts              trees that are used, and their mean number of finished rollouts
    solved, both                 share with a path of full reward; share with a good and a bad path, by the round's alpha
    stopped, dropped             trees by what stopped them; those not used by reason
    calls, tokens, steps, replayed   what all trees cost together: turns asked, tokens, environment steps, and those among
                                 them that only brought back a state
revisions:
    pairs, kept, dropped         rows, those trained on, and the others by reason, alpha and beta after the replay among them
    reexecuted, survival         splices that were taken in the environment, and the share of these that is kept
    bad_paths, revision_length, first_bad    bad paths, and over them, each once, the mean number of turns to the first one
                                 judged bad (itself included), and its mean place from 0, where there is one
    turn                         mean place of the last turn that is kept of a bad path, over the spliced pairs
    thresholds                   (of all rows) of every two paths of a tree with different rewards, which removed what:
                                 alpha, beta and the cap; and trees without a pair by reason
judge:
    steps, labels, unparsed      judged steps, by label, and the share whose label cannot be read
    agreement                    of the steps labelled good or bad, the share labelled as the search tree has it (bad where
                                 the best reward seen below falls). `tree_bad` is the share of all steps that the tree calls
                                 bad: who calls every step good agrees with the rest
    bad_given_refused            of the steps whose action the environment refused, the share labelled bad
    refused_given_bad            of the steps labelled bad, the share whose action the environment refused. It is no
                                 precision of the judge: what is accepted can be wrong too
trained (also by `origin`):
    rows, tokens, weight         conversations, their tokens that are learned from, and what these count together in the loss
    turns, actions, loops        mean turns of the actor, those that are context among them; actions that are learned from,
                                 and their repeats by length
    dropped                      (of all rows) what the mix left out, by reason
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import polars as pl

from moat.agent_r.loops import actions, histogram, learned_actions, loop_rate
from moat.agent_r.params import good
from moat.figures import bootstrap_mean, wilson
from moat.react import Several
from moat.summary import mean, shares
from moat.tables import TableError

Block = dict[str, Any]
# The figures of curves.csv and of `final`, with where each stands in a round's block.
CURVES = {
    f"{part}_{name}": (part, name)
    for part in ("main", "recovery")
    for name in (
        "success",
        "success_low",
        "success_high",
        "reward",
        "reward_low",
        "reward_high",
        "n",
        "loop_rate",
        "invalid_rate",
        "reflections",
        "turns",
    )
} | {
    "search_solved": ("search", "solved"),
    "search_both": ("search", "both"),
    "revisions_kept": ("revisions", "kept"),
    "survival": ("revisions", "survival"),
    "revision_length": ("revisions", "revision_length"),
    "judge_agreement": ("judge", "agreement"),
    "judge_unparsed": ("judge", "unparsed"),
}


def share(part: int, whole: int) -> float | None:
    """A part of a whole, None of nothing."""
    return part / whole if whole else None


def counts(values: Sequence[str]) -> dict[str, int]:
    """How often each value is there, sorted by name."""
    return dict(sorted(Counter(values).items()))


def grouped(rows: pl.DataFrame, block: Callable[[pl.DataFrame], Block], kinds: bool = True) -> Block:
    """A block of all rows, with one of each environment in it, and with `kinds` one of each kind in those."""
    found = block(rows) | {"environments": {}}
    for name in sorted(set(rows["environment"])):
        own = rows.filter(rows["environment"] == name)
        found["environments"][name] = block(own)
        if kinds:
            each = {kind: own.filter(own["kind"] == kind) for kind in sorted(set(own["kind"]))}
            found["environments"][name]["kinds"] = {kind: block(part) for kind, part in each.items()}
    return found


def placed(rows: pl.DataFrame, goals: pl.DataFrame, what: str) -> pl.DataFrame:
    """A table of tasks' rows with their tasks' environment and kind. Raises TableError for a task that is not in `goals`."""
    found = rows.drop("environment", strict=False).join(
        goals.select("task_id", "environment", "kind"), on="task_id", how="left", maintain_order="left"
    )
    lacking = found.filter(found["kind"].is_null())
    if len(lacking):
        raise TableError(f"table '{what}' has the task {lacking['task_id'][0]}, which is no training task: `dvc repro`")
    return found


def plays_block(rows: pl.DataFrame, seed: int) -> Block:
    """Figures of an evaluation's or a recovery's plays; `seed` is the bootstrap's."""
    used, lost = rows.filter(rows["dropped"].is_null()), rows["dropped"].drop_nulls().to_list()
    n, full, rewards, turns = len(used), int(used["success"].sum()), used["reward"].to_list(), used["turns"].to_list()
    success_low, success_high = wilson(full, n) if n else (None, None)
    reward_low, reward_high = bootstrap_mean(rewards, seed) if n else (None, None)
    taken, reflected = int(used["n_turns"].sum()), int(used["n_reflections"].sum())
    return {
        "n": n,
        "tasks": used["task_id"].n_unique(),
        "success": share(full, n),
        "success_low": success_low,
        "success_high": success_high,
        "reward": mean(rewards),
        "reward_low": reward_low,
        "reward_high": reward_high,
        "loop_rate": loop_rate(turns),
        "loops": histogram(map(actions, turns)),
        "invalid_rate": share(int(used["n_invalid"].sum()), taken - reflected),
        "reflections": share(reflected, n),
        "turns": share(taken, n),
        "ended": shares(used["ended"].to_list()),
        "dropped": counts(lost),
    }


def plays(rows: pl.DataFrame, seed: int) -> Block:
    """Figures of an evaluation or a recovery, with the averages over environments."""
    found = grouped(rows, lambda own: plays_block(own, seed))
    each = found["environments"].values()
    averages = {f"{name}_avg": mean([one[name] for one in each if one[name] is not None]) for name in ("reward", "success")}
    return averages | found


def recovery_set_block(cuts: pl.DataFrame) -> Block:
    """Figures of the cuts from which recoveries begin."""
    texts = [tuple(turn["text"] for turn in turns) for turns in cuts["turns"].to_list()]
    return {
        "cuts": len(cuts),
        "tasks": cuts["task_id"].n_unique(),
        "distinct": len(set(zip(cuts["task_id"], texts, strict=True))),
        "given": mean([len(turns) for turns in texts]),
        "n_failed": mean(cuts["n_failed"].to_list()),
    }


def search_block(trees: pl.DataFrame, alpha: float) -> Block:
    """Figures of a round's trees."""
    used = trees.filter(trees["dropped"].is_null())
    both = sum(good(best, alpha) and not good(worst, alpha) for best, worst in used.select("best", "worst").iter_rows())
    return {
        "trees": len(used),
        "rollouts": mean(used["rollouts"].to_list()),
        "solved": share(int((used["best"] >= 1).sum()), len(used)),
        "both": share(both, len(used)),
        "stopped": counts(used["stopped"].to_list()),
        **{name: int(trees[name].sum()) for name in ("calls", "tokens", "steps", "replayed")},
        "dropped": counts(trees["dropped"].drop_nulls().to_list()),
    }


def revisions_block(rows: pl.DataFrame) -> Block:
    """Figures of a round's revisions."""
    kept, executed = rows["dropped"].is_null(), rows["replayed"]
    paths = rows.unique(["task_id", "bad"], maintain_order=True)
    return {
        "pairs": len(rows),
        "kept": int(kept.sum()),
        "dropped": counts(rows["dropped"].drop_nulls().to_list()),
        "reexecuted": int(executed.sum()),
        "survival": share(int((kept & executed).sum()), int(executed.sum())),
        "bad_paths": len(paths),
        "revision_length": mean(paths["revision_length"].drop_nulls().to_list()),
        "first_bad": mean(paths["first_bad"].drop_nulls().to_list()),
        "turn": mean(rows["turn"].drop_nulls().to_list()),
    }


def judge_block(rows: pl.DataFrame) -> Block:
    """Figures of a round's judged steps; what the judge found, beside what the tree and the environment say."""
    steps = list(rows.select("label", "tree", "refused").iter_rows())
    decided = [(label, tree) for label, tree, _ in steps if label in ("good", "bad")]
    refused = [label for label, _, was in steps if was]
    bad = [was for label, _, was in steps if label == "bad"]
    return {
        "steps": len(steps),
        "labels": counts([label for label, _, _ in steps]),
        "unparsed": share(sum(label == "unparsed" for label, _, _ in steps), len(steps)),
        "agreement": share(sum(label == tree for label, tree in decided), len(decided)),
        "tree_bad": share(sum(tree == "bad" for _, tree, _ in steps), len(steps)),
        "bad_given_refused": share(sum(label == "bad" for label in refused), len(refused)),
        "refused_given_bad": share(sum(bad), len(bad)),
    }


def trained_block(rows: pl.DataFrame, several: Several) -> Block:
    """Figures of what an actor learns from."""
    learned = [
        learned_actions(texts, supervised, several) for texts, supervised in rows.select("texts", "supervised").iter_rows()
    ]
    return {
        "rows": len(rows),
        "tokens": int(rows["n_supervised"].sum()),
        "weight": float((rows["n_supervised"] * rows["weight"]).sum()),
        "turns": mean([len(texts) // 2 for texts in rows["texts"].to_list()]),
        "actions": sum(map(len, learned)),
        "loops": histogram(learned),
    }


def trained(rows: pl.DataFrame, several: Several) -> Block:
    """The same, of each origin too."""

    def block(own: pl.DataFrame) -> Block:
        origins = {name: own.filter(own["origin"] == name) for name in sorted(set(own["origin"]))}
        by_origin = {name: trained_block(part, several) for name, part in origins.items()}
        return trained_block(own, several) | {"origin": by_origin}

    return grouped(rows, block, kinds=False)


@dataclass(frozen=True)
class Tables:
    """What a round made, and what two of its stages say of what is not in their tables: `found` pairs, `left_out` rows."""

    trees: pl.DataFrame
    judgements: pl.DataFrame
    revisions: pl.DataFrame
    trained: pl.DataFrame
    found: Mapping[str, Any] | None
    left_out: Mapping[str, int]


def made(tables: Tables, goals: pl.DataFrame, alpha: float, several: Several) -> Block:
    """Figures of a round's tables; `goals` are the training tasks. Raises TableError for tables of other tasks."""
    search = grouped(placed(tables.trees, goals, "trees"), lambda rows: search_block(rows, alpha))
    revisions = grouped(placed(tables.revisions, goals, "revisions"), revisions_block)
    return {
        "search": search,
        "revisions": revisions | {"thresholds": dict(tables.found) if tables.found else None},
        "judge": grouped(placed(tables.judgements, goals, "judgements"), judge_block),
        "trained": trained(tables.trained, several) | {"dropped": dict(tables.left_out)},
    }


NOTHING_MADE: Block = dict.fromkeys(("search", "revisions", "judge", "trained"))  # in round 0


def headline(block: Mapping[str, Any]) -> dict[str, float | None]:
    """A round's figures that curves are drawn of; None where there is none."""
    return {name: (block[part] or {}).get(key) for name, (part, key) in CURVES.items()}

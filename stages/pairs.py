"""pairs: per task, the plan that the grounder can use best against the one it can use worst.

Reads    data/tasks/train.parquet, data/rounds/{round}/{subgoals,scores,actions}.parquet; params.yaml: pairs, seed
Writes   data/rounds/{round}/pairs.parquet, a row per task, those without a pair with the reason
Paper    MOAT, section 4.1: lowest against highest PPL, left out when they differ by less than 0.1
Differs  equal plans are one candidate; `pairs.score` may be nll or executed, `pairs.select` random (controls)

    python -m moat.launch stages/pairs.py --round 1
"""

from __future__ import annotations

from collections import Counter
from typing import Any

import polars as pl

from moat import layout
from moat.pairs import Candidate, Pair, pick
from moat.schemas.actions import ACTIONS
from moat.schemas.pairs import PAIRS
from moat.schemas.scores import SCORES
from moat.schemas.subgoals import SUBGOALS
from moat.schemas.tasks import TASKS
from moat.seeds import seed_of
from moat.stage import ROUND, Counts, Stage, main


def pair_row(task_id: str, pair: Pair) -> dict[str, Any]:
    """One row of the pairs table."""
    chosen, rejected = pair.chosen, pair.rejected
    return {
        "task_id": task_id,
        "n_candidates": pair.n_candidates,
        "n_distinct": pair.n_distinct,
        "chosen_k": chosen and chosen.k,
        "rejected_k": rejected and rejected.k,
        "chosen": chosen and chosen.subgoals,
        "rejected": rejected and rejected.subgoals,
        "chosen_nll": chosen and chosen.nll,
        "rejected_nll": rejected and rejected.nll,
        "chosen_ppl": chosen and chosen.ppl,
        "rejected_ppl": rejected and rejected.ppl,
        "dropped": pair.dropped,
    }


def candidates_by_task(subgoals: pl.DataFrame, scores: pl.DataFrame, actions: pl.DataFrame) -> dict[str, list[Candidate]]:
    """Join the three tables by (task_id, k); a candidate without score or outcome goes no further."""
    joined = subgoals.join(scores, on=["task_id", "k"]).join(actions.select("task_id", "k", "outcome"), on=["task_id", "k"])
    found: dict[str, list[Candidate]] = {}
    for row in joined.sort("task_id", "k").iter_rows(named=True):
        candidate = Candidate(row["k"], row["subgoals"], row["nll"], row["ppl"], row["outcome"] == "reached")
        found.setdefault(row["task_id"], []).append(candidate)
    return found


def run(stage: Stage, round: str) -> None:
    """All input and output of the stage."""
    settings, target = stage.params.pairs, layout.table("pairs", round)
    paths = [layout.table(name, round) for name in ("subgoals", "scores", "actions")]
    stage.header(f"best against worst plan by {settings.score}, round {round}", [layout.TRAIN_TASKS, *paths], [target])
    tasks = TASKS.read(layout.TRAIN_TASKS)
    found = candidates_by_task(SUBGOALS.read(paths[0]), SCORES.read(paths[1]), ACTIONS.read(paths[2]))
    table = []
    for task_id in tasks["task_id"]:
        seed = seed_of(stage.params.seed, "pairs", round, task_id)
        pair = pick(found.get(task_id, []), settings.score, settings.min_gap, settings.select, seed)
        table.append(pair_row(task_id, pair))
    drops = Counter(row["dropped"] for row in table)
    counts = Counts(len(table), drops.pop(None, 0), {str(reason): n for reason, n in drops.items()})
    PAIRS.write(target, table, stage.facts("pairs", "seed", counts=counts))
    if not counts.kept:
        stage.warn("no task gives a pair: the planner will stay as it is")
    stage.close(counts)


if __name__ == "__main__":
    main(__file__, run, ROUND)

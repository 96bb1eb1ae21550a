"""mix: accepted and corrected candidates, 1:1 with initial demonstrations, into the grounder's training set.

Reads    data/tasks/train.parquet, data/rounds/{round}/{subgoals,actions,critiques}.parquet, data/demos/grounder.parquet,
         data/rounds/{prev}/pool.parquet; params.yaml: mix, data_window, seed, critic.subgoals
Writes   data/rounds/{round}/sft.parquet (what is trained on), pool.parquet (all rounds' candidates up to this one)
Paper    MOAT, section 4.2: D_g of the round mixed 1:1 with the initial data
Differs  `mix.dedup` keeps one of equal candidates of a task (tiny only); `data_window: all` trains on every round's;
         `critic.subgoals: corrected` takes a judge's own subgoals, where the paper's Algorithm 1 keeps the planner's

    python -m moat.launch stages/mix.py --round 1 --prev 0
"""

from __future__ import annotations

from typing import Any, Literal

import polars as pl

from moat import layout
from moat.mixing import draw_initial, first_of_equal
from moat.schemas.actions import ACTIONS
from moat.schemas.critiques import CRITIQUES
from moat.schemas.demos import DEMOS
from moat.schemas.sft import SFT
from moat.schemas.subgoals import SUBGOALS
from moat.schemas.tasks import TASKS
from moat.seeds import seed_of
from moat.stage import PREV, ROUND, Counts, Stage, main

Row = dict[str, Any]
ORIGIN = {"accept": "accepted", "correct": "corrected"}


def candidate_rows(joined: pl.DataFrame, round_key: str, subgoals: Literal["original", "corrected"]) -> list[Row]:
    """Training rows of the candidates whose verdict allows it, sorted by key.

    Under `subgoals: corrected` a corrected candidate has the critic's subgoals where it gave any.
    """
    rows = []
    for row in joined.sort("task_id", "k").iter_rows(named=True):
        if row["verdict"] not in ORIGIN:
            continue
        origin = ORIGIN[row["verdict"]]
        replaced = row["corrected_subgoals"] if origin == "corrected" and subgoals == "corrected" else None
        rows.append(
            {
                "row_id": f"{origin}/{round_key}/{row['task_id']}/{row['k']}",
                "origin": origin,
                "round": int(round_key),
                "task_id": row["task_id"],
                "k": row["k"],
                "demo_id": None,
                "source": row["source"],
                "domain": row["domain"],
                "text": row["text"],
                "turn": row["turn"],
                "turns": row["turns"][: row["turn"] or 0],
                "subgoals": row["subgoals"] if replaced is None else replaced,
                "actions": row["actions"] if origin == "accepted" else row["corrected_actions"],
            }
        )
    return rows


def initial_rows(demos: pl.DataFrame, needed: dict[str, int], seed: int, round_key: str) -> list[Row]:
    """As many demonstrations per task source as `needed` says, numbered where one comes more than once."""
    rows = []
    for source, count in sorted(needed.items()):
        own = demos.filter(demos["source"] == source).to_dicts()
        for index, demo in enumerate(draw_initial(own, count, seed_of(seed, "mix", round_key, source))):
            row_id = f"initial/{round_key}/{demo['demo_id']}/{index // max(1, len(own))}"
            kept = {name: value for name, value in demo.items() if name != "style"}
            rows.append(kept | {"row_id": row_id, "origin": "initial", "round": 0, "k": None})
    return rows


def run(stage: Stage, round: str, prev: str) -> None:
    """All input and output of the stage."""
    params, settings = stage.params, stage.params.mix
    paths = [layout.table(name, round) for name in ("subgoals", "actions", "critiques")]
    demos_path, pool_path = layout.demos("grounder"), layout.table("pool", prev)
    targets = [layout.table("sft", round), layout.table("pool", round)]
    stage.header(f"the grounder's training set, round {round}", [layout.TRAIN_TASKS, *paths, demos_path, pool_path], targets)
    joined = (
        SUBGOALS.read(paths[0])
        .join(ACTIONS.read(paths[1]).drop("finish_reason"), on=["task_id", "k"])
        .join(CRITIQUES.read(paths[2]), on=["task_id", "k"])
        .join(TASKS.read(layout.TRAIN_TASKS), on="task_id")
    )
    judged = candidate_rows(joined, round, params.critic.subgoals)
    fresh = judged
    if settings.dedup:
        fresh = first_of_equal(judged, [(row["task_id"], row["subgoals"], row["actions"]) for row in judged])
    pool = SFT.read(pool_path).to_dicts() + fresh
    used = pool if params.data_window == "all" else fresh
    needed: dict[str, int] = {}
    for row in used:
        needed[row["source"]] = needed.get(row["source"], 0) + 1
    needed = {source: int(n * settings.initial_ratio + 0.5) for source, n in needed.items()}
    initial = initial_rows(DEMOS.read(demos_path), needed, params.seed, round)
    counts = Counts(
        len(joined),
        len(fresh),
        {verdict: int((joined["verdict"] == verdict).sum()) for verdict in ("reject", "unparsed")}
        | {"equal to another": len(judged) - len(fresh)},
    )
    facts = stage.facts("mix", "data_window", "seed", counts=counts)
    SFT.write(targets[0], used + initial, facts | {"initial": len(initial)})
    SFT.write(targets[1], pool, facts)
    stage.say(f"{len(used):,} candidates + {len(initial):,} initial demonstrations = {len(used) + len(initial):,} rows")
    stage.close(counts)


if __name__ == "__main__":
    main(__file__, run, ROUND, PREV)

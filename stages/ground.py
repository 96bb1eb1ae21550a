"""ground: the grounder of the round before acts on every candidate, and the actions are executed.

Reads    data/tasks/train.parquet, data/rounds/{round}/subgoals.parquet, models/grounder/{prev} (an adapter:
         models/base too); params.yaml: ground, format, seed, limits
Writes   data/rounds/{round}/actions.parquet
Paper    MOAT, section 4.2: all K sampled sequences are reused
Differs  greedy unless params say otherwise: the paper does not say, the authors' code uses temperature 0.1

    python -m moat.launch stages/ground.py --round 1 --prev 0
"""

from __future__ import annotations

from collections import Counter

from moat import acting, adapters, layout, models, runners
from moat.rows import ENGINE_FAILED, tell
from moat.schemas.actions import ACTIONS
from moat.schemas.subgoals import SUBGOALS
from moat.schemas.tasks import TASKS
from moat.seeds import seed_of
from moat.stage import PREV, ROUND, Counts, Stage, main
from moat.tokens import Renderer
from moat.toolbox import goal_of, open_toolbox
from moat.turns import history, subgoal_of


def run(stage: Stage, round: str, prev: str) -> None:
    """All input and output of the stage."""
    params, target, model = stage.params, layout.table("actions", round), layout.model("grounder", prev)
    candidates_path = layout.table("subgoals", round)
    reads = [layout.TRAIN_TASKS, candidates_path, *adapters.parts(model)]
    stage.header(f"act on every plan and execute, round {round}", reads, [target])
    candidates = SUBGOALS.read(candidates_path)
    usable = candidates.filter(candidates["dropped"].is_null()).join(
        TASKS.read(layout.TRAIN_TASKS), on="task_id", maintain_order="left"
    )
    runner = runners.runner(stage, model, params.limits.max_failed, "grounder")
    renderer = Renderer(models.load_tokenizer(model), params.format)
    requests = [
        acting.Request(
            row["text"],
            row["subgoals"] if row["turn"] is None else subgoal_of(row["subgoals"]),
            goal_of(row),
            seed_of(params.seed, "ground", round, row["task_id"], row["k"]),
            history(row),
        )
        for row in usable.iter_rows(named=True)
    ]
    with stage.progress("grounding", len(requests)) as advance:
        acts = acting.act(runner, renderer, open_toolbox(stage, usable["domain"]), requests, params.ground, advance)
    table = [
        {
            "task_id": task_id,
            "k": k,
            "actions": act.actions,
            "finish_reason": act.finish_reason.value,
            "outcome": act.outcome.value,
            "answer": act.execution.answer,
            "message": act.execution.message,
        }
        for (task_id, k), act in zip(usable.select("task_id", "k").iter_rows(), acts, strict=True)
        if act.finish_reason
    ]
    drops = {"unusable candidate": len(candidates) - len(usable), ENGINE_FAILED: len(usable) - len(table)}
    counts = Counts(len(candidates), len(table), drops)
    facts = stage.facts("ground", "tools", "format", "seed", counts=counts, **runner.facts)
    ACTIONS.write(target, table, facts)
    outcomes = Counter(row["outcome"] for row in table)
    stage.say(", ".join(f"{name} {n:,} ({n / len(table):.0%})" for name, n in outcomes.most_common()))
    tell(stage, runner)
    stage.close(counts)


if __name__ == "__main__":
    main(__file__, run, ROUND, PREV)

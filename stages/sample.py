"""sample: K subgoal sequences per training task from the planner of the round before.

Reads    data/tasks/train.parquet, models/planner/{prev} (an adapter: models/base too); params.yaml: sample, format, seed,
         limits
Writes   data/rounds/{round}/subgoals.parquet
Differs  under iterative planning the unit is a turn: K next subgoals, given the gold turns before
Paper    MOAT, section 4.1: K = 15 at temperature 1.0; top_p 0.95 and 512 tokens are the authors' code

    python -m moat.launch stages/sample.py --round 1 --prev 0
"""

from __future__ import annotations

from collections import Counter

from moat import adapters, collapse, layout, models, runners
from moat.engines.base import FinishReason, decoding_of
from moat.rows import ENGINE_FAILED, tell
from moat.schemas.subgoals import SUBGOALS
from moat.schemas.tasks import TASKS
from moat.seeds import seed_of
from moat.stage import PREV, ROUND, Counts, Stage, main
from moat.tokens import Renderer
from moat.turns import history, subgoal_of


def why_dropped(text: str, reason: FinishReason, *, turn: bool = False) -> str | None:
    """Why a candidate goes no further, or None. A turn at which the planner stops too early has nothing to ground."""
    if reason is FinishReason.LENGTH:
        return "length"
    said = subgoal_of(text) if turn else text.strip()
    return "stop" if said is None else None if said else "empty"


def run(stage: Stage, round: str, prev: str) -> None:
    """All input and output of the stage."""
    params, target, model = stage.params, layout.table("subgoals", round), layout.model("planner", prev)
    stage.header(f"{params.sample.k} plans per task, round {round}", [layout.TRAIN_TASKS, *adapters.parts(model)], [target])
    tasks = TASKS.read(layout.TRAIN_TASKS)
    runner = runners.runner(stage, model, params.limits.max_failed, "planner")
    renderer = Renderer(models.load_tokenizer(model), params.format)
    turns = [turn is not None for turn in tasks["turn"] for _ in range(params.sample.k)]
    keys = [(task, k) for task in tasks["task_id"] for k in range(params.sample.k)]
    asked = [renderer.planner_prompt(task["text"], history(task)) for task in tasks.iter_rows(named=True)]
    prompts = [ids for prompt in asked for ids in [prompt] * params.sample.k]
    seeds = [seed_of(params.seed, "sample", round, task, k) for task, k in keys]
    with stage.progress("sampling", len(keys)) as advance:
        made = runner.generate(prompts, seeds, decoding_of(params.sample), advance)
    table = []
    for (task, k), seed, generation, turn in zip(keys, seeds, made, turns, strict=True):
        text = renderer.decode(generation.ids) if generation else ""
        table.append(
            {
                "task_id": task,
                "k": k,
                "subgoals": text,
                "finish_reason": generation and generation.finish_reason.value,
                "n_tokens": len(generation.ids) if generation else 0,
                "logprob": generation.logprob if generation else 0.0,
                "seed": seed,
                "dropped": why_dropped(text, generation.finish_reason, turn=turn) if generation else ENGINE_FAILED,
            }
        )
    drops = Counter(row["dropped"] for row in table)
    counts = Counts(len(table), drops.pop(None, 0), {str(reason): n for reason, n in drops.items()})
    collapse.guard(stage, table, renderer, round, prev)
    facts = stage.facts("sample", "format", "seed", counts=counts, **runner.facts)
    SUBGOALS.write(target, table, facts)
    distinct = len({(row["task_id"], row["subgoals"]) for row in table})
    stage.say(f"{distinct:,} distinct ({distinct / max(1, len(table)):.0%})")
    tell(stage, runner)
    stage.close(counts)


if __name__ == "__main__":
    main(__file__, run, ROUND, PREV)

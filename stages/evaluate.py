"""evaluate: the planner and the grounder of one round on every evaluation task: plan, ground, execute.

Reads    data/tasks/eval.parquet, models/{planner,grounder}/{round};
         params.yaml: evaluate, sample, score, format, max_length, seed, limits
Writes   data/evals/{round}.parquet, a row per task with every intermediate
Paper    MOAT, section 5: success per task source
Adds     PPL of the gold actions on `evaluate.samples` sampled plans, and a control: the grounder is given the plan of
         another task of the same source; a grounder that does as well with it ignores the plan
Differs  one-time planning only: the whole plan is written before anything is grounded

    python -m moat.launch stages/evaluate.py --round 0
"""

from __future__ import annotations

import math
import random
from typing import Any

import polars as pl

from moat import acting, layout, models
from moat.engines.base import Decoding
from moat.executor import Outcome, documentation
from moat.rows import Runner, tell
from moat.schemas.evals import EVALS
from moat.schemas.tasks import TASKS
from moat.scoring import mean_nll
from moat.seeds import seed_of
from moat.stage import ROUND, Counts, Stage, main
from moat.tokens import Example, Renderer

# What a table of this stage depends on, as dvc.yaml lists it: without sample.k, of which a change reruns nothing here.
READ = ("evaluate", "sample.temperature", "sample.top_p", "sample.max_new_tokens", "score", "format", "max_length", "seed")


def others(tasks: pl.DataFrame, seed: int) -> list[int]:
    """For each row, another row of the same source (itself where the source has one task): the control's plan."""
    partner = list(range(len(tasks)))
    for source in sorted(set(tasks["source"])):
        own = [index for index, name in enumerate(tasks["source"]) if name == source]
        random.Random(seed_of(seed, "control", source)).shuffle(own)
        for here, there in zip(own, own[1:] + own[:1], strict=True):
            partner[here] = there
    return partner


Plans = list[list[str | None]]  # of each task; None where the engine failed


def plans(stage: Stage, planner: Runner, renderer: Renderer, tasks: pl.DataFrame, round_key: str) -> Plans:
    """Per task: the plan as decoded for success, then `evaluate.samples` sampled ones."""
    settings, sample, seed = stage.params.evaluate, stage.params.sample, stage.params.seed
    prompts = [renderer.planner_prompt(text) for text in tasks["text"]]
    with stage.progress("planning", len(prompts) * (1 + settings.samples)) as advance:
        decoding = Decoding(settings.temperature, settings.top_p, settings.max_new_tokens)
        seeds = [seed_of(seed, "evaluate", round_key, task) for task in tasks["task_id"]]
        decoded = planner.generate(prompts, seeds, decoding, advance)
        repeated = [prompt for prompt in prompts for _ in range(settings.samples)]
        keys = [(task, k) for task in tasks["task_id"] for k in range(settings.samples)]
        seeds = [seed_of(seed, "evaluate", round_key, task, k) for task, k in keys]
        decoding = Decoding(sample.temperature, sample.top_p, sample.max_new_tokens)
        drawn = planner.generate(repeated, seeds, decoding, advance)
    first, several = ([None if made is None else renderer.decode(made.ids) for made in part] for part in (decoded, drawn))
    n = settings.samples
    return [[text, *several[index * n : (index + 1) * n]] for index, text in enumerate(first)]


def gold_nlls(stage: Stage, grounder: Runner, renderer: Renderer, tasks: pl.DataFrame, given: Plans) -> list[list[float]]:
    """NLL of each task's gold actions given each of its plans; NaN where the row is over max_length or has no answer."""
    found = [[math.nan] * len(texts) for texts in given]
    places: list[tuple[int, int]] = []
    examples: list[Example] = []
    for index, (task, texts) in enumerate(zip(tasks.iter_rows(named=True), given, strict=True)):
        for number, subgoals in enumerate(texts):
            if subgoals is None:
                continue
            example = renderer.grounder_example(task["text"], documentation(task["domain"]), subgoals, task["gold_actions"])
            if len(example) <= stage.params.max_length:
                places.append((index, number))
                examples.append(example)
    groups = [tasks["task_id"][index] for index, _ in places]
    with stage.progress("scoring", len(examples)) as advance:
        logprobs = grounder.score(examples, groups, advance)
    for (index, number), values in zip(places, logprobs, strict=True):
        if values is not None:
            found[index][number] = mean_nll(values, stage.params.score.include_end)
    return found


def run(stage: Stage, round: str) -> None:
    """All input and output of the stage."""
    params, target = stage.params, layout.evals(round)
    folders = [layout.model(role, round) for role in ("planner", "grounder")]
    stage.header(f"plan, ground and execute, round {round}", [layout.EVAL_TASKS, *folders], [target])
    tasks = TASKS.read(layout.EVAL_TASKS)
    renderer = Renderer(models.load_tokenizer(folders[0]), params.format)
    planner, grounder = (models.runner(stage, folder, params.limits.max_failed) for folder in folders)
    planned = plans(stage, planner, renderer, tasks, round)
    planner.drop_engine()
    partner = others(tasks, params.seed)
    control = [planned[there][0] for there in partner]

    def act(texts: list[str | None], label: str) -> list[acting.Act]:
        requests = [
            acting.Request(
                task["text"], task["domain"], text, task["gold_answer"], seed_of(params.seed, label, task["task_id"])
            )
            for task, text in zip(tasks.iter_rows(named=True), texts, strict=True)
        ]
        with stage.progress(label, len(requests)) as advance:
            return acting.act(grounder, renderer, requests, params.evaluate, advance)

    acts = act([texts[0] for texts in planned], "grounding")
    control_acts = act(control, "control")
    nlls = gold_nlls(stage, grounder, renderer, tasks, [[*p, c] for p, c in zip(planned, control, strict=True)])
    table: list[dict[str, Any]] = []
    for index, task in enumerate(tasks.iter_rows(named=True)):
        success = acts[index].outcome is Outcome.REACHED
        table.append(
            {name: task[name] for name in ("task_id", "source", "trained", "text", "gold_actions", "gold_answer")}
            | {
                "subgoals": planned[index][0] or "",
                "actions": acts[index].actions,
                "outcome": acts[index].outcome.value,
                "answer": acts[index].answer,
                "success": success,
                "nll": nlls[index][0],
                "samples": [text or "" for text in planned[index][1:]],
                "samples_nll": nlls[index][1:-1],
                "control_task_id": tasks["task_id"][partner[index]],
                "control_outcome": control_acts[index].outcome.value,
                "control_nll": nlls[index][-1],
            }
        )
    counts = Counts(len(table), len(table))
    EVALS.write(target, table, stage.facts(*READ, counts=counts, **models.engine_facts(stage.machine)))
    for source in sorted(set(tasks["source"])):
        own = [row["success"] for row in table if row["source"] == source]
        stage.say(f"{source}: {sum(own)} of {len(own)} reached the gold answer ({sum(own) / len(own):.1%})")
    tell(stage, planner, grounder)
    stage.close(counts)


if __name__ == "__main__":
    main(__file__, run, ROUND)

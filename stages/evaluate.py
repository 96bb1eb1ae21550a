"""evaluate: the planner and the grounder of one round on every evaluation task: plan, ground, execute.

Reads    data/tasks/eval.parquet, models/{planner,grounder}/{round} (adapters: models/base too);
         params.yaml: planning, evaluate, sample, score, format, max_length, seed, limits
Writes   data/evals/{round}.parquet, a row per task with every intermediate
Paper    MOAT, section 5: success per task source
Adds     PPL of the gold actions on `evaluate.samples` sampled plans, and a control: the grounder is given the plan of
         another task of the same source; a grounder that does as well with it ignores the plan
Modes    onetime: the whole plan is written before anything is grounded; iterative: a subgoal a turn, its result told, until
         the planner stops. A source whose tasks are single steps (Mind2Web) is asked step by step with the gold history

    python -m moat.launch stages/evaluate.py --round 0
"""

from __future__ import annotations

import math
import random
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
import polars as pl

from moat import acting, adapters, layout, models, runners
from moat.engines.base import decoding_of
from moat.episodes import Episode, play, script
from moat.episodes import planner as ask_planner
from moat.examples import gold_example
from moat.executor import Outcome
from moat.grading import grade
from moat.rows import Runner, tell
from moat.schemas.evals import EVALS
from moat.schemas.tasks import TASKS
from moat.scoring import mean_nll
from moat.seeds import seed_of
from moat.sources.base import Metric
from moat.stage import ROUND, Counts, Stage, main
from moat.tokens import Example, Renderer
from moat.toolbox import Toolbox, goal_of, open_toolbox
from moat.turns import Done, history, subgoal_of

# What a table of this stage depends on, as dvc.yaml lists it: without sample.k, of which a change reruns nothing here.
READ = (
    "planning",
    "evaluate",
    "sample.temperature",
    "sample.top_p",
    "sample.max_new_tokens",
    "score",
    "tools",
    "format",
    "max_length",
    "seed",
)


def others(tasks: pl.DataFrame, seed: int) -> list[int]:
    """For each row, another row of the same source (itself where the source has one task): the control's plan."""
    partner = list(range(len(tasks)))
    for source in sorted(set(tasks["source"])):
        own = [index for index, name in enumerate(tasks["source"]) if name == source]
        random.Random(seed_of(seed, "control", source)).shuffle(own)
        for here, there in zip(own, own[1:] + own[:1], strict=True):
            partner[here] = there
    return partner


@dataclass(frozen=True)
class Asked:
    """A question to the planner: a whole task, or one of its turns with the gold turns before it."""

    index: int  # row of the evaluation tasks
    turn: int | None
    row: dict[str, Any]  # the task, at that turn
    plans: list[str | None] = field(default_factory=list)  # as decoded for success, then sampled; None: the engine failed


def asked(tasks: pl.DataFrame, iterative: bool) -> list[Asked]:
    """Every question to the planner: a task that is played turn by turn has one for each of its gold turns."""
    found = []
    for index, task in enumerate(tasks.iter_rows(named=True)):
        if task["turn"] is not None or not iterative:
            found.append(Asked(index, task["turn"], task))
            continue
        for turn, gold in enumerate(task["turns"]):
            found.append(Asked(index, turn, task | {"turn": turn, "gold_actions": gold["actions"]}))
    return found


def plan(stage: Stage, planner: Runner, renderer: Renderer, questions: list[Asked], round_key: str) -> None:
    """Fill in the plans of every question: the one decoded for success, then `evaluate.samples` sampled ones."""
    settings, sample, seed, n = stage.params.evaluate, stage.params.sample, stage.params.seed, stage.params.evaluate.samples
    prompts = [renderer.planner_prompt(one.row["text"], history(one.row)) for one in questions]
    # a whole task's seeds do not name a turn
    names = [(one.row["task_id"],) if one.turn is None else (one.row["task_id"], "turn", one.turn) for one in questions]
    with stage.progress("planning", len(prompts) * (1 + n)) as advance:
        seeds = [seed_of(seed, "evaluate", round_key, *name) for name in names]
        decoded = planner.generate(prompts, seeds, decoding_of(settings), advance)
        repeated = [prompt for prompt in prompts for _ in range(n)]
        seeds = [seed_of(seed, "evaluate", round_key, *name, k) for name in names for k in range(n)]
        drawn = planner.generate(repeated, seeds, decoding_of(sample), advance)
    for number, one in enumerate(questions):
        made = [decoded[number], *drawn[number * n : (number + 1) * n]]
        one.plans.extend(None if generation is None else renderer.decode(generation.ids) for generation in made)


def gold_nlls(
    stage: Stage, grounder: Runner, renderer: Renderer, tasks: pl.DataFrame, questions: list[Asked], partner: list[int]
) -> list[list[float]]:
    """NLL of each task's gold actions given each of its plans, the last given its control's; over all its turns' tokens.

    NaN where a row is over max_length, has no gold actions, or no answer.
    """
    own: dict[int, list[Asked]] = {}
    for one in questions:
        own.setdefault(one.index, []).append(one)
    places: list[tuple[int, int]] = []
    examples: list[Example] = []
    lacking: set[tuple[int, int]] = set()
    for one in questions:
        others_turns = own.get(partner[one.index])
        theirs = others_turns[(one.turn or 0) % len(others_turns)].plans[0] if others_turns else None
        for number, text in enumerate([*one.plans, theirs]):
            example = None
            if text is not None and one.row["gold_actions"].strip() and (one.turn is None or subgoal_of(text) is not None):
                example = gold_example(renderer, one.row | {"subgoals": text}, "gold_actions")
            if example is None or len(example) > stage.params.max_length:
                lacking.add((one.index, number))
                continue
            places.append((one.index, number))
            examples.append(example)
    groups = [tasks["task_id"][index] for index, _ in places]
    with stage.progress("scoring", len(examples)) as advance:
        logprobs = grounder.score(examples, groups, advance)
    parts: dict[tuple[int, int], list[np.ndarray]] = {}
    for place, values in zip(places, logprobs, strict=True):
        if values is None:
            lacking.add(place)
        else:
            parts.setdefault(place, []).append(values if stage.params.score.include_end else values[:-1])
    width = stage.params.evaluate.samples + 2
    return [
        [
            mean_nll(np.concatenate(parts[index, number]), include_end=True)
            if (index, number) in parts and (index, number) not in lacking
            else math.nan
            for number in range(width)
        ]
        for index in range(len(tasks))
    ]


def perform(
    stage: Stage,
    planner: Runner | None,
    grounder: Runner,
    renderer: Renderer,
    toolbox: Toolbox,
    tasks: pl.DataFrame,
    plans: dict[int, str | None],
    scripts: dict[int, list[str]],
    label: str,
) -> list[Episode]:
    """Act on every task: at once on its plan in `plans`; the others turn by turn, planned by `planner` or by `scripts`."""
    params, rows = stage.params, tasks.to_dicts()
    episodes = [Episode(row["text"], goal_of(row)) for row in rows]
    seeds = [seed_of(params.seed, label, row["task_id"]) for row in rows]
    at_once, in_turns = list(plans), [index for index in range(len(rows)) if index not in plans]
    requests = []
    for index in at_once:
        row, text = rows[index], plans[index]
        subgoals = text if text is None or row["turn"] is None else subgoal_of(text)
        requests.append(acting.Request(row["text"], subgoals, episodes[index].goal, seeds[index], history(row)))
    with stage.progress(label, len(rows)) as advance:
        acts = acting.act(grounder, renderer, toolbox, requests, params.evaluate, advance)
        for index, request, act in zip(at_once, requests, acts, strict=True):
            episode, text = episodes[index], plans[index]
            episode.turns = [Done(text or "", act.actions, act.execution.answer or "")]
            episode.outcome, episode.answer = act.outcome, act.execution.answer
            if text is not None and request.subgoals is None:  # which is no failure of the engine's
                episode.end(Outcome.EMPTY, "the planner stopped where a step is due")
        own = [episodes[index] for index in in_turns]

        def seed(number: int, turn: int) -> int:
            return seed_of(params.seed, label, rows[in_turns[number]]["task_id"], "turn", turn)

        if planner is None:
            ask = script(own, [scripts[index] for index in in_turns])
        else:
            ask = ask_planner(planner, renderer, own, params.evaluate, seed)
        play(own, ask, grounder, renderer, toolbox, params.evaluate, params.evaluate.max_turns, seed, advance)
    return episodes


def run(stage: Stage, round: str) -> None:
    """All input and output of the stage."""
    params, target = stage.params, layout.evals(round)
    folders = [layout.model(role, round) for role in ("planner", "grounder")]
    stage.header(f"plan, ground and execute, round {round}", [layout.EVAL_TASKS, *adapters.parts(*folders)], [target])
    planner = runners.runner(stage, folders[0], params.limits.max_failed, "planner", beside="grounder")
    grounder = runners.runner(stage, folders[1], params.limits.max_failed, "grounder", beside="planner")
    scorer = grounder
    if not stage.machine.role("grounder").scores:  # refused for a server, done by hf for vllm
        scorer = runners.runner(stage, folders[1], params.limits.max_failed, "grounder", scores=True)
    tasks = TASKS.read(layout.EVAL_TASKS)
    toolbox = open_toolbox(stage, tasks["domain"])
    renderer = Renderer(models.load_tokenizer(folders[0]), params.format)
    iterative = params.planning == "iterative"
    questions = asked(tasks, iterative)
    plan(stage, planner, renderer, questions, round)
    partner = others(tasks, params.seed)
    in_turns = {index for index, turn in enumerate(tasks["turn"]) if turn is None and iterative}
    decoded = {one.index: one.plans[0] for one in questions if one.index not in in_turns}
    if not in_turns or scorer is not grounder:
        planner.drop_engine()  # nothing is left to ask it, and several engines at once take the memory of several
    nlls = gold_nlls(stage, scorer, renderer, tasks, questions, partner)
    if scorer is not grounder:
        scorer.drop_engine()
    own = perform(stage, planner, grounder, renderer, toolbox, tasks, decoded, {}, "grounding")
    planner.drop_engine()
    theirs = {index: decoded[partner[index]] for index in decoded}
    scripts = {index: [turn.subgoal for turn in own[partner[index]].turns] for index in in_turns}
    control = perform(stage, None, grounder, renderer, toolbox, tasks, theirs, scripts, "control")
    samples: list[list[list[str]]] = [[[] for _ in range(params.evaluate.samples)] for _ in range(len(tasks))]
    for one in questions:
        for number, text in enumerate(one.plans[1:]):
            samples[one.index][number].append(text or "")
    table: list[dict[str, Any]] = []
    for index, task in enumerate(tasks.iter_rows(named=True)):
        episode, played = own[index], index in in_turns
        graded = grade(Metric(task["metric"]), episode.answer, task["gold_answer"])
        table.append(
            {name: task[name] for name in ("task_id", "source", "trained", "metric", "text", "gold_actions", "gold_answer")}
            | {
                "subgoals": "; ".join(turn.subgoal for turn in episode.turns),
                "actions": "; ".join(turn.actions for turn in episode.turns),
                "turns": [asdict(turn) for turn in episode.turns] if played else [],
                "n_turns": len(episode.turns),
                "outcome": str(episode.outcome),
                "answer": episode.answer,
                "success": episode.outcome is Outcome.REACHED,
                "score": graded.score if episode.outcome in (Outcome.REACHED, Outcome.NOT_REACHED) else 0.0,
                "f1": graded.f1,
                "element": graded.element,
                "nll": nlls[index][0],
                "samples": ["; ".join(turns) for turns in samples[index]],
                "samples_nll": nlls[index][1:-1],
                "control_task_id": tasks["task_id"][partner[index]],
                "control_outcome": str(control[index].outcome),
                "control_nll": nlls[index][-1],
            }
        )
    asked_of = {"planner": planner, "grounder": grounder} | ({"scores": scorer} if scorer is not grounder else {})
    counts, made = Counts(len(table), len(table)), runners.facts_of(**asked_of)
    EVALS.write(target, table, stage.facts(*READ, counts=counts, **made))
    for source in sorted(set(tasks["source"])):
        scores = [row["score"] for row in table if row["source"] == source]
        reached = sum(row["success"] for row in table if row["source"] == source)
        mean = "" if all(score in (0, 1) for score in scores) else f", mean score {sum(scores) / len(scores):.3f}"
        stage.say(f"{source}: {reached} of {len(scores)} reached the gold answer ({reached / len(scores):.1%}){mean}")
    tell(stage, *asked_of.values())
    stage.close(counts)


if __name__ == "__main__":
    main(__file__, run, ROUND)

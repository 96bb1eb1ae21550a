"""prepare: tasks and demonstrations from the sources that params.yaml names.

Reads    params.yaml: prepare, planning, seed
Writes   data/tasks/{train,eval}.parquet, data/demos/{planner,grounder}.parquet, data/rounds/0/pool.parquet (empty)
Paper    MOAT, section 5.1: training tasks and the cold start's data
Differs  the tiny profile generates its tasks; a task whose gold actions do not reach its gold answer is dropped and
         counted; a question that train and eval share fails the stage

    python -m moat.launch stages/prepare.py
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from moat import layout
from moat.executor import Outcome
from moat.params import Stories
from moat.schemas.demos import DEMOS
from moat.schemas.sft import SFT
from moat.schemas.tasks import TASKS
from moat.seeds import seed_of
from moat.sources.base import Metric, Record, Turn
from moat.stage import Counts, Stage, main
from moat.tasks import demo_rows, task_row, turn_rows
from moat.tokens import Role
from moat.toolbox import Toolbox, goal_of
from moat.worlds.stories import Story, stories

GOLD_FAILS = "gold actions miss the gold answer"
Row = dict[str, Any]
CANONICAL = "numbers"  # the style of a story's gold plan, whatever its annotators write


def normalised(text: str) -> str:
    """A question's form for the decontamination gate: case and spacing do not make another question."""
    return " ".join(text.casefold().split())


def record(number: int, story: Story, style: str = CANONICAL) -> Record:
    """A story as a task, with a gold plan in one of its styles."""
    goals = [goal.partition(": ")[2] for goal in story.plans[style].split("; ")]
    return Record(
        number=number,
        text=story.text,
        domain="arithmetic",
        metric=Metric.NUMBER,
        gold_answer=story.answer,
        subgoals=story.plans[style],
        actions=story.actions,
        turns=tuple(Turn(goal, action) for goal, action in zip(goals, story.actions.split("; "), strict=True)),
    )


@dataclass
class Drawn:
    """What a source gives: tasks of the rounds, tasks to evaluate on, and per role what is demonstrated, with its style."""

    train: list[Record]
    evaluation: list[Record]
    demos: dict[Role, list[tuple[Record, str | None]]]


def story_source(name: str, source: Stories, seed: int, taken: set[tuple[int | str, ...]]) -> Drawn:
    """Draw stories; each role's annotators write in the styles that they happen to prefer."""
    own = f"{source.draw}/{seed}/{name}"
    shape = (source.steps, source.distractors)
    drawn = list(stories(source.family, "train", source.n_demos, *shape, f"{own}/train", taken))
    held = stories(source.family, "eval", source.n_eval, *shape, f"{own}/eval", taken)
    demos: dict[Role, list[tuple[Record, str | None]]] = {}
    for role in Role:
        shares = dict(getattr(source, STYLES[role]))
        rng = np.random.default_rng(seed_of(seed, "styles", name, role))
        styles = rng.choice(list(shares), size=len(drawn), p=list(shares.values())).tolist()
        demos[role] = [(record(n, one, style), style) for n, (one, style) in enumerate(zip(drawn, styles, strict=True), 1)]
    return Drawn(
        [record(n, one) for n, one in enumerate(drawn[: source.n_train], 1)],
        [record(n, one) for n, one in enumerate(held, 1)],
        demos,
    )


STYLES = {Role.PLANNER: "planner_styles", Role.GROUNDER: "grounder_styles"}  # the setting that only this role's table reads


def gold_fails(row: Row, toolbox: Toolbox) -> bool:
    """Whether the gold actions miss the gold answer when they are run with the real tools."""
    return toolbox.outcome(row["gold_actions"], goal_of(row)) is not Outcome.REACHED


class ContaminatedError(ValueError):
    """A question stands in training and in evaluation; the message names the first one's tasks and what to do."""


def decontaminate(train: list[Row], evaluation: list[Row]) -> None:
    """Raises ContaminatedError when a question stands in both splits."""
    asked = {normalised(row["text"]): row["task_id"] for row in train}
    shared = [(asked[n], row["task_id"]) for row in evaluation if (n := normalised(row["text"])) in asked]
    if shared:
        raise ContaminatedError(
            f"{len(shared)} questions stand in train and eval, the first as task {shared[0][0]} and {shared[0][1]}: "
            "change `draw` of one source in params.yaml, or take the rows out"
        )


def facts(stage: Stage, *without: str) -> dict[str, Any]:
    """What a table of this stage comes from; without the settings that it does not depend on, so that it stays the same."""
    told = stage.facts("seed", "planning", "prepare.sources")
    sources = {
        name: {key: value for key, value in source.items() if key not in without}
        for name, source in told["params"]["prepare.sources"].items()
    }
    return told | {"params": told["params"] | {"prepare.sources": sources}}


def run(stage: Stage) -> None:
    """All input and output of the stage."""
    params = stage.params
    outputs = [layout.TRAIN_TASKS, layout.EVAL_TASKS, *map(layout.demos, Role), layout.table("pool", "0")]
    stage.header("tasks, splits and demonstrations", [], outputs)
    toolbox, planning = Toolbox(), params.planning
    train: list[Row] = []
    evaluation: list[Row] = []
    demos: dict[Role, list[Row]] = {role: [] for role in Role}
    taken: set[tuple[int | str, ...]] = set()
    for name, source in params.prepare.sources.items():
        drawn = story_source(name, source, params.seed, taken)
        asked = [task_row(name, source.trained, one, planning, toolbox) for one in drawn.train]
        train += [turn for row in asked for turn in turn_rows(row)] if planning == "iterative" else asked
        evaluation += [task_row(name, source.trained, one, planning, toolbox) for one in drawn.evaluation]
        for role, shown in drawn.demos.items():
            for one, style in shown:
                demos[role] += demo_rows(task_row(name, source.trained, one, planning, toolbox), role, style)
        stage.say(f"{name}: {source.n_train:,} train, {source.n_demos:,} demonstrated, {source.n_eval:,} eval")
    kept: list[list[Row]] = []
    counts: list[Counts] = []
    for rows in (train, evaluation):
        good = [row for row in rows if not gold_fails(row, toolbox)]
        kept.append(good)
        counts.append(Counts(len(rows), len(good), {GOLD_FAILS: len(rows) - len(good)}))
    decontaminate(*kept)
    TASKS.write(layout.TRAIN_TASKS, kept[0], facts(stage, "n_eval", *STYLES.values()) | {"counts": counts[0].facts()})
    TASKS.write(layout.EVAL_TASKS, kept[1], facts(stage, "n_train", *STYLES.values()) | {"counts": counts[1].facts()})
    for role, rows in demos.items():
        others = [name for other, name in STYLES.items() if other is not role]
        DEMOS.write(layout.demos(role), rows, facts(stage, "n_train", "n_eval", *others) | {"role": role})
    SFT.write(layout.table("pool", "0"), [], {"stage": stage.name})
    drops = sum(one.rows_in - one.kept for one in counts)
    stage.close(Counts(len(train) + len(evaluation), len(kept[0]) + len(kept[1]), {GOLD_FAILS: drops}))


if __name__ == "__main__":
    main(__file__, run)

"""prepare: tasks and demonstrations from the sources that params.yaml names.

Reads    params.yaml: prepare, rounds' seed
Writes   data/tasks/{train,eval}.parquet, data/demos/{planner,grounder}.parquet, data/rounds/0/pool.parquet (empty)
Paper    MOAT, section 5.1: training tasks and the cold start's data
Differs  the tiny profile generates its tasks; a task whose gold actions do not reach its gold answer is dropped and
         counted; a question that train and eval share fails the stage

    python -m moat.launch stages/prepare.py
"""

from __future__ import annotations

from typing import Any

import numpy as np

from moat import layout
from moat.executor import TOOLS, Outcome, execute, outcome
from moat.params import Stories
from moat.schemas.demos import DEMOS
from moat.schemas.sft import SFT
from moat.schemas.tasks import TASKS
from moat.seeds import content_id, seed_of
from moat.stage import Counts, Stage, main
from moat.tokens import Role
from moat.worlds.stories import Story, stories

DOMAIN = "maths"
GOLD_FAILS = "gold actions miss the gold answer"
Row = dict[str, Any]


def normalised(text: str) -> str:
    """A question's form for the decontamination gate: case and spacing do not make another question."""
    return " ".join(text.casefold().split())


def task_row(name: str, source: Stories, story: Story) -> Row:
    """One row of the tasks table."""
    return {
        "task_id": content_id(name, story.text, story.answer),
        "source": name,
        "trained": source.trained,
        "domain": DOMAIN,
        "text": story.text,
        "gold_actions": story.actions,
        "gold_answer": story.answer,
    }


def demo_rows(name: str, drawn: list[Story], role: Role, shares: dict[Any, float], seed: int) -> list[Row]:
    """One demonstration per story, in the style that the role's annotators happened to write."""
    rng = np.random.default_rng(seed_of(seed, "styles", name, role))
    styles = rng.choice(list(shares), size=len(drawn), p=list(shares.values()))
    rows = []
    for story, style in zip(drawn, styles.tolist(), strict=True):
        task_id = content_id(name, story.text, story.answer)
        plan = story.plans[style]
        rows.append(
            {
                "demo_id": content_id(task_id, role, plan),
                "task_id": task_id,
                "source": name,
                "domain": DOMAIN,
                "style": style,
                "text": story.text,
                "subgoals": plan,
                "actions": story.actions,
            }
        )
    return rows


STYLES = {Role.PLANNER: "planner_styles", Role.GROUNDER: "grounder_styles"}  # the setting that only this role's table reads


def gold_fails(row: Row) -> bool:
    """Whether the gold actions miss the gold answer when they are run with the real tools."""
    return outcome(execute(row["gold_actions"], TOOLS[row["domain"]]), row["gold_answer"]) is not Outcome.REACHED


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
    told = stage.facts("seed", "prepare.sources")
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
    train: list[Row] = []
    evaluation: list[Row] = []
    demos: dict[Role, list[Row]] = {role: [] for role in Role}
    taken: set[tuple[int | str, ...]] = set()
    for name, source in params.prepare.sources.items():
        seed = f"{source.draw}/{params.seed}/{name}"
        shape = (source.steps, source.distractors)
        drawn = list(stories(source.family, "train", source.n_demos, *shape, f"{seed}/train", taken))
        train += [task_row(name, source, story) for story in drawn[: source.n_train]]
        demos[Role.PLANNER] += demo_rows(name, drawn, Role.PLANNER, dict(source.planner_styles), params.seed)
        demos[Role.GROUNDER] += demo_rows(name, drawn, Role.GROUNDER, dict(source.grounder_styles), params.seed)
        held = stories(source.family, "eval", source.n_eval, *shape, f"{seed}/eval", taken)
        evaluation += [task_row(name, source, story) for story in held]
        stage.say(f"{name}: {source.n_train:,} train, {source.n_demos:,} demonstrated, {source.n_eval:,} eval")
    kept: list[list[Row]] = []
    counts: list[Counts] = []
    for rows in (train, evaluation):
        good = [row for row in rows if not gold_fails(row)]
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

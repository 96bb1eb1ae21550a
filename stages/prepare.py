"""prepare: tasks and demonstrations from the sources that params.yaml names.

Reads    data/sources (the publishers' files), or the hub; params.yaml: prepare, planning, seed
Writes   data/tasks/{train,eval}.parquet, data/demos/{planner,grounder}.parquet, data/corpus/passages.parquet,
         data/rounds/0/pool.parquet (empty)
Paper    MOAT, section 5.1: training tasks and the cold start's data
Differs  the tiny profile generates its tasks; a task whose gold actions do not reach its gold answer is dropped and
         counted; a question that train and eval share fails the stage

    python -m moat.launch stages/prepare.py
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from functools import partial
from typing import Any

from moat import layout
from moat.decontamination import decontaminate, overlaps
from moat.drawing import STYLES, Signatures, draw
from moat.executor import Outcome
from moat.params import Imported, Source
from moat.schemas.demos import DEMOS
from moat.schemas.passages import PASSAGES
from moat.schemas.passages import rows as passage_rows
from moat.schemas.sft import SFT
from moat.schemas.tasks import TASKS
from moat.sources.base import Passage, Record
from moat.stage import Counts, Stage, main
from moat.tasks import GoldError, Planning, demo_rows, task_row, turn_rows
from moat.tokens import Role
from moat.toolbox import Toolbox, goal_of

REACHED = Outcome.REACHED
GOLD_FAILS = "gold actions miss the gold answer"
NO_GOLD = "no gold to score with"
NO_TURNS = "which actions belong to which subgoal is not known"
NOT_SHOWN = "not demonstrated: gold actions miss the gold answer"
SHOWN = 3  # near repeats that the warning names
Row = dict[str, Any]


def gold_fails(row: Row, toolbox: Toolbox) -> bool:
    """Whether the gold actions miss the gold answer when they are run with the real tools.

    False where there is none, and where the tools need what is made later (a corpus, a reader): check_gold runs these.
    """
    goal = goal_of(row)
    return bool(row["gold_actions"]) and toolbox.knows(goal) and toolbox.outcome(row["gold_actions"], goal) is not REACHED


def good(rows: list[Row], toolbox: Toolbox, scored: bool) -> tuple[list[Row], Counts]:
    """The rows whose gold stands; `scored` rows must have one."""
    kept, dropped = [], Counter[str]()
    for row in rows:
        if scored and not row["gold_actions"]:
            dropped[NO_GOLD] += 1
        elif gold_fails(row, toolbox):
            dropped[GOLD_FAILS] += 1
        else:
            kept.append(row)
    return kept, Counts(len(rows), len(kept), dict(dropped))


def imported(source: Source) -> bool:
    """Whether a source's texts come from elsewhere: generated ones repeat their words by design."""
    return isinstance(source, Imported)


def rows(
    name: str, trained: bool, planning: Planning, toolbox: Toolbox, dropped: Counter[str], records: Iterable[Record]
) -> list[Row]:
    """Rows of the tasks table of a source's records; those whose turns cannot be run are counted in `dropped`."""
    made = []
    for record in records:
        try:
            made.append(task_row(name, trained, record, planning, toolbox))
        except GoldError as error:
            dropped[str(error)] += 1
    return made


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
    outputs = [layout.TRAIN_TASKS, layout.EVAL_TASKS, *map(layout.demos, Role), layout.PASSAGES, layout.table("pool", "0")]
    stage.header("tasks, splits and demonstrations", [], outputs)
    toolbox, planning = Toolbox(), params.planning
    train: list[Row] = []
    evaluation: list[Row] = []
    demos: dict[Role, list[Row]] = {role: [] for role in Role}
    found: dict[str, list[Passage]] = {}
    taken: Signatures = set()
    for name, source in params.prepare.sources.items():
        drawn = draw(name, source, params.seed, taken, stage.progress, stage.machine.servers.get("webshop", ""))
        make = partial(rows, name, source.trained, planning, toolbox, drawn.dropped)
        asked = make(drawn.train)
        if planning == "iterative":
            drawn.dropped[f"not trained on: {NO_TURNS}"] += sum(not row["turns"] for row in asked)
            asked = [turn for row in asked for turn in turn_rows(row)]
        train += asked
        evaluation += make(drawn.evaluation)
        for role, shown in drawn.demos.items():
            for one, style in shown:
                for row in make([one]):
                    if imported(source) and row["gold_answer"] and gold_fails(row, toolbox):
                        drawn.dropped[f"{NOT_SHOWN} ({role})"] += 1
                    elif planning == "iterative" and not row["turns"]:
                        drawn.dropped[f"not demonstrated: {NO_TURNS} ({role})"] += 1
                    else:
                        demos[role] += demo_rows(row, role, style)
        found[name] = drawn.passages
        stage.say(f"{name}: {source.n_train:,} train, {source.n_demos:,} demonstrated, {source.n_eval:,} eval")
        for reason, n in drawn.dropped.most_common():
            if n:
                stage.say(f"  {n:,} {reason}")
    kept_train, train_counts = good(train, toolbox, scored=True)
    kept_eval, eval_counts = good(evaluation, toolbox, scored=False)
    shown_rows = [row for rows in demos.values() for row in rows]
    decontaminate([*kept_train, *shown_rows], kept_eval)
    near = overlaps([*kept_train, *shown_rows], kept_eval) if any(map(imported, params.prepare.sources.values())) else []
    if near:
        said = "; ".join(f"{one.eval_id} and {one.train_id} ({one.words!r})" for one in near[:SHOWN])
        stage.warn(f"{len(near):,} evaluation tasks share eight words in a row with a task that is trained on: {said}")
    TASKS.write(layout.TRAIN_TASKS, kept_train, facts(stage, "n_eval", *STYLES.values()) | {"counts": train_counts.facts()})
    TASKS.write(layout.EVAL_TASKS, kept_eval, facts(stage, "n_train", *STYLES.values()) | {"counts": eval_counts.facts()})
    for role, rows_of in demos.items():
        others = [name for other, name in STYLES.items() if other is not role]
        DEMOS.write(layout.demos(role), rows_of, facts(stage, "n_train", "n_eval", *others) | {"role": role})
    PASSAGES.write(layout.PASSAGES, passage_rows(found), {"stage": stage.name})
    SFT.write(layout.table("pool", "0"), [], {"stage": stage.name})
    drops = {
        reason: train_counts.dropped.get(reason, 0) + eval_counts.dropped.get(reason, 0) for reason in (GOLD_FAILS, NO_GOLD)
    }
    stage.close(Counts(len(train) + len(evaluation), len(kept_train) + len(kept_eval), drops))


if __name__ == "__main__":
    main(__file__, run)

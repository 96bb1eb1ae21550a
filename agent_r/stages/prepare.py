"""prepare: the environments' tasks, shared out, and what the cold start is taught.

Reads    the environments; data/sources or the hub (general data); params.yaml: environments, train_on, cold_start.judged,
         mix.general, seed
Writes   data/tasks/{train,eval}.parquet, data/demos/{actor,general}.parquet
Paper    Agent-R, section 4.1: WebShop 200, ScienceWorld 200, TextCraft 100 test tasks
Differs  the tiny profile has few and short tasks; gold actions are played before they are shown, and a task that they do not
         solve is dropped and counted; an environment that is `optional` is left out where it cannot run

    python -m moat.launch stages/prepare.py
"""

from __future__ import annotations

from collections import Counter
from itertools import islice
from typing import Any

from moat import layout
from moat.agent_r import general, lexicon
from moat.agent_r.demonstrations import gold_row, judged_rows, played, repeated_rows, slip_rows
from moat.agent_r.params import AgentParams, AnyWorld
from moat.agent_r.worlds import Goal, absent, candidates, instruction, open_world
from moat.environments.base import Environment, EpisodeError
from moat.params import ParamsError
from moat.schemas.dialogues import DIALOGUES
from moat.schemas.goals import GOALS
from moat.stage import Counts, Stage, main

NOT_SOLVED = "gold actions do not solve it"
Row = dict[str, Any]


def goal_row(name: str, world: AnyWorld, goal: Goal, first: str, demonstrated: bool, searched: bool) -> Row:
    """A task's row."""
    return {
        "task_id": goal.task,
        "environment": name,
        "kind": goal.kind,
        "demonstrated": demonstrated,
        "searched": searched,
        "instruction": instruction(world),
        "first": first,
        "gold": list(goal.gold or ()),
    }


def drawn(
    stage: Stage[AgentParams], environment: Environment, name: str, world: AnyWorld, dropped: Counter[str], evaluation: bool
) -> list[tuple[Goal, str]]:
    """As many tasks as are asked for, with their first observations; gold that does not solve its task is left out, counted.

    Raises ParamsError when there are not so many.
    """
    wanted = world.n_eval if evaluation else max(world.n_train, world.n_demos)
    found: list[tuple[Goal, str]] = []
    with stage.progress(f"{name}, {'evaluation' if evaluation else 'training'}", wanted) as advance:
        for goal in candidates(environment, world, evaluation):
            if len(found) == wanted:
                break
            first, turns = played(environment, goal.task, goal.gold or ())
            if goal.gold and (not turns[-1].terminal or turns[-1].reward < 1):
                dropped[NOT_SOLVED] += 1
                continue
            found.append((goal, first))
            advance(1)
    if len(found) < wanted:
        keys = "n_eval" if evaluation else "n_train and n_demos"
        raise ParamsError(
            f"environments.{name}: there are {len(found):,} tasks of these settings, not {wanted:,}: lower {keys}, or ask "
            "for more kinds of tasks"
        )
    return found


def run(stage: Stage[AgentParams]) -> None:
    """All input and output of the stage."""
    params = stage.params
    outputs = [layout.TRAIN_TASKS, layout.EVAL_TASKS, layout.demos("actor"), layout.demos("general")]
    stage.header("tasks and demonstrations", [], outputs)
    train: list[Row] = []
    evaluation: list[Row] = []
    demos: list[Row] = []
    dropped = Counter[str]()
    left_out = []
    for name, world in params.environments.items():
        try:
            environment = open_world(name, world, stage.machine)
        except EpisodeError as error:
            if not absent(error, world):
                raise
            stage.warn(f"{name} is left out: {error}")
            left_out.append(name)
            continue
        with environment:
            trained = name in params.train_on
            goals = drawn(stage, environment, name, world, dropped, evaluation=False) if trained else []
            tests = drawn(stage, environment, name, world, dropped, evaluation=True)
            train += [
                goal_row(name, world, goal, first, number < world.n_demos, number < world.n_train)
                for number, (goal, first) in enumerate(goals)
            ]
            evaluation += [goal_row(name, world, goal, first, False, False) for goal, first in tests]
            shown = [goal for goal, _ in islice(goals, world.n_demos)]
            if any(goal.gold is None for goal in shown):
                raise ParamsError(f"environments.{name}: some tasks have no gold actions to demonstrate: set n_demos to 0")
            with stage.progress(f"{name}, demonstrations", len(shown)) as advance:
                for goal in shown:
                    first, turns = played(environment, goal.task, goal.gold or ())
                    told = instruction(world)
                    demos.append(gold_row(name, told, first, turns, goal.task))
                    others = [action for other in shown if other is not goal for action in other.gold or ()]
                    own = (environment, name, told, goal, others)
                    demos += slip_rows(*own, params.cold_start.slips, params.seed)
                    demos += judged_rows(*own, params.cold_start.judged, params.seed)
                    advance(1)
            stage.say(f"{name}: {len(goals):,} to train on, {len(shown):,} of them shown, {len(tests):,} to evaluate on")
    if not train:
        raise ParamsError("none of the environments in train_on is there: install what the notices above name")
    both = {row["task_id"] for row in train} & {row["task_id"] for row in evaluation}
    if both:
        raise ParamsError(f"{len(both):,} tasks are trained and evaluated on, {min(both)} among them")
    said = [text for row in demos for text in row["texts"]]
    words = lexicon.words([*(row["first"] for row in (*train, *evaluation)), *said])
    demos += repeated_rows(words, params.cold_start.repeated, params.seed)
    facts = stage.facts("environments", "train_on", "seed", left_out=left_out)
    GOALS.write(layout.TRAIN_TASKS, train, facts)
    GOALS.write(layout.EVAL_TASKS, evaluation, facts)
    DIALOGUES.write(
        layout.demos("actor"),
        demos,
        stage.facts("environments", "train_on", "cold_start.judged", "cold_start.slips", "cold_start.repeated", "seed"),
    )
    chats, refused = general.read(stage)
    DIALOGUES.write(layout.demos("general"), chats, stage.facts("mix.general"))
    stage.say(f"{len(chats):,} general conversations" if chats else "no general data: the loss is L_good + L_revision")
    for reason, n in refused.most_common():
        stage.say(f"  {n:,} {reason}")
    made = len(train) + len(evaluation)
    stage.close(Counts(made + dropped.total(), made, dict(dropped)))


if __name__ == "__main__":
    main(__file__, run, params=AgentParams)

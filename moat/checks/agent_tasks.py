"""Agent-R's tasks: what is searched, demonstrated and evaluated."""

from __future__ import annotations

from pathlib import Path

from moat import layout
from moat.agent_r.checkout import AgentCheckout, Row
from moat.agent_r.worlds import instruction
from moat.checkout import Absent, Findings
from moat.environments.base import Environment, EpisodeError

SPLITS = (layout.TRAIN_TASKS, layout.EVAL_TASKS)


def apart(checkout: AgentCheckout) -> Findings:
    """No task is both trained and evaluated on"""
    evaluated = checkout.goals(layout.EVAL_TASKS)
    rows = checkout.table(layout.TRAIN_TASKS)
    both = rows.filter(rows["task_id"].is_in(list(evaluated)))
    yield from checkout.rows(
        layout.TRAIN_TASKS, both, f"the task stands in {layout.EVAL_TASKS} too", remedy="change `draw` of an environment"
    )


def drawn(checkout: AgentCheckout) -> Findings:
    """Tasks are of the environments in params.yaml, as many as it asks for, and say what an actor is told first"""
    for path in SPLITS:
        rows, settings = checkout.table(path), checkout.settings(path)
        left_out = checkout.facts(path).get("left_out", [])
        worlds = {name: world for name, world in settings.environments.items() if name not in left_out}
        told = [
            None
            if (world := worlds.get(row["environment"])) and row["instruction"] == instruction(world)
            else "its instruction is not its environment's"
            if world
            else "of an environment that params.yaml lacks, or that was left out"
            for row in rows.iter_rows(named=True)
        ]
        yield from checkout.each(path, rows, told)
        for name, world in worlds.items():
            own = rows.filter(environment=name)
            found = (len(own), int(own["demonstrated"].sum()), int(own["searched"].sum()))
            due = (world.n_eval, 0, 0)
            if path == layout.TRAIN_TASKS:
                due = (max(world.n_train, world.n_demos), world.n_demos, world.n_train)
                due = due if name in settings.train_on else (0, 0, 0)
            if found != due:
                words = ("{} tasks, {} of them demonstrated and {} searched".format(*numbers) for numbers in (found, due))
                yield checkout.fault(path, f"{name}: {', not '.join(words)}")


def gold(checkout: AgentCheckout) -> Findings:
    """Gold actions of TextCraft, taken again after the first observation that is stored, solve their task"""
    played = False
    for path in SPLITS:
        rows = checkout.table(path)
        told: list[str | None] = []
        for row in rows.iter_rows(named=True):
            world = checkout.world(path, row["environment"])
            played |= world is not None
            told.append(None if world is None else unsolved(world, row))
        yield from checkout.each(path, rows, told)
    if not played:
        raise Absent


def unsolved(environment: Environment, goal: Row) -> str | None:
    """What is wrong with a task's first observation or gold actions."""
    try:
        with environment.episode() as episode:
            if episode.reset(goal["task_id"]) != goal["first"]:
                return "the first observation is not the environment's"
        solved = environment.solving(goal["task_id"], goal["gold"])
    except EpisodeError:
        return "the environment has no such task"
    return None if solved == tuple(goal["gold"]) else "the gold actions do not solve it"


def of_tasks(checkout: AgentCheckout, path: Path, tasks: Path) -> Findings:
    """Rows of a table whose task is none of `tasks`, or is said to be of another environment or kind."""
    rows, goals = checkout.table(path), checkout.goals(tasks)
    columns = [name for name in ("environment", "kind", "first") if name in rows.columns]
    told = [
        f"its task is none in {tasks}"
        if (goal := goals.get(row["task_id"])) is None
        else next((f"its {name} is not its task's" for name in columns if row[name] != goal[name]), None)
        for row in rows.select("task_id", *columns).iter_rows(named=True)
    ]
    yield from checkout.each(path, rows, told)

"""From a task with its gold to the rows of the tables: tasks and demonstrations, whole or turn by turn.

Under iterative planning a training task is a turn: its question is the whole task's, its history the gold turns before it,
its gold that turn's. An evaluation task stays whole there (it is played), and carries its gold turns. Ids depend on content
alone: of a whole task on source, question and answer (without one, the actions); of a turn on its episode and number.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

from moat import layout
from moat.answers import parse_number
from moat.importing import identity
from moat.schemas.tasks import TASKS
from moat.seeds import content_id
from moat.sources.base import Metric, Record
from moat.tokens import Role
from moat.toolbox import Goal, Toolbox
from moat.turns import STOP, numbered, planned

Row = dict[str, Any]
Planning = Literal["onetime", "iterative"]


class GoldError(ValueError):
    """A task whose gold cannot stand; the message is the reason that it is counted by."""


def task_row(source: str, trained: bool, record: Record, planning: Planning, toolbox: Toolbox) -> Row:
    """The row of a whole task, or of the single step that the record is. Raises GoldError for turns that cannot be run."""
    episode = content_id(source, record.episode) if record.step else content_id(source, *identity(record))
    turn = len(record.turns) - 1 if record.step else None
    return {
        "task_id": episode if turn is None else content_id(episode, turn),
        "episode_id": episode,
        "source": source,
        "trained": trained,
        "domain": record.domain,
        "metric": record.metric.value,
        "text": record.text,
        "turn": turn,
        "turns": turns(record, toolbox) if planning == "iterative" or record.step else [],
        "gold_subgoals": planned(turn + 1, numbered(turn + 1, record.turns[turn].subgoal)) if turn else record.subgoals,
        "gold_actions": record.actions,
        "gold_answer": record.gold_answer,
        "context": record.context,
    }


def turns(record: Record, toolbox: Toolbox) -> list[Row]:
    """The gold turns with their results, executed one after another. Raises GoldError when one fails."""
    made: list[Row] = []
    for number, turn in enumerate(record.turns, 1):
        if record.step:  # each step has a page of its own, which is here for the last one alone
            result = turn.actions
        else:
            goal = Goal(record.domain, "", record.metric, record.context, tuple(row["actions"] for row in made))
            result = turn.result or _executed(turn.actions, goal, toolbox)
        made.append({"subgoal": numbered(number, turn.subgoal), "actions": turn.actions, "result": result})
    return made


def _executed(actions: str, goal: Goal, toolbox: Toolbox) -> str:
    """The result of a gold turn. Raises GoldError."""
    if not toolbox.knows(goal):
        raise GoldError("the results of its gold turns are not given, and need tools that are opened later")
    execution = toolbox.execute(actions, goal)
    if execution.failure is not None:
        raise GoldError("the gold actions of a turn fail")
    return execution.results[-1][1]


def turn_rows(row: Row) -> Iterator[Row]:
    """The training tasks of a row under iterative planning: one for each turn of a whole task; a single step as it is."""
    if row["turn"] is not None:
        yield row
        return
    for index, turn in enumerate(row["turns"]):
        last = index == len(row["turns"]) - 1
        number = parse_number(turn["result"]) is not None
        yield row | {
            "task_id": content_id(row["episode_id"], index),
            "metric": row["metric"] if last else (Metric.NUMBER if number else Metric.TEXT).value,
            "turn": index,
            "gold_subgoals": planned(index + 1, turn["subgoal"]),
            "gold_actions": turn["actions"],
            "gold_answer": row["gold_answer"] if last else turn["result"],
        }


def demo_rows(row: Row, role: Role, style: str | None) -> Iterator[Row]:
    """What a task's row demonstrates to a role: its plan and actions at once, or its turns and the decision to stop."""
    if row["turn"] is not None or not row["turns"]:
        yield _demo(row, role, style, row["gold_subgoals"], row["gold_actions"])
        return
    for one in turn_rows(row):
        yield _demo(one, role, style, one["gold_subgoals"], one["gold_actions"])
    if role is Role.PLANNER:
        end = len(row["turns"])
        yield _demo(row | {"task_id": content_id(row["episode_id"], end), "turn": end}, role, style, STOP, "")


def _demo(row: Row, role: Role, style: str | None, subgoals: str, actions: str) -> Row:
    before = row["turns"][: row["turn"] or 0]
    return {
        "demo_id": content_id(row["task_id"], role, subgoals),
        "task_id": row["task_id"],
        "source": row["source"],
        "domain": row["domain"],
        "style": style,
        "text": row["text"],
        "turn": row["turn"],
        "turns": before,
        "subgoals": subgoals,
        "actions": actions,
    }


def find(root: Path, task_id: str) -> Row:
    """A task of the project in the folder `root`. Raises FileNotFoundError or TableError."""
    for path in (layout.TRAIN_TASKS, layout.EVAL_TASKS):
        table = TASKS.read(root / path)
        own = table.filter(table["task_id"] == task_id)
        if len(own):
            return own.row(0, named=True)
    raise FileNotFoundError(f"no task {task_id} in {layout.TRAIN_TASKS} or {layout.EVAL_TASKS}")

"""What there is of Agent-R's pipeline for `moat verify` to look at: its tables, models and trees, and TextCraft itself."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import cached_property
from pathlib import Path
from typing import Any

import polars as pl

from moat import layout
from moat.agent_r.mixing import PLAYED
from moat.agent_r.params import AgentParams, TextCraftWorld
from moat.agent_r.paths import Path as Finished
from moat.agent_r.paths import finished
from moat.agent_r.worlds import open_world
from moat.checkout import Absent, Checkout, Due, Findings
from moat.environments.base import Environment, EpisodeError
from moat.machine import Machine
from moat.schemas.cuts import CUTS
from moat.schemas.dialogues import DIALOGUES
from moat.schemas.goals import GOALS
from moat.schemas.judgements import JUDGEMENTS
from moat.schemas.nodes import NODES
from moat.schemas.plays import PLAYS
from moat.schemas.revisions import REVISIONS
from moat.schemas.trained import TRAINED
from moat.schemas.trees import TREES
from moat.tables import Table

ACTOR = "actor"
DEMOS, GENERAL = layout.demos(ACTOR), layout.demos("general")
ROUND_TABLES: Mapping[str, Table] = {
    "nodes": NODES,
    "trees": TREES,
    "judgements": JUDGEMENTS,
    "revisions": REVISIONS,
    "sft": TRAINED,
}
REVISING = ("agent_r", "direct_revision")  # modes in which bad paths are revised

Row = dict[str, Any]


class AgentCheckout(Checkout[AgentParams]):
    """The checkout of an actor. Raises as `Checkout`."""

    kind = AgentParams
    roles = (ACTOR,)

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self._goals: dict[Path, dict[str, Row]] = {}
        self._trees: dict[str, dict[str, list[Row]]] = {}
        self._paths: dict[str, dict[str, list[Finished]]] = {}
        self._worlds: dict[str, Environment | None] = {}

    def tables(self) -> dict[Path, Table]:
        """Every table of the pipeline, in the order in which they are made."""
        found = {layout.TRAIN_TASKS: GOALS, layout.EVAL_TASKS: GOALS, DEMOS: DIALOGUES, GENERAL: DIALOGUES}
        found[layout.RECOVERY] = CUTS
        for key in self.rounds:
            found |= {layout.table(name, key): schema for name, schema in ROUND_TABLES.items()}
        return found | {path(key): PLAYS for path in (layout.evals, layout.recoveries) for key in self.evaluated}

    # --- counts -------------------------------------------------------------------------------------------------------

    def uncounted(self, path: Path) -> bool:
        """Tasks and demonstrations are written as they come."""
        return path in (layout.TRAIN_TASKS, layout.EVAL_TASKS, DEMOS, GENERAL)

    def expected_counts(self, path: Path, rows: pl.DataFrame, rows_in: int, kept: int, dropped: dict[str, int]) -> Due:
        """What a table's counts must be; what cannot be known because a parent is missing is left out."""
        found = list[tuple[str, Any, Any]]()
        if "dropped" in rows.columns:  # of every row it is told whether it is used
            found.append(("dropped", dropped, dict(Counter(rows["dropped"].drop_nulls().to_list()))))
        elif path.stem == "nodes":
            found.append(("kept", kept, rows["task_id"].n_unique()))
        else:
            found.append(("kept", kept, len(rows)))
        with suppress(Absent):
            found.append(("rows_in", rows_in, self._rows_in(path, rows)))
        return found

    def _rows_in(self, path: Path, rows: pl.DataFrame) -> int:
        """How many rows went into a table. Raises Absent where a parent is missing."""
        settings, key = self.settings(path), path.parent.name
        if path.stem in ("nodes", "trees"):
            searched = [row["searched"] for row in self.goals(layout.TRAIN_TASKS).values()]
            return sum(searched) if settings.mode != "bc" else 0
        if path == layout.RECOVERY:
            return len(self.table(layout.EVAL_TASKS)) * settings.recovery.attempts * settings.recovery.cuts
        if path == layout.evals(path.stem):
            return len(self.table(layout.EVAL_TASKS))
        if path == layout.recoveries(path.stem):
            return len(self.table(layout.RECOVERY))
        if path.stem == "sft":
            shown = len(self.table(DEMOS).filter(pl.col("origin").is_in(PLAYED))) if settings.mode == "bc" else 0
            paths = int(self.round_table("nodes", key)["end"].sum())
            return paths + len(self.round_table("revisions", key)) + shown + self.drawn(path)
        return len(rows)

    def drawn(self, path: Path) -> int:
        """How many general conversations a round's training set draws. Raises Absent."""
        there = len(self.table(GENERAL))
        return min(self.settings(path).mix.general.n, there) or there

    # --- tasks and trees ----------------------------------------------------------------------------------------------

    def goals(self, path: Path) -> dict[str, Row]:
        """A split's tasks by name. Raises Absent."""
        if path not in self._goals:
            self._goals[path] = {row["task_id"]: row for row in self.table(path).iter_rows(named=True)}
        return self._goals[path]

    @cached_property
    def cuts(self) -> dict[str, list[Row]]:
        """The turns of every cut. Raises Absent."""
        return dict(self.table(layout.RECOVERY).select("cut_id", "turns").iter_rows())

    def trees(self, key: str) -> dict[str, list[Row]]:
        """A round's nodes by task, of those that are trees: rooted in node 0, every parent made before. Raises Absent."""
        if key not in self._trees:
            nodes = self.round_table("nodes", key)
            every = {str(task): own.to_dicts() for (task,), own in nodes.group_by("task_id", maintain_order=True)}
            self._trees[key] = {task: own for task, own in every.items() if is_tree(own)}
        return self._trees[key]

    def paths(self, key: str) -> dict[str, list[Finished]]:
        """The finished paths of a round's trees, by task. Raises Absent."""
        if key not in self._paths:
            self._paths[key] = {task: finished(own) for task, own in self.trees(key).items()}
        return self._paths[key]

    def world(self, tasks: Path, name: str) -> Environment | None:
        """The environment of a split's tasks; None for one that is not quick to play in, or that cannot run here.

        That leaves TextCraft: it takes no process, and thousands of steps a second.
        """
        world = self.settings(tasks).environments.get(name)
        if not isinstance(world, TextCraftWorld):
            return None
        known = f"{name}/{world.distractors}"
        if known not in self._worlds:
            self._worlds[known] = None
            with suppress(EpisodeError):  # its package is not installed
                self._worlds[known] = open_world(name, world, Machine())
        return self._worlds[known]

    # --- findings -----------------------------------------------------------------------------------------------------

    def each(self, path: Path, rows: pl.DataFrame, said: Sequence[str | None]) -> Findings:
        """A finding for every different thing that is said of rows, None: nothing; `said` is in the rows' order."""
        for what in dict.fromkeys(one for one in said if one is not None):
            yield from self.rows(path, rows.filter(pl.Series([one == what for one in said], dtype=pl.Boolean)), what)


def is_tree(rows: Sequence[Mapping[str, Any]]) -> bool:
    """Whether nodes (by number) are a tree whose paths all lead to node 0: what follows a parent can be trusted then."""
    return [row["node"] for row in rows] == list(range(len(rows))) and all(
        row["parent"] is None if row["node"] == 0 else row["parent"] is not None and 0 <= row["parent"] < row["node"]
        for row in rows
    )

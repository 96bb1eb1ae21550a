"""What there is of MOAT's pipeline for `moat verify` to look at: its tables and models, and actions that are run again."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import polars as pl

from moat import layout
from moat.checkout import Absent, Checkout, Due
from moat.executor import outcome
from moat.params import Params
from moat.ranking import lexical
from moat.schemas.actions import ACTIONS
from moat.schemas.critiques import CRITIQUES
from moat.schemas.demos import DEMOS
from moat.schemas.dynamics import DYNAMICS
from moat.schemas.evals import EVALS
from moat.schemas.gold import GOLD
from moat.schemas.pairs import PAIRS
from moat.schemas.passages import PASSAGES
from moat.schemas.scores import SCORES
from moat.schemas.sft import SFT
from moat.schemas.subgoals import SUBGOALS
from moat.schemas.tasks import TASKS
from moat.tables import Table
from moat.tokens import Role
from moat.toolbox import Goal, Toolbox, ToolboxError, goal_of

ROUND_TABLES: Mapping[str, Table] = {
    "subgoals": SUBGOALS,
    "scores": SCORES,
    "actions": ACTIONS,
    "pairs": PAIRS,
    "critiques": CRITIQUES,
    "sft": SFT,
    "pool": SFT,
    "dynamics": DYNAMICS,
}


class MoatCheckout(Checkout[Params]):
    """The checkout of a planner and a grounder. Raises as `Checkout`."""

    kind = Params
    roles = tuple(role.value for role in Role)

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self._toolbox = Toolbox(lexical if self.params.tools.web.ranker == "lexical" else None)
        self._came: dict[tuple[str, Goal], tuple[str, str | None]] = {}

    def tables(self) -> dict[Path, Table]:
        """Every table of the pipeline, in the order in which they are made."""
        found = {layout.TRAIN_TASKS: TASKS, layout.EVAL_TASKS: TASKS, layout.PASSAGES: PASSAGES, layout.GOLD: GOLD}
        found |= {layout.demos(role): DEMOS for role in Role} | {layout.table("pool", "0"): SFT}
        for key in self.rounds:
            found |= {layout.table(name, key): schema for name, schema in ROUND_TABLES.items()}
        return found | {layout.evals(key): EVALS for key in self.evaluated}

    # --- counts -------------------------------------------------------------------------------------------------------

    def uncounted(self, path: Path) -> bool:
        """Demonstrations and passages are written as they come, and round 0's pool is empty."""
        return path.parent == layout.demos(Role.PLANNER).parent or path in (layout.PASSAGES, layout.table("pool", "0"))

    def expected_counts(self, path: Path, rows: pl.DataFrame, rows_in: int, kept: int, dropped: dict[str, int]) -> Due:
        """What a table's counts must be; what cannot be known because a parent is missing is left out."""
        key, name = path.parent.name, path.stem
        found: Due
        if path in (layout.TRAIN_TASKS, layout.EVAL_TASKS):
            return [("kept", kept, len(rows))]
        if path == layout.GOLD:
            sizes = [self.size(layout.TRAIN_TASKS), self.size(layout.EVAL_TASKS)]
            found = [("kept", kept, len(rows))]
            return found if None in sizes else [*found, ("rows_in", rows_in, sum(n or 0 for n in sizes))]
        if name in ("subgoals", "pairs"):
            reasons = Counter(rows["dropped"].drop_nulls().to_list())
            return [("rows_in", rows_in, len(rows)), ("dropped", dropped, dict(reasons))]
        if name in ("scores", "actions"):
            found = [("kept", kept, len(rows))]
            try:
                candidates = self.round_table("subgoals", key)
            except Absent:
                return found
            unusable = int(candidates["dropped"].is_not_null().sum())
            return [
                *found,
                ("rows_in", rows_in, len(candidates)),
                ("unusable candidates", dropped.get("unusable candidate", 0), unusable),
            ]
        if name == "critiques":
            acted = self.size(layout.table("actions", key))
            return [("rows_in", rows_in, len(rows) if acted is None else acted)]
        if name in ("sft", "pool"):
            fresh = rows.filter((pl.col("origin") != "initial") & (pl.col("round") == int(key)))
            judged = self.size(layout.table("critiques", key))
            found = [("kept", kept, len(fresh))]
            if name == "sft" and (initial := self.facts(path).get("initial")) is not None:
                found.append(("initial", initial, len(rows.filter(pl.col("origin") == "initial"))))
            return found if judged is None else [*found, ("rows_in", rows_in, judged)]
        if name == "dynamics":
            return [("kept", kept, len(rows))]
        asked = self.size(layout.EVAL_TASKS)
        found = [("kept", kept, len(rows))]
        return found if asked is None else [*found, ("rows_in", rows_in, asked)]

    # --- recomputing --------------------------------------------------------------------------------------------------

    def goal(self, row: Mapping[str, Any]) -> Goal | None:
        """What a task's actions are run against; None for a metric or a context that is none (which is reported)."""
        try:
            return goal_of(row)
        except (KeyError, ValueError):
            return None

    def came(self, actions: str, goal: Goal | None) -> tuple[str, str | None] | None:
        """Outcome and answer of actions that are executed again; None when their tools cannot be opened here.

        `not_run`, which no stored outcome of theirs is, for a task whose context is none.
        """
        if goal is None:
            return None
        key = (actions, goal)
        try:
            if key not in self._came and self._toolbox.knows(goal):
                execution = self._toolbox.execute(actions, goal)
                self._came[key] = (outcome(execution, goal.gold_answer, goal.metric).value, execution.answer)
        except ToolboxError:  # a context that is none
            self._came[key] = ("not_run", None)
        return self._came.get(key)

"""Tables to training examples: the rows that fit, their names, and the count of those that do not."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import polars as pl

from moat.stage import Counts
from moat.tokens import Example, Renderer, Role
from moat.tools.docs import documentation
from moat.turns import history, subgoal_of

Fitting = tuple[list[Example], list[str], Counts]
OVER_LENGTH = "longer than max_length"


def fit(examples: Iterable[tuple[str, Example]], max_length: int) -> Fitting:
    """Keep the examples of at most `max_length` tokens, with their names; nothing is ever truncated."""
    named = list(examples)
    kept = [(name, example) for name, example in named if len(example) <= max_length]
    counts = Counts(len(named), len(kept), {OVER_LENGTH: len(named) - len(kept)})
    return [example for _, example in kept], [name for name, _ in kept], counts


def demo_examples(renderer: Renderer, demos: pl.DataFrame, role: Role, max_length: int) -> Fitting:
    """What a role's demonstrations teach it."""
    if role is Role.GROUNDER:
        return grounder_examples(renderer, demos.with_columns(row_id="demo_id"), max_length)
    return fit(
        (
            (row["demo_id"], renderer.planner_example(row["text"], row["subgoals"], history(row)))
            for row in demos.iter_rows(named=True)
        ),
        max_length,
    )


def grounder_examples(renderer: Renderer, rows: pl.DataFrame, max_length: int) -> Fitting:
    """Examples of rows with row_id, text, turn, turns, domain, subgoals and actions."""
    return fit(((row["row_id"], gold_example(renderer, row, "actions")) for row in rows.iter_rows(named=True)), max_length)


def gold_example(renderer: Renderer, row: dict[str, Any], actions: str) -> Example:
    """The grounder's example of a row with text, turn, turns, domain and subgoals, and its column `actions`.

    Raises ValueError when the row has nothing to ground: a turn at which the planner stops.
    """
    subgoals, before = row["subgoals"], history(row)
    if before is not None:
        subgoals = subgoal_of(subgoals)
        if subgoals is None:
            raise ValueError("the planner stops here: there is nothing to ground")
    return renderer.grounder_example(row["text"], documentation(row["domain"]), subgoals, row[actions], before)


def planner_pairs(
    renderer: Renderer, rows: Sequence[dict[str, Any]], max_length: int
) -> tuple[list[Example], list[Example], list[str], Counts]:
    """Chosen and rejected examples of rows with task_id, text, turn, turns and both plans; a pair fits when both do."""
    kept: list[tuple[Example, Example, str]] = []
    for row in rows:
        chosen = renderer.planner_example(row["text"], row["chosen"], history(row))
        rejected = renderer.planner_example(row["text"], row["rejected"], history(row))
        if max(len(chosen), len(rejected)) <= max_length:
            kept.append((chosen, rejected, row["task_id"]))
    counts = Counts(len(rows), len(kept), {OVER_LENGTH: len(rows) - len(kept)})
    return [c for c, _, _ in kept], [r for _, r, _ in kept], [name for _, _, name in kept], counts

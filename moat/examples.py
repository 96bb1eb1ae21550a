"""Tables to training examples: the rows that fit, their names, and the count of those that do not."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import polars as pl

from moat.executor import documentation
from moat.stage import Counts
from moat.tokens import Example, Renderer, Role

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
        ((row["demo_id"], renderer.planner_example(row["text"], row["subgoals"])) for row in demos.iter_rows(named=True)),
        max_length,
    )


def grounder_examples(renderer: Renderer, rows: pl.DataFrame, max_length: int) -> Fitting:
    """Examples of rows with row_id, text, domain, subgoals and actions."""
    return fit(
        (
            (
                row["row_id"],
                renderer.grounder_example(row["text"], documentation(row["domain"]), row["subgoals"], row["actions"]),
            )
            for row in rows.iter_rows(named=True)
        ),
        max_length,
    )


def planner_pairs(
    renderer: Renderer, rows: Sequence[dict[str, str]], max_length: int
) -> tuple[list[Example], list[Example], list[str], Counts]:
    """Chosen and rejected examples of rows with task_id, text, chosen and rejected; a pair fits when both do."""
    kept: list[tuple[Example, Example, str]] = []
    for row in rows:
        chosen = renderer.planner_example(row["text"], row["chosen"])
        rejected = renderer.planner_example(row["text"], row["rejected"])
        if max(len(chosen), len(rejected)) <= max_length:
            kept.append((chosen, rejected, row["task_id"]))
    counts = Counts(len(rows), len(kept), {OVER_LENGTH: len(rows) - len(kept)})
    return [c for c, _, _ in kept], [r for _, r, _ in kept], [name for _, _, name in kept], counts

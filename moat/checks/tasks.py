"""Tasks and demonstrations: what is asked, and what the cold start was shown."""

from __future__ import annotations

import polars as pl

from moat import layout
from moat.checkout import Absent, Findings
from moat.moat_checkout import MoatCheckout
from moat.seeds import content_id
from moat.tokens import Role

SPLITS = (layout.TRAIN_TASKS, layout.EVAL_TASKS)
DEMOS = tuple(layout.demos(role) for role in Role)


def normalised(text: str) -> str:
    """The form in which two questions are one: case and spacing do not make another question."""
    return " ".join(text.casefold().split())


def ids(checkout: MoatCheckout) -> Findings:
    """Task and demonstration ids are those of their content"""
    for path in SPLITS:
        rows = checkout.table(path)
        made = [
            content_id(episode, turn) if turn is not None else content_id(source, text, answer)
            for episode, turn, source, text, answer in rows.select(
                "episode_id", "turn", "source", "text", "gold_answer"
            ).iter_rows()
        ]
        yield from checkout.rows(path, rows.filter(pl.Series(made) != rows["task_id"]), "task_id is not that of the content")
    for role, path in zip(Role, DEMOS, strict=True):
        rows = checkout.table(path)
        made = [content_id(task, role, plan) for task, plan in rows.select("task_id", "subgoals").iter_rows()]
        yield from checkout.rows(path, rows.filter(pl.Series(made) != rows["demo_id"]), "demo_id is not that of the content")
        if (said := checkout.facts(path).get("role", role)) != role:
            yield checkout.fault(path, f"its metadata says that it holds the {said}'s demonstrations")


def gold(checkout: MoatCheckout) -> Findings:
    """Gold actions, executed, reach the gold answer"""
    for path in SPLITS:
        rows = checkout.table(path)
        yield from checkout.rows(
            path,
            rows.filter(~reach(checkout, rows, "gold_actions")),
            "gold actions miss the gold answer",
        )


def gold_table(checkout: MoatCheckout) -> Findings:
    """The gold table has a row for every task, with what its gold actions come to"""
    rows = checkout.table(layout.GOLD)
    columns = ("source", "domain", "metric", "turn", "turns", "gold_actions", "gold_answer", "context")
    asked = pl.concat(checkout.table(path).select(pl.lit(path.stem).alias("split"), "task_id", *columns) for path in SPLITS)
    yield from checkout.differences(
        layout.GOLD, asked.select("split", "task_id", "source"), rows.select("split", "task_id", "source"), "the tasks"
    )
    known = rows.join(asked.drop("source"), on=["split", "task_id"], maintain_order="left")
    other = []
    for row in known.drop_nulls("domain").iter_rows(named=True):
        came = checkout.came(row["gold_actions"], checkout.goal(row)) if row["gold_actions"] else ("none", None)
        other.append(came is not None and came != (row["outcome"], row["answer"]))
    wrong = known.drop_nulls("domain").filter(pl.Series(other, dtype=pl.Boolean))
    yield from checkout.rows(layout.GOLD, wrong, "outcome or answer is not what the gold actions come to")


def reach(checkout: MoatCheckout, rows: pl.DataFrame, actions: str) -> pl.Series:
    """For each task row, whether the actions in its column `actions` run and come to its answer (or cannot be run here)."""
    found = []
    for row in rows.iter_rows(named=True):
        came = checkout.came(row[actions], checkout.goal(row)) if row[actions] else None
        found.append(came is None or came[0] == "reached")
    return pl.Series("reach", found, dtype=pl.Boolean)


def sources(checkout: MoatCheckout) -> Findings:
    """Every row is of a source in params.yaml, and no held-out source is trained on"""
    for path in (*SPLITS, *DEMOS):
        try:
            rows, named = checkout.table(path), checkout.settings(path).prepare.sources
        except Absent:
            continue
        yield from checkout.rows(path, rows.filter(~rows["source"].is_in(list(named))), "of a source that params.yaml lacks")
        held_out = [name for name, source in named.items() if not source.trained]
        if path != layout.EVAL_TASKS:
            yield from checkout.rows(path, rows.filter(rows["source"].is_in(held_out)), "of a held-out source")
        if "trained" in rows.columns:
            wrong = rows.filter(rows["trained"] == rows["source"].is_in(held_out))
            yield from checkout.rows(path, wrong, "`trained` is not what params.yaml says of the source")


def decontaminated(checkout: MoatCheckout) -> Findings:
    """No question stands both in evaluation and in training tasks or demonstrations"""
    asked = {normalised(text) for text in checkout.table(layout.EVAL_TASKS)["text"]}
    for path in (layout.TRAIN_TASKS, *DEMOS):
        rows = checkout.table(path)
        shared = rows.filter(pl.Series([normalised(text) in asked for text in rows["text"]], dtype=pl.Boolean))
        yield from checkout.rows(
            path,
            shared,
            f"the question stands in {layout.EVAL_TASKS} too",
            remedy="change `draw` of a source, then `dvc repro`",
        )


def demonstrations(checkout: MoatCheckout) -> Findings:
    """A demonstration of a training task has that task's question, domain and gold actions"""
    tasks = checkout.table(layout.TRAIN_TASKS).select("task_id", "source", "domain", "text", actions="gold_actions")
    for path in DEMOS:
        rows = checkout.table(path)
        shown = rows.join(tasks, on="task_id", suffix="_of_task")
        columns = ("source", "domain", "text", "actions")
        other = shown.filter(pl.any_horizontal(pl.col(name) != pl.col(f"{name}_of_task") for name in columns))
        yield from checkout.rows(path, other, f"not as its task in {layout.TRAIN_TASKS}")

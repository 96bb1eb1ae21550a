"""Evaluations: one row per evaluation task, and what its columns must agree on."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import polars as pl

from moat import layout
from moat.checkout import Absent, Findings
from moat.grading import grade
from moat.moat_checkout import MoatCheckout
from moat.sources.base import Metric
from moat.turns import done

COPIED = ("source", "trained", "metric", "text", "gold_actions", "gold_answer")


def tasks(checkout: MoatCheckout) -> Findings:
    """One row for every evaluation task, with that task's question and gold"""
    asked = checkout.table(layout.EVAL_TASKS)
    for path, rows in present(checkout):
        counts = checkout.facts(path).get("counts", {})
        lacking = asked.join(rows, on="task_id", how="anti")
        if len(lacking) != sum(counts.get("dropped", {}).values()):
            yield from checkout.rows(path, lacking, "the task has no row")
        other = rows.join(asked, on=["task_id", *COPIED], how="anti")
        yield from checkout.rows(path, other, f"not as in {layout.EVAL_TASKS}")


def outcomes(checkout: MoatCheckout) -> Findings:
    """Actions, executed again, come to the outcome that is stored; success is `reached`"""
    asked = checkout.table(layout.EVAL_TASKS).drop("source", "trained", "text", "gold_actions", "gold_answer", "metric")
    for path, rows in present(checkout):
        known = rows.rename({"turns": "played"}).join(asked, on="task_id", maintain_order="left")
        other = [
            (found := again(checkout, row)) is not None and found != (row["outcome"], row["answer"])
            for row in known.iter_rows(named=True)
        ]
        wrong = known.filter(pl.Series(other, dtype=pl.Boolean))
        yield from checkout.rows(path, wrong, "outcome or answer is not what the actions come to")
        yield from checkout.rows(
            path, rows.filter(rows["success"] != (rows["outcome"] == "reached")), "success is not `reached`"
        )


UNPLAYED = ("turn_limit", "unanswered", "empty")  # outcomes of an episode that no last action decides


def again(checkout: MoatCheckout, row: dict[str, Any]) -> tuple[str, str | None] | None:
    """Outcome and answer of an evaluation's actions that are executed again; None when they cannot be."""
    goal = checkout.goal(row)
    if goal is None or row["outcome"] == "unanswered" or (row["played"] and row["outcome"] in UNPLAYED):
        return None
    if not row["played"]:
        return checkout.came(row["actions"], goal)
    *before, last = done(row["played"])
    return checkout.came(last.actions, replace(goal, earlier=tuple(turn.actions for turn in before)))


def grades(checkout: MoatCheckout) -> Findings:
    """Answers, graded again by their metric, have the score, F1 and element that are stored"""
    for path, rows in present(checkout):
        other = []
        names = ("metric", "answer", "gold_answer", "outcome", "score", "f1", "element")
        for row in rows.select(names).iter_rows(named=True):
            if row["metric"] not in {metric.value for metric in Metric}:
                other.append(True)
                continue
            found = grade(Metric(row["metric"]), row["answer"], row["gold_answer"])
            score = found.score if row["outcome"] in ("reached", "not_reached") else 0.0
            other.append((score, found.f1, found.element) != (row["score"], row["f1"], row["element"]))
        wrong = rows.filter(pl.Series(other, dtype=pl.Boolean))
        yield from checkout.rows(path, wrong, "score, f1 or element is not what the answer is worth")


def samples(checkout: MoatCheckout) -> Findings:
    """evaluate.samples sampled plans per task, each with an NLL"""
    for path, rows in present(checkout):
        n = checkout.settings(path).evaluate.samples
        wrong = rows.filter((rows["samples"].list.len() != n) | (rows["samples_nll"].list.len() != n))
        yield from checkout.rows(path, wrong, f"not {n} samples, or not an NLL for each")
        for name in ("nll", "control_nll"):
            yield from checkout.rows(path, rows.filter((rows[name] < 0).fill_null(False)), f"{name} is negative")


def controls(checkout: MoatCheckout) -> Findings:
    """The control gives every task the plan of another task of its source, each plan once"""
    for path, rows in present(checkout):
        sources = dict(rows.select("task_id", "source").iter_rows())
        size = rows["source"].value_counts()
        alone = set(size.filter(size["count"] == 1)["source"])
        wrong = [
            sources.get(other) != source or ((task == other) != (source in alone))
            for task, other, source in rows.select("task_id", "control_task_id", "source").iter_rows()
        ]
        yield from checkout.rows(
            path, rows.filter(pl.Series(wrong, dtype=pl.Boolean)), "not the plan of another task of the source"
        )
        yield from checkout.rows(path, rows.filter(rows["control_task_id"].is_duplicated()), "a plan is given to two tasks")


def present(checkout: MoatCheckout) -> list[tuple[Path, pl.DataFrame]]:
    """The evaluations that are there. Raises Absent when none is."""
    found = []
    for key in checkout.evaluated:
        try:
            found.append((layout.evals(key), checkout.table(layout.evals(key))))
        except Absent:
            continue
    if not found:
        raise Absent
    return found

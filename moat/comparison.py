"""Two evaluations of the same tasks, compared task by task: the difference with its interval, and what turned."""

from __future__ import annotations

from typing import Any

import polars as pl

from moat.figures import bootstrap_mean, mcnemar


class ComparisonError(ValueError):
    """Two evaluations that are not of the same tasks; the message says what differs."""


def compare(before: pl.DataFrame, after: pl.DataFrame, seed: int = 0) -> dict[str, Any]:
    """How `after` differs from `before`, two evals tables of the same tasks, joined by task_id.

    `n` tasks; `before` and `after`, the mean scores; `difference` (after minus before) with its 95% interval `low`,
    `high` from a paired bootstrap drawn by `seed`; how many tasks `turned_right` and `turned_wrong`; `mcnemar_p`, the
    two-sided exact p that these two are equal. Raises ComparisonError when the tables do not hold the same tasks.
    """
    key, columns = "task_id", ["task_id", "metric", "score", "success"]
    for name, rows in (("before", before), ("after", after)):
        if rows[key].is_duplicated().any():
            raise ComparisonError(f"the evaluation {name} has a task twice: it is no evals table")
    joined = before.select(columns).join(after.select(columns), on=key, suffix="_after").sort(key)
    if not len(joined) or not len(joined) == len(before) == len(after):
        raise ComparisonError(
            f"{len(joined)} tasks are in both evaluations, of {len(before)} before and {len(after)} after: "
            "evaluate both models on the same tasks (`dvc repro` with one `prepare`)"
        )
    if (joined["metric"] != joined["metric_after"]).any():
        raise ComparisonError("a task is graded by two metrics: `dvc repro` evaluates both models alike")
    differences = joined["score_after"] - joined["score"]
    low, high = bootstrap_mean(differences.to_list(), seed)
    right = int((joined["success_after"] & ~joined["success"]).sum())
    wrong = int((joined["success"] & ~joined["success_after"]).sum())
    return {
        "n": len(joined),
        "before": sum(joined["score"].to_list()) / len(joined),
        "after": sum(joined["score_after"].to_list()) / len(joined),
        "difference": sum(differences.to_list()) / len(joined),
        "low": low,
        "high": high,
        "turned_right": right,
        "turned_wrong": wrong,
        "mcnemar_p": mcnemar(right, wrong),
    }

"""A round's figures, from its tables: success with intervals, PPL, distinct plans, pairs, verdicts, styles, the premise.

A round r's *models* are measured by evals/r; the tables of round r hold what the models of the round before sampled.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from typing import Any

import polars as pl

from moat import dynamics as learning
from moat.figures import auc, geometric_mean_ppl, wilson, within_task_correlation
from moat.worlds.stories import style_of

NEAR_CHANCE = 0.55  # an AUC below this says that PPL hardly tells good plans from bad ones


def shares(values: Sequence[str]) -> dict[str, float]:
    """Share of each value, sorted by name."""
    return {name: n / len(values) for name, n in sorted(Counter(values).items())}


def success_block(rows: pl.DataFrame) -> dict[str, Any]:
    """Success and PPL of some rows of an evals table."""
    n, reached = len(rows), int(rows["success"].sum())
    low, high = wilson(reached, n)
    control = int((rows["control_outcome"] == "reached").sum())
    return {
        "n": n,
        "success": reached / n,
        "success_low": low,
        "success_high": high,
        "control_success": control / n,
        "ppl_gold": geometric_mean_ppl(rows["samples_nll"].explode().drop_nulls().to_list()),
        "ppl_plan": geometric_mean_ppl(rows["nll"].to_list()),
        "ppl_control": geometric_mean_ppl(rows["control_nll"].to_list()),
        "outcomes": shares(rows["outcome"].to_list()),
        "styles": shares([style_of(plan) for plan in rows["subgoals"]]),
    }


def mean(values: Sequence[float]) -> float | None:
    """Plain mean, None of nothing."""
    return sum(values) / len(values) if values else None


def evaluation(evals: pl.DataFrame) -> dict[str, Any]:
    """Figures of one evaluation: overall, per source, and the plain means over held-in and held-out sources."""
    per_source = {
        str(source): success_block(evals.filter(evals["source"] == source)) for source in sorted(set(evals["source"]))
    }
    trained = {str(s): bool(t) for s, t in evals.select("source", "trained").unique().iter_rows()}
    return success_block(evals) | {
        "held_in_avg": mean([per_source[s]["success"] for s in per_source if trained[s]]),
        "held_out_avg": mean([per_source[s]["success"] for s in per_source if not trained[s]]),
        "sources": per_source,
    }


def premise(tasks: pl.DataFrame, scores: pl.DataFrame, actions: pl.DataFrame) -> dict[str, Any]:
    """Whether a lower PPL goes with reaching the gold answer: per task source, never across (PPL levels differ)."""
    joined = (
        scores.join(actions.select("task_id", "k", "outcome"), on=["task_id", "k"])
        .join(tasks.select("task_id", "source"), on="task_id")
        .with_columns(reached=pl.col("outcome") == "reached", reward=-pl.col("ppl"))
        .sort("task_id", "k")
    )
    found: dict[str, Any] = {}
    for source in sorted(set(joined["source"])):
        own = joined.filter(joined["source"] == source)
        groups = [(g["reward"].to_list(), g["reached"].to_list()) for g in own.partition_by("task_id", maintain_order=True)]
        correlation, n_tasks = within_task_correlation(groups)
        found[source] = {
            "auc": auc(own["reward"].to_list(), own["reached"].to_list()),
            "within_task_correlation": correlation,
            "n_tasks_with_both": n_tasks,
            "reached_share": sum(own["reached"].to_list()) / len(own),
        }
    return found


def round_block(
    tasks: pl.DataFrame,
    subgoals: pl.DataFrame,
    scores: pl.DataFrame,
    actions: pl.DataFrame,
    pairs: pl.DataFrame,
    critiques: pl.DataFrame,
    sft: pl.DataFrame,
    dynamics: pl.DataFrame,
    min_gap: float,
) -> dict[str, Any]:
    """Figures of the tables of one round."""
    kept = pairs.filter(pairs["dropped"].is_null())
    drops = Counter(pairs["dropped"].drop_nulls().to_list())
    both = pairs.filter(pairs["chosen_nll"].is_not_null())
    per_score = {
        "ppl": int(((both["rejected_ppl"] - both["chosen_ppl"]) >= min_gap).sum()),
        "nll": int(((both["rejected_nll"] - both["chosen_nll"]) >= min_gap).sum()),
    }
    measured = premise(tasks, scores, actions)
    aucs = [block["auc"] for block in measured.values() if block["auc"] is not None]
    return {
        "distinct_share": subgoals.select("task_id", "subgoals").n_unique() / len(subgoals),
        "sample_styles": shares([style_of(plan) for plan in subgoals["subgoals"]]),
        "sample_tokens": sum(subgoals["n_tokens"].to_list()) / len(subgoals),
        "sample_entropy": learning.entropy(subgoals),
        "sample_ppl_gold": geometric_mean_ppl(scores["nll"].to_list()),
        "pairs_kept": len(kept),
        "pairs_dropped": dict(sorted(drops.items())),
        "pairs_at_min_gap_by": per_score,
        "chosen_styles": shares([style_of(plan) for plan in kept["chosen"]]) if len(kept) else {},
        "rejected_styles": shares([style_of(plan) for plan in kept["rejected"]]) if len(kept) else {},
        "verdicts": shares(critiques["verdict"].to_list()),
        "outcomes": shares(actions["outcome"].to_list()),
        "sft_rows": dict(sorted(Counter(sft["origin"].to_list()).items())),
        "premise": measured,
        "premise_auc": mean(aucs),
        "dynamics": learning.block(dynamics),
    }


def tidy(value: Any) -> Any:
    """Round numbers to six places and turn what is not finite into null, for a file that people and git read."""
    if isinstance(value, dict):
        return {key: tidy(item) for key, item in value.items()}
    if isinstance(value, float):
        return round(value, 6) if math.isfinite(value) else None
    return value

"""A round's figures, from its tables: success with intervals, PPL, distinct plans, pairs, verdicts, styles, the premise.

A round r's *models* are measured by evals/r; the tables of round r hold what the models of the round before sampled.
"""

from __future__ import annotations

import csv
import io
import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import polars as pl

from moat import dynamics as learning
from moat.comparison import compare
from moat.figures import auc, bootstrap_mean, geometric_mean_ppl, wilson, within_task_correlation
from moat.pairs import near_gap
from moat.sources.base import Metric
from moat.worlds.stories import style_of

NEAR_CHANCE = 0.55  # an AUC below this says that PPL hardly tells good plans from bad ones
NOT_FAILED = ("reached", "not_reached")  # outcomes that have an answer
PARSE = ("empty", "syntax")  # failures of the text: it is no actions
PLANNING = ("turn_limit",)  # failures of planning turn by turn
ENGINE = ("unanswered",)  # failures that say nothing of the model
# Any other outcome is a failure of execution: the actions were read, and one of them gave no result.


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


def failures(outcomes: Sequence[str]) -> dict[str, dict[str, int]]:
    """Failures by kind, counted apart: of parsing the actions, of executing them, of planning and of the engine."""
    counted = sorted(Counter(outcomes).items())
    failed = {name: n for name, n in counted if name not in NOT_FAILED}
    return {
        "parse": {name: n for name, n in failed.items() if name in PARSE},
        "execution": {name: n for name, n in failed.items() if name not in PARSE + PLANNING + ENGINE},
        "planning": {name: n for name, n in failed.items() if name in PLANNING},
        "engine": {name: n for name, n in failed.items() if name in ENGINE},
    }


def score_block(rows: pl.DataFrame) -> dict[str, Any]:
    """The figures of a source's own metric, with every task in the denominator, also those that failed.

    `score` is the mean of the scores; its 95% interval is Wilson's for a share, a bootstrap's for a mean reward. `f1` and
    `element` are means too, None where the metric has none. Raises ValueError for rows of several metrics.
    """
    metrics = sorted(set(rows["metric"]))
    if len(metrics) != 1:
        raise ValueError(f"rows of one source are graded by several metrics, {', '.join(metrics)}: they have no common mean")
    scores = [float(score) for score in rows["score"]]
    if Metric(metrics[0]) is Metric.REWARD:
        low, high = bootstrap_mean(scores)
    else:
        low, high = wilson(sum(score == 1 for score in scores), len(scores))
    return {
        "metric": metrics[0],
        "score": mean(scores),
        "score_low": low,
        "score_high": high,
        "f1": mean(rows["f1"].drop_nulls().to_list()),
        "element": mean(rows["element"].drop_nulls().to_list()),
        "turns": mean(rows["n_turns"].to_list()),
        "failures": failures(rows["outcome"].to_list()),
    }


def evaluation(evals: pl.DataFrame) -> dict[str, Any]:
    """Figures of one evaluation: overall, per source, and the averages over held-in and held-out sources.

    An average is the paper's: the plain mean of the sources' scores, however many tasks each has. Beside it stands the
    mean weighted by tasks.
    """
    per_source = {}
    for source in sorted(set(evals["source"])):
        rows = evals.filter(evals["source"] == source)
        per_source[str(source)] = success_block(rows) | score_block(rows)
    trained = {str(s): bool(t) for s, t in evals.select("source", "trained").unique().iter_rows()}
    averages: dict[str, float | None] = {}
    for name, held_in in (("held_in", True), ("held_out", False)):
        own = [block for source, block in per_source.items() if trained[source] is held_in]
        n = sum(block["n"] for block in own)
        averages[f"{name}_avg"] = mean([block["score"] for block in own])
        averages[f"{name}_weighted"] = sum(block["score"] * block["n"] for block in own) / n if n else None
    return success_block(evals) | averages | {"sources": per_source}


def comparisons(evals: Mapping[str, pl.DataFrame], previous: Mapping[str, str]) -> dict[str, dict[str, Any]]:
    """For each round but 0: what changed since round 0 and since the round before, on the same tasks.

    `evals` are the evals tables by round; `previous` is the round before each. Gives, by round and by the round that it
    is compared with, `moat.comparison.compare` of all tasks (`all`) and of each source (`sources`).
    """
    found: dict[str, dict[str, Any]] = {}
    for key, before in previous.items():
        found[key] = {}
        for other in sorted({"0", before}, key=int):
            first, second = evals[other], evals[key]
            sources = {
                str(source): compare(first.filter(first["source"] == source), second.filter(second["source"] == source))
                for source in sorted(set(first["source"]) | set(second["source"]))
            }
            found[key][other] = {"all": compare(first, second), "sources": sources}
    return found


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


def pairs_near_gap(pairs: pl.DataFrame, min_gap: float, noise: Mapping[str, float | None]) -> dict[str, dict[str, int]]:
    """Pairs that measured noise `kept` or `dropped`, were `min_gap` in the unit: by unit, `ppl` and `nll`.

    Over all tasks with two plans to compare. `noise` is that of one score, by unit (`moat.noise`); a gap is a difference of
    two scores, so it may be off by twice as much. A unit whose noise is None, not measured, is left out.
    """
    both = pairs.filter(pairs["chosen_nll"].is_not_null())
    found = {}
    for unit in ("ppl", "nll"):
        off = noise[unit]
        if off is not None:
            kept, dropped = near_gap((both[f"rejected_{unit}"] - both[f"chosen_{unit}"]).to_list(), min_gap, 2 * off)
            found[unit] = {"kept": kept, "dropped": dropped}
    return found


def tidy(value: Any) -> Any:
    """Round numbers to six places and turn what is not finite into null, for a file that people and git read."""
    if isinstance(value, dict):
        return {key: tidy(item) for key, item in value.items()}
    if isinstance(value, float):
        return round(value, 6) if math.isfinite(value) else None
    return value


def curves(rounds: Mapping[str, Mapping[str, Any]], columns: Iterable[str]) -> str:
    """One line a round, as CSV: its key, then the figures named by `columns`; blank where there is none."""
    names = list(columns)
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(["round", *names])
    for key, block in rounds.items():
        writer.writerow([key, *("" if block.get(name) is None else block[name] for name in names)])
    return out.getvalue()

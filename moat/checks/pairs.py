"""A round's pairs, worked out again from candidates, scores and outcomes (MOAT, section 4.1); `moat.pairs` is not asked."""

from __future__ import annotations

import math
from typing import Any

import polars as pl

from moat import layout
from moat.checkout import Findings, each_round
from moat.moat_checkout import MoatCheckout
from moat.pairs import ALL_EQUAL, GAP, NO_USABLE, NOT_FINITE, SAME_OUTCOME
from moat.params import Pairs

KEY = ["task_id", "k"]
SIDES = ("chosen", "rejected")
Row = dict[str, Any]


def by_task(checkout: MoatCheckout, key: str) -> dict[str, list[Row]]:
    """The scored candidates that say something, of each training task that has any, by k."""
    scored = checkout.round_table("subgoals", key).join(checkout.round_table("scores", key), on=KEY)
    acted = checkout.round_table("actions", key).select(*KEY, "outcome")
    found: dict[str, list[Row]] = {}
    for row in scored.join(acted, on=KEY, how="left").sort(KEY).iter_rows(named=True):
        if row["subgoals"].strip():
            found.setdefault(row["task_id"], []).append(row | {"plan": " ".join(row["subgoals"].split())})
    return found


def distinct(candidates: list[Row]) -> list[Row]:
    """The lowest k of each plan, by k, among the candidates with a finite score."""
    first: dict[str, Row] = {}
    for row in candidates:
        if math.isfinite(row["nll"]) and math.isfinite(row["ppl"]):
            first.setdefault(row["plan"], row)
    return list(first.values())


def best_and_worst(candidates: list[Row], settings: Pairs) -> tuple[int | None, int | None, str | None]:
    """k of the candidates that must be chosen and rejected, and why there is no pair (None: there is one)."""
    if not candidates:
        return None, None, NO_USABLE
    if not any(math.isfinite(row["nll"]) and math.isfinite(row["ppl"]) for row in candidates):
        return None, None, NOT_FINITE
    left = distinct(candidates)
    if len(left) == 1:
        return None, None, ALL_EQUAL
    score = "nll" if settings.score == "nll" else "ppl"
    good, bad = left, left
    if settings.score == "executed":
        good = [row for row in left if row["outcome"] == "reached"]
        bad = [row for row in left if row["outcome"] != "reached"]
        if not good or not bad:
            return None, None, SAME_OUTCOME
    lowest, highest = min(row[score] for row in good), max(row[score] for row in bad)
    chosen = next(row["k"] for row in good if row[score] == lowest)
    rejected = next(row["k"] for row in bad if row[score] == highest)
    if chosen == rejected:
        return None, None, ALL_EQUAL
    small = settings.score != "executed" and highest - lowest < settings.min_gap
    return chosen, rejected, GAP if small else None


@each_round
def one_per_task(checkout: MoatCheckout, key: str) -> Findings:
    """One row for every training task; a kept pair has one chosen and one rejected candidate"""
    path, rows = layout.table("pairs", key), checkout.round_table("pairs", key)
    tasks = checkout.table(layout.TRAIN_TASKS)
    yield from checkout.rows(path, tasks.join(rows, on="task_id", how="anti"), "the task has no row")
    yield from checkout.rows(path, rows.join(tasks, on="task_id", how="anti"), "no training task has this task_id")
    due = rows["dropped"].is_null() | (rows["dropped"] == GAP)
    for side in SIDES:
        columns = [f"{side}_k", side, f"{side}_nll", f"{side}_ppl"]
        full = rows.select(pl.all_horizontal(pl.col(name).is_not_null() for name in columns)).to_series()
        none = rows.select(pl.all_horizontal(pl.col(name).is_null() for name in columns)).to_series()
        yield from checkout.rows(path, rows.filter(due & ~full), f"the pair has no {side} candidate")
        yield from checkout.rows(path, rows.filter(~due & ~none), f"a task without a pair has a {side} candidate")
    yield from checkout.rows(
        path, rows.filter(rows["chosen_k"] == rows["rejected_k"]), "chosen and rejected are one candidate"
    )


@each_round
def as_scored(checkout: MoatCheckout, key: str) -> Findings:
    """Plans, NLL and PPL of a pair are those of its candidates"""
    path, rows = layout.table("pairs", key), checkout.round_table("pairs", key)
    scored = checkout.round_table("subgoals", key).join(checkout.round_table("scores", key), on=KEY)
    for side in SIDES:
        columns = {"k": f"{side}_k", "subgoals": side, "nll": f"{side}_nll", "ppl": f"{side}_ppl"}
        stored = rows.filter(rows[f"{side}_k"].is_not_null()).select("task_id", **columns)
        other = stored.join(scored, on=stored.columns, how="anti")
        yield from checkout.rows(path, other, f"{side} is not as in {layout.table('scores', key)}")


@each_round
def extremes(checkout: MoatCheckout, key: str) -> Findings:
    """chosen has the lowest and rejected the highest score of the distinct candidates; drops have the right reason"""
    path, rows = layout.table("pairs", key), checkout.round_table("pairs", key)
    settings, candidates = checkout.settings(path).pairs, by_task(checkout, key)
    wrong, miscounted = [], []
    for row in rows.iter_rows(named=True):
        own = candidates.get(row["task_id"], [])
        found = (row["chosen_k"], row["rejected_k"], row["dropped"])
        if settings.select == "extremes":
            fits = found == best_and_worst(own, settings)
        else:  # the control: any two distinct ones, whatever their scores
            numbers = {candidate["k"] for candidate in distinct(own)}
            fits = {found[0], found[1]} <= numbers and found[2] is None if len(numbers) > 1 else found[2] is not None
        wrong.append(not fits)
        miscounted.append((row["n_candidates"], row["n_distinct"]) != (len(own), len({one["plan"] for one in own})))
    what = {
        "extremes": f"chosen and rejected are not the lowest and highest by {settings.score}, or the reason is another",
        "random": "chosen and rejected are not two of the task's distinct candidates",
    }
    yield from checkout.rows(path, rows.filter(pl.Series(wrong, dtype=pl.Boolean)), what[settings.select])
    yield from checkout.rows(
        path, rows.filter(pl.Series(miscounted, dtype=pl.Boolean)), "n_candidates or n_distinct is wrong"
    )


@each_round
def gap(checkout: MoatCheckout, key: str) -> Findings:
    """Every kept pair differs by pairs.min_gap at least, and a pair below it is dropped"""
    path, rows = layout.table("pairs", key), checkout.round_table("pairs", key)
    settings = checkout.settings(path).pairs
    if settings.score == "executed" or settings.select == "random":
        return
    wide = rows[f"rejected_{settings.score}"] - rows[f"chosen_{settings.score}"] >= settings.min_gap
    yield from checkout.rows(
        path, rows.filter(rows["dropped"].is_null() & ~wide), f"a kept pair is below min_gap ({settings.min_gap})"
    )
    yield from checkout.rows(
        path, rows.filter((rows["dropped"] == GAP) & wide), f"a pair of min_gap ({settings.min_gap}) was dropped"
    )

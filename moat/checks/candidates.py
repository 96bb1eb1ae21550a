"""A round's candidates: sampled, scored, acted on."""

from __future__ import annotations

import math

import polars as pl

from moat import layout
from moat.checkout import Absent, Findings, each_round
from moat.moat_checkout import MoatCheckout
from moat.seeds import seed_of
from moat.turns import subgoal_of

KEY = ["task_id", "k"]
ENDED = ("stop", "length")


def joined(checkout: MoatCheckout, rows: pl.DataFrame) -> pl.DataFrame:
    """Rows with their training task's columns."""
    return rows.join(checkout.table(layout.TRAIN_TASKS), on="task_id", maintain_order="left")


@each_round
def k_per_task(checkout: MoatCheckout, key: str) -> Findings:
    """K candidates of every training task, numbered from 0, and of no other"""
    path, rows = layout.table("subgoals", key), checkout.round_table("subgoals", key)
    k = checkout.settings(path).sample.k
    tasks = checkout.table(layout.TRAIN_TASKS).select("task_id")
    numbers = pl.DataFrame({"k": list(range(k))}, schema={"k": rows.schema["k"]})
    due = tasks.join(numbers, how="cross")
    yield from checkout.rows(path, due.join(rows, on=KEY, how="anti"), f"a candidate of the task is missing (K = {k})")
    yield from checkout.rows(path, rows.join(due, on=KEY, how="anti"), f"no candidate 0 to {k - 1} of a training task")


@each_round
def samples(checkout: MoatCheckout, key: str) -> Findings:
    """Seeds equal their formula; a candidate is dropped exactly when it is empty, was cut, or stops planning"""
    path, rows = layout.table("subgoals", key), checkout.round_table("subgoals", key)
    settings = checkout.settings(path)
    seeds = [seed_of(settings.seed, "sample", key, task, k) for task, k in rows.select(KEY).iter_rows()]
    yield from checkout.rows(
        path,
        rows.filter(rows["seed"] != pl.Series(seeds, dtype=pl.Int64)),
        "seed is not the hash of seed, round, task and k",
    )
    yield from checkout.rows(
        path, rows.filter(~rows["finish_reason"].is_in(ENDED)), "finish_reason is neither stop nor length"
    )
    yield from checkout.rows(
        path,
        rows.filter((rows["n_tokens"] < 0) | (rows["n_tokens"] > settings.sample.max_new_tokens)),
        f"n_tokens is not in 0 to max_new_tokens ({settings.sample.max_new_tokens})",
    )
    yield from checkout.rows(path, rows.filter(~(rows["logprob"] <= 1e-6)), "logprob is no log-probability (over 0, or NaN)")
    asked = joined(checkout, rows)
    due = pl.Series(
        [
            why_dropped(text, reason, turn is not None)
            for reason, text, turn in asked.select("finish_reason", "subgoals", "turn").iter_rows()
        ],
        dtype=pl.String,
    )
    wrong = rows["dropped"].ne_missing(due) & (due.is_not_null() | rows["dropped"].is_in(["length", "empty", "stop"]))
    yield from checkout.rows(
        path, rows.filter(wrong), "dropped is not `length` for a cut plan, `stop` for none, `empty` for an empty one"
    )


def why_dropped(text: str, reason: str | None, turn: bool) -> str | None:
    """Why a candidate goes no further, by its text and how it ended."""
    if reason == "length":
        return "length"
    said = subgoal_of(text) if turn else text.strip()
    return "stop" if said is None else None if said else "empty"


@each_round
def scores_and_acts_join(checkout: MoatCheckout, key: str) -> Findings:
    """Scores, actions and verdicts are of usable candidates, and the missing ones were counted as dropped"""
    candidates = checkout.round_table("subgoals", key)
    usable = candidates.filter(candidates["dropped"].is_null()).select(KEY)
    for name in ("scores", "actions", "critiques"):
        path = layout.table(name, key)
        try:
            rows = checkout.table(path)
        except Absent:
            continue
        yield from checkout.rows(
            path, rows.join(usable, on=KEY, how="anti"), f"no usable candidate in {name_of('subgoals', key)}"
        )
        if name == "critiques":
            acted = checkout.round_table("actions", key)
            yield from checkout.rows(path, rows.join(acted, on=KEY, how="anti"), "a verdict on actions that are not there")
            continue
        dropped = checkout.facts(path).get("counts", {}).get("dropped", {})
        counted = sum(n for reason, n in dropped.items() if reason != "unusable candidate")
        lacking = usable.join(rows, on=KEY, how="anti")
        if len(lacking) != counted:
            yield from checkout.rows(path, lacking, f"usable candidates are missing ({counted} were counted as dropped)")


def name_of(table: str, key: str) -> str:
    """A round's table as a finding names it."""
    return str(layout.table(table, key))


@each_round
def perplexities(checkout: MoatCheckout, key: str) -> Findings:
    """PPL = exp(NLL), NLL ≥ 0, and a task's gold actions count as many tokens for every candidate"""
    path, rows = layout.table("scores", key), checkout.round_table("scores", key)
    wrong = [
        not (nll >= 0 and math.isclose(ppl, math.exp(nll) if nll < 700 else math.inf, rel_tol=1e-12))
        and not (math.isnan(nll) and math.isnan(ppl))
        for nll, ppl in rows.select("nll", "ppl").iter_rows()
    ]
    yield from checkout.rows(
        path, rows.filter(pl.Series(wrong, dtype=pl.Boolean)), "ppl is not exp(nll), or nll is negative"
    )
    yield from checkout.rows(path, rows.filter(rows["n_action_tokens"] < 1), "the mean is over no action token")
    uneven = rows.filter(pl.col("n_action_tokens").n_unique().over("task_id") > 1)
    yield from checkout.rows(path, uneven, "n_action_tokens differs among the candidates of one task")


@each_round
def outcomes(checkout: MoatCheckout, key: str) -> Findings:
    """Actions, executed again, come to the outcome and the answer that are stored"""
    path = layout.table("actions", key)
    rows = joined(checkout, checkout.round_table("actions", key))
    other = [
        (found := checkout.came(row["actions"], checkout.goal(row))) is not None and found != (row["outcome"], row["answer"])
        for row in rows.iter_rows(named=True)
    ]
    yield from checkout.rows(
        path, rows.filter(pl.Series(other, dtype=pl.Boolean)), "outcome or answer is not what the actions come to"
    )
    yield from checkout.rows(
        path, rows.filter(~rows["finish_reason"].is_in(ENDED)), "finish_reason is neither stop nor length"
    )

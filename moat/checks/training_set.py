"""Verdicts, and the training set that is mixed from them (MOAT, section 4.2)."""

from __future__ import annotations

import polars as pl

from moat import layout
from moat.checkout import Findings, each_round
from moat.checks.candidates import joined
from moat.checks.tasks import reach
from moat.moat_checkout import MoatCheckout

KEY = ["task_id", "k"]
ORIGIN = {"accept": "accepted", "correct": "corrected"}
VERDICTS = ("accept", "correct", "reject", "unparsed")
CONTENT = ["task_id", "source", "domain", "text", "turn", "subgoals", "actions"]


@each_round
def verdicts(checkout: MoatCheckout, key: str) -> Findings:
    """Verdicts are those that the critic's rule gives; what was cut at the token limit is never accepted"""
    path = layout.table("critiques", key)
    critic = checkout.settings(path).critic
    rows = checkout.round_table("critiques", key).join(checkout.round_table("actions", key), on=KEY, maintain_order="left")
    verdict, finished, reached = rows["verdict"], rows["finish_reason"] == "stop", rows["outcome"] == "reached"
    yield from checkout.rows(path, rows.filter(~verdict.is_in(VERDICTS)), f"verdict is none of {', '.join(VERDICTS)}")
    accepted = verdict == "accept"
    yield from checkout.rows(path, rows.filter(accepted & ~finished), "accepted, though the actions were cut")
    if critic.kind == "none":
        said = pl.Series([bool(text.strip()) for text in rows["actions"]], dtype=pl.Boolean)
        yield from checkout.rows(path, rows.filter(~accepted & finished & said), "not accepted, though critic.kind is none")
    if critic.kind == "executor":
        yield from checkout.rows(path, rows.filter(accepted & ~reached), "accepted, though the actions miss the gold answer")
        yield from checkout.rows(
            path, rows.filter(~accepted & finished & reached), "not accepted, though the gold answer was reached"
        )
        if critic.on_failure == "drop":
            yield from checkout.rows(path, rows.filter(verdict == "correct"), "corrected, though critic.on_failure is drop")


@each_round
def corrections(checkout: MoatCheckout, key: str) -> Findings:
    """Corrected actions stand with the verdict correct alone, and reach the gold answer"""
    path, rows = layout.table("critiques", key), checkout.round_table("critiques", key)
    wrong = (rows["verdict"] == "correct") != rows["corrected_actions"].is_not_null()
    yield from checkout.rows(
        path, rows.filter(wrong), "corrected actions without the verdict correct, or the other way round"
    )
    given = joined(checkout, rows.filter(rows["corrected_actions"].is_not_null()))
    missing = given.filter(~reach(checkout, given, "corrected_actions"))
    yield from checkout.rows(path, missing, "corrected actions miss the gold answer")


def fresh(checkout: MoatCheckout, key: str) -> pl.DataFrame:
    """The rows that a round's candidates must give, worked out again from verdicts, actions and plans."""
    rows = (
        checkout.round_table("critiques", key)
        .join(checkout.round_table("actions", key), on=KEY)
        .join(checkout.round_table("subgoals", key).select(*KEY, "subgoals"), on=KEY)
        .join(checkout.table(layout.TRAIN_TASKS), on="task_id")
        .filter(pl.col("verdict").is_in(list(ORIGIN)))
        .with_columns(
            origin=pl.col("verdict").replace_strict(ORIGIN, return_dtype=pl.String),
            round=pl.lit(int(key), dtype=pl.Int32),
            actions=pl.when(pl.col("verdict") == "correct").then("corrected_actions").otherwise("actions"),
        )
        .with_columns(row_id=pl.format("{}/{}/{}/{}", "origin", "round", "task_id", "k"))
        .sort(KEY)
    )
    if checkout.settings(layout.table("sft", key)).mix.dedup:
        rows = rows.unique(["task_id", "subgoals", "actions"], keep="first", maintain_order=True)
    return rows.select("row_id", "origin", "round", "k", *CONTENT)


@each_round
def candidates(checkout: MoatCheckout, key: str) -> Findings:
    """The training set holds accepted and corrected candidates, all of them, and no other"""
    path, pool_path = layout.table("sft", key), layout.table("pool", key)
    made, pool = fresh(checkout, key), checkout.table(pool_path)
    before = checkout.table(layout.table("pool", checkout.params.rounds[key]["prev"]))
    yield from checkout.differences(pool_path, pl.concat([before.select(made.columns), made]), pool, "the verdicts' rows")
    rows = checkout.table(path)
    window = pool if checkout.settings(path).data_window == "all" else made
    yield from checkout.differences(
        path, window.select(made.columns), rows.filter(rows["origin"] != "initial"), "the verdicts' rows"
    )
    for where, frame in ((path, rows), (pool_path, pool)):
        initial = frame["origin"] == "initial"
        unnamed = (initial & (frame["demo_id"].is_null() | frame["k"].is_not_null())) | (
            ~initial & (frame["demo_id"].is_not_null() | frame["k"].is_null())
        )
        yield from checkout.rows(where, frame.filter(unnamed), "demo_id goes with initial rows, k with the others")


@each_round
def initial(checkout: MoatCheckout, key: str) -> Findings:
    """Initial rows are demonstrations, under their own ids, none drawn twice before all were drawn"""
    path, rows = layout.table("sft", key), checkout.round_table("sft", key)
    demos = checkout.table(layout.demos("grounder"))
    drawn = rows.filter(rows["origin"] == "initial")
    named = ["demo_id", *CONTENT]
    other = drawn.join(demos, on=named, how="anti", nulls_equal=True)
    yield from checkout.rows(path, other, f"an initial row is not as in {layout.demos('grounder')}")
    yield from checkout.rows(path, drawn.filter(drawn["round"] != 0), "an initial row is of a round")
    shape = pl.Series([f"initial/{key}/{demo}/" for demo in drawn["demo_id"].fill_null("")], dtype=pl.String)
    odd = [
        not (row.startswith(begin) and row[len(begin) :].isdigit())
        for row, begin in zip(drawn["row_id"], shape, strict=True)
    ]
    yield from checkout.rows(
        path, drawn.filter(pl.Series(odd, dtype=pl.Boolean)), "row_id is not initial/round/demo_id/number"
    )
    times = (
        demos.select("demo_id", "source")
        .join(drawn.group_by("demo_id").len("times"), on="demo_id", how="left")
        .with_columns(pl.col("times").fill_null(0))
    )
    spread = times.with_columns(least=pl.col("times").min().over("source"))
    again = spread.filter(pl.col("times") > pl.col("least") + 1)
    yield from checkout.rows(
        path, drawn.join(again, on="demo_id", how="semi"), "drawn again before every other one was drawn"
    )


@each_round
def ratio(checkout: MoatCheckout, key: str) -> Findings:
    """mix.initial_ratio initial rows for each candidate, per task source"""
    path, rows = layout.table("sft", key), checkout.round_table("sft", key)
    share = checkout.settings(path).mix.initial_ratio
    initial = rows["origin"] == "initial"
    sources = sorted(set(rows["source"]))
    for source in sources:
        own = rows["source"] == source
        given, found = int((own & ~initial).sum()), int((own & initial).sum())
        due = int(given * share + 0.5)
        if found != due:
            yield checkout.fault(
                path, f"{source}: {found:,} initial rows for {given:,} candidates, not {due:,} (mix.initial_ratio {share:g})"
            )

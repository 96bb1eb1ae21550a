"""What Agent-R's actor learns from in a round, and that its models learned from that."""

from __future__ import annotations

import math
from collections import Counter
from contextlib import suppress
from pathlib import Path

import polars as pl

from moat import layout
from moat.agent_r.checkout import ACTOR, DEMOS, GENERAL, AgentCheckout, Row
from moat.agent_r.examples import rendered
from moat.agent_r.mixing import PLAYED, good_row, lessons, shown_row
from moat.agent_r.params import good
from moat.checkout import Absent, Findings, Level, each_round
from moat.checks.cards import card, copied, updates
from moat.examples import OVER_LENGTH

CONTENT = ("origin", "task_id", "environment", "reward", "texts", "supervised")


def due(checkout: AgentCheckout, key: str) -> dict[str, Row]:
    """The rows that a round must learn from but for their length, general conversations left out, by row_id.

    Worked out again from trees and revisions: of each tree the good paths of the highest reward, of these the shortest.
    """
    path = layout.table("sft", key)
    settings, goals = checkout.settings(path), checkout.goals(layout.TRAIN_TASKS)
    found: list[Row] = []
    if settings.mode == "bc":
        found = [shown_row(row) for row in checkout.table(DEMOS).iter_rows(named=True) if row["origin"] in PLAYED]
    else:
        least = 1.0 if settings.mode == "optimal_only" else settings.alpha(key)
        for task, paths in checkout.paths(key).items():
            fine = [one for one in paths if good(one.reward, least) and task in goals]
            fine.sort(key=lambda one: (-one.reward, len(one.turns), one.end))
            found += [good_row(goals[task], one.end, one.turns) for one in fine[: settings.mix.max_good]]
    revisions = checkout.round_table("revisions", key)
    kept = revisions.filter(revisions["dropped"].is_null()).iter_rows(named=True)
    found += lessons(goals, (row for row in kept if row["task_id"] in goals and row["turns"]))  # else told of as a revision
    return {row["row_id"]: row for row in found}


@each_round
def rows(checkout: AgentCheckout, key: str) -> Findings:
    """The training set holds the good paths and the kept revisions, as they are, those over max_length left out"""
    path, table = layout.table("sft", key), checkout.round_table("sft", key)
    expected, general = due(checkout, key), checkout.table(GENERAL)
    chats = {row["row_id"]: shown_row(row) for row in general.iter_rows(named=True)}
    told: list[str | None] = []
    for row in table.iter_rows(named=True):
        known = (chats if row["origin"] == "general" else expected).get(row["row_id"])
        if known is None:
            told.append("neither a good path, nor a kept revision, nor a demonstration or a conversation of its mode")
        else:
            names = [name for name in CONTENT if row[name] != known[name]]
            told.append(f"{', '.join(names)}: not as it was made" if names else None)
    yield from checkout.each(path, table, told)
    made, left = len(expected) + checkout.drawn(path), checkout.facts(path).get("counts", {}).get("dropped", {})
    if made - len(table) != left.get(OVER_LENGTH, 0):
        counted = f"{left.get(OVER_LENGTH, 0):,} were counted as too long"
        yield checkout.fault(path, f"{len(table):,} rows of {made:,} that it must have, though {counted}")


@each_round
def weights(checkout: AgentCheckout, key: str) -> Findings:
    """A supervised token counts its origin's share of the loss over its origin's tokens, so that these sum to the share"""
    path, table = layout.table("sft", key), checkout.round_table("sft", key)
    eta, tokens = checkout.settings(path).mix.eta, Counter[str]()
    for origin, n in table.select("origin", "n_supervised").iter_rows():
        tokens[origin] += n
    told: list[str | None] = []
    for origin, n, weight in table.select("origin", "n_supervised", "weight").iter_rows():
        share = 1.0 if not tokens["general"] else 1 - eta if origin == "general" else eta
        right = n > 0 and math.isclose(weight, share / tokens[origin], rel_tol=1e-9)
        told.append(None if right else f"a token of origin {origin} does not count {share:g} over {tokens[origin]:,} tokens")
    yield from checkout.each(path, table, told)


@each_round
def lengths(checkout: AgentCheckout, key: str) -> Findings:
    """n_supervised are the tokens that are learned from, no row is over max_length, and what is left out is"""
    path, table = layout.table("sft", key), checkout.round_table("sft", key)
    renderer, limit = checkout.renderer(path), checkout.settings(path).max_length
    told: list[str | None] = []
    for texts, supervised, n in table.select("texts", "supervised", "n_supervised").iter_rows():
        one = rendered(renderer, texts, supervised)
        what = f"longer than max_length ({limit})" if len(one) > limit else None
        told.append("n_supervised is not the number of supervised tokens" if sum(one.mask) != n else what)
    yield from checkout.each(path, table, told)
    there = set(table["row_id"])
    fitting = [
        name
        for name, row in due(checkout, key).items()
        if name not in there and len(rendered(renderer, row["texts"], row["supervised"])) <= limit
    ]
    if fitting:
        yield checkout.fault(
            path, f"{len(fitting):,} rows of at most max_length ({limit}) are missing, the first {fitting[0]}"
        )


def trained(checkout: AgentCheckout) -> Findings:
    """An actor was trained on the rows of its table that fit max_length, in the number of updates that they make"""
    checks = {layout.model(ACTOR, "0"): cold_start(checkout)}
    checks |= {layout.model(ACTOR, key): tuned(checkout, key) for key in checkout.rounds}
    there = {model: check for model, check in checks.items() if checkout.facts(model)}
    if not there:
        raise Absent
    for check in there.values():
        with suppress(Absent):
            yield from check


def cold_start(checkout: AgentCheckout) -> Findings:
    """Round 0: the demonstrations, or the base model as it is."""
    model = layout.model(ACTOR, "0")
    settings = checkout.settings(model).cold_start
    if not settings.enabled:
        yield from copied(checkout, model, layout.BASE_MODEL)
        return
    table = checkout.table(DEMOS)
    fits = fitting(checkout, DEMOS, table, model)
    yield from left_out(checkout, DEMOS, table.filter(~fits), model)
    yield from card(checkout, model, "cold_start", "rows", int(fits.sum()), updates(int(fits.sum()), settings))


def tuned(checkout: AgentCheckout, key: str) -> Findings:
    """The actor of a round: its training set."""
    model, path = layout.model(ACTOR, key), layout.table("sft", key)
    table, settings = checkout.table(path), checkout.settings(layout.model(ACTOR, key))
    fits = fitting(checkout, path, table, model)
    yield from left_out(checkout, path, table.filter(~fits), model)
    n = int(fits.sum())
    if not n:
        yield from copied(checkout, model, model.parent / checkout.params.before()[key])
        return
    steps = settings.train.updates or updates(n, settings.train.sft(settings.rounds[key].epochs))
    yield from card(checkout, model, "train", "rows", n, steps)


def fitting(checkout: AgentCheckout, path: Path, table: pl.DataFrame, model: Path) -> pl.Series:
    """Which conversations a model's training takes: those of at most max_length tokens."""
    renderer, limit = checkout.renderer(path), checkout.settings(model).max_length
    sides = table.select("texts", "supervised").iter_rows()
    return pl.Series("fits", [len(rendered(renderer, *both)) <= limit for both in sides], dtype=pl.Boolean)


def left_out(checkout: AgentCheckout, path: Path, table: pl.DataFrame, model: Path) -> Findings:
    """Conversations that a model's training cannot take."""
    limit = checkout.settings(model).max_length
    remedy = f"training leaves them out; raise max_length (now {limit}) if they matter"
    yield from checkout.rows(path, table, f"longer than max_length ({limit})", Level.WARNING, remedy)

"""What needs the tokenizer: token counts, rows over max_length, and how many rows each model was trained on."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any

import polars as pl

from moat import layout
from moat.checkout import Absent, Findings, Level, each_round
from moat.checks.candidates import KEY, joined
from moat.checks.cards import card, unchanged, updates
from moat.examples import OVER_LENGTH, gold_example
from moat.moat_checkout import MoatCheckout
from moat.tokens import Renderer, Role
from moat.tools.docs import DOCS
from moat.turns import history, subgoal_of


def length(renderer: Renderer, role: Role, row: dict[str, Any], answer: str) -> int:
    """Tokens of prompt and answer as the role is trained on them; 0 for what cannot be rendered (reported elsewhere)."""
    if not row[answer].strip() or (role is Role.GROUNDER and row["domain"] not in DOCS):
        return 0
    if role is Role.GROUNDER and row["turn"] is not None and subgoal_of(row["subgoals"]) is None:
        return 0
    if role is Role.PLANNER:
        return len(renderer.planner_example(row["text"], row[answer], history(row)))
    return len(gold_example(renderer, row, answer))


def fitting(
    checkout: MoatCheckout, path: Path, role: Role, rows: pl.DataFrame, answers: Iterable[str], model: Path
) -> pl.Series:
    """Which rows a model's training takes: those of at most max_length tokens, whichever of `answers` completes them."""
    renderer, limit = checkout.renderer(path), checkout.settings(model).max_length
    fits = [
        all(0 < length(renderer, role, row, answer) <= limit for answer in answers) for row in rows.iter_rows(named=True)
    ]
    return pl.Series("fits", fits, dtype=pl.Boolean)


@each_round
def scored(checkout: MoatCheckout, key: str) -> Findings:
    """n_action_tokens are the gold actions' tokens; the candidates left without a score are those over max_length"""
    path, rows = layout.table("scores", key), checkout.round_table("scores", key)
    settings, renderer = checkout.settings(path), checkout.renderer(path)
    candidates = checkout.round_table("subgoals", key)
    usable = joined(checkout, candidates.filter(candidates["dropped"].is_null()))
    tokens = {
        task: len(renderer.completion(actions)) - (not settings.score.include_end)
        for task, actions in checkout.table(layout.TRAIN_TASKS).select("task_id", "gold_actions").iter_rows()
        if actions.strip()
    }
    wrong = [tokens.get(task) != n for task, n in rows.select("task_id", "n_action_tokens").iter_rows()]
    yield from checkout.rows(
        path,
        rows.filter(pl.Series(wrong, dtype=pl.Boolean)),
        "n_action_tokens is not the number of the gold actions' tokens",
    )
    fits = fitting(checkout, path, Role.GROUNDER, usable, ["gold_actions"], path)
    over = rows.join(usable.filter(~fits), on=KEY, how="semi")
    yield from checkout.rows(path, over, f"scored, though longer than max_length ({settings.max_length})")
    counted = checkout.facts(path).get("counts", {}).get("dropped", {}).get(OVER_LENGTH, 0)
    if counted != int((~fits).sum()):
        yield checkout.fault(
            path, f"{int((~fits).sum())} candidates are longer than max_length, {counted} were counted as such"
        )


def trained(checkout: MoatCheckout) -> Findings:
    """A model was trained on the rows of its table that fit max_length, in the number of updates that they make"""
    checks = {layout.model(role, "0"): cold_start(checkout, role) for role in Role}
    checks |= {layout.model("planner", key): aligned(checkout, key) for key in checkout.rounds}
    checks |= {layout.model("grounder", key): tuned(checkout, key) for key in checkout.rounds}
    there = {model: check for model, check in checks.items() if checkout.facts(model)}
    if not there:
        raise Absent
    for check in there.values():
        with suppress(Absent):
            yield from check


def cold_start(checkout: MoatCheckout, role: Role) -> Findings:
    """Round 0: the role's demonstrations."""
    model, path = layout.model(role, "0"), layout.demos(role)
    rows = checkout.table(path)
    answer = "subgoals" if role is Role.PLANNER else "actions"
    fits = fitting(checkout, path, role, rows, [answer], model)
    yield from left_out(checkout, path, rows.filter(~fits), [answer], model)
    n = int(fits.sum())
    yield from card(checkout, model, "cold_start", "rows", n, updates(n, checkout.settings(model).cold_start[role.value]))


def aligned(checkout: MoatCheckout, key: str) -> Findings:
    """The planner of a round: its pairs, or its demonstrations under `mode: independent`."""
    model, path = layout.model("planner", key), layout.table("pairs", key)
    pairs, settings = checkout.table(path), checkout.settings(layout.model("planner", key))
    kept = pairs.filter(pairs["dropped"].is_null()).join(
        checkout.table(layout.TRAIN_TASKS).select("task_id", "text", "turn", "turns"), on="task_id", maintain_order="left"
    )
    fits = fitting(checkout, path, Role.PLANNER, kept, ["chosen", "rejected"], model)
    yield from left_out(checkout, path, kept.filter(~fits), ["chosen", "rejected"], model)
    n = int(fits.sum())
    if not settings.align.enabled or not n:
        yield from unchanged(checkout, model, key)
    elif settings.mode == "independent":
        yield from independent(checkout, model, "align_planner", Role.PLANNER, updates(n, settings.align))
    else:
        named = "rows" if settings.align.loss == "sft_chosen" else "pairs"
        yield from card(checkout, model, "align_planner", named, n, updates(n, settings.align))


def tuned(checkout: MoatCheckout, key: str) -> Findings:
    """The grounder of a round: its training set, or its demonstrations under `mode: independent`."""
    model, path = layout.model("grounder", key), layout.table("sft", key)
    rows, settings = checkout.table(path), checkout.settings(layout.model("grounder", key))
    fits = fitting(checkout, path, Role.GROUNDER, rows, ["actions"], model)
    yield from left_out(checkout, path, rows.filter(~fits), ["actions"], model)
    n = int(fits.sum())
    if not settings.train_grounder.enabled or not n:
        yield from unchanged(checkout, model, key)
    elif settings.mode == "independent":
        yield from independent(checkout, model, "train_grounder", Role.GROUNDER, updates(n, settings.train_grounder))
    else:
        yield from card(checkout, model, "train_grounder", "rows", n, updates(n, settings.train_grounder))


def independent(checkout: MoatCheckout, model: Path, stage: str, role: Role, joint: int) -> Findings:
    """A role that goes on with its own demonstrations, for a multiple of the joint run's updates."""
    path, settings = layout.demos(role), checkout.settings(model)
    answer = "subgoals" if role is Role.PLANNER else "actions"
    n = int(fitting(checkout, path, role, checkout.table(path), [answer], model).sum())
    yield from card(checkout, model, stage, "rows", n, joint * settings.independent.factor)


def left_out(checkout: MoatCheckout, path: Path, rows: pl.DataFrame, answers: list[str], model: Path) -> Findings:
    """Rows that a model's training cannot take: `answers` names the columns that hold what is to be answered."""
    limit = checkout.settings(model).max_length
    blank = pl.Series([not all(text.strip() for text in row) for row in rows.select(answers).iter_rows()], dtype=pl.Boolean)
    yield from checkout.rows(path, rows.filter(blank), "an empty answer, from which nothing can be learned", Level.WARNING)
    remedy = f"training leaves them out; raise max_length (now {limit}) if they matter"
    yield from checkout.rows(path, rows.filter(~blank), f"longer than max_length ({limit})", Level.WARNING, remedy)

"""A round's judgements and revisions, worked out again from the trees; who judged a step is not asked again."""

from __future__ import annotations

from collections.abc import Sequence

import polars as pl

from moat import layout
from moat.agent_r.checkout import REVISING, AgentCheckout, Row
from moat.agent_r.judges import Label, by_tree
from moat.agent_r.losses import LOST
from moat.agent_r.params import AgentParams, good
from moat.agent_r.paths import Pair, apart, pairs
from moat.agent_r.play import Turn
from moat.agent_r.splicing import (
    NOT_BETTER,
    NOT_GOOD,
    continuation,
    first_bad,
    textual,
    turning_point,
)
from moat.agent_r.turns import Kind, reflection
from moat.checkout import Findings, each_round

PAIR = ["task_id", "bad", "good"]
LABELS = [label.value for label in Label]


def pairs_of(checkout: AgentCheckout, key: str) -> dict[tuple[str, int, int], Pair]:
    """The pairs of a round's trees that must be revised, by task and last nodes. Raises Absent."""
    settings, trees = checkout.settings(layout.table("revisions", key)), checkout.round_table("trees", key)
    if settings.mode not in REVISING:
        return {}
    used = set(trees.filter(trees["dropped"].is_null())["task_id"])
    return {
        (task, pair.bad.end, pair.good.end): pair
        for task, paths in checkout.paths(key).items()
        if task in used
        for pair in pairs(paths, settings.alpha(key), settings.pairs).pairs
    }


@each_round
def judged(checkout: AgentCheckout, key: str) -> Findings:
    """Every step of each bad path of a pair is judged once, as its node is; without a judge none is"""
    path, rows = layout.table("judgements", key), checkout.round_table("judgements", key)
    paths = {(task, bad): pair.bad for (task, bad, _), pair in pairs_of(checkout, key).items()}
    steps = [
        (task, bad, number, one.nodes[number], turn.refused)
        for (task, bad), one in (paths.items() if checkout.settings(path).mode == "agent_r" else ())
        for number, turn in enumerate(one.turns)
    ]
    expected = pl.DataFrame(steps, rows.select("task_id", "bad", "turn", "node", "refused").schema, orient="row")
    yield from checkout.differences(path, expected, rows, "the steps of the bad paths")


@each_round
def labels(checkout: AgentCheckout, key: str) -> Findings:
    """Labels are good, bad, uncertain or unparsed; reasons are a writing judge's; `tree` is what the search tree says"""
    path, rows = layout.table("judgements", key), checkout.round_table("judgements", key)
    kind = checkout.settings(path).judge.kind
    trees = {task: by_tree(own) for task, own in checkout.trees(key).items()}
    told: list[str | None] = []
    for row in rows.iter_rows(named=True):
        what = None
        if row["label"] not in LABELS:
            what = f"label is none of {', '.join(LABELS)}"
        elif kind != "actor" and row["reasons"]:
            what = f"reasons of a judge of kind {kind}, which writes none"
        elif row["task_id"] in trees and row["tree"] != trees[row["task_id"]].get(row["node"]):
            what = "tree is not what the search tree says of the node"
        elif kind == "tree" and row["label"] != row["tree"]:
            what = "label is not the tree's, though judge.kind is tree"
        told.append(what)
    yield from checkout.each(path, rows, told)


@each_round
def paired(checkout: AgentCheckout, key: str) -> Findings:
    """Every pair of a bad and a good path that alpha, beta and the cap leave is there, and no other"""
    path, rows = layout.table("revisions", key), checkout.round_table("revisions", key)
    goals = checkout.goals(layout.TRAIN_TASKS)
    columns = [*PAIR, "environment", "shared", "n_bad", "bad_reward", "good_reward"]
    due = [
        (
            *name,
            goals.get(name[0], {}).get("environment"),
            pair.shared,
            len(pair.bad.turns),
            pair.bad.reward,
            pair.good.reward,
        )
        for name, pair in pairs_of(checkout, key).items()
    ]
    expected = pl.DataFrame(due, rows.select(columns).schema, orient="row")
    yield from checkout.differences(path, expected, rows, "the pairs of the trees")


def labels_of(checkout: AgentCheckout, key: str) -> dict[tuple[str, int], list[Label]]:
    """The labels of each judged bad path, in order; paths with one that is none are left out, as they are told of."""
    found: dict[tuple[str, int], list[str]] = {}
    table = checkout.round_table("judgements", key).sort("task_id", "bad", "turn")
    for task, bad, label in table.select("task_id", "bad", "label").iter_rows():
        found.setdefault((task, bad), []).append(label)
    return {name: [Label(one) for one in own] for name, own in found.items() if set(own) <= set(LABELS)}


@each_round
def turned(checkout: AgentCheckout, key: str) -> Findings:
    """A bad path turns at its first bad step after the common history, of which first_bad and revision_length tell"""
    path, rows = layout.table("revisions", key), checkout.round_table("revisions", key)
    settings, known = checkout.settings(path), pairs_of(checkout, key)
    judgements = labels_of(checkout, key) if settings.mode == "agent_r" else {}
    told: list[str | None] = []
    for row in rows.iter_rows(named=True):
        pair = known.get((row["task_id"], row["bad"], row["good"]))
        own = judgements.get((row["task_id"], row["bad"])) if settings.mode == "agent_r" else None
        if pair is None or (settings.mode == "agent_r" and (own is None or len(own) != len(pair.bad.turns))):
            told.append(None)  # no pair, or not judged: told elsewhere
            continue
        told.append(turned_wrong(row, pair, own, settings))
    yield from checkout.each(path, rows, told)


def turned_wrong(row: Row, pair: Pair, own: Sequence[Label] | None, settings: AgentParams) -> str | None:
    """What is wrong with a row's places."""
    first = None if own is None else first_bad(own)
    if (row["first_bad"], row["revision_length"]) != (first, None if first is None else first + 1):
        return "first_bad or revision_length is not where the judgements have the first bad step"
    turn = turning_point(pair, own, settings.judge.no_turn == "end", settings.splice.replay == "required")
    if isinstance(turn, str) or row["dropped"] in LOST:
        if (row["turn"], row["reflection"], row["turns"]) != (None, None, []):
            return "it is spliced, though it has no turning point or was lost to its environment"
        return None if row["dropped"] in LOST or row["dropped"] == turn else f"it is not dropped as {turn!r}"
    if row["turn"] is not None and row["turn"] < row["shared"]:
        return "its turning point lies in the common history"
    return None if (row["turn"], row["reflection"]) == (turn, turn + 1) else "turn or reflection is at another place"


@each_round
def spliced(checkout: AgentCheckout, key: str) -> Findings:
    """A splice is the bad path up to its turn, the reflection that its seed draws, and then what the good path says"""
    path, rows = layout.table("revisions", key), checkout.round_table("revisions", key)
    settings, known = checkout.settings(path), pairs_of(checkout, key)
    told: list[str | None] = []
    for row in rows.iter_rows(named=True):
        pair = known.get((row["task_id"], row["bad"], row["good"]))
        if pair is None or row["turn"] is None:
            told.append("it has turns, and no turning point" if row["turns"] and row["turn"] is None else None)
            continue
        text = reflection(settings.seed, key, row["task_id"], row["bad"], row["good"])
        told.append(spliced_wrong(row, pair, text, settings.splice.replay == "required"))
    yield from checkout.each(path, rows, told)


def spliced_wrong(row: Row, pair: Pair, text: str, required: bool) -> str | None:
    """What is wrong with the turns of a splice."""
    turns, place = [Turn.of(turn) for turn in row["turns"]], row["reflection"]
    if row["replayed"] is not required:
        return f"replayed is not as splice.replay says ({'required' if required else 'off'})"
    if place is None or not 0 <= place < len(turns) or (turns[place].kind, turns[place].text) != (Kind.REFLECTION, text):
        return "the reflection that the seed draws is not where reflection says"
    if turns[:place] != list(pair.bad.turns[: row["turn"] + 1]):
        return "its first turns are not those of the bad path"
    if not required:
        return None if turns == list(textual(pair, row["turn"], text).turns) else "it is not the good path's record"
    said = [turn.text for turn in continuation(pair)]
    found = [turn.text for turn in turns[place + 1 :]]
    if found != said[: len(found)] or (len(found) < len(said) and not turns[-1].terminal):
        return "after the reflection it does not say what the good path says"
    return None


@each_round
def kept(checkout: AgentCheckout, key: str) -> Findings:
    """A replayed splice is kept when alpha and beta let it, with the reward that it came to; others are kept as they are"""
    path, rows = layout.table("revisions", key), checkout.round_table("revisions", key)
    settings = checkout.settings(path)
    alpha, beta, rule = settings.alpha(key), settings.pairs.beta, settings.pairs.beta_rule
    told: list[str | None] = []
    for row in rows.iter_rows(named=True):
        what, due = None, row["dropped"]
        if bool(row["message"]) != (row["dropped"] is not None):
            what = "message does not say whether it was dropped"
        elif not row["replayed"]:
            if row["reward"] != row["good_reward"]:
                what = "it was not replayed, and its reward is not the good path's"
            elif row["dropped"] in (NOT_GOOD, NOT_BETTER) or (row["turn"] is not None and row["dropped"] is not None):
                what = "it was not replayed, and is dropped for what it came to"
        elif not row["turns"] or row["reward"] != row["turns"][-1]["reward"]:
            what = "its reward is not that of its last turn"
        else:
            due = None if good(row["reward"], alpha) else NOT_GOOD
            if due is None and not apart(row["bad_reward"], row["reward"], beta, rule):
                due = NOT_BETTER
            if row["dropped"] != due:
                what = f"by alpha {alpha:g} and beta {beta:g} it is {'kept' if due is None else f'dropped as {due!r}'}"
        told.append(what)
    yield from checkout.each(path, rows, told)

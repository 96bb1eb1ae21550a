"""Where recoveries begin, and what the actor of every round did from the start and from there."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from moat import layout
from moat.agent_r.checkout import AgentCheckout, Row
from moat.agent_r.rollouts import LENGTH, TERMINAL, TURNS
from moat.agent_r.turns import Kind
from moat.checkout import Absent, Findings
from moat.checks.agent_tasks import of_tasks

CUT = re.compile("(.+)#([0-9]+)#([0-9]+)")


def cuts(checkout: AgentCheckout) -> Findings:
    """A cut keeps some turns of a failed trajectory of an evaluation task, none of which ended it, and is named after it"""
    path, rows = layout.RECOVERY, checkout.table(layout.RECOVERY)
    settings = checkout.settings(path)
    yield from of_tasks(checkout, path, layout.EVAL_TASKS)
    attempts: Counter[tuple[str, str]] = Counter()
    told: list[str | None] = []
    for row in rows.iter_rows(named=True):
        named, turns, what = CUT.fullmatch(row["cut_id"]), row["turns"], None
        if named is None or named[1] != row["task_id"] or int(named[2]) >= settings.recovery.attempts:
            what = "cut_id is not TASK#ATTEMPT#CUT"
        elif int(named[3]) != len(turns) or not 1 <= len(turns) <= row["n_failed"] <= settings.evaluate.max_turns:
            what = "it does not keep as many turns as cut_id says, or more than there were"
        elif any(turn["terminal"] for turn in turns):
            what = "it keeps the turn that ended the episode"
        else:
            attempts[named[1], named[2]] += 1
            if attempts[named[1], named[2]] > settings.recovery.cuts:
                what = f"more cuts of one trajectory than recovery.cuts ({settings.recovery.cuts})"
        told.append(what)
    yield from checkout.each(path, rows, told)


def from_the_start(checkout: AgentCheckout) -> Findings:
    """Every round's actor plays each evaluation task once from the start, and no other"""
    yield from begun(checkout, layout.EVAL_TASKS, [layout.evals(key) for key in checkout.evaluated])


def from_cuts(checkout: AgentCheckout) -> Findings:
    """Every round's actor goes on from each cut once, after the turns that it keeps"""
    yield from begun(checkout, layout.RECOVERY, [layout.recoveries(key) for key in checkout.evaluated])


def begun(checkout: AgentCheckout, source: Path, paths: Sequence[Path]) -> Findings:
    """Plays against where they begin: the rows of `source`, by its key."""
    looked = False
    (name,) = checkout.schemas[source].key
    starts = {row[name]: row for row in checkout.table(source).iter_rows(named=True)}
    for path in paths:
        try:
            rows = checkout.table(path)
        except Absent:
            continue
        looked = True
        with suppress(Absent):
            yield from of_tasks(checkout, path, layout.EVAL_TASKS)
        told = []
        for row in rows.iter_rows(named=True):
            start = starts.get(row["play_id"])
            right = start is not None and (row["task_id"], row["given"]) == (start["task_id"], len(start.get("turns", ())))
            told.append(None if right else f"it does not begin as a row of {source}")
        yield from checkout.each(path, rows, told)
        if lacking := sorted(set(starts) - set(rows["play_id"])):
            yield checkout.fault(path, f"{len(lacking):,} rows of {source} are not played, the first {lacking[0]}")
    if not looked:
        raise Absent


def played(checkout: AgentCheckout) -> Findings:
    """Counts, rewards and the end of a play are those of its turns, which are no more than the limit"""
    looked = False
    for key in checkout.evaluated:
        for path in (layout.evals(key), layout.recoveries(key)):
            try:
                rows, given = checkout.table(path), checkout.cuts if path == layout.recoveries(key) else {}
            except Absent:
                continue
            looked, settings = True, checkout.settings(path)
            limit = (settings.evaluate if path == layout.evals(key) else settings.recovery).max_turns
            told = [counted(row, given.get(row["play_id"], []), limit) for row in rows.iter_rows(named=True)]
            yield from checkout.each(path, rows, told)
    if not looked:
        raise Absent


def counted(row: Row, given: Sequence[Row], limit: int) -> str | None:
    """What is wrong with the figures of a play, after the turns that were given."""
    turns, kinds = row["turns"], Counter(turn["kind"] for turn in row["turns"])
    figures = {
        "n_turns": len(turns),
        "n_reflections": kinds[Kind.REFLECTION],
        "n_invalid": kinds[Kind.UNREADABLE] + sum(turn["refused"] for turn in turns),
        "n_repeated": sum(turn["repeated"] for turn in turns),
        "success": row["reward"] >= 1,
    }
    if other := [name for name, due in figures.items() if row[name] != due]:
        return f"{', '.join(other)}: not as its turns and its reward say"
    if len(turns) > limit:
        return f"more turns than the limit ({limit})"
    last = turns[-1] if turns else given[-1] if given else None
    scores = (last["reward_raw"], last["reward"]) if last else (0.0, 0.0)
    if (row["reward_raw"], row["reward"]) != scores:
        return "its reward is not that of its last turn"
    if bool(row["message"]) != (row["dropped"] is not None):
        return "message does not say whether it was dropped"
    if row["dropped"] is not None:
        return None if row["ended"] == row["dropped"] else "ended is not why it was dropped"
    terminal = last is not None and last["terminal"]
    due = (TERMINAL,) if terminal else (TURNS,) if len(turns) == limit else (LENGTH,)
    return None if row["ended"] in due else f"ended is {row['ended']!r}, and not {due[0]!r}"

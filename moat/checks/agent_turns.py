"""The turns of every table: read by one rule, and answered by TextCraft as they were."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path

from moat import layout
from moat.agent_r.checkout import AgentCheckout, Row
from moat.agent_r.play import Play, Turn
from moat.agent_r.turns import Kind, read
from moat.checkout import Absent, Findings
from moat.environments.base import Environment, EpisodeError
from moat.react import Several


def read_alike(checkout: AgentCheckout) -> Findings:
    """Every turn is read as what it is, what is no action takes no step, and nothing follows the end of an episode"""
    looked = False
    for path, several in recorded(checkout):
        rows = checkout.table(path)
        told: list[str | None] = []
        for row in rows.iter_rows(named=True):
            given = [Turn.of(turn) for turn in given_to(checkout, path, row)]
            told.append(misread(given, [Turn.of(turn) for turn in row["turns"]], several))
        looked = True
        yield from checkout.each(path, rows, told)
    for key in checkout.rounds:
        with suppress(Absent):
            path, trees = layout.table("nodes", key), checkout.trees(key)
            rows, several = checkout.table(path), Several(checkout.settings(path).several)
            found = {(task, number): what for task, own in trees.items() for number, what in of_nodes(own, several)}
            looked = True
            yield from checkout.each(path, rows, [found.get(name) for name in rows.select("task_id", "node").iter_rows()])
    if not looked:
        raise Absent


def recorded(checkout: AgentCheckout) -> Iterator[tuple[Path, Several]]:
    """The tables that hold turns, with how several actions of a turn were read; recoveries where their cuts are there."""
    paths = [layout.RECOVERY, *(layout.table("revisions", key) for key in checkout.rounds)]
    paths += [of(key) for of in (layout.evals, layout.recoveries) for key in checkout.evaluated]
    for path in paths:
        with suppress(Absent):
            checkout.table(layout.RECOVERY if path == layout.recoveries(path.stem) else path)
            checkout.table(path)
            yield path, Several(checkout.settings(path).several)


def given_to(checkout: AgentCheckout, path: Path, row: Row) -> list[Row]:
    """The turns that came before those of a row: a recovery's cut's."""
    return checkout.cuts.get(row["play_id"], []) if path == layout.recoveries(path.stem) else []


def misread(given: Sequence[Turn], turns: Sequence[Turn], several: Several) -> str | None:
    """What is wrong with turns, read one after the other; those given were read elsewhere."""
    before = given[-1] if given else None
    for turn in turns:
        if before is not None and before.terminal:
            return "a turn follows the end of the episode"
        if (what := wrong(before, turn, several)) is not None:
            return what
        before = turn
    return None


def of_nodes(rows: Sequence[Row], several: Several) -> Iterator[tuple[int, str | None]]:
    """By number what is wrong with the turns of a tree's nodes."""
    turns = [Turn.of(row) for row in rows]
    for row in rows:
        if (parent := row["parent"]) is not None:
            yield row["node"], wrong(turns[parent] if parent else None, turns[row["node"]], several)


def wrong(before: Turn | None, turn: Turn, several: Several) -> str | None:
    """What is wrong with a turn after another, None: the first."""
    said = read(turn.text, several, Kind(before.kind) if before is not None and before.kind in list(Kind) else None)
    if (turn.kind, turn.action) != (said.kind, said.action or ""):
        return "a turn is not read as what its text says"
    if not 0 <= turn.reward <= 1:
        return "a reward is not from 0 to 1"
    if said.action is None:
        scores = (before.reward_raw, before.reward) if before is not None else (0.0, 0.0)
        stayed = (said.answer, *scores, False, False, False)
        if stayed != (turn.observation, turn.reward_raw, turn.reward, turn.terminal, turn.refused, turn.repeated):
            return "a turn without an action is answered, scored or marked as if it had one"
    return None


def played_again(checkout: AgentCheckout) -> Findings:
    """TextCraft answers every recorded path, cut, splice and play as it did, turn by turn"""
    looked = False
    for path, several in recorded(checkout):
        tasks = layout.TRAIN_TASKS if path.stem == "revisions" else layout.EVAL_TASKS
        rows, told = checkout.table(path), list[str | None]()
        for row in rows.iter_rows(named=True):
            world = checkout.world(tasks, row["environment"])
            looked |= world is not None
            if world is None or (path.stem == "revisions" and not row["replayed"]):
                told.append(None)
                continue
            turns = [Turn.of(turn) for turn in (*given_to(checkout, path, row), *row["turns"])]
            told.append(other(world, several, row["task_id"], turns))
        yield from grouped(checkout, path, told)
    for key in checkout.rounds:
        with suppress(Absent):
            path, goals = layout.table("nodes", key), checkout.goals(layout.TRAIN_TASKS)
            several, found = Several(checkout.settings(path).several), dict[tuple[str, int], str | None]()
            for task, paths in checkout.paths(key).items():
                world = checkout.world(layout.TRAIN_TASKS, goals[task]["environment"]) if task in goals else None
                looked |= world is not None
                for one in paths if world is not None else ():
                    assert world is not None
                    found[task, one.end] = other(world, several, task, one.turns)
            names = checkout.table(path).select("task_id", "node").iter_rows()
            yield from grouped(checkout, path, [found.get(name) for name in names])
    if not looked:
        raise Absent


def other(environment: Environment, several: Several, task: str, turns: Sequence[Turn]) -> str | None:
    """How turns that are taken again are another; their first observation is looked at elsewhere."""
    try:
        with Play(environment, several, sys.maxsize) as play:
            play.bring_back(task, play.begin(task), turns)
            return None if play.turns == list(turns) else f"{task}: what is refused or repeated is another"
    except (EpisodeError, ValueError) as error:
        return str(error)


def grouped(checkout: AgentCheckout, path: Path, told: Sequence[str | None]) -> Findings:
    """One finding for all rows that are answered differently, with what is different in the first."""
    rows, first = checkout.table(path), next((what for what in told if what is not None), "")
    yield from checkout.each(path, rows, [f"played again, it is another ({first})" if what else None for what in told])

"""What Agent-R's actor is shown before any search, and what in it is learned from."""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import compress

from moat import layout
from moat.agent_r.checkout import DEMOS, GENERAL, AgentCheckout, Row
from moat.agent_r.demonstrations import gold_row, played
from moat.agent_r.judges import QUESTION, SAID, judge_texts, label_text
from moat.agent_r.mixing import PLAYED
from moat.agent_r.turns import read
from moat.checkout import Absent, Findings
from moat.environments.base import EpisodeError
from moat.react import Several

LABELS = {label_text(label) for label in SAID}
SLIP = re.compile(r"slip/(.+)/([0-9]+)")
JUDGED = re.compile(r"judged/(.+)/([0-9]+)")


def supervised(checkout: AgentCheckout) -> Findings:
    """In demonstrations and training sets the actor's side alone is learned from, and something of it is"""
    looked = False
    for path in (DEMOS, GENERAL, *(layout.table("sft", key) for key in checkout.rounds)):
        try:
            rows = checkout.table(path)
        except Absent:
            continue
        looked = True
        yield from checkout.each(path, rows, [mask(*row) for row in rows.select("texts", "supervised").iter_rows()])
    if not looked:
        raise Absent


def mask(texts: Sequence[str], learned: Sequence[bool]) -> str | None:
    """What is wrong with what is learned from a conversation."""
    if len(texts) != len(learned) or not texts or len(texts) % 2:
        return "its texts are not in turns of two sides, each with its mark whether it is learned from"
    if any(learned[::2]):
        return "what the environment's side says is learned from"
    return None if any(learned) else "nothing of it is learned from"


def shown(checkout: AgentCheckout) -> Findings:
    """Every demonstrated task is shown by its gold actions, also with slips; a judged step of it has one label"""
    rows, goals = checkout.table(DEMOS), checkout.goals(layout.TRAIN_TASKS)
    demonstrated = {task: goal for task, goal in goals.items() if goal["demonstrated"]}
    settings = checkout.settings(DEMOS)
    told: list[str | None] = []
    for row in rows.iter_rows(named=True):
        goal = demonstrated.get(row["task_id"])
        if row["origin"] == "repeated":
            told.append(as_repeated(row))
        elif goal is None:
            told.append("its task is no demonstrated one")
        elif row["environment"] != goal["environment"]:
            told.append("its environment is not its task's")
        elif row["origin"] in PLAYED:
            told.append(as_played(checkout, row, goal, settings.cold_start.slips))
        else:
            told.append(as_judged(row, goal, settings.cold_start.judged))
    yield from checkout.each(DEMOS, rows, told)
    lacking = sorted(set(demonstrated) - set(rows.filter(origin="gold")["task_id"]))
    if lacking:
        yield checkout.fault(DEMOS, f"{len(lacking):,} demonstrated tasks are not shown, the first {lacking[0]}")


def as_played(checkout: AgentCheckout, row: Row, goal: Row, slips: int) -> str | None:
    """What is wrong with a gold trajectory, or with one that has a slip."""
    texts, number = row["texts"], None
    if row["origin"] == "gold" and row["row_id"] != f"gold/{goal['task_id']}":
        return "row_id is not gold/TASK"
    if row["origin"] == "slip":
        named = SLIP.fullmatch(row["row_id"])
        if not named or named[1] != row["task_id"] or int(named[2]) >= slips:
            return "row_id is not slip/TASK/NUMBER, or its number is too high"
        number = int(named[2])
    if texts[:1] != [goal["instruction"] + goal["first"]]:
        return "it does not begin with its task's instruction and first observation"
    said = [read(text, Several.LAST, None).action for text in texts[1::2]]
    learned = list(compress(said, row["supervised"][1::2]))
    if learned != goal["gold"] or len(said) - len(learned) != (number is not None):
        return "what is learned from is not its task's gold actions"
    world = checkout.world(layout.TRAIN_TASKS, goal["environment"])
    if world is None:
        return None
    try:
        first, turns = played(world, goal["task_id"], [action or "" for action in said])
    except EpisodeError:
        return "the environment has no such task"
    again = gold_row(goal["environment"], goal["instruction"], first, turns, goal["task_id"])
    if number is not None:
        again |= {name: row[name] for name in ("row_id", "origin", "supervised")}
        if turns[-1].reward < 1:
            return "played again, it does not solve its task"
    return None if again == row else "played again, its actions are answered otherwise"


def as_repeated(row: Row) -> str | None:
    """What is wrong with a text to be repeated."""
    own = (row["task_id"], row["environment"]) == (None, "general") and row["row_id"].startswith("repeated/")
    return None if own and len(set(row["texts"])) == 1 and len(row["texts"]) == 2 else "it is no text that is said again"


def as_judged(row: Row, goal: Row, count: int) -> str | None:
    """What is wrong with a judged step."""
    named = JUDGED.fullmatch(row["row_id"])
    if row["origin"] != "judged" or not named or named[1] != row["task_id"] or int(named[2]) >= count:
        return "none of gold, slip, judged and repeated, or not under such a row_id"
    asked, said = row["texts"] if len(row["texts"]) == 2 else ("", "")
    told = judge_texts(goal["instruction"], goal["first"], []).removesuffix(QUESTION)
    right = asked.startswith(told) and asked.endswith(QUESTION) and said in LABELS
    return None if right else "it is no question about a step of its task, answered with one label"


def general(checkout: AgentCheckout) -> Findings:
    """General conversations are of no task, and every turn of their second side is learned from"""
    rows = checkout.table(GENERAL)
    told = [
        None
        if (row["origin"], row["task_id"], row["environment"]) == ("general", None, "general")
        and row["row_id"].startswith("general/")
        and row["supervised"] == [bool(place % 2) for place in range(len(row["texts"]))]
        else "it is not as a general conversation is"
        for row in rows.iter_rows(named=True)
    ]
    yield from checkout.each(GENERAL, rows, told)

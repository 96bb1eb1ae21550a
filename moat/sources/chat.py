"""Conversations: chat rows (`messages` of role and content) and ShareGPT rows (`conversations` of from and value).

| chat's role | ShareGPT's from | read as |
| --- | --- | --- |
| `user` | `human`, `user` | the task, the first time; then results fed back, which the executor works out anew |
| `assistant` | `gpt`, `assistant`, `chatgpt`, `bing`, `bard` | a plan if it begins with `Subgoal 1:` or so, else actions |
| `planner`, `grounder` | the same | a plan; actions |
| `system`, `tool` | `system`, `tool`, `observation`, `function_call` | nothing |

A plan of several subgoals, then all actions, is a task answered at once; a subgoal and its actions by turns is one answered
step by step. Other fields of the row are the columns of `moat.sources.columns` but text, subgoals and actions; so the gold
answer, without which a row can only be demonstrated, is the row's field `gold_answer`, and fields of no such name are
an error. `id` is allowed and ignored.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

from moat.actions import ActionSyntaxError, parse
from moat.sources import columns
from moat.sources.base import Dropped, Imported, SourceError
from moat.sources.fields import MALFORMED, Unusable, items, mapping, text

NEITHER = "an assistant's message is neither a plan nor actions"
NO_TASK = "no user's message"
OUT_OF_TURN = "plans and actions do not alternate"

USER, ASSISTANT, PLANNER, GROUNDER, OTHER = "user", "assistant", "planner", "grounder", "other"
ROLES: Mapping[str, str] = {
    "user": USER,
    "human": USER,
    "assistant": ASSISTANT,
    "gpt": ASSISTANT,
    "chatgpt": ASSISTANT,
    "bing": ASSISTANT,
    "bard": ASSISTANT,
    "planner": PLANNER,
    "grounder": GROUNDER,
    "system": OTHER,
    "tool": OTHER,
    "observation": OTHER,
    "function_call": OTHER,
}
"""What a message's sender is read as."""

_PLAN = re.compile(r"(?:No, I will keep planning\.\s*)?(?=Subgoal [0-9]+:)")
_STOP = re.compile(r"Yes, I will stop planning\.?")
_TAKEN = {"text", "subgoals", "actions"}


def read(rows: Iterable[tuple[int, Any]], domain: str = "", metric: str = "") -> Imported:
    """Records of conversations of either kind. Raises SourceError for a field that has no meaning here."""
    for number, row in rows:
        try:
            row = {name: value for name, value in mapping(row).items() if value is not None}
            known = {"id", "messages", "conversations", *columns.COLUMNS} - _TAKEN
            if unknown := row.keys() - known:
                raise SourceError(
                    f"row {number}: unknown fields {', '.join(sorted(unknown))}: rename them, or take them out"
                )
            told = _conversation(row)
            fields = {name: value for name, value in row.items() if name in columns.COLUMNS}
            yield columns.record(number, fields | told, domain, metric)
        except Unusable as error:
            yield Dropped(number, error.reason, error.detail)


def _conversation(row: Mapping[str, Any]) -> dict[str, Any]:
    """The columns text, subgoals and actions of a conversation."""
    role, said = ("role", "content") if "messages" in row else ("from", "value")
    task = ""
    plans: list[list[str]] = []
    actions: list[str] = []
    for message in items(row, "messages" if "messages" in row else "conversations"):
        message = mapping(message, "a message")
        sender = ROLES.get(text(message, role).casefold())
        if sender is None:
            raise Unusable(MALFORMED, f"the role {message[role]!r} is not one of {', '.join(ROLES)}")
        if sender == OTHER or (sender == USER and task):
            continue
        words = text(message, said)
        if sender == USER:
            task = words
        elif not _STOP.fullmatch(words):
            kind = _kind(words) if sender == ASSISTANT else sender
            if kind == PLANNER and len(plans) == len(actions):
                plans.append(columns.split_plan(_PLAN.sub("", words, count=1)))
            elif kind == GROUNDER and len(plans) == len(actions) + 1:
                actions.append(words)
            else:
                raise Unusable(OUT_OF_TURN, words[:200])
    if not task:
        raise Unusable(NO_TASK, "the task is the first user's message")
    if len(plans) > 1 and len(plans) != len(actions):
        raise Unusable(OUT_OF_TURN, f"{len(plans)} plans and {len(actions)} messages of actions")
    subgoals = [one for steps in plans for one in steps]
    by_turns = len(actions) == len(subgoals)
    return {"text": task, "subgoals": subgoals, "actions": actions if by_turns else "; ".join(actions)}


def _kind(words: str) -> str:
    if _PLAN.match(words):
        return PLANNER
    try:
        parse(words)
    except ActionSyntaxError as error:
        raise Unusable(NEITHER, f"{words[:200]} ({error})") from error
    return GROUNDER

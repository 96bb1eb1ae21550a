"""Mind2Web: a row is a task with its actions, each with the page that it is done on. A record is one step.

Publisher's fields read: annotation_id, confirmed_task, action_reprs, actions[] with operation, cleaned_html, pos_candidates,
neg_candidates. A step's page is its candidates, positive and negative, in document order; its answer is the operation, every
positive candidate's id, and the text typed or chosen (`moat.web_steps`). The turns are those of the whole way to the step,
from `action_reprs` (`[button] Search -> CLICK`): its history is the gold one, as in the paper's evaluation.

A step without a positive candidate on its page gives no record (the publisher's own evaluation counts it as failed); it
stays in the history of those after it. Records need a row's pages in memory, some ten million characters.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from moat.actions import ActionSyntaxError, parse
from moat.page import Page, PageError
from moat.sources.base import Dropped, Imported, Metric, Record, Turn, plan
from moat.sources.fields import MALFORMED, Unusable, items, mapping, text
from moat.web_steps import render_step

NO_ELEMENT = "no positive candidate on the page"
NO_PAGE = "the page cannot be read"
NO_STEP = "the step cannot be written"

DOMAIN = "web"
_REPR = re.compile(r"\[(?P<tag>[^\]]*)\]\s*(?P<label>.*?)\s*->\s*(?P<operation>[A-Z]+)(?::.*)?", re.DOTALL)
_BRACKETS = str.maketrans("", "", "()[]{}")


def read(rows: Iterable[tuple[int, Any]], split: str = "") -> Imported:
    """Records of Mind2Web's steps, task by task; `split` is the publisher's name of the file's split."""
    for number, row in rows:
        try:
            row = mapping(row)
            task, episode = text(row, "confirmed_task"), text(row, "annotation_id")
            actions, told = items(row, "actions"), items(row, "action_reprs")
            if not actions or len(actions) != len(told):
                raise Unusable(MALFORMED, f"{len(actions)} actions and {len(told)} action_reprs")
            turns = [
                _turn(place, mapping(action, f"action {place}"), one)
                for place, (action, one) in enumerate(zip(actions, told, strict=True), 1)
            ]
        except Unusable as error:
            yield Dropped(number, error.reason, error.detail)
            continue
        yield from _steps(number, task, episode, actions, turns, split)


def _steps(
    number: int, task: str, episode: str, actions: list[Mapping[str, Any]], turns: list[Turn], split: str
) -> Iterator[Record | Dropped]:
    for place, (action, turn) in enumerate(zip(actions, turns, strict=True), 1):
        try:
            page, answer = _page(action)
        except Unusable as error:
            yield Dropped(number, error.reason, f"step {place}: {error.detail}")
            continue
        yield Record(
            number=number,
            text=task,
            domain=DOMAIN,
            metric=Metric.WEB_STEP,
            gold_answer=answer,
            subgoals=plan([turn.subgoal]),
            actions=turn.actions,
            turns=tuple(turns[:place]),
            episode=episode,
            step=True,
            context=page,
            split=split,
        )


def _page(action: Mapping[str, Any]) -> tuple[str, str]:
    """A step's page as JSON, and its answer."""
    positive = items(action, "pos_candidates")
    try:
        right = Page.from_mind2web(text(action, "cleaned_html"), positive)
        page = Page.from_mind2web(text(action, "cleaned_html"), [*positive, *items(action, "neg_candidates")])
    except PageError as error:
        raise Unusable(NO_PAGE, str(error)) from error
    if not right.ids:
        raise Unusable(NO_ELEMENT, f"{len(positive)} positive candidates, none of them in the page")
    operation, value = _operation(action)
    try:
        return page.to_json(), render_step(operation, right.ids, value)
    except ValueError as error:
        raise Unusable(NO_STEP, str(error)) from error


def _operation(action: Mapping[str, Any]) -> tuple[str, str]:
    operation = mapping(action.get("operation"), "`operation`")
    value = operation.get("value") or ""
    if not isinstance(value, str):
        raise Unusable(MALFORMED, "`value` of an operation is not a text")
    name = text(operation, "op")
    return name, "" if name == "CLICK" else " ".join(value.split())


def _turn(place: int, action: Mapping[str, Any], told: Any) -> Turn:
    """A step as a subgoal, `Type Boston into the textbox Where?`, and as an action."""
    match = _REPR.fullmatch(told.strip()) if isinstance(told, str) else None
    if match is None:
        raise Unusable(MALFORMED, f"action_reprs {place} is not `[tag] label -> OPERATION`: {str(told)[:80]}")
    operation, value = _operation(action)
    element = " ".join(f"{match['tag']} {match['label']}".split()).replace(", TEXT:", " TEXT:")
    subgoals = {
        "CLICK": f"Click on the {element}",
        "TYPE": f"Type {value} into the {element}",
        "SELECT": f"Choose {value} from the {element}",
    }
    if operation not in subgoals:
        raise Unusable(MALFORMED, f"the operation {operation!r} is not CLICK, TYPE or SELECT")
    typed = f", TEXT: {value}" if operation != "CLICK" else ""
    # Always `Env`, never the step before: a step is done on its own page, and can be executed without the others.
    for query in (element, element.translate(_BRACKETS)):
        actions = f"R{place} = {operation}(Env, QUERY: {query}{typed})"
        try:
            parse(actions)
        except ActionSyntaxError as error:
            failure = error
        else:
            return Turn(subgoals[operation], actions)
    raise Unusable(NO_STEP, f"{actions}: {failure}")

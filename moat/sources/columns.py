"""A user's own tasks, as JSON lines, a JSON array or Parquet with these columns; no code is needed.

| column | what it holds |
| --- | --- |
| `text` | the task, as both roles read it |
| `gold_answer` | what the actions must come to; may be missing only from rows that are demonstrated and never evaluated on |
| `domain` | `arithmetic`, `maths`, `qa`, `web` or `webshop`: which tools the actions may use |
| `metric` | `number`, `yes_no`, `exact_match`, `web_step` or `reward`: how an answer is graded |
| `subgoals` | the plan: a list of texts, or one text `Subgoal 1: …; Subgoal 2: …` |
| `actions` | the actions: one text, or a list with the actions of each subgoal, as many as subgoals |
| `passages` | what the tools of `qa` may find: a list of `{"title": …, "text": …}` |
| `episode`, `step`, `context` | for steps of an episode: its id, `true`, and JSON for the tools (the elements of a page) |
| `split` | the publisher's name of the row's split |

`text` is required. `domain` and `metric` may be settings of the source instead, for all of its rows. Any other column is an
error, so that a misspelt one is not ignored; leave out what there is not, or give null.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

from moat.actions import ActionSyntaxError, parse
from moat.sources.base import Dropped, Imported, Metric, Passage, Record, SourceError, Turn, plan
from moat.sources.fields import MALFORMED, Unusable, items, mapping, text, texts
from moat.tools.docs import DOCS

NOT_ACTIONS = "the actions are not in the action grammar"
COLUMNS = (
    "text",
    "gold_answer",
    "domain",
    "metric",
    "subgoals",
    "actions",
    "passages",
    "episode",
    "step",
    "context",
    "split",
)
_NUMBERED = re.compile(r"(?:\A\s*|;\s*|\n\s*)Subgoal [0-9]+:\s*")


def read(rows: Iterable[tuple[int, Any]], domain: str = "", metric: str = "") -> Imported:
    """Records of rows with the documented columns. Raises SourceError for a column that is not among them."""
    for number, row in rows:
        try:
            row = {name: value for name, value in mapping(row).items() if value is not None}
            if unknown := row.keys() - set(COLUMNS):
                raise SourceError(
                    f"row {number}: unknown columns {', '.join(sorted(unknown))}: rename them, or take them out. "
                    f"There are {', '.join(COLUMNS)}"
                )
            yield record(number, row, domain, metric)
        except Unusable as error:
            yield Dropped(number, error.reason, error.detail)


def record(number: int, row: Mapping[str, Any], domain: str = "", metric: str = "") -> Record:
    """A record of a row with the documented columns; `domain` and `metric` are for rows without their own."""
    domain, metric = row.get("domain") or domain, row.get("metric") or metric
    if domain not in DOCS:
        raise Unusable(MALFORMED, f"`domain` is {domain!r}; there are {', '.join(DOCS)}")
    if metric not in list(Metric):
        raise Unusable(MALFORMED, f"`metric` is {metric!r}; there are {', '.join(Metric)}")
    step = row.get("step", False)
    if not isinstance(step, bool):
        raise Unusable(MALFORMED, "`step` is not true or false")
    subgoals, actions, turns = _plan(row)
    if step and not (text(row, "episode") and turns):
        raise Unusable(MALFORMED, "a step has an episode and, in lists, its subgoals and actions up to its own")
    return Record(
        number=number,
        text=text(row, "text"),
        domain=domain,
        metric=Metric(metric),
        gold_answer=_answer(row.get("gold_answer", "")),
        subgoals=plan([turns[-1].subgoal]) if step else subgoals,
        actions=turns[-1].actions if step else actions,
        turns=turns,
        episode=str(row.get("episode", "")),
        step=step,
        context=str(row.get("context", "")),
        passages=tuple(_passage(one) for one in items(row, "passages")),
        split=str(row.get("split", "")),
    )


def split_plan(subgoals: str) -> list[str]:
    """The subgoals of a plan, `Subgoal 1: …; Subgoal 2: …`, without their numbers; one subgoal where there are none."""
    return [one.strip() for one in _NUMBERED.split(subgoals) if one.strip()]


def _plan(row: Mapping[str, Any]) -> tuple[str, str, tuple[Turn, ...]]:
    """Subgoals, actions and turns; turns only where it is known which actions belong to which subgoal."""
    subgoals = row.get("subgoals", "")
    steps = split_plan(subgoals) if isinstance(subgoals, str) else texts(row, "subgoals")
    actions = row.get("actions", "")
    if not isinstance(actions, str):
        wrote = texts(row, "actions")
        if len(wrote) != len(steps):
            raise Unusable(MALFORMED, f"{len(steps)} subgoals and {len(wrote)} lists of actions")
        actions = "; ".join(one.rstrip("; ") for one in wrote)
        turns = tuple(map(Turn, steps, wrote))
    else:
        turns = (Turn(steps[0], actions.strip()),) if len(steps) == 1 and actions.strip() else ()
    if actions.strip():
        try:
            parse(actions)
        except ActionSyntaxError as error:
            raise Unusable(NOT_ACTIONS, f"{error}: {actions[:200]}") from error
    return plan(steps), actions.strip(), turns


def _answer(value: Any) -> str:
    """The gold answer as text; a truth value is yes or no, and a number is not cut."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float) and value.is_integer():
        return str(int(value))
    if not isinstance(value, (str, int, float)):
        raise Unusable(MALFORMED, "`gold_answer` is not a text, a number, or true or false")
    return str(value).strip()


def _passage(value: Any) -> Passage:
    value = mapping(value, "a passage")
    return Passage(str(value.get("title") or ""), text(value, "text"))

"""The public Lumos data: a plan file and a ground file of one domain and one mode, and back to the same format.

A row of either is `{"dataset": …, "id": …, "messages": [{"role": …, "content": …}, …]}`. Ids are running numbers of each
file and say nothing across files (trap 35): a plan row and a ground row belong together when their task text and their
subgoals are equal.

    plan, onetime      user: … Task: T; Initial Environment Description: …    assistant: Subgoal 1: …; Subgoal 2: …
    plan, iterative    the same, then a subgoal a turn                        user: … Should we stop planning?
    ground, onetime    user: … Task: T  Subgoals to be grounded: …            assistant: R1 = …; R2 = …
    ground, iterative  user: … Task: T  Subgoal to be grounded: Subgoal 1: …  assistant: R1 = …    (a subgoal a turn)

A row is taken apart into what a record holds (task, subgoals, actions) and all else (instructions, results fed back, ids,
fields that are not named above), which is kept in the record's `frames`; `export` puts them together again, to equal
rows. The gold answer is the last result fed back to the planner (iterative maths and QA); onetime rows have none and
serve as demonstrations. The unified files mix the domains; each row's is told by its `dataset`, or else by its tools.

The ground file is held in memory (some 100 MB at most), the plan file is streamed.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from moat.actions import ActionSyntaxError, parse
from moat.sources.base import Dropped, Imported, Metric, Record, Turn, plan
from moat.sources.columns import split_plan
from moat.sources.fields import Unusable, items, mapping, text
from moat.tools.docs import DOCS, documentation

NO_TASK = "no task in the first message"
NO_PLAN = "the plan cannot be read"
NO_GROUND = "the ground row's subgoals cannot be read"
NOT_ACTIONS = "the actions are not in the action grammar"
NO_PARTNER = "no ground row of this task"
OTHER_SUBGOALS = "the ground rows of this task have other subgoals"
NO_PLAN_ROW = "a ground row without its plan row"
REPEATED = "the same row again"
NO_DOMAIN = "no domain has these tools"

DOMAINS = {"maths": "maths", "complex_qa": "qa", "web_agent": "web"}
"""Domain by the name that a row's `dataset` gives it."""

METRICS = {"maths": Metric.NUMBER, "qa": Metric.EXACT_MATCH, "web": Metric.WEB_STEP, "webshop": Metric.REWARD}

INSTRUCTIONS = (  # for records that do not come from Lumos; its own rows keep theirs
    "Give a plan of subgoals for the task.",
    "Ground the subgoals to actions. Use the actions of the list alone.",
)

_TASK = re.compile(r"\bTask:\s*(.*?)\s*(?:;\s*Initial Environment Description:|Subgoals? to be grounded:|\Z)", re.DOTALL)
_TO_GROUND = re.compile(r"Subgoals? to be grounded:\s*(.*?)\s*(?:The grounding could be based on .*)?\Z", re.DOTALL)
_MARK = re.compile(r"(?:\A\s*|;\s*|\n\s*)(?:No, I will keep planning\.\s*)?Subgoal [0-9]+:\s*")
_STOP = re.compile(r"Yes, I will stop planning\.?")
_RESULT = re.compile(r"The executed result for Subgoal [0-9]+ is (.*?)\.? Should we stop planning\?", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Slot:
    """A place in a row's text for what the record holds."""

    holds: str  # `text`, `subgoal`, `actions` (of a turn) or `all actions`
    index: int = 0  # of the subgoal or turn, from 0


Template = tuple[str | Slot, ...]
_Span = tuple[int, int, Slot]  # from, to, what stands there


@dataclass(frozen=True, slots=True)
class Frame:
    """A row without what the record holds: its other fields, each message's other fields, and its text with slots."""

    fields: Mapping[str, Any]
    messages: tuple[tuple[Mapping[str, Any], Template], ...]


@dataclass(frozen=True, slots=True)
class LumosRecord(Record):
    """A record with all else that its two rows said."""

    frames: tuple[Frame, Frame] | None = None  # the plan row's, the ground row's


@dataclass(frozen=True, slots=True)
class _Half:
    """One row, taken apart. `actions` are one text a turn, or one for all (onetime); a plan row has none."""

    number: int
    task: str
    subgoals: tuple[str, ...]
    actions: tuple[str, ...]
    result: str
    frame: Frame


def read(plan_rows: Iterable[tuple[int, Any]], ground_rows: Iterable[tuple[int, Any]], iterative: bool) -> Imported:
    """Records of a plan file and its ground file. A Dropped row's number is its place in the file that its reason names."""
    waiting: dict[str, dict[tuple[str, ...], _Half]] = defaultdict(dict)
    for number, row in ground_rows:
        try:
            half = _ground(number, mapping(row), iterative)
            if half.subgoals in waiting[half.task]:
                raise Unusable(REPEATED, f"ground row {number}: {half.task[:200]}")
        except Unusable as error:
            yield Dropped(number, error.reason, f"ground row {number}: {error.detail}")
        else:
            waiting[half.task][half.subgoals] = half
    joined: set[tuple[str, tuple[str, ...]]] = set()
    for number, row in plan_rows:
        try:
            mine = _plan(number, mapping(row), iterative)
            key = (mine.task, mine.subgoals)
            if key in joined:
                raise Unusable(REPEATED, mine.task[:200])
            if not (partners := waiting.get(mine.task)):
                raise Unusable(NO_PARTNER, mine.task[:200])
            if mine.subgoals not in partners:
                raise Unusable(OTHER_SUBGOALS, mine.task[:200])
            joined.add(key)
            yield _record(mine, partners[mine.subgoals], iterative)
        except Unusable as error:
            yield Dropped(number, error.reason, f"plan row {number}: {error.detail}")
    for task, halves in waiting.items():
        for subgoals, half in halves.items():
            if (task, subgoals) not in joined:
                yield Dropped(half.number, NO_PLAN_ROW, f"ground row {half.number}: {task[:200]}")


def export(records: Iterable[Record]) -> Iterator[tuple[dict[str, Any], dict[str, Any]]]:
    """The plan row and the ground row of each record, in Lumos' format.

    A record that `read` gave comes back as the rows that it was read from. Any other becomes onetime rows, with instructions
    in this module's wording and running ids. Raises ValueError for a record without a plan or actions.
    """
    for index, record in enumerate(records):
        if not record.subgoals or not record.actions:
            raise ValueError(f"record {record.number} has no plan or no actions: Lumos' format has no such row")
        frames = record.frames if isinstance(record, LumosRecord) and record.frames else _frames(record, index)
        yield _filled(frames[0], record), _filled(frames[1], record)


def _record(mine: _Half, ground: _Half, iterative: bool) -> LumosRecord:
    tools = {action.tool for one in ground.actions for action in parse(one) if action.tool is not None}
    named = DOMAINS.get(str(mine.frame.fields.get("dataset")))
    domain = named or next((name for name in METRICS if tools <= DOCS[name].keys()), None)
    if domain is None:
        raise Unusable(NO_DOMAIN, ", ".join(sorted(tools)))
    return LumosRecord(
        number=mine.number,
        text=mine.task,
        domain=domain,
        metric=METRICS[domain],
        gold_answer=mine.result,
        subgoals=plan(list(mine.subgoals)),
        actions="; ".join(one.rstrip("; ") for one in ground.actions) if iterative else ground.actions[0],
        turns=tuple(map(Turn, mine.subgoals, ground.actions)) if iterative else (),
        frames=(mine.frame, ground.frame),
    )


def _plan(number: int, row: Mapping[str, Any], iterative: bool) -> _Half:
    task, result = "", ""
    subgoals: list[str] = []
    messages: list[tuple[Mapping[str, Any], Template]] = []
    for message in _messages(row):
        content: str = message["content"]
        spans: list[_Span] = []
        if message["role"] == "user" and not task:
            task, spans = _task(content)
        elif message["role"] == "user":
            fed_back = _RESULT.search(content)
            result = fed_back[1].strip() if fed_back else ""
        elif message["role"] == "assistant" and not _STOP.fullmatch(content.strip()):
            spans = _subgoals(content, 0, len(content), len(subgoals))
            if not spans or (iterative and len(spans) > 1) or (subgoals and not iterative):
                raise Unusable(NO_PLAN, content[:200])
            subgoals += [content[start:end] for start, end, _ in spans]
        messages.append((_without_content(message), _template(content, spans)))
    if not task or not subgoals:
        raise Unusable(NO_PLAN if task else NO_TASK, "no user's or no assistant's message")
    return _Half(number, task, tuple(subgoals), (), result, Frame(_fields(row), tuple(messages)))


def _ground(number: int, row: Mapping[str, Any], iterative: bool) -> _Half:
    task = ""
    subgoals: list[str] = []
    actions: list[str] = []
    messages: list[tuple[Mapping[str, Any], Template]] = []
    for message in _messages(row):
        content: str = message["content"]
        spans: list[_Span] = []
        if message["role"] == "user":
            if not task:
                task, spans = _task(content)
            asked = _TO_GROUND.search(content, spans[0][1] if spans else 0)
            found = _subgoals(content, *asked.span(1), len(subgoals)) if asked else []
            if not found or (iterative and len(found) > 1):
                raise Unusable(NO_GROUND, content[-200:])
            subgoals += [content[start:end] for start, end, _ in found]
            spans = [*spans, *found]
        elif message["role"] == "assistant":
            start, end = _stripped(content, 0, len(content))
            try:
                parse(content[start:end])
            except ActionSyntaxError as error:
                raise Unusable(NOT_ACTIONS, f"{error}: {content[:200]}") from error
            spans = [(start, end, Slot("actions", len(actions)) if iterative else Slot("all actions"))]
            actions.append(content[start:end])
        messages.append((_without_content(message), _template(content, spans)))
    if len(actions) != (len(subgoals) if iterative else 1):
        raise Unusable(NO_GROUND, f"{len(subgoals)} subgoals and {len(actions)} answers")
    return _Half(number, task, tuple(subgoals), tuple(actions), "", Frame(_fields(row), tuple(messages)))


# --- taking a row apart, and putting it together ----------------------------------------------------------------------


def _messages(row: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    messages = [mapping(message, "a message") for message in items(row, "messages")]
    for message in messages:
        text(message, "role")
        text(message, "content")
    return messages


def _fields(row: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in row.items() if name != "messages"}


def _without_content(message: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in message.items() if name != "content"}


def _task(content: str) -> tuple[str, list[_Span]]:
    match = _TASK.search(content)
    if match is None or not match[1]:
        raise Unusable(NO_TASK, content[:200])
    return match[1], [(*match.span(1), Slot("text"))]


def _subgoals(content: str, start: int, end: int, known: int) -> list[_Span]:
    """Where the subgoals stand in a part of a message; `known` is how many came before."""
    marks = list(_MARK.finditer(content[start:end]))
    if not marks or marks[0].start() != 0:  # words before `Subgoal 1:` would hide it
        return []
    stops = [start + mark.start() for mark in marks[1:]] + [end]
    spans = [_stripped(content, start + mark.end(), stop) for mark, stop in zip(marks, stops, strict=True)]
    if any(a == b for a, b in spans):
        raise Unusable(NO_PLAN, f"a subgoal is blank: {content[start:end][:200]}")
    return [(a, b, Slot("subgoal", known + index)) for index, (a, b) in enumerate(spans)]


def _stripped(content: str, start: int, end: int) -> tuple[int, int]:
    part = content[start:end]
    return start + len(part) - len(part.lstrip()), start + len(part.rstrip())


def _template(content: str, spans: list[_Span]) -> Template:
    pieces: list[str | Slot] = []
    position = 0
    for start, end, slot in spans:
        pieces += [content[position:start], slot]
        position = end
    return (*pieces, content[position:])


def _filled(frame: Frame, record: Record) -> dict[str, Any]:
    held: dict[Slot, str] = {Slot("text"): record.text, Slot("all actions"): record.actions}
    held |= {Slot("subgoal", index): one for index, one in enumerate(split_plan(record.subgoals))}
    held |= {Slot("actions", index): turn.actions for index, turn in enumerate(record.turns)}
    messages = [
        dict(fields) | {"content": "".join(piece if isinstance(piece, str) else held[piece] for piece in template)}
        for fields, template in frame.messages
    ]
    return dict(frame.fields) | {"messages": messages}


def _frames(record: Record, index: int) -> tuple[Frame, Frame]:
    """Onetime frames for a record that does not come from Lumos."""
    dataset = next((name for name, domain in DOMAINS.items() if domain == record.domain), record.domain)
    fields = {"dataset": dataset, "id": f"{dataset}_{index}"}
    steps = range(len(split_plan(record.subgoals)))
    numbered = [piece for at in steps for piece in (f"{'; ' if at else ''}Subgoal {at + 1}: ", Slot("subgoal", at))]
    asked = (f"{INSTRUCTIONS[0]}\nTask: ", Slot("text"), "; Initial Environment Description: None.")
    to_ground = f"{INSTRUCTIONS[1]}\n\n{documentation(record.domain)}\n\nTask: "
    user, assistant = {"role": "user"}, {"role": "assistant"}
    return (
        Frame(fields, ((user, asked), (assistant, tuple(numbered)))),
        Frame(
            fields,
            (
                (user, (to_ground, Slot("text"), " \nSubgoals to be grounded: ", *numbered, "\n")),
                (assistant, (Slot("all actions"),)),
            ),
        ),
    )

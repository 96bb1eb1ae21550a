"""StrategyQA, as its publisher's JSON: qid, term, question, answer, facts, decomposition, evidence.

The decomposition's steps are the subgoals, with `#1` written as `the answer to Subgoal 1`. The facts are the passages: an
oracle corpus, in which all that the question needs is found. A step's actions:

- a comparison or calculation of earlier answers (`Is #1 greater than #2?`): one Calculator;
- a step that most annotators marked as an operation: one QA over the paragraphs of the steps that it refers to;
- any other: KnowledgeQuery, ParagraphRetrieve, QA. What is looked up is what stands in the step: the evidence's title or the
  row's term if its words do, else the last answer referred to, else the whole step.

The hub's copy has no decomposition: its rows can be evaluated on, and neither demonstrated nor scored. `keep_all` keeps rows
whose steps cannot be written in the same way.

Every record carries its publisher's split (trap 34). The file that StrategyQA results are usually reported on is made of
the public train and dev rows, so a model may have been trained on what it is tested on. Rows of unknown split, or of a
split named `test`, are refused unless `mixed` asks for them; `dev_ids` (see `qids`) tells the rows of any file apart.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from typing import Any

from moat.actions import ActionSyntaxError, parse, references
from moat.sources.base import Dropped, Imported, Metric, Passage, Record, SourceError, Turn, plan
from moat.sources.fields import MALFORMED, Unusable, mapping, text, texts

NO_SUCH_STEP = "a step refers to no earlier step"
NOT_ACTIONS = "a step cannot be written as actions"

DOMAIN = "qa"
DEV, TRAIN, MIXED = "dev", "train", "train+dev"

_STEP = re.compile(r"#([0-9]+)")
_OPERAND = r"(#[0-9]+|[0-9][0-9,.]*)"
_MORE = "greater|larger|more|higher|longer|bigger|taller"
_LESS = "less|smaller|lower|fewer|shorter"
_OR_EQUAL = "(?: than)? or equal to"
_CALCULATIONS = [
    (re.compile(pattern + r"\s*\??", re.IGNORECASE), written)
    for pattern, written in (
        (rf"(?:is|are|was|were) {_OPERAND} (?:{_MORE}) than {_OPERAND}", "{0} > {1}"),
        (rf"(?:is|are|was|were) {_OPERAND} (?:{_LESS}) than {_OPERAND}", "{0} < {1}"),
        (rf"(?:is|are|was|were) {_OPERAND} (?:(?:{_MORE}){_OR_EQUAL}|at least|at least equal to) {_OPERAND}", "{0} >= {1}"),
        (rf"(?:is|are|was|were) {_OPERAND} (?:(?:{_LESS}){_OR_EQUAL}|at most) {_OPERAND}", "{0} <= {1}"),
        (rf"(?:is|are|was|were) {_OPERAND} equal to or (?:{_MORE}) than {_OPERAND}", "{0} >= {1}"),
        (rf"(?:is|are|was|were) {_OPERAND} equal to or (?:{_LESS}) than {_OPERAND}", "{0} <= {1}"),
        (rf"what is {_OPERAND} (?:plus|added to) {_OPERAND}", "{0} + {1}"),
        (rf"what is (?:{_OPERAND} minus|the difference between {_OPERAND} and) {_OPERAND}", "{0} - {1}"),
        (rf"what is {_OPERAND} (?:times|multiplied by) {_OPERAND}", "{0} * {1}"),
        (rf"what is {_OPERAND} divided by {_OPERAND}", "{0} / {1}"),
    )
]


def read(
    rows: Iterable[tuple[int, Any]],
    split: str = "",
    dev_ids: Collection[str] = frozenset(),
    mixed: bool = False,
    keep_all: bool = False,
) -> Imported:
    """Records of StrategyQA's rows, each with its publisher's split.

    A row's split is told by `dev_ids` (the `qid`s of the publisher's dev file) if they are given, else by its own field
    `split` if it has one, else by `split`. Raises SourceError for a row of unknown split or of the split `test`, unless
    `mixed` is set; the record's split is then `train+dev`.
    """
    for number, row in rows:
        try:
            row = mapping(row)
            its = _split(row, split, dev_ids)
            if its not in (TRAIN, DEV):
                if not mixed:
                    raise SourceError(
                        f"StrategyQA, row {number}: the split is {its or 'not known'}. The usual test file is made of the "
                        "public train and dev rows, so models may have been trained on it. Name the publisher's split "
                        "(`split: dev`), give the publisher's dev file (`dev: PATH`) to tell the rows apart, or ask for "
                        "them with `mixed: true`"
                    )
                its = MIXED
            yield _record(number, row, its, keep_all)
        except Unusable as error:
            yield Dropped(number, error.reason, error.detail)


def qids(rows: Iterable[tuple[int, Any]]) -> frozenset[str]:
    """The ids of a file's rows, for `read`'s `dev_ids`. Raises SourceError for a row without one."""
    found = set()
    for number, row in rows:
        if not isinstance(row, Mapping) or not isinstance(row.get("qid"), str):
            raise SourceError(f"StrategyQA, row {number}: it has no `qid`: give the publisher's dev.json")
        found.add(row["qid"])
    return frozenset(found)


def _split(row: Mapping[str, Any], split: str, dev_ids: Collection[str]) -> str:
    if dev_ids:
        return DEV if text(row, "qid") in dev_ids else TRAIN
    return str(row.get("split") or split)


def _record(number: int, row: Mapping[str, Any], split: str, keep_all: bool) -> Record:
    answer = row.get("answer")
    if not isinstance(answer, bool):
        raise Unusable(MALFORMED, "`answer` is not true or false")
    facts = [text(row, "facts")] if isinstance(row.get("facts"), str) else texts(row, "facts")
    term = text(row, "term") if row.get("term") else ""
    try:
        turns = _turns(texts(row, "decomposition"), row.get("evidence"), term)
    except Unusable:
        if not keep_all:
            raise
        turns = []
    return Record(
        number=number,
        text=text(row, "question"),
        domain=DOMAIN,
        metric=Metric.YES_NO,
        gold_answer="yes" if answer else "no",
        subgoals=plan([turn.subgoal for turn in turns]),
        actions="; ".join(turn.actions for turn in turns),
        turns=tuple(turns),
        passages=tuple(Passage(term, fact) for fact in facts),
        split=split,
    )


def _turns(steps: list[str], evidence: Any, term: str) -> list[Turn]:
    turns: list[Turn] = []
    answers: list[str] = []  # the name of each step's answer
    paragraphs: list[list[str]] = []  # the names of the paragraphs that each step's answer stands on
    last = 0
    for index, step in enumerate(steps):
        step = " ".join(step.split())
        earlier = [int(number) - 1 for number in _STEP.findall(step)]
        if any(not 0 <= one < index for one in earlier):
            raise Unusable(NO_SUCH_STEP, step)
        subgoal = _STEP.sub(lambda match: f"the answer to Subgoal {match[1]}", step)
        question = _named(step, answers)
        sources = list(dict.fromkeys(name for one in earlier for name in paragraphs[one]))
        titles, operation = _evidence(evidence, index)
        formula = _formula(step, answers)
        if formula is not None:
            wrote = [f"Calculator({formula})"]
        elif operation and earlier:
            wrote = [f"QA([{', '.join(sources)}], Question: {question})"]
        else:
            subject = _subject(step, [*titles, term]) or (answers[earlier[-1]] if earlier else question.rstrip("?. "))
            found = f"R{last + 2}"
            wrote = [
                f"KnowledgeQuery({subject})",
                f"ParagraphRetrieve(R{last + 1}, Query: {question})",
                f"QA([{found}], Question: {question})",
            ]
            sources = [found]
        actions = "; ".join(f"R{last + place} = {action}" for place, action in enumerate(wrote, 1))
        _check(actions, last, {*sources, *(answers[one] for one in earlier)})
        last += len(wrote)
        answers.append(f"R{last}")
        paragraphs.append(sources)
        turns.append(Turn(subgoal, actions))
    return turns


def _named(step: str, answers: list[str]) -> str:
    return _STEP.sub(lambda match: answers[int(match[1]) - 1], step)


def _formula(step: str, answers: list[str]) -> str | None:
    for pattern, written in _CALCULATIONS:
        match = pattern.fullmatch(step)
        if match is not None:
            return _named(written.format(*(operand for operand in match.groups() if operand)), answers)
    return None


def _evidence(evidence: Any, index: int) -> tuple[list[str], bool]:
    """The titles that annotators found a step's answer under, and whether most of them called it an operation.

    Evidence is, for each annotator and step, a list of marks (`operation`, `no_evidence`) and lists of `Title-paragraph`.
    """
    steps = [a[index] for a in evidence or [] if isinstance(a, list) and index < len(a) and isinstance(a[index], list)]
    titles = [name.rpartition("-")[0] for step in steps for one in step if isinstance(one, list) for name in one]
    votes = Counter("operation" in step for step in steps)
    return titles, votes[True] > votes[False]


def _subject(step: str, titles: list[str]) -> str:
    """The longest of the titles that the step names; blank when it names none."""
    named = [title for title in titles if title and re.search(rf"(?<!\w){re.escape(title)}(?!\w)", step, re.IGNORECASE)]
    return max(named, key=len, default="")


def _check(actions: str, last: int, meant: set[str]) -> None:
    """That a step's actions are in the grammar, and refer to nothing that its words only happen to spell."""
    try:
        parsed = parse(actions)
    except ActionSyntaxError as error:
        raise Unusable(NOT_ACTIONS, f"{actions}: {error}") from error
    own = {f"R{last + place}" for place in range(1, len(parsed) + 1)}
    stray = {name for action in parsed for name in references(action.arguments)} - meant - own
    if stray:
        raise Unusable(NOT_ACTIONS, f"{actions}: {', '.join(sorted(stray))} reads as a result")

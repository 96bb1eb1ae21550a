"""HotpotQA, its distractor setting: id, question, answer, type, context, supporting_facts; and rows of questions alone.

The paragraphs of the context are the passages. Supporting facts become subgoals where they suffice, which is where their
two titles and the question say how one comes from one to the other:

- the question names both titles: look up each, then answer from both;
- it names one, whose supporting sentences name the other: look up the first, find in it what leads on, look that up, answer.

Other rows, and rows without a context, can be evaluated on, and neither demonstrated nor scored. Lists and the hub's columns
(`{"title": […], "sent_id": […]}`) are read alike.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

from moat.actions import ActionSyntaxError, parse, references
from moat.sources.base import Dropped, Imported, Metric, Passage, Record, Turn, plan
from moat.sources.fields import MALFORMED, Unusable, mapping, text

DOMAIN = "qa"
_QUALIFIER = re.compile(r"\s*\([^()]*\)$")  # `Kiss and Tell (1945 film)`
Paragraphs = list[tuple[str, list[str]]]
"""(title, sentences)"""


def read(rows: Iterable[tuple[int, Any]], split: str = "") -> Imported:
    """Records of HotpotQA's rows; `split` is the publisher's name of the file's split."""
    for number, row in rows:
        try:
            yield _record(number, mapping(row), split)
        except Unusable as error:
            yield Dropped(number, error.reason, error.detail)


def _record(number: int, row: Mapping[str, Any], split: str) -> Record:
    question = text(row, "question")
    context = [(title, _sentences(one)) for title, one in _pairs(row, "context", "sentences")]
    turns = _turns(question, context, _pairs(row, "supporting_facts", "sent_id"))
    return Record(
        number=number,
        text=question,
        domain=DOMAIN,
        metric=Metric.EXACT_MATCH,
        gold_answer=text(row, "answer"),
        subgoals=plan([turn.subgoal for turn in turns]),
        actions="; ".join(turn.actions for turn in turns),
        turns=tuple(turns),
        passages=tuple(Passage(title, "".join(sentences).strip()) for title, sentences in context),
        split=split,
    )


def _pairs(row: Mapping[str, Any], name: str, second: str) -> list[tuple[str, Any]]:
    """A field that holds pairs with a title first, as a list of pairs or as an object of two lists."""
    value = row.get(name) or []
    if isinstance(value, Mapping):
        titles, others = value.get("title"), value.get(second)
        if not isinstance(titles, list) or not isinstance(others, list) or len(titles) != len(others):
            raise Unusable(MALFORMED, f"`{name}` does not hold as many titles as {second}")
        value = list(zip(titles, others, strict=True))
    if not isinstance(value, list) or not all(isinstance(pair, (list, tuple)) and len(pair) == 2 for pair in value):
        raise Unusable(MALFORMED, f"`{name}` is no list of pairs")
    if not all(isinstance(title, str) for title, _ in value):
        raise Unusable(MALFORMED, f"a title of `{name}` is not a text")
    return [(title.strip(), other) for title, other in value]


def _sentences(value: Any) -> list[str]:
    if not isinstance(value, list) or not all(isinstance(one, str) for one in value):
        raise Unusable(MALFORMED, "the sentences of a paragraph are not a list of texts")
    return value


def _turns(question: str, context: Paragraphs, facts: list[tuple[str, Any]]) -> list[Turn]:
    """A turn for each subgoal, or none where the supporting facts do not say how to find the answer."""
    titles = list(dict.fromkeys(title for title, _ in facts))
    known = dict(context)
    if len(titles) != 2 or not all(title in known for title in titles):
        return []
    named = sorted((title for title in titles if _names(question, title)), key=lambda title: _place(question, title))
    if len(named) == 2:
        turns = [_look_up(0, _bare(named[0]), question), _look_up(2, _bare(named[1]), question)]
        turns.append(Turn("Answer the question from both", f"R5 = QA([R2, R4], Question: {question})"))
    elif len(named) == 1:
        first = named[0]
        (second,) = set(titles) - {first}
        said = [known[first][at] for title, at in facts if title == first and _is_place(at, known[first])]
        if not any(_names(sentence, second) for sentence in said):
            return []
        lead = f"What does one need to look up next to answer: {question}"
        turns = [
            _look_up(0, _bare(first), question),
            Turn("Find in it what leads on to the answer", f"R3 = QA([R2], Question: {lead})"),
            Turn("Look that up", f"R4 = KnowledgeQuery(R3); R5 = ParagraphRetrieve(R4, Query: {question})"),
            Turn("Answer the question from both", f"R6 = QA([R2, R5], Question: {question})"),
        ]
    else:
        return []
    return turns if _sound(turns, " ".join([question, *named])) else []


def _look_up(last: int, title: str, question: str) -> Turn:
    wrote = f"R{last + 1} = KnowledgeQuery({title}); R{last + 2} = ParagraphRetrieve(R{last + 1}, Query: {question})"
    return Turn(f"Look up {title}", wrote)


def _sound(turns: list[Turn], words: str) -> bool:
    """Whether the actions are in the grammar and no word of the task reads as a result's name."""
    try:
        parse("; ".join(turn.actions for turn in turns))
    except ActionSyntaxError:
        return False
    return not references(words)


def _names(words: str, title: str) -> bool:
    return _place(words, title) >= 0


def _place(words: str, title: str) -> int:
    """Where a text names a title, its qualifier in brackets left out; -1 when it does not."""
    bare = _bare(title)
    match = re.search(rf"(?<!\w){re.escape(bare)}(?!\w)", words, re.IGNORECASE) if bare else None
    return match.start() if match else -1


def _bare(title: str) -> str:
    """A title as a question would name it."""
    return _QUALIFIER.sub("", title)


def _is_place(value: Any, sentences: list[str]) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < len(sentences)

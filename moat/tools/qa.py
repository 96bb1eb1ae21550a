"""The tools of `qa`: find passages, keep the ones that bear on a query, have them read, compare what was read.

Passages are text, one a line: `[Title] text`. A backslash, a line break, and in a title `]`, stand behind a backslash, so
that any passage can be read back (`passages_of`). No tool puts a result into its arguments before they are cut up: what a
passage or an answer holds cannot pass for a label or for a result's name.

QA needs a reader, which is slow and answers many questions at once. So `read` may raise Unread: execution stops at that
question, and is done again once it is answered.

A failure never becomes an answer: a tool that finds, reads or compares nothing raises ToolError.

Not covered: QA sees the answers that an earlier QA gave, not what was asked for them: a question must say what it is about.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType

from moat.actions import references, substitute
from moat.corpus import Corpus
from moat.sources.base import Passage
from moat.tools.base import Tool, ToolError, ToolErrorKind
from moat.tools.comparison import evaluate

MAX_SUBJECT = 300  # characters of what KnowledgeQuery looks for
MAX_QUESTION = 2_000  # characters of a query or a question
MAX_READ = 200_000  # characters of what KnowledgeQuery gives, or of what QA reads

_PASSAGE = re.compile(r"\[(?P<title>(?:[^\\\]\n]|\\.)*)\] (?P<text>(?:[^\\\n]|\\.)*)")
_ESCAPED = re.compile(r"\\(.)")
_ASKED = re.compile(r"(?:^|,)\s*(?:Query|Question)\s*:", re.IGNORECASE)
_CONTEXT = re.compile(r"(?:^|,)\s*Context\s*:", re.IGNORECASE)
_NAMES = re.compile(r"\s*\[?\s*R[1-9][0-9]*(?:\s*,\s*R[1-9][0-9]*)*\s*\]?\s*")


@dataclass(frozen=True, slots=True)
class Question:
    """What a reader is asked: a question, and the texts that it is answered from, in order."""

    question: str
    passages: tuple[str, ...]


class Unread(Exception):  # noqa: N818 - says what is the matter; no fault of the actions
    """The reader has not been asked yet: ask it `question`, then execute again."""

    def __init__(self, question: Question) -> None:
        super().__init__(f"not read yet: {question.question[:100]!r}")
        self.question = question


Read = Callable[[Question], str]
"""A question to its answer. Raises Unread, or ToolError when there is no answer."""


def known_answers(known: Mapping[Question, str | None]) -> Read:
    """Answers from those of a reader (`moat.reader.Reader.answer_all`); None is no answer. Raises Unread for the others."""

    def read(question: Question) -> str:
        if question not in known:
            raise Unread(question)
        answer = known[question]
        if answer is None:
            raise ToolError(ToolErrorKind.NO_RESULT, f"the passages do not answer {question.question[:100]!r}")
        return answer

    return read


def no_reader(question: Question) -> str:
    """Answers nothing. Raises ToolError."""
    raise ToolError(
        ToolErrorKind.NO_RESULT,
        "tools.qa.reader is empty, so nobody reads the passages: set it to a model folder or a hub id, and "
        "tools.qa.reader_revision with it",
    )


def render(passages: list[Passage]) -> str:
    """Passages as text, one a line."""
    return "\n".join(f"[{_escape(one.title).replace(']', chr(92) + ']')}] {_escape(one.text)}" for one in passages)


def passages_of(text: str) -> list[Passage] | None:
    """The passages that `render` wrote, or None for any other text."""
    found = [_PASSAGE.fullmatch(line) for line in text.split("\n")]
    read = [Passage(_plain(match["title"]), _plain(match["text"])) for match in found if match is not None]
    return read if len(read) == len(found) else None


def qa_tools(
    corpus: Corpus,
    read: Read,
    code: Tool,
    *,
    found: int,
    kept: int,
    wikipedia: Callable[[str], list[Passage]] | None = None,
) -> Mapping[str, Tool]:
    """The five tools over a corpus.

    `found`: passages that KnowledgeQuery gives at most besides those of the subject's own title. `kept`: paragraphs that
    ParagraphRetrieve keeps. `wikipedia`: where KnowledgeQuery looks instead of the corpus. `code` is the tool Code.
    """

    def knowledge_query(arguments: str, results: Mapping[str, str]) -> str:
        subject = _filled(arguments, results, MAX_SUBJECT, "the subject")
        if wikipedia is None:
            passages = list(dict.fromkeys([*corpus.titled(subject), *corpus.search(subject, found)]))
        else:
            passages = wikipedia(subject)
        if not passages:
            where = "the corpus, which is empty" if not corpus.passages and wikipedia is None else "what is searched"
            raise ToolError(ToolErrorKind.NO_RESULT, f"nothing on {subject[:100]!r} in {where}")
        return _bounded(render(passages))

    def paragraph_retrieve(arguments: str, results: Mapping[str, str]) -> str:
        head, asked = _cut(arguments, "ParagraphRetrieve(R1, Query: ...)")
        query = _filled(asked, results, MAX_QUESTION, "the query")
        passages: dict[Passage, None] = {}
        for name in _names(head, "ParagraphRetrieve(R1, Query: ...)"):
            of = passages_of(results[name])
            if of is None:
                raise _bad(f"{name} holds no passages: give it what KnowledgeQuery found")
            passages |= dict.fromkeys(of)
        return render(corpus.rank(query, list(passages), kept))

    def qa(arguments: str, results: Mapping[str, str]) -> str:
        form = "QA([R1, R2], Question: ...)"
        head, asked = _cut(arguments, form)
        question = _filled(asked, results, MAX_QUESTION, "the question")
        context = _CONTEXT.search(head)
        parts = [head] if context is None else [head[: context.start()], head[context.end() :]]
        texts: list[str] = []
        for number, part in enumerate(parts):
            if number == 1 and not _NAMES.fullmatch(part):
                texts.append(_filled(part, results, MAX_READ, "the context"))
            elif part.strip():
                texts += [text for name in _names(part, form) for text in _texts(results[name])]
        if not texts:
            raise _bad(f"nothing to read: write {form}")
        _bounded("".join(texts))
        answer = read(Question(question, tuple(dict.fromkeys(texts))))
        if not answer.strip():
            raise ToolError(ToolErrorKind.NO_RESULT, f"the reader answers nothing to {question[:100]!r}")
        return answer

    def calculator(arguments: str, results: Mapping[str, str]) -> str:
        return evaluate(arguments, results, lambda text: passages_of(text) is not None)

    return MappingProxyType(
        {
            "KnowledgeQuery": knowledge_query,
            "ParagraphRetrieve": paragraph_retrieve,
            "QA": qa,
            "Calculator": calculator,
            "Code": code,
        }
    )


def _cut(arguments: str, form: str) -> tuple[str, str]:
    """What stands before the first `Query:` or `Question:`, and what stands after it."""
    label = _ASKED.search(arguments)
    if label is None:
        raise _bad(f"no `Query:` or `Question:`: write {form}")
    return arguments[: label.start()], arguments[label.end() :]


def _names(head: str, form: str) -> list[str]:
    """The result names of a list, in brackets or not."""
    head = head.strip()
    if head.startswith("[") and head.endswith("]"):
        head = head[1:-1]
    names = [name.strip() for name in head.split(",")]
    for name in names:
        if references(name) != [name]:
            raise _bad(f"{name[:50]!r} is no result: write {form}")
    return names


def _filled(text: str, results: Mapping[str, str], longest: int, what: str) -> str:
    """A text with results in place of their names, white space at its ends aside."""
    for name in references(text):
        if passages_of(results[name]) is not None:
            raise _bad(f"{what} refers to {name}, which is passages: read them with QA first")
    text = substitute(text, results).strip()
    if not text:
        raise _bad(f"{what} is blank")
    if len(text) > longest:
        raise ToolError(ToolErrorKind.SIZE, f"{what} has {len(text)} characters, more than {longest}")
    return text


def _texts(result: str) -> list[str]:
    """What a reader reads of a result: its passages, or itself."""
    passages = passages_of(result)
    if passages is None:
        return [result]
    return [f"{one.title}: {one.text}" if one.title else one.text for one in passages]


def _bounded(text: str) -> str:
    if len(text) > MAX_READ:
        raise ToolError(ToolErrorKind.SIZE, f"{len(text)} characters of passages, more than {MAX_READ}")
    return text


def _escape(text: str) -> str:
    return text.replace("\\", "\\\\").replace("\n", "\\n")


def _plain(text: str) -> str:
    return _ESCAPED.sub(lambda match: "\n" if match[1] == "n" else match[1], text)


def _bad(message: str) -> ToolError:
    return ToolError(ToolErrorKind.BAD_ARGUMENT, message)

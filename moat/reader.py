"""The reader: a model that answers QA's questions from passages, many at once.

It is asked as a judge is (moat/judge_prompt.py): question and passages are data between marks that carry a key, which is a
hash of the run's seed and of all that is asked; names of control tokens in them are escaped; nothing is truncated. Equal
questions have the same prompt and seed everywhere, and are asked once.

    answer := [thinking "</think>"] ["Answer:"] text      on one line, of at most MAX_ANSWER characters

`unanswerable` is no answer. Nor is one that is blank, has several lines, was cut at the token limit or never stopped
thinking, nor is a question that does not fit the reader's context or whose data comes out as a control token: None in
every case, and QA then gives no result.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import astuple, dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

from moat.asking import Ask, Asked, Reply, Request, open_model
from moat.judge_prompt import DATA, END_THINK, THINK, JudgeRenderer, free_key, visible
from moat.seeds import seed_of
from moat.tools.qa import Question

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from moat.params import QaTools
    from moat.stage import Stage

MAX_ANSWER = 500  # characters
UNANSWERABLE = "unanswerable"

DUTY = "You answer a question from passages that were found for it."
FORM = f"""\
Answer with as few words as possible, on one line: a name, a number, a date, a list, or yes or no. Use what the passages
say. If they do not hold the answer, write {UNANSWERABLE}."""


class ReaderError(ValueError):
    """A reader that cannot be asked; the message says what to set."""


class ReaderRenderer(JudgeRenderer):
    """Renders questions for one reader's tokenizer, in its chat template or as plain text turns.

    Raises ReaderError when the tokenizer has no chat template under `chat`.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase, prompt: Literal["chat", "plain"]) -> None:
        if prompt == "chat" and not tokenizer.chat_template:
            raise ReaderError(
                f"the reader {tokenizer.name_or_path} has no chat template: take an instruction-tuned model as "
                "tools.qa.reader, or set `tools.qa.prompt: plain` to ask it in plain text turns"
            )
        super().__init__(tokenizer, prompt)

    def prompt_of(self, question: Question, seed: int) -> list[int] | None:
        """Ids that the answer follows, or None when data came out as a control token."""
        text = text_of(question, key_of(question, seed), self.control)
        return None if self._control_ids.intersection(self._encode(text)) else self._prompt(text)


def key_of(question: Question, seed: int) -> str:
    """The key of a question's marks."""
    return free_key("reader", seed, _content(question), (question.question, *question.passages))


def text_of(question: Question, key: str, control: tuple[str, ...] = ()) -> str:
    """The text of a question."""
    sections = {f"passage {number}": text for number, text in enumerate(question.passages, 1)}
    sections["question"] = question.question
    quoted = [f"[[{name} {key}]]\n{visible(text, control)}\n[[end {name} {key}]]" for name, text in sections.items()]
    return "\n\n".join([DUTY, DATA.format(key=key), *quoted, FORM])


def read_answer(reply: Reply, thinks: bool) -> str | None:
    """The answer that a reply holds. `thinks`: the prompt opened the reader's thinking, so the text must close it."""
    if reply.finish_reason != "stop":
        return None
    _, closed, said = reply.text.rpartition(END_THINK)
    if THINK in said or (thinks and not closed):
        return None
    said = said.strip()
    if said.lower().startswith("answer:"):
        said = said[len("answer:") :].strip()
    if not said or "\n" in said or len(said) > MAX_ANSWER or said.casefold().strip(" .\"'") == UNANSWERABLE:
        return None
    return said


@dataclass(frozen=True)
class Reader:
    """A model that can be asked. `longest` is its context in tokens, of which an answer may take `max_new_tokens`."""

    renderer: ReaderRenderer
    ask: Ask
    seed: int
    max_new_tokens: int
    longest: int | None = None
    facts: dict[str, Any] = field(default_factory=dict)
    tally: Counter[str] = field(default_factory=Counter)

    def answer_all(self, questions: Sequence[Question]) -> list[str | None]:
        """The answer to every question, in order, None where there is none. `tally` counts answered and not.

        Raises as `ask` does.
        """
        answers: dict[Question, str | None] = dict.fromkeys(questions)
        requests: dict[Question, Request] = {}
        for question in answers:
            prompt = self.renderer.prompt_of(question, self.seed)
            if prompt is None or (self.longest is not None and len(prompt) + self.max_new_tokens > self.longest):
                self.tally["not asked"] += 1
            else:
                requests[question] = Request(prompt, seed_of(self.seed, "reader", _content(question)))
        replies = self.ask(list(requests.values())) if requests else []
        for question, reply in zip(requests, replies, strict=True):
            answers[question] = read_answer(reply, self.renderer.thinks)
            self.tally["no answer" if answers[question] is None else "answered"] += 1
        return [answers[question] for question in questions]


def open_reader(settings: QaTools, stage: Stage) -> Reader:
    """The reader that params name, asked through the stage's journal.

    Raises ReaderError when none is named or it has no chat template, ModelError or as `runners.runner` does when it cannot
    be loaded.
    """
    if not settings.reader:
        raise ReaderError("tools.qa.reader is empty: set it to a model folder or a hub id, and tools.qa.reader_revision")
    asked = Asked("reader", settings.reader, settings.reader_revision, "tools.qa.reader")
    opened = open_model(stage, asked, partial(ReaderRenderer, prompt=settings.prompt), settings, "reading", "reader")
    seed = stage.params.seed
    return Reader(opened.renderer, opened.ask, seed, settings.max_new_tokens, opened.longest, opened.facts)


def _content(question: Question) -> str:
    """All of a question as one text, in which no field can pass for a part of another."""
    return json.dumps(astuple(question))

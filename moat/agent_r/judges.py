"""Who finds the step at which a bad path went wrong: the actor, in words or by likelihood, or the search tree.

* `actor` (Agent-R, arXiv 2501.11425): the actor reads the path up to a step and writes reasons, then a label.
* `actor_label`: the likelihood of each label after the same prompt, for actors too small to write reasons.
* `tree`: a step is bad where the best reward seen below it falls against that below the step before. No judge of the
  paper's, but a yardstick: it knows what the others have to guess.

The prompt is one user turn, and depends on the bad path alone (trap 40). Only what the actor itself writes is read for a
label, so no text of a path can pass for one. What cannot be read is `unparsed`, and is never good.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import numpy as np

from moat.engines.base import DecodingParams, FinishReason, decoding_of
from moat.judge_prompt import END_THINK, THINK
from moat.rows import ENGINE_FAILED, Runner
from moat.seeds import seed_of
from moat.stage import Advance
from moat.tokens import Example, Renderer

LEAD = "An agent was told this:\n\n"
OPENING = "\n\nSteps taken so far:"
STEP, ANSWER = "\nStep ", "\nAnswer: "
TAG = "Judgment: "
QUESTION = (
    "\n\nDoes the last step help to reach the goal? Write your reasons, and at the end one line: Judgment: Good, Judgment: "
    "Bad or Judgment: Uncertain."
)
LENGTH, CUT = "over max_length", "cut at judge.max_new_tokens"
NO_LABEL, THINKING, NOT_FINITE = "no readable label", "the thinking never ended", "no finite likelihood"
_TAG = re.compile(r"\bJudgment:", re.IGNORECASE)


class TooManyUnparsed(RuntimeError):  # noqa: N818 - says what happened
    """More labels than `limits.max_unparsed` could not be read; the message has the figures."""


class Label(StrEnum):
    """What a judge says of a step."""

    BAD = "bad"
    UNCERTAIN = "uncertain"
    GOOD = "good"
    UNPARSED = "unparsed"  # there is no label


SAID = (Label.BAD, Label.UNCERTAIN, Label.GOOD)  # of equally likely ones the first counts


def label_text(label: str) -> str:
    """The line that says a label, as it is asked for, trained on and scored. Raises ValueError for one that is none."""
    if label not in SAID:
        raise ValueError(f"{label!r} is no label that a judge says; those are {', '.join(SAID)}")
    return TAG + label.capitalize()


PHRASES = (
    LEAD,
    OPENING,
    STEP,
    ANSWER,
    QUESTION,
    *map(label_text, SAID),
)  # what every prompt is made of, for a small vocabulary


@dataclass(frozen=True, slots=True)
class Judged:
    """A step's label, what the judge wrote (blank where it writes nothing), and why there is no label."""

    label: Label
    reasons: str = ""
    why: str = ""


def judge_texts(instruction: str, first: str, turns: Sequence[tuple[str, str]]) -> str:
    """The question about the last of `turns`: what the actor was told, every turn with its observation, what is asked."""
    steps = "".join(f"{STEP}{number}: {text}{ANSWER}{seen}" for number, (text, seen) in enumerate(turns, 1))
    return LEAD + instruction + first + OPENING + steps + QUESTION


def read_label(text: str, ended: bool, thinks: bool = False) -> Judged:
    """The label of an answer, by its last tag; `ended`: it was not cut. What is thought aloud before it does not count.

    `thinks`: the prompt opened the thinking, so that the answer must close it.
    """
    if not ended:
        return Judged(Label.UNPARSED, text, CUT)
    _, closed, said = text.rpartition(END_THINK)
    if THINK in said or (thinks and not closed):
        return Judged(Label.UNPARSED, text, THINKING)
    tags = list(_TAG.finditer(said))
    word = said[tags[-1].end() :].partition("\n")[0].strip(" \t\r*.").casefold() if tags else ""
    return Judged(Label(word), text) if word in SAID else Judged(Label.UNPARSED, text, NO_LABEL)


@dataclass
class ActorJudge:
    """The actor as a judge. A question over `max_length` tokens, for `by_likelihood` with its label, is not asked."""

    runner: Runner
    renderer: Renderer
    max_length: int

    def by_words(self, questions: Sequence[str], decoding: DecodingParams, seed: int, advance: Advance) -> list[Judged]:
        """Reasons and a label for each question, in order; equal questions are asked once. Raises as `Runner.generate`."""
        tokenizer = self.renderer.tokenizer
        opening = str(tokenizer.decode(self._prompt("")))
        thinks = opening.rfind(THINK) > opening.rfind(END_THINK)
        prompts = [self._prompt(question) for question in questions]
        fits = [number for number, prompt in enumerate(prompts) if len(prompt) <= self.max_length]
        advance(len(prompts) - len(fits))
        seeds = [seed_of(seed, "judge", questions[number]) for number in fits]
        made = self.runner.generate([prompts[number] for number in fits], seeds, decoding_of(decoding), advance)
        judged = [Judged(Label.UNPARSED, why=LENGTH)] * len(prompts)
        for number, one in zip(fits, made, strict=True):
            if one is None:
                judged[number] = Judged(Label.UNPARSED, why=ENGINE_FAILED)
            else:  # special tokens are shown: where thinking ends must be seen even if that is one
                text = str(tokenizer.decode(one.ids, skip_special_tokens=False, clean_up_tokenization_spaces=False))
                judged[number] = read_label(text, one.finish_reason is FinishReason.STOP, thinks)
        return judged

    def by_likelihood(self, questions: Sequence[str], advance: Advance) -> list[Judged]:
        """The likeliest label for each question, in order, where a label is what training supervises: its line, its end.

        Raises as `Runner.score`.
        """
        completions = [self.renderer.completion(label_text(label)) for label in SAID]
        longest = max(map(len, completions))
        prompts = [self._prompt(question) for question in questions]
        fits = [number for number, prompt in enumerate(prompts) if len(prompt) + longest <= self.max_length]
        advance(len(prompts) - len(fits))
        examples = [Example(prompts[number], completion) for number in fits for completion in completions]
        groups = [questions[number] for number in fits for _ in completions]  # a question's labels share a batch
        done = 0

        def advanced(n: int) -> None:
            nonlocal done
            advance((done + n) // len(SAID) - done // len(SAID))
            done += n

        scored = self.runner.score(examples, groups, advanced)
        judged = [Judged(Label.UNPARSED, why=LENGTH)] * len(prompts)
        for place, number in enumerate(fits):
            judged[number] = _likeliest(scored[place * len(SAID) : (place + 1) * len(SAID)])
        return judged

    def _prompt(self, question: str) -> list[int]:
        return self.renderer.conversation([question])[0]


def _likeliest(scored: Sequence[np.ndarray | None]) -> Judged:
    """The label of the highest sum of log-probabilities; `scored` are those of its tokens, in the order of `SAID`."""
    sums = [float(np.sum(one, dtype=np.float64)) for one in scored if one is not None]
    if len(sums) < len(SAID):
        return Judged(Label.UNPARSED, why=ENGINE_FAILED)
    if not np.isfinite(sums).all():
        return Judged(Label.UNPARSED, why=NOT_FINITE)
    return Judged(SAID[int(np.argmax(sums))])


def by_tree(rows: Sequence[Mapping[str, Any]]) -> dict[int, Label]:
    """A label for every node of a tree that a finished path goes through, but the root; `rows` are its rows of the table.

    Bad where the highest final reward of a path through the node is below that of a path through its parent.
    """
    parents = {row["node"]: row["parent"] for row in rows}
    best: dict[int, float] = {}
    for row in rows:
        if row["end"]:
            number: int | None = row["node"]
            while number is not None and best.get(number, -np.inf) < row["reward"]:
                best[number] = row["reward"]
                number = parents[number]
    return {
        number: Label.BAD if reward < best[parents[number]] else Label.GOOD
        for number, reward in best.items()
        if parents[number] is not None
    }


def check_unparsed(judged: Sequence[Judged], allowed: float) -> None:
    """Raise TooManyUnparsed when a larger share than `allowed` of the judged steps has no label."""
    lost = [one for one in judged if one.label is Label.UNPARSED]
    if len(lost) <= allowed * len(judged):
        return
    counts = {why: sum(one.why == why for one in lost) for why in sorted({one.why for one in lost})}
    reasons = ", ".join(f"{n:,} {why}" for why, n in counts.items())
    example = next((f" One answer ends with {one.reasons[-80:]!r}." for one in lost if one.reasons), "")
    raise TooManyUnparsed(
        f"{len(lost):,} of {len(judged):,} judged steps ({len(lost) / len(judged):.1%}) have no label, more than "
        f"limits.max_unparsed ({allowed:.1%}): {reasons}.{example} Raise judge.max_new_tokens if answers are cut, and "
        "max_length if questions do not fit; set judge.kind to actor_label if the actor writes no labels, or raise "
        "limits.max_unparsed to go on without them"
    )

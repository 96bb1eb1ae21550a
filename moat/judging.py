"""Judging candidates: by executing them, by a judge model, or by both.

The model is behind one function, `Ask`: rendered requests in, texts out, in order. Nothing here knows an engine, and a judge
is opened only when there is something to ask it. Equal questions (x, I, s, a and gold) are asked once, and have the same
prompt and seed in every round: both depend on the run's seed and the question alone.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from moat.asking import Ask, Request
from moat.critic import SHOWN, Answer, Critique, Verdict, judge, judged
from moat.executor import Outcome
from moat.judge_answer import read_answer
from moat.judge_prompt import Case, JudgeRenderer, Question
from moat.params import Critic
from moat.seeds import seed_of
from moat.toolbox import Goal, Toolbox


class TooManyUnparsed(RuntimeError):  # noqa: N818 - says what happened
    """More of a judge's answers than `limits.max_unparsed` could not be read; the message has the figures."""


@dataclass(frozen=True)
class Judge:
    """A judge model that can be asked.

    `longest` is its context in tokens, `max_new_tokens` what an answer may take of it; a question that leaves no room for
    that is not asked. `facts` says what answers: it goes into the tables' metadata.
    """

    renderer: JudgeRenderer
    ask: Ask
    seed: int
    max_new_tokens: int
    longest: int | None = None
    facts: dict[str, Any] = field(default_factory=dict)

    def answers(self, cases: Sequence[Case]) -> list[Answer]:
        """The judge's answer to every case, in order. Raises JudgeError for a domain without instructions."""
        fixed: dict[Case, Answer] = {}
        asked: dict[Case, Question] = {}
        for case in dict.fromkeys(cases):
            question = self.renderer.question(case, self.seed)
            if question is None:
                fixed[case] = _unasked("a control token in the data")
            elif self.longest is not None and len(question.prompt) + self.max_new_tokens > self.longest:
                fixed[case] = _unasked(
                    f"question and max_new_tokens do not fit the judge's {self.longest} tokens of context"
                )
            else:
                asked[case] = question
        requests = [Request(q.prompt, seed_of(self.seed, "judge", q.content)) for q in asked.values()]
        replies = self.ask(requests) if requests else []
        for (case, question), reply in zip(asked.items(), replies, strict=True):
            finished = reply.finish_reason == "stop"
            fixed[case] = read_answer(reply.text, finished, question.key, self.renderer.thinks)
        return [fixed[case] for case in cases]


def _unasked(why: str) -> Answer:
    return Answer(Verdict.UNPARSED, None, None, why, "")


@dataclass(frozen=True, slots=True)
class Acted:
    """A candidate's case, what its actions are run against, what they came to, and whether they ended by themselves."""

    case: Case
    goal: Goal
    came: Outcome
    finished: bool


@dataclass(frozen=True, slots=True)
class Judgement:
    """A critique of every candidate, in order; `answers` are those of the candidates that a judge was asked about."""

    critiques: list[Critique]
    answers: list[Answer]
    facts: dict[str, Any]


def criticise(settings: Critic, acted: Sequence[Acted], toolbox: Toolbox, open_judge: Callable[[], Judge]) -> Judgement:
    """Judge every candidate as `critic.kind` says. Raises JudgeError when the judge cannot be asked."""
    kind = settings.kind
    if kind == "executor" or kind == "none":
        return Judgement([_without_model(kind, settings, one, toolbox) for one in acted], [], {})
    found: dict[int, Critique] = {}
    if kind == "executor_then_llm":
        by_executor = {index: _without_model("executor", settings, one, toolbox) for index, one in enumerate(acted)}
        found = {index: critique for index, critique in by_executor.items() if critique.verdict is Verdict.ACCEPT}
    waiting = [index for index in range(len(acted)) if index not in found]
    if not waiting:
        return Judgement([found[index] for index in range(len(acted))], [], {})
    model = open_judge()
    answers = model.answers([acted[index].case for index in waiting])
    for index, answer in zip(waiting, answers, strict=True):
        one = acted[index]
        found[index] = judged(
            kind,
            answer,
            came=one.came,
            finished=one.finished,
            goal=one.goal,
            toolbox=toolbox,
        )
    return Judgement([found[index] for index in range(len(acted))], answers, model.facts)


def _without_model(kind: Literal["executor", "none"], settings: Critic, one: Acted, toolbox: Toolbox) -> Critique:
    return judge(
        kind,
        settings.on_failure,
        came=one.came,
        finished=one.finished,
        goal=one.goal,
        gold_actions=one.case.gold_actions,
        toolbox=toolbox,
    )


def check_unparsed(answers: Sequence[Answer], allowed: float) -> None:
    """Raise TooManyUnparsed when a larger share than `allowed` of the judged candidates has no readable verdict."""
    lost = [answer for answer in answers if answer.verdict is Verdict.UNPARSED]
    if not answers or len(lost) / len(answers) <= allowed:
        return
    reasons = ", ".join(f"{n:,} {reason}" for reason, n in Counter(answer.reason for answer in lost).most_common(5))
    example = next((f" One answer ends with {answer.text[-SHOWN:]!r}." for answer in lost if answer.text), "")
    raise TooManyUnparsed(
        f"{len(lost):,} of {len(answers):,} judged candidates ({len(lost) / len(answers):.1%}) have no readable verdict, "
        f"more than limits.max_unparsed ({allowed:.1%}): {reasons}.{example} Raise critic.max_new_tokens if answers are "
        "cut, lower it if they do not fit. If they have no verdict, take a stronger judge (`moat calibrate-critic` measures "
        "it). Raise limits.max_unparsed to go on without them"
    )

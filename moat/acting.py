"""Acting: the grounder turns plans into actions, and the actions are executed with the real tools."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from moat.engines.base import Decoding, FinishReason
from moat.executor import TOOLS, Outcome, documentation, execute, outcome
from moat.rows import Runner
from moat.stage import Advance
from moat.tokens import Renderer


class DecodingParams(Protocol):
    """A params section that says how to decode."""

    @property
    def temperature(self) -> float: ...  # noqa: D102
    @property
    def top_p(self) -> float: ...  # noqa: D102
    @property
    def max_new_tokens(self) -> int: ...  # noqa: D102


@dataclass(frozen=True, slots=True)
class Request:
    """A plan to be acted on (None: there is none), and the gold answer that tells whether the actions reach it."""

    text: str
    domain: str
    subgoals: str | None
    gold_answer: str
    seed: int


@dataclass(frozen=True, slots=True)
class Act:
    """The grounder's actions and what came of them; without `finish_reason` there was no answer from the engine."""

    actions: str
    finish_reason: FinishReason | None
    outcome: Outcome
    answer: str | None
    message: str


UNANSWERED = Act("", None, Outcome.UNANSWERED, None, "the engine failed on the request")


def act(runner: Runner, renderer: Renderer, requests: Sequence[Request], how: DecodingParams, advance: Advance) -> list[Act]:
    """Ground and execute every request, in order. Model text never raises: a failure is an outcome."""
    asked = [request for request in requests if request.subgoals is not None]
    prompts = [renderer.grounder_prompt(r.text, documentation(r.domain), r.subgoals or "") for r in asked]
    decoding = Decoding(how.temperature, how.top_p, how.max_new_tokens)
    made = iter(runner.generate(prompts, [r.seed for r in asked], decoding, advance))
    acts = []
    for request in requests:
        generation = next(made) if request.subgoals is not None else None
        if generation is None:
            acts.append(UNANSWERED)
            continue
        actions = renderer.decode(generation.ids)
        execution = execute(actions, TOOLS[request.domain])
        came = outcome(execution, request.gold_answer)
        acts.append(Act(actions, generation.finish_reason, came, execution.answer, execution.message))
    return acts

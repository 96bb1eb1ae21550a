"""Acting: the grounder turns plans into actions, and the actions are executed with the real tools."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from moat import rows
from moat.engines.hf import Decoding, FinishReason, HFEngine
from moat.executor import TOOLS, Outcome, documentation, execute, outcome
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
    """A plan to be acted on, and the gold answer that tells whether the actions reach it."""

    text: str
    domain: str
    subgoals: str
    gold_answer: str
    seed: int


@dataclass(frozen=True, slots=True)
class Act:
    """The grounder's actions and what came of them."""

    actions: str
    finish_reason: FinishReason
    outcome: Outcome
    answer: str | None
    message: str


def act(
    engine: HFEngine,
    renderer: Renderer,
    requests: Sequence[Request],
    how: DecodingParams,
    batch_size: int,
    advance: Advance,
) -> list[Act]:
    """Ground and execute every request, in order. Model text never raises: a failure is an outcome."""
    prompts = [renderer.grounder_prompt(r.text, documentation(r.domain), r.subgoals) for r in requests]
    decoding = Decoding(how.temperature, how.top_p, how.max_new_tokens)
    made = rows.generate(engine, prompts, [r.seed for r in requests], decoding, batch_size, advance)
    acts = []
    for request, generation in zip(requests, made, strict=True):
        actions = renderer.decode(generation.ids)
        execution = execute(actions, TOOLS[request.domain])
        came = outcome(execution, request.gold_answer)
        acts.append(Act(actions, generation.finish_reason, came, execution.answer, execution.message))
    return acts

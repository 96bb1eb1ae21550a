"""Acting: the grounder turns plans into actions, and the actions are executed with the real tools."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from moat.engines.base import DecodingParams, FinishReason, decoding_of
from moat.executor import Execution, Outcome, outcome
from moat.rows import Runner
from moat.stage import Advance
from moat.tokens import Renderer
from moat.toolbox import Goal, Toolbox
from moat.tools.docs import documentation
from moat.turns import Done


@dataclass(frozen=True, slots=True)
class Request:
    """A plan to be acted on (None: there is none), and what its actions are run against.

    With a history `subgoals` is one subgoal, and its actions may use the results of the turns before it (`goal.earlier`).
    """

    text: str
    subgoals: str | None
    goal: Goal
    seed: int
    history: tuple[Done, ...] | None = None


@dataclass(frozen=True, slots=True)
class Act:
    """The grounder's actions and what came of them; without `finish_reason` there was no answer from the engine."""

    actions: str
    finish_reason: FinishReason | None
    outcome: Outcome
    execution: Execution


UNANSWERED = Act("", None, Outcome.UNANSWERED, Execution(None, None, "the engine failed on the request", ()))


def act(
    runner: Runner,
    renderer: Renderer,
    toolbox: Toolbox,
    requests: Sequence[Request],
    how: DecodingParams,
    advance: Advance,
) -> list[Act]:
    """Ground and execute every request, in order. Model text never raises: a failure is an outcome."""
    asked = [request for request in requests if request.subgoals is not None]
    prompts = [renderer.grounder_prompt(r.text, documentation(r.goal.domain), r.subgoals or "", r.history) for r in asked]
    made = iter(runner.generate(prompts, [r.seed for r in asked], decoding_of(how), advance))
    given = [next(made) if request.subgoals is not None else None for request in requests]
    programs = [(renderer.decode(g.ids), r.goal) for r, g in zip(requests, given, strict=True) if g is not None]
    ran = iter(zip(programs, toolbox.run(programs), strict=True))
    acts = []
    for generation in given:
        if generation is None:
            acts.append(UNANSWERED)
            continue
        (actions, goal), execution = next(ran)
        acts.append(Act(actions, generation.finish_reason, outcome(execution, goal.gold_answer, goal.metric), execution))
    return acts

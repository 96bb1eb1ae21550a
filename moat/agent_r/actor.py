"""Asking an actor for turns: many plays go on together, so that the engine is asked in batches.

What plays is a generator that yields the turns it needs next, and is sent the answers. `together` collects what all of them
ask, asks once, and goes round again. What is asked for next depends on what was answered, and on no clock: equal runs ask
equal batches.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import TypeVar

from moat.engines.base import DecodingParams, decoding_of
from moat.rows import ENGINE_FAILED, Runner
from moat.tokens import Renderer

Result = TypeVar("Result")


@dataclass(frozen=True, slots=True)
class Request:
    """The actor's next turn is asked for; `texts` is the conversation so far, begun and ended by the environment's side."""

    texts: tuple[str, ...]
    seed: int


@dataclass(frozen=True, slots=True)
class Answer:
    """A turn: its text, its tokens with the end token, and its log-probability (nats) under the actor."""

    text: str
    n_tokens: int
    logprob: float


class Missing(StrEnum):
    """Why there is no turn."""

    LENGTH = "over max_length"
    ENGINE = ENGINE_FAILED


Answers = list[Answer | Missing]
Playing = Generator[list[Request], Answers, Result]


@dataclass
class Actor:
    """A model that acts, asked through a runner. A conversation of more than `max_length` tokens is not continued."""

    runner: Runner
    renderer: Renderer
    decoding: DecodingParams
    max_length: int

    def ask(self, requests: Sequence[Request]) -> Answers:
        """A turn for each request, in order. Raises EngineError when too many got none."""
        prompts = [[token for turn in self.renderer.conversation(one.texts) for token in turn] for one in requests]
        fits = [number for number, prompt in enumerate(prompts) if len(prompt) <= self.max_length]
        made = self.runner.generate(
            [prompts[number] for number in fits],
            [requests[number].seed for number in fits],
            decoding_of(self.decoding),
            lambda n: None,
        )
        answers: Answers = [Missing.LENGTH] * len(requests)
        for number, one in zip(fits, made, strict=True):
            if one is None:
                answers[number] = Missing.ENGINE
            else:
                answers[number] = Answer(self.renderer.decode(one.ids), len(one.ids) + 1, one.logprob)
        return answers


def conversation(instruction: str, first: str, turns: Sequence[tuple[str, str]]) -> tuple[str, ...]:
    """A conversation so far: the instruction with the first observation, then every turn's text and its observation."""
    return (instruction + first, *(said for turn in turns for said in turn))


def together(playing: Sequence[Playing[Result]], actor: Actor) -> list[Result]:
    """Let all of them play to their ends; returns what each returned.

    Raises what they raise, and as `Actor.ask`; then the others are closed, so that each lets go of what it holds.
    """
    results: dict[int, Result] = {}
    waiting: dict[int, list[Request]] = {}

    def go_on(number: int, answers: Answers | None) -> None:
        try:
            waiting[number] = next(playing[number]) if answers is None else playing[number].send(answers)
        except StopIteration as end:
            results[number] = end.value

    try:
        for number in range(len(playing)):
            go_on(number, None)
        while waiting:
            asked, waiting = waiting, {}
            answers = iter(actor.ask([request for requests in asked.values() for request in requests]))
            for number, requests in asked.items():
                go_on(number, [next(answers) for _ in requests])
    finally:
        for one in playing:
            one.close()
    return [results[number] for number in range(len(playing))]

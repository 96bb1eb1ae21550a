"""Who answers planned batches: one engine in this process, or several in processes of their own.

A batch is a `Work`. Wherever its engine is, `attend` asks it: a batch that the engine cannot answer is tried again in
halves, a single request a few times with growing pauses, and what still fails is None.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import numpy as np

from moat.engines.base import Decoding, Engine, EngineError, Generation


@dataclass(frozen=True, slots=True)
class Retry:
    """How often a single request is tried, and the seconds before the second try; each further pause is twice as long."""

    attempts: int = 3
    pause: float = 1.0


@dataclass(frozen=True, slots=True)
class Work:
    """A batch of requests, as token ids: prompts to continue, one seed a row, or prompts whose `completions` to score."""

    prompts: Sequence[Sequence[int]]
    seeds: Sequence[int] = ()
    decoding: Decoding | None = None
    completions: Sequence[Sequence[int]] = ()

    def __len__(self) -> int:
        return len(self.prompts)

    def part(self, rows: slice) -> Work:
        """Some of its rows."""
        return replace(self, prompts=self.prompts[rows], seeds=self.seeds[rows], completions=self.completions[rows])

    def ask(self, engine: Engine) -> Sequence[Generation] | Sequence[np.ndarray]:
        """The engine's answers, a row each. Raises EngineError."""
        if self.decoding is None:
            return engine.score(self.prompts, self.completions)
        return engine.generate(self.prompts, self.seeds, self.decoding)


@dataclass(slots=True)
class Reply:
    """The answers to a Work, a row each, None for those that failed; how many calls it took, and the last failure."""

    answers: list[Any] = field(default_factory=list)
    calls: int = 0
    failure: str = ""


def attend(engine: Callable[[], Engine], work: Work, retry: Retry) -> Reply:
    """Ask for `work`: halved on an EngineError, down to single requests. `engine` opens it, or gives the open one."""
    reply = Reply()
    attempts = retry.attempts if len(work) == 1 else 1
    for attempt in range(attempts):
        reply.calls += 1
        try:
            reply.answers = list(work.ask(engine()))
        except EngineError as error:
            reply.failure = str(error)
            if attempt + 1 < attempts:
                time.sleep(retry.pause * 2**attempt)
            continue
        return reply
    if len(work) == 1:
        reply.answers = [None]
        return reply
    middle = len(work) // 2
    for half in (slice(None, middle), slice(middle, None)):
        own = attend(engine, work.part(half), retry)
        reply = Reply(reply.answers + own.answers, reply.calls + own.calls, own.failure or reply.failure)
    return reply


class Workers(Protocol):
    """Answers batches, in any order; opened when first asked."""

    def run(self, works: Sequence[Work]) -> Iterator[tuple[int, Reply]]:
        """The number of each batch and its reply, as they are finished."""
        ...

    def start(self) -> None:
        """Begin what can be done before the first batch is there."""
        ...

    def close(self) -> None:
        """Let the engines go, with their memory; they are opened again if they are needed again."""
        ...


class Here:
    """One engine in this process."""

    def __init__(self, load: Callable[[], Engine], retry: Retry) -> None:
        self.load = load
        self.retry = retry
        self._engine: Engine | None = None

    def start(self) -> None:
        """Nothing: it takes memory as soon as it is there."""

    def engine(self) -> Engine:
        """The engine, opened now if it was not."""
        if self._engine is None:
            self._engine = self.load()
        return self._engine

    def run(self, works: Sequence[Work]) -> Iterator[tuple[int, Reply]]:
        """One batch after the other."""
        for number, work in enumerate(works):
            yield number, attend(self.engine, work, self.retry)

    def close(self) -> None:
        """Let the engine go."""
        self._engine = None

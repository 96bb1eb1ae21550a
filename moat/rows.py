"""Row work: many independent requests to one engine, in planned batches, equal requests asked once, none asked again.

Batches are planned from the whole request list, by length, so that padding is small and the same requests always meet the
same batch: float32 log-probabilities differ in their last bits with the batch's shape. Then the journal is consulted. After
a kill a batch is there whole or not at all, so the same run has the same bytes; after a change of the requests (ten tasks
more) only the new ones are asked, in smaller batches, which is equal up to rounding.

Batches go to workers (`moat.workers`), which may finish them in any order; a finished one is in the journal at once. What
the engine fails on is None in the results, for the stage to drop by reason; above `max_failed` it is an error.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from itertools import compress
from typing import Any, TypeVar

import numpy as np

from moat.engines.base import Decoding, EngineError, Generation
from moat.journal import Journal
from moat.stage import Advance, Stage
from moat.tokens import Example
from moat.wire import pack_generation, pack_logprobs, unpack_generation, unpack_logprobs
from moat.workers import Work, Workers

ENGINE_FAILED = "engine failed"  # the reason why a row has no answer
Answer = TypeVar("Answer", Generation, np.ndarray)


def plan_batches(lengths: Sequence[int], groups: Sequence[Hashable], size: int) -> list[list[int]]:
    """Split row indices into batches of at most `size` rows, similar in length; a group is never split if it fits.

    Rows of one group (one task's candidates) share a batch, so that their scores are compared under one shape.
    """
    members: dict[Hashable, list[int]] = {}
    for index, group in enumerate(groups):
        members.setdefault(group, []).append(index)
    ordered = sorted(members.values(), key=lambda rows: (max(lengths[i] for i in rows), rows[0]))
    batches: list[list[int]] = []
    for rows in ordered:
        for start in range(0, len(rows), size):
            piece = rows[start : start + size]
            if batches and len(batches[-1]) + len(piece) <= size:
                batches[-1].extend(piece)
            else:
                batches.append(list(piece))
    return batches


@dataclass(slots=True)
class Tally:
    """What became of the requests: asked of the engine (in how many calls), found in the journal, failed; new tokens."""

    requests: int = 0
    asked: int = 0
    calls: int = 0
    failed: int = 0
    tokens: int = 0
    last_failure: str = ""


def _key(identity: str, *parts: Any) -> str:
    """Hash of everything that determines an answer. Raises TypeError for a part without a stable form."""
    return hashlib.sha256(json.dumps([identity, *parts]).encode()).hexdigest()[:32]


@dataclass
class Runner:
    """Asks one model. `identity` is all that determines its answers besides the request: weights, engine, dtype, versions.

    `facts` is the part of it that artifacts carry. `longest` is the model's context in tokens, where a server says so.
    Raises EngineError when more than `max_failed` of the requests of a call got no answer.
    """

    workers: Workers
    identity: Mapping[str, Any]
    journal: Journal
    generate_batch: int
    score_batch: int
    max_failed: float
    tally: Tally = field(default_factory=Tally)
    facts: Mapping[str, Any] = field(default_factory=dict)
    longest: int | None = None

    def __post_init__(self) -> None:
        self._identity = json.dumps(dict(self.identity), sort_keys=True)

    def drop_engine(self) -> None:
        """Let the engine go, with its memory; it is opened again if it is needed again."""
        self.workers.close()

    def generate(
        self, prompts: Sequence[Sequence[int]], seeds: Sequence[int], decoding: Decoding, advance: Advance
    ) -> list[Generation | None]:
        """Continue every prompt; results in their order. Greedy requests with equal prompts are one request."""
        how = [decoding.temperature, decoding.top_p, decoding.max_new_tokens]
        keys = [
            _key(self._identity, "generate", list(prompt), seed if decoding.temperature else 0, how)
            for prompt, seed in zip(prompts, seeds, strict=True)
        ]

        def work(rows: Sequence[int]) -> Work:
            return Work([prompts[i] for i in rows], [seeds[i] for i in rows], decoding)

        lengths, form = [len(p) for p in prompts], (pack_generation, unpack_generation)
        return self._run(keys, lengths, keys, self.generate_batch, work, form, advance)

    def score(self, examples: Sequence[Example], tasks: Sequence[str], advance: Advance) -> list[np.ndarray | None]:
        """Log-probabilities (nats) of every completion token of every example, in order; equal examples are one request.

        A task's examples share a batch.
        """
        return self._score("score", examples, tasks, self.score_batch, advance)

    def score_alone(self, examples: Sequence[Example], advance: Advance) -> list[np.ndarray | None]:
        """As `score`, but every example is a batch of its own, whatever is known of it from a batch with others.

        For measuring how far a batch moves a score (`moat.noise`).
        """
        return self._score("score alone", examples, range(len(examples)), 1, advance)

    def _score(
        self, kind: str, examples: Sequence[Example], groups: Sequence[Hashable], size: int, advance: Advance
    ) -> list[np.ndarray | None]:
        keys = [_key(self._identity, kind, e.prompt, e.completion) for e in examples]

        def work(rows: Sequence[int]) -> Work:
            return Work([examples[i].prompt for i in rows], completions=[examples[i].completion for i in rows])

        lengths = [len(e) for e in examples]
        return self._run(keys, lengths, groups, size, work, (pack_logprobs, unpack_logprobs), advance)

    def _run(
        self,
        keys: Sequence[str],
        lengths: Sequence[int],
        groups: Sequence[Hashable],
        size: int,
        work: Callable[[Sequence[int]], Work],
        form: tuple[Callable[[Answer], Any], Callable[[Any], Answer]],
        advance: Advance,
    ) -> list[Answer | None]:
        pack, unpack = form
        first = {key: index for index, key in reversed(list(enumerate(keys)))}
        unique = sorted(first.values())
        failed_before = self.tally.failed
        self.tally.requests += len(unique)
        advance(len(keys) - len(unique))
        open_batches = []
        for batch in plan_batches([lengths[i] for i in unique], [groups[i] for i in unique], size):
            rows = [unique[i] for i in batch]
            missing = [i for i in rows if keys[i] not in self.journal]
            advance(len(rows) - len(missing))
            if missing:
                open_batches.append(missing)
        for number, reply in self.workers.run([work(rows) for rows in open_batches]):
            rows, tally = open_batches[number], self.tally
            done = {keys[i]: one for i, one in zip(rows, reply.answers, strict=True) if one is not None}
            self.journal.add({key: pack(one) for key, one in done.items()})
            tally.calls += reply.calls
            tally.asked += len(rows)
            tally.failed += len(rows) - len(done)
            tally.tokens += sum(len(one.ids) if isinstance(one, Generation) else len(one) for one in done.values())
            tally.last_failure = reply.failure or tally.last_failure
            advance(len(rows))
            self._check(tally.failed - failed_before, len(unique))
        return [unpack(self.journal[key]) if key in self.journal else None for key in keys]

    def _check(self, failed: int, requests: int) -> None:
        if failed > self.max_failed * requests:
            raise EngineError(
                f"the engine failed on {failed:,} of {requests:,} requests, over max_failed {self.max_failed}; the last: "
                f"{self.tally.last_failure}. What was answered is kept: mend the cause, run again, and only these are asked"
            )


def tell(stage: Stage[Any], *runners: Runner) -> None:
    """Say and note how much of the row work was asked of engines, and how much the journal knew."""
    requests, asked, failed = (sum(getattr(r.tally, name) for r in runners) for name in ("requests", "asked", "failed"))
    if asked < requests:
        stage.say(f"{requests:,} requests: {asked:,} asked, {requests - asked:,} known already")
    if failed:
        last = next(r.tally.last_failure for r in reversed(runners) if r.tally.failed)
        stage.warn(f"the engine failed on {failed:,} of {requests:,} requests; the last: {last}")
    stage.notes["requests"] = [asdict(r.tally) for r in runners]


def answered(rows: Sequence[Any], answers: Sequence[Any]) -> list[Any]:
    """The rows that have an answer."""
    return list(compress(rows, (answer is not None for answer in answers)))

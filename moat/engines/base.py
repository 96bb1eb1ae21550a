"""What every engine is: requests in, generations or log-probabilities out, one batch a call.

Engines know nothing of tasks, journals or retries; `moat.rows` does. They raise EngineError for what another attempt may
mend (out of memory, a time-out, a server's error) and let everything else through as the bug it is.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

import numpy as np


class EngineError(RuntimeError):
    """A batch that the engine could not answer this time."""


class FinishReason(StrEnum):
    """Why a generation ended: by its end token, or because the token limit was reached."""

    STOP = "stop"
    LENGTH = "length"


@dataclass(frozen=True, slots=True)
class Generation:
    """Generated token ids without the end token, why they ended, and what the model thought of them.

    `logprob` is the sum of the log-probabilities (nats) of all generated tokens, the end token among them, under the model
    itself: before temperature and nucleus. NaN: a server was asked that does not tell all of them.
    """

    ids: list[int]
    finish_reason: FinishReason
    logprob: float


@dataclass(frozen=True, slots=True)
class Decoding:
    """How to draw tokens. `temperature` 0 is greedy; `top_p` in (0, 1]; `max_new_tokens` counts the end token."""

    temperature: float
    top_p: float
    max_new_tokens: int


class DecodingParams(Protocol):
    """A params section that says how to decode."""

    @property
    def temperature(self) -> float: ...  # noqa: D102
    @property
    def top_p(self) -> float: ...  # noqa: D102
    @property
    def max_new_tokens(self) -> int: ...  # noqa: D102


def decoding_of(params: DecodingParams) -> Decoding:
    """How a params section says to decode; the section may hold other keys too."""
    return Decoding(params.temperature, params.top_p, params.max_new_tokens)


class Engine(Protocol):
    """One model, ready to generate and to score; rows are the caller's batches. Both raise EngineError."""

    def generate(self, prompts: Sequence[Sequence[int]], seeds: Sequence[int], decoding: Decoding) -> list[Generation]:
        """Continue each prompt (token ids), one seed a row; results in the prompts' order."""
        ...

    def score(self, prompts: Sequence[Sequence[int]], completions: Sequence[Sequence[int]]) -> list[np.ndarray]:
        """Log-probability (nats, float32) of every completion token given its prompt and the tokens before it."""
        ...

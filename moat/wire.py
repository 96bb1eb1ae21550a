"""What crosses between processes, and what the journal keeps, as JSON: batches, answers, exceptions.

Plain data: reading it runs nothing, whoever wrote it. Numbers come back bit for bit.
"""

from __future__ import annotations

import base64
import importlib
import json
import traceback
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from moat.engines.base import Decoding, FinishReason, Generation
from moat.workers import Reply, Work


def pack_generation(made: Generation) -> dict[str, Any]:
    """A generation as JSON knows it."""
    return {"ids": made.ids, "finish_reason": made.finish_reason.value, "logprob": made.logprob}


def unpack_generation(kept: Mapping[str, Any]) -> Generation:
    """The generation again."""
    return Generation(kept["ids"], FinishReason(kept["finish_reason"]), kept["logprob"])


def pack_logprobs(made: np.ndarray) -> str:
    """Log-probabilities (float32) as text."""
    return base64.b64encode(made.astype("<f4").tobytes()).decode()


def unpack_logprobs(kept: str) -> np.ndarray:
    """The log-probabilities again."""
    return np.frombuffer(base64.b64decode(kept), dtype="<f4").copy()


def pack_work(work: Work) -> bytes:
    """A batch, to be sent."""
    told = {
        "prompts": [list(row) for row in work.prompts],
        "seeds": list(work.seeds),
        "decoding": work.decoding and asdict(work.decoding),
        "completions": [list(row) for row in work.completions],
    }
    return json.dumps(told).encode()


def unpack_work(sent: bytes) -> Work:
    """The batch again."""
    told = json.loads(sent)
    return Work(**told | {"decoding": told["decoding"] and Decoding(**told["decoding"])})


def pack_reply(reply: Reply) -> bytes:
    """A reply, to be sent."""
    packed = [
        None if one is None else pack_generation(one) if isinstance(one, Generation) else pack_logprobs(one)
        for one in reply.answers
    ]
    return json.dumps({"answers": packed, "calls": reply.calls, "failure": reply.failure}).encode()


def pack_raised(error: Exception) -> bytes:
    """An exception that is being handled, in a reply's place."""
    return json.dumps({"raised": asdict(Raised.of(error))}).encode()


def unpack_reply(sent: bytes) -> Reply:
    """The reply again. Raises what was raised instead of it."""
    told = json.loads(sent)
    if "raised" in told:
        raise Raised(**told["raised"]).error()
    answers = [
        None if one is None else unpack_logprobs(one) if isinstance(one, str) else unpack_generation(one)
        for one in told["answers"]
    ]
    return Reply(answers, told["calls"], told["failure"])


@dataclass(frozen=True, slots=True)
class Raised:
    """What was raised in another process: its class by name, its plain arguments, what it says, and its traceback there."""

    kind: str
    args: Sequence[str | int]
    said: str
    trace: str

    @classmethod
    def of(cls, error: Exception) -> Raised:
        """An exception that is being handled."""
        kind, args = name_of(error)
        return cls(kind, args, f"{type(error).__name__}: {error}", traceback.format_exc())

    def error(self) -> Exception:
        """The exception, to be raised here; its traceback is a note."""
        error = named(self.kind, self.args) or RuntimeError(self.said)
        error.add_note(f"in another process:\n{self.trace}")
        return error


def name_of(error: Exception) -> tuple[str, list[str | int]]:
    """An exception's class, and those of its arguments that are plain."""
    own, args = type(error), error.args
    if isinstance(error, OSError) and error.filename is not None:
        args = (error.errno, error.strerror, str(error.filename))
    return f"{own.__module__}.{own.__qualname__}", [one for one in args if isinstance(one, str | int)]


def named(kind: str, args: Sequence[str | int]) -> Exception | None:
    """An exception of Python's own or of this project, made from `name_of`; None for any other, or one that takes more."""
    module, _, name = kind.rpartition(".")
    if module == "builtins" or module.startswith("moat."):
        with suppress(Exception):
            found = getattr(importlib.import_module(module), name)
            if isinstance(found, type) and issubclass(found, Exception):
                return found(*args)
    return None

"""Models that are asked in words, a judge or a reader: requests in, texts out, in order.

Who asks knows no engine: it has an `Ask`. `open_model` makes one of a model folder, through the stage's journal.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, Literal, Protocol, TypeVar

from moat.engines.base import DecodingParams, decoding_of
from moat.layout import CARD
from moat.rows import tell
from moat.stage import Stage

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


@dataclass(frozen=True, slots=True)
class Request:
    """Prompt ids, and the seed of the answer's random numbers."""

    prompt: list[int]
    seed: int


@dataclass(frozen=True, slots=True)
class Reply:
    """A model's text, thinking included, and why it ended; failed: the engine gave none."""

    text: str
    finish_reason: Literal["stop", "length", "failed"]


Ask = Callable[[Sequence[Request]], Sequence[Reply]]


class Decoder(Protocol):
    """Turns generated ids into text."""

    def decode(self, ids: list[int]) -> str: ...  # noqa: D102


R = TypeVar("R", bound=Decoder)


@dataclass(frozen=True)
class Opened(Generic[R]):
    """A model that can be asked. `longest` is its context in tokens, where it says so; `facts` says what answers."""

    renderer: R
    ask: Ask
    longest: int | None
    facts: dict[str, Any]


def open_model(
    stage: Stage, folder: Path, make: Callable[[PreTrainedTokenizerBase], R], how: DecodingParams, doing: str, name: str
) -> Opened[R]:
    """Open the model in `folder`. `doing` labels the bar, `name` the model's hash in the facts.

    Raises what `make` raises for a tokenizer, or as `models.runner` does when the model cannot be loaded.
    """
    from transformers import AutoConfig  # torch: only where there is a model

    from moat import models

    renderer = make(models.load_tokenizer(folder))
    runner = models.runner(stage, folder, stage.params.limits.max_failed)
    decoding = decoding_of(how)

    def ask(requests: Sequence[Request]) -> list[Reply]:
        prompts, seeds = [request.prompt for request in requests], [request.seed for request in requests]
        with stage.progress(doing, len(requests)) as advance:
            made = runner.generate(prompts, seeds, decoding, advance)
        tell(stage, runner)
        return [
            Reply("", "failed") if one is None else Reply(renderer.decode(one.ids), one.finish_reason.value) for one in made
        ]

    longest = getattr(AutoConfig.from_pretrained(folder), "max_position_embeddings", None)
    facts = models.engine_facts(stage.machine) | {name: stage.hash_of(folder, without=CARD)}
    return Opened(renderer, ask, longest, facts)

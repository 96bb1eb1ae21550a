"""Models that are asked in words, a judge or a reader: requests in, texts out, in order.

Who asks knows no engine: it has an `Ask`. `open_model` makes one of the model that params name, in this process or at the
server that machine.yaml names for the role, through the stage's journal.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, Literal, Protocol, TypeVar

from moat.engines.base import DecodingParams, decoding_of
from moat.hub import folder_of
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


@dataclass(frozen=True, slots=True)
class Asked:
    """The model that params name for a role, at the dotted `key`: a folder or a hub id, and its revision."""

    role: Literal["critic", "reader"]
    model: str
    revision: str
    key: str


@dataclass(frozen=True)
class Opened(Generic[R]):
    """A model that can be asked. `longest` is its context in tokens, where it says so; `facts` says what answers."""

    renderer: R
    ask: Ask
    longest: int | None
    facts: dict[str, Any]


def open_model(
    stage: Stage, asked: Asked, make: Callable[[PreTrainedTokenizerBase], R], how: DecodingParams, doing: str, name: str
) -> Opened[R]:
    """Open a model. `doing` labels the bar, `name` the hash in the facts: of the model, or at a server of its tokenizer.

    Raises ModelError, what `make` raises for a tokenizer, or as `runners.runner` does when the model cannot be opened.
    """
    from transformers import AutoConfig  # torch: only where there is a model

    from moat import models, runners

    served = stage.machine.role(asked.role).engine == "openai"
    folder = folder_of(asked.model, asked.revision, asked.key, weights=not served)
    renderer = make(models.load_tokenizer(folder))
    limit = stage.params.limits.max_failed
    runner = runners.runner(stage, folder, limit, asked.role, known_as=asked.model, revision=asked.revision)
    decoding = decoding_of(how)

    def ask(requests: Sequence[Request]) -> list[Reply]:
        prompts, seeds = [request.prompt for request in requests], [request.seed for request in requests]
        with stage.progress(doing, len(requests)) as advance:
            made = runner.generate(prompts, seeds, decoding, advance)
        tell(stage, runner)
        return [
            Reply("", "failed") if one is None else Reply(renderer.decode(one.ids), one.finish_reason.value) for one in made
        ]

    longest = runner.longest
    if longest is None and (folder / "config.json").is_file():
        longest = getattr(AutoConfig.from_pretrained(folder), "max_position_embeddings", None)
    which = {name: models.tokenizer_hash(folder) if served else stage.hash_of(folder, without=CARD)}
    if runner.facts["engine"] != "hf":  # beside the engine of the planner and the grounder, with which it shares no figure
        return Opened(renderer, ask, longest, {"engines": {asked.role: runner.facts}, **which})
    return Opened(renderer, ask, longest, {**runner.facts, **which})

"""The one place where a judge meets an engine. Loads torch: import it only where a judge is opened."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from pathlib import Path

from huggingface_hub import snapshot_download

from moat import models, rows
from moat.engines.hf import Decoding
from moat.judge_prompt import JudgeError, JudgeRenderer
from moat.judging import Judge, Reply, Request
from moat.machine import Machine
from moat.params import Critic
from moat.stage import Advance

NEEDED = ["*.json", "*.safetensors", "*.jinja", "tokenizer*", "merges.txt"]  # of a hub repository


def folder_of(name: str, revision: str) -> Path:
    """The judge's folder: the one that `name` is, or the hub's files at `revision`. Raises JudgeError with the remedy."""
    if Path(name).is_dir():
        for needed in ("config.json", "tokenizer_config.json"):
            if not (Path(name) / needed).is_file():
                raise JudgeError(f"critic.judge {name} is no model folder with its tokenizer: {needed} is missing there")
        return Path(name)
    try:
        return Path(snapshot_download(name, revision=revision, allow_patterns=NEEDED))
    except (OSError, ValueError) as error:
        raise JudgeError(
            f"no judge {name!r} at revision {revision!r}: it is no folder here, and the hub gave none ({error}). Without a "
            "network, put the model's folder on this disk and name it as critic.judge"
        ) from error


def open_judge(
    settings: Critic, seed: int, machine: Machine, progress: Callable[[str, int], AbstractContextManager[Advance]]
) -> Judge:
    """Load the judge that params name. Raises JudgeError, or as `models.open_engine` does."""
    folder = folder_of(settings.judge, settings.revision)
    renderer = JudgeRenderer(models.load_tokenizer(folder), settings.prompt)
    engine = models.open_engine(folder, machine)
    decoding = Decoding(settings.temperature, settings.top_p, settings.max_new_tokens)

    def ask(requests: Sequence[Request]) -> list[Reply]:
        prompts, seeds = [request.prompt for request in requests], [request.seed for request in requests]
        with progress("judging", len(requests)) as advance:
            made = rows.generate(engine, prompts, seeds, decoding, machine.generate_batch, advance)
        return [Reply(renderer.decode(one.ids), one.finish_reason.value) for one in made]

    longest = getattr(engine.model.config, "max_position_embeddings", None)
    return Judge(renderer, ask, seed, settings.max_new_tokens, longest, models.engine_facts(machine))

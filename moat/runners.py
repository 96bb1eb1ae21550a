"""Which engine answers a role's rows, and where: in the stage's process, in others, in Ray's actors, or at a server."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Literal

from moat import adapters, models
from moat.adapters import AdapterError, Kind
from moat.engines.base import Engine, EngineError
from moat.engines.child import Children
from moat.engines.compared import Compared
from moat.engines.openai import Address, OpenAIEngine, Told, no_scores
from moat.engines.spec import Spec
from moat.layout import BASE_MODEL, CARD
from moat.machine import MACHINE, ROLES, TRAINED, Machine, RayActors, Role, RoleEngine
from moat.params import ParamsError
from moat.rows import Runner
from moat.stage import Stage, versions
from moat.workers import Here, Retry, Workers


def runner(
    stage: Stage[Any],
    path: Path,
    max_failed: float,
    role: Role | None = None,
    *,
    scores: bool = False,
    known_as: str = "",
    revision: str = "",
    beside: Role | None = None,
) -> Runner:
    """Asks a role's model for a stage's rows, through the stage's journal: in this process, in others, or at a server.

    `path` is the model's folder; of a server's critic or reader only the tokenizer is read there. In this process the model
    is loaded when first needed; processes are started at once. A server is asked at once whether it is there and serves the
    model: under the name that machine.yaml gives, else `known_as` (empty: the folder's path). `revision` is the hub's.
    `scores`: it has to score; where vllm may not, hf does. `beside` is the role whose engine the stage asks at the same
    time: each is then in a process of its own.

    Raises FileNotFoundError when there is no model, EngineError or ParamsError when there is no such engine or server.
    """
    machine = stage.machine
    own = machine.role(role)
    if own.engine == "openai" and role is not None:
        return _served(stage, path, max_failed, role, scores, known_as or path.as_posix(), revision)
    identity = adapters.identity(path, stage.hash_of)
    models.check_folder(path)
    if role in TRAINED:
        models.check_tokenizer(path)
    engine: Literal["hf", "vllm"] = "vllm" if own.engine == "vllm" and (own.score or not scores) else "hf"
    facts = models.engine_facts(machine, engine, actors_gpu(machine))
    places, shared = ([], False) if machine.ray else seats(machine, role, beside, gpus(facts["device"]))
    spec = engine_spec(stage, path, role, engine, shared)
    retry = Retry(machine.retry)
    workers: Workers = Here(lambda: open_engine(spec), retry)
    reference: Workers | None = None
    if machine.ray:
        workers = actors(stage, path, spec, own.copies or 1)
        reference = actors(stage, path, replace(spec, engine="hf"), 1) if engine == "vllm" and own.score else None
    elif engine == "vllm" or len(places) > 1 or beside:
        log = stage.scratch / "logs" / stage.note_path.parent.name / f"{stage.label}-{role or 'model'}"
        workers = Children(spec, retry, log, places)
        if engine == "vllm" and own.score:
            reference = Children(replace(spec, engine="hf"), retry, log.with_name(f"{log.name}-hf"), places[:1])
    if reference:
        workers = Compared(workers, reference, own.vllm.tolerance, stage.say)
    workers.start()
    return Runner(
        workers=workers,
        identity=facts | {"model": identity},
        journal=stage.journal,
        generate_batch=machine.generate_batch,
        score_batch=machine.score_batch,
        max_failed=max_failed,
        facts=facts,
    )


def open_engine(spec: Spec) -> Engine:
    """The engine of a stage that asks in its own process. Raises as `Spec.open` does."""
    return spec.open()


def engine_spec(
    stage: Stage[Any], path: Path, role: Role | None, engine: Literal["hf", "vllm"], shared: bool = False
) -> Spec:
    """What opens a model folder for a role, the machine's `auto` resolved; `shared`: its device is another engine's too."""
    machine, params = stage.machine, stage.params
    device, dtype = models.device_and_dtype(machine, actors_gpu(machine))
    resolved = machine.model_copy(update={"device": device, "dtype": dtype})
    own = machine.role(role).vllm
    if shared and (role not in machine.engines or machine.engines[role].memory is None):
        own = own.model_copy(update={"memory": own.memory / 2})
    if engine == "vllm" and role in TRAINED:
        needed = params.longest
        if own.longest is not None and own.longest < needed:
            raise ParamsError(
                f"{MACHINE}: vllm.longest: {own.longest}, but max_length and max_new_tokens of params.yaml come to "
                f"{needed}: set it to null"
            )
        own = own.model_copy(update={"longest": needed if own.longest is None else own.longest})
    return Spec(engine, (stage.root / path).absolute(), (stage.root / BASE_MODEL).absolute(), resolved, own)


def seats(machine: Machine, role: Role | None, beside: Role | None, have: Sequence[str]) -> tuple[list[list[str]], bool]:
    """The GPUs of each copy of a role's engine, and whether those of the role `beside` it, at work at the same time, are on
    the same ones: only where there are too few for both. `have` is empty on a CPU.

    Raises ParamsError when there are fewer than one role needs.
    """

    def needs(one: Role | None) -> int:
        own = machine.role(one)
        return 0 if own.engine == "openai" else (own.copies or 1) * own.vllm.tensor_parallel

    own, both = machine.role(role), beside is not None and needs(beside) > 0
    copies, each = own.copies or 1, own.vllm.tensor_parallel
    if not have:
        if each > 1:
            raise ParamsError(f"{MACHINE}: vllm.tensor_parallel: {each} GPUs were asked for, and this is a CPU: set it to 1")
        return [[] for _ in range(copies)], both
    if needs(role) > len(have):
        by = f"copies {copies}" + (f" times vllm.tensor_parallel {each}" if own.engine == "vllm" else "")
        raise ParamsError(f"{MACHINE}: {by} need {needs(role)} GPUs, and there are {len(have)}: lower them")
    shared = both and needs(role) + needs(beside) > len(have)
    second = role is not None and beside is not None and ROLES.index(beside) < ROLES.index(role)
    first = needs(beside) if second and not shared else 0
    return [list(have[first + copy * each : first + (copy + 1) * each]) for copy in range(copies)], shared


def gpus(device: str) -> list[str]:
    """The GPUs that this process may use, by the names that CUDA_VISIBLE_DEVICES knows; none on a CPU."""
    if device == "cpu":
        return []
    named = os.environ.get("CUDA_VISIBLE_DEVICES")
    if named is not None:
        return [name.strip() for name in named.split(",") if name.strip()]
    import torch

    return [str(number) for number in range(torch.cuda.device_count())]


def actors(stage: Stage[Any], path: Path, spec: Spec, copies: int) -> Workers:
    """Engines of the model in `path` in actors of Ray. Raises ParamsError when Ray is not there or too small."""
    from moat.engines.ray import Actors, Job

    own = stage.machine.ray or RayActors()
    wanted = spec.vllm.tensor_parallel if spec.engine == "vllm" else 1
    if 1 < wanted > own.gpus:
        raise ParamsError(f"{MACHINE}: ray.gpus: {own.gpus:g}, but vllm.tensor_parallel: {wanted}; set both to the same")
    job = Job(spec.open, Retry(stage.machine.retry), stage.project.resolve())
    if own.address:
        made = partial(models.engine_facts, spec.machine, spec.engine)
        contents = {(stage.root / folder).absolute(): stage.hash_of(folder, CARD) for folder in adapters.parts(path)}
        job = replace(job, contents=contents, facts=made, wanted=made(gpu=actors_gpu(stage.machine)))
    return Actors(job, own, copies, stage.scratch, stage.machine.threads)


def actors_gpu(machine: Machine) -> bool | None:
    """Whether Ray's actors have a GPU; None without actors."""
    return None if machine.ray is None else machine.ray.gpus > 0


def _served(stage: Stage[Any], path: Path, max_failed: float, role: Role, scores: bool, name: str, revision: str) -> Runner:
    """Asks a server. The identity is its name for the model, what it tells and the local files; never its address or key."""
    machine, where = stage.machine, f"engines.{role}"
    own = machine.role(role)
    if scores and not own.score:
        raise EngineError(no_scores(where))
    tokenizer = models.load_tokenizer(path)
    key = read_key(own, stage.project, where)
    address = Address(own.url, own.model or name, where, key, own.timeout, own.attempts, own.concurrency)

    def encode(text: str) -> list[int]:
        return list(tokenizer(text, add_special_tokens=False, split_special_tokens=True).input_ids)

    engine = OpenAIEngine(
        address, encode, tokenizer.eos_token_id, tokenizer.eos_token, score=bool(own.score), logprobs=role == "planner"
    )
    whole = role in TRAINED
    model = adapters.identity(path, stage.hash_of) if whole else models.tokenizer_hash(path)
    if whole and (other := _other_model(stage, engine.told, model)):
        raise EngineError(
            f"{where}: the server serves the model in {other}, which is not the one in {path}: serve that one "
            f"(`{_serve(path)}`); leave {where}.model empty, so that each round asks for its own"
        )
    facts = {
        "engine": own.engine,
        "server_model": address.model,
        "ids": "server" if engine.told.ids else "text",
        "logprobs": "server" if engine.told.logprobs else "none",
        "versions": versions("transformers", "tokenizers"),
    }
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


def _other_model(stage: Stage[Any], told: Told, model: str) -> str:
    """Which folder a server serves, where it lies on this computer and holds another model than the one identified."""
    folder = Path(told.folder or "")
    if not any((folder / name).is_file() for name in (adapters.MODEL_CONFIG, adapters.CONFIG)):
        return ""
    base = Path(told.base or "")
    if not (base / adapters.MODEL_CONFIG).is_file():
        base = BASE_MODEL
    try:
        served = (adapters.identity(folder, stage.hash_of, base), adapters.exported_from(folder))
    except AdapterError:
        return f"{folder} on {base}"
    return "" if model in served else str(folder)


def _serve(path: Path) -> str:
    """How vLLM serves a model folder under its own name."""
    name = path.as_posix()
    if adapters.kind_of(path) is Kind.WHOLE:
        return f"vllm serve {name}"
    return f"vllm serve {BASE_MODEL.as_posix()} --enable-lora --lora-modules {name}={name}"


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

"""What a setting will cost on a machine: work, memory, hours, sizes, before anything is run (`moat plan`).

Every figure says where it is from: *computed* from params and the model's sizes, *measured* in earlier runs of the project
(side notes, tables), or *assumed* (lengths of texts, a device's speed). No model is loaded, and torch is not imported.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from moat import architectures, layout, machine, memory, params
from moat.architectures import Architecture, ArchitectureError
from moat.engines.base import DecodingParams
from moat.machine import Machine
from moat.memory import GIB, Asking, Dtype, Memory, Training
from moat.params import EmbeddedModel, LocalModel, Params, ParamsError
from moat.seeds import content_id
from moat.workload import JUDGE_PROMPT, PASSAGES, Work, Workload

Basis = Literal["measured", "computed", "assumed"]
EMBEDDED_VOCABULARY = 332  # tokens of the embedded world's tokenizer under onetime planning
SERVED = 0.9  # share of its devices' memory that a server takes, an assumption
START = 10.0  # seconds that a stage takes to start, an assumption
MEASURED_BY = 0.5  # a note counts when at least this share of its requests was asked anew


class PlanError(ValueError):
    """A setting that cannot be planned; the message says what to change."""


# --- what is planned ----------------------------------------------------------------------------------------------------


def override(raw: dict[str, Any], pairs: Iterable[str], path: Path) -> dict[str, Any]:
    """Settings with `key=value` pairs put in, as `dvc exp run -S` takes them: dotted keys, values as YAML.

    Raises ParamsError for a pair without `=`, or a key that `raw` does not have.
    """
    made: dict[str, Any] = json.loads(json.dumps(raw))
    for pair in pairs:
        key, sign, value = pair.removeprefix(f"{params.PARAMS}:").partition("=")
        if not sign:
            raise ParamsError(f"-S {pair}: no value: write KEY=VALUE, such as sample.k=5")
        *above, last = key.split(".")
        node: Any = made
        for part in above:
            node = node.get(part) if isinstance(node, dict) else None
        if not isinstance(node, dict) or last not in node:
            raise ParamsError(f"-S {pair}: unknown key {key!r}: {path} has none of that name")
        node[last] = params.parse(value, Path(f"-S {pair}"))
    if "rounds" in made:
        made["evaluated"] = made["rounds"] | {"0": {"prev": ""}}
    return made


def architecture(settings: Params, root: Path, current: bool) -> Architecture:
    """The base model's sizes: of models/base where it is that of params, else known by name.

    Raises ArchitectureError for a model that is neither here nor known.
    """
    base = settings.base_model
    if current and (found := architectures.of_folder(root / layout.BASE_MODEL)):
        return found
    if isinstance(base, EmbeddedModel):
        size = base.hidden_size // base.heads
        own = (base.hidden_size, base.layers, base.heads, base.heads, size, 2 * base.hidden_size)
        return Architecture(*own, EMBEDDED_VOCABULARY, base.positions, tied=True)
    name = base.name if isinstance(base, LocalModel) else base.file
    return _named(name, root, "base_model")


def _named(name: str, root: Path, key: str) -> Architecture:
    found = architectures.of_folder(root / name) or architectures.by_name(name)
    if found is None:
        raise ArchitectureError(
            f"{key}: the sizes of {name!r} are not known here: name a folder with its config.json, or add it to KNOWN in "
            "moat/architectures.py"
        )
    return found


# --- the machine --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Speed:
    """A device: dense floating-point operations and bytes of memory read, each a second, and the share that is reached."""

    operations: float
    bytes: float
    share: float
    said: str
    basis: Basis = "assumed"


# By GiB of memory: bfloat16 operations a second without sparsity, and bytes a second, of the makers' data sheets.
GPUS = {
    24: (125e12, 0.9e12, "A10 24 GB"),
    40: (312e12, 1.55e12, "A100 40 GB"),
    48: (181e12, 0.86e12, "L40S 48 GB, half of its sheet's sparse figure"),
    80: (312e12, 2.0e12, "A100/A800 80 GB"),
    141: (989e12, 4.8e12, "H200 141 GB"),
}
REACHED = 0.4  # share of the operations, and of the bytes, that work reaches
CORE = 40e9  # operations a second that a CPU thread really reaches, float32
CPU_BYTES = 10e9


@dataclass(frozen=True, slots=True)
class Device:
    """What the planned machine's devices are."""

    kind: Literal["cpu", "cuda"]
    bytes: int | None
    basis: Basis
    dtype: Dtype
    speed: Speed


def device(here: Machine, peak: float | None, bandwidth: float | None, share: float | None) -> Device:
    """The device that a machine's work runs on. `peak` in TFLOP/s and `bandwidth` in GB/s replace the assumed ones.

    A machine that states its memory and not that it has no GPU has one.
    """
    gpu = here.device == "cuda" or (here.device == "auto" and (here.device_memory is not None or _gpu_here() is not None))
    if gpu:
        stated = here.device_memory
        size = int(stated * GIB) if stated is not None else _gpu_here()
        near = min(GPUS, key=lambda known: abs(known - (size or 80 * GIB) / GIB))
        operations, read, name = GPUS[near]
        dtype: Dtype = "float32" if here.dtype == "float32" else "bfloat16"
        said = name if dtype == "bfloat16" else f"{name}, an eighth of it in float32"
        operations = operations if dtype == "bfloat16" else operations / 8
        basis: Basis = "computed" if stated is not None else "measured"
    else:
        import psutil

        size = int(here.device_memory * GIB) if here.device_memory else psutil.virtual_memory().total
        operations, read, said = CORE * here.threads / REACHED, CPU_BYTES / REACHED, f"{here.threads} CPU thread(s)"
        dtype, basis = ("bfloat16" if here.dtype == "bfloat16" else "float32"), "measured"
    if peak or bandwidth or share:
        said = "as given"
    speed = Speed(peak * 1e12 if peak else operations, bandwidth * 1e9 if bandwidth else read, share or REACHED, said)
    return Device("cuda" if gpu else "cpu", size, basis, dtype, speed)


def _gpu_here() -> int | None:
    """Bytes of this computer's first GPU, as the driver's own tool says; None without one."""
    if shutil.which("nvidia-smi") is None:
        return None
    done = subprocess.run(
        ["nvidia-smi", "--query-gpu=memory.total", "--format=csv,noheader,nounits"],
        capture_output=True,
        text=True,
        check=False,
    )
    found = re.match(r"\d+", done.stdout)
    return int(found[0]) * 2**20 if done.returncode == 0 and found else None


# --- hours --------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Cost:
    """A stage's work with its hours, on how many devices, and where the hours come from."""

    work: Work
    seconds: float
    devices: int
    basis: Basis
    server: bool = False


@dataclass(frozen=True)
class Model:
    """A model that is asked or trained: sizes and how it is run."""

    arch: Architecture
    engine: Literal["hf", "vllm", "openai"]
    copies: int
    each: int  # devices of one copy
    rows: int  # that a copy is handed at once
    share: float = 1.0  # of their memory, under vLLM


def engine_of(role: str, arch: Architecture, here: Machine, at: Device, scores: bool = False) -> Model:
    """The engine of a role; `scores`: it has to score, which hf does where vLLM may not. DPO's reference is hf's, too.

    A server is taken to be vLLM on as many devices of this machine's kind as leave a quarter of their memory for its cache.
    """
    if role == "reference":
        return Model(arch, "hf", here.copies, 1, here.score_batch)
    own = here.role(role)  # type: ignore[arg-type]
    if own.engine == "openai":
        size = at.bytes or 80 * GIB
        able = (n for n in (1, 2, 4) if memory.served(arch, at.dtype, SERVED, n, size).parts["cache"] > SERVED * size / 4)
        return Model(arch, "openai", 1, next(able, 8), min(own.concurrency, here.generate_batch), SERVED)
    if own.engine == "vllm" and (own.score or not scores):
        return Model(arch, "vllm", own.copies or 1, own.vllm.tensor_parallel, here.generate_batch, own.vllm.memory)
    return Model(arch, "hf", own.copies or 1, 1, here.generate_batch)


def training_of(settings: Params, here: Machine, at: Device, work: Work, checked: bool = True) -> Training:
    """How a stage trains. Raises PlanError when the effective batch cannot be made of micro-batches."""
    batch = _batch(settings, work)
    try:
        micro, _ = here.accumulation(batch)
    except machine.BatchError as error:
        if checked:
            raise PlanError(f"{work.label}: {error}") from error
        micro = here.micro_batch or max(1, batch // here.processes)
    return Training(
        rows=micro * work.sequences,
        length=settings.max_length,
        rank=settings.lora.rank,
        dtype=at.dtype,
        device=at.kind,
        strategy=here.strategy,
        processes=here.processes,
        offload=here.offload,
        checkpointing=here.gradient_checkpointing,
        eager=here.attention == "eager",
    )


def _batch(settings: Params, work: Work) -> int:
    if work.stage == "cold_start" or settings.mode == "independent":
        return settings.cold_start[work.role].batch_size  # type: ignore[index]
    return (settings.align if work.stage == "align_planner" else settings.train_grounder).batch_size


def seconds(settings: Params, work: Work, model: Model, here: Machine, at: Device) -> tuple[float, int]:
    """Seconds of a stage's work and the devices that it is shared out over, from operations and bytes alone.

    A trained token takes 6 operations a parameter (8 when activations are computed twice; with adapters 2 fewer), a token
    that is only read 2. A generated token waits for the weights and the caches to be read once for a whole batch.
    """
    arch, speed = model.arch, at.speed
    rate, read = speed.operations * speed.share, speed.bytes * speed.share
    if work.trained:
        each = (4 if settings.lora.rank else 6) + (2 if here.gradient_checkpointing else 0)
        return START + each * arch.parameters * work.trained / (rate * here.processes), here.processes
    devices = model.copies * model.each
    time = 2 * arch.parameters * (work.prompt + work.scored) / (rate * devices)
    if work.generated:
        size = memory.size_of(at.dtype)
        context = (work.prompt + work.generated) / work.answers
        batch = min(model.rows, -(-work.answers // model.copies))
        if model.engine != "hf":
            served = memory.served(arch, at.dtype, model.share, model.each, at.bytes or 80 * GIB)
            batch = min(batch, max(1, memory.rows_at_once(arch, served, at.dtype, model.each, max(1, round(context)))))
        step = max(
            (size * arch.parameters + batch * context * arch.cache(size)) / (read * model.each),
            2 * arch.parameters * batch / (rate * model.each),
        )
        time += step * work.generated / (batch * model.copies)
    return START + time, devices


# --- what was measured ----------------------------------------------------------------------------------------------------


def _comparable(here: Machine) -> dict[str, Any]:
    unread = {"retry", "checkpoint", "servers", "scratch", "device_memory"}
    return here.model_dump(exclude=unread)


def measured(root: Path, here: Machine) -> dict[tuple[str, str], tuple[float, float]]:
    """Seconds and units (requests asked, or rows trained) by stage and role, of the side notes of runs in this project.

    Notes of another machine setting are left out, and those whose answers mostly came from the journal.
    """
    found: dict[tuple[str, str], tuple[float, float]] = {}
    for path in sorted((machine.scratch(root, here) / "runs" / content_id(root.resolve())).glob("*.json")):
        try:
            note = json.loads(path.read_text(encoding="utf-8"))
            if _comparable(Machine.model_validate(note["machine"])) != _comparable(here):
                continue
            stage, arguments, took = note["stage"], note["arguments"], float(note["seconds"])
            asked = sum(one["asked"] for one in note.get("requests", []))
            wanted = sum(one["requests"] for one in note.get("requests", []))
        except (ValueError, KeyError, TypeError):  # another version's note
            continue
        role = {"align_planner": "planner", "train_grounder": "grounder"}.get(stage, arguments.get("role", ""))
        units = float(asked) if wanted and asked >= MEASURED_BY * wanted else 0.0
        if role:
            units = _trained_rows(root / layout.card(role, arguments.get("round", "0")))
        if units:
            before = found.get((stage, role), (0.0, 0.0))
            found[stage, role] = (before[0] + took, before[1] + units)
    return found


def _trained_rows(card: Path) -> float:
    """Rows that the updates of a model's training saw; 0 for a model that was not trained."""
    try:
        told = json.loads(card.read_text(encoding="utf-8"))
        if "copy_of" in told:
            return 0.0
        section = told["params"].get(f"cold_start.{told['arguments'].get('role')}") or next(
            told["params"][name] for name in ("align", "train_grounder") if name in told["params"]
        )
        return float(told["updates"] * section["batch_size"])
    except (OSError, ValueError, KeyError, TypeError, StopIteration):
        return 0.0


# --- sizes on the disk ----------------------------------------------------------------------------------------------------

# Bytes of a row in a table: a fixed part, and a part of each token of text that other rows do not repeat. Of the default
# run's tables (dvc.lock) the sum of a round is foreseen within a factor of two; other texts compress otherwise.
FIXED = 15.0
BY_TOKEN = 1.2


def table_rows(work: Sequence[Work], load: Workload) -> dict[str, tuple[int, float]]:
    """Rows of a round's tables and mean tokens of text in a row, of what stands in K rows a K-th."""
    rows, made = load.rows, load.rows * load.params.sample.k

    def mean(part: str) -> float:
        return sum(group.n * float(getattr(group.lengths, part)) for group in load.train) / max(1, rows)

    plan, actions, task = mean("plan"), mean("actions"), mean("planner")
    mixed = next((one.rows for one in work if one.stage == "mix"), 0)
    tasks = load.eval_tasks
    n = sum(group.n for group in tasks)
    whole = sum(
        group.n * (one.planner + (2 + load.params.evaluate.samples) * one.plan + 2 * one.actions)
        for group in tasks
        for one in [group.lengths]
    ) / max(1, n)
    return {
        "subgoals": (made, plan),
        "scores": (made, 0.0),
        "actions": (made, actions),
        "pairs": (rows, 2 * plan),
        "critiques": (made, actions / 2),
        "sft": (mixed, task / load.params.sample.k + plan + actions),
        "pool": (made, task / load.params.sample.k + plan + actions),
        "evals": (n, whole),
    }


def bytes_per_row(root: Path) -> dict[str, float]:
    """Of the tables that are here, of the last round that has one."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    found = {}
    for name in ("subgoals", "scores", "actions", "pairs", "critiques", "sft", "pool", "evals"):
        pattern = "data/evals/*.parquet" if name == "evals" else f"data/rounds/*/{name}.parquet"
        for path in sorted(root.glob(pattern)):
            try:
                rows = pq.read_metadata(path).num_rows
            except (pa.ArrowInvalid, OSError):
                continue
            if rows:
                found[name] = path.stat().st_size / rows
    return found


@dataclass(frozen=True, slots=True)
class Table:
    """A table, or a round's models, on the disk."""

    name: str
    rows: int
    bytes: int
    basis: Basis


# --- all together ---------------------------------------------------------------------------------------------------------

# Bytes that the one process which holds a stage's rows takes for a request, and for each token of its prompt and answer:
# ids as Python integers, the journal's answers, the table's rows. Measured on `moat.rows` (a test holds them to it).
DRIVER_ROW = 1000
DRIVER_TOKEN = 42


@dataclass(frozen=True)
class Use:
    """The memory of one user of a device, and whether it fits."""

    what: str
    memory: Memory
    fits: bool | None
    note: str = ""


@dataclass
class Plan:
    """All of it."""

    profile: str
    model: str
    arch: Architecture
    at: Device
    here: Machine
    load: Workload
    costs: list[Cost] = field(default_factory=list)
    uses: list[Use] = field(default_factory=list)
    tables: list[Table] = field(default_factory=list)
    driver: int = 0
    warnings: list[str] = field(default_factory=list)

    @property
    def fits(self) -> bool | None:
        """Whether all that runs on the machine's devices fits; None where their memory is not known."""
        told = [use.fits for use in self.uses]
        return None if None in told else all(told)


def plan(
    settings: Params,
    here: Machine,
    root: Path,
    profile: str,
    *,
    peak: float | None = None,
    bandwidth: float | None = None,
    share: float | None = None,
) -> Plan:
    """Work out what `settings` cost on `here`. Raises PlanError, ArchitectureError, ParamsError."""
    current = _current(settings, root)
    arch = architecture(settings, root, current)
    at = device(here, peak, bandwidth, share)
    load = Workload(settings)
    name = {"pretrained": "name", "gguf": "file"}.get(settings.base_model.kind, "kind")
    made = Plan(profile, str(getattr(settings.base_model, name)), arch, at, here, load)
    models = {role: engine_of(role, arch, here, at) for role in ("planner", "grounder", "reference")}
    scorer = engine_of("grounder", arch, here, at, scores=True)
    for role, judged in (("critic", settings.critic.judge), ("reader", settings.tools.qa.reader)):
        if any(work.role == role for work in load.all()):
            models[role] = engine_of(role, _named(judged, root, role), here, at)
    notes = measured(root, here) if current else {}
    for work in load.all():
        if work.tokens:
            model = scorer if work.role == "grounder" and work.scored else models[work.role]
            made.costs.append(_cost(settings, work, model, here, at, notes))
        else:
            made.costs.append(Cost(work, START, 0, "assumed"))
    _share_measured(made.costs, notes)
    made.uses = [*_trainings(settings, arch, here, at, made), *_engines(settings, models, scorer, here, at, load)]
    made.warnings += _refused(here, at)
    made.tables = _tables(settings, arch, at, load, bytes_per_row(root) if current else {})
    made.driver = max(_driver(work, settings.sample.k) for work in load.all())
    return made


def _refused(here: Machine, at: Device) -> list[str]:
    """What stages would refuse at their start, on a CPU."""
    if at.kind == "cuda":
        return []
    found = []
    roles = {role: here.role(role) for role in machine.ROLES}
    if any(own.engine == "vllm" and own.vllm.tensor_parallel > 1 for own in roles.values()):
        found.append("vllm.tensor_parallel: GPUs were asked for, and this is a CPU: set it to 1")
    if here.attention == "flash_attention_2":
        found.append("attention: flash_attention_2 is not for a CPU: set it to auto")
    if here.dtype == "bfloat16" and here.strategy in ("fsdp", "zero2", "zero3"):
        found.append(f"dtype: bfloat16 is not for strategy {here.strategy} on a CPU: set it to auto")
    return found


def _current(settings: Params, root: Path) -> bool:
    """Whether models/base and the notes are of this setting: same base model and sources as what was made there."""
    try:
        made = json.loads((root / layout.BASE_MODEL / layout.CARD).read_text(encoding="utf-8"))["params"]["base_model"]
    except (OSError, ValueError, KeyError, TypeError):
        return False
    here = params.load(root / params.PARAMS).prepare.sources
    return bool(made == settings.base_model.model_dump(exclude_unset=True) and set(here) == set(settings.prepare.sources))


def _cost(
    settings: Params,
    work: Work,
    model: Model,
    here: Machine,
    at: Device,
    notes: Mapping[tuple[str, str], tuple[float, float]],
) -> Cost:
    took, devices = seconds(settings, work, model, here, at)
    server = model.engine == "openai" and not work.trained
    key = (work.stage, work.role if work.trained else "")
    if key in notes and not server and work.role != "reference":
        spent, units = notes[key]
        wanted = work.updates * _batch(settings, work) if work.trained else work.requests
        return Cost(work, spent / units * wanted, devices, "measured")
    return Cost(work, took, devices, at.speed.basis, server)


def _share_measured(costs: list[Cost], notes: Mapping[tuple[str, str], tuple[float, float]]) -> None:
    """A measured training has its reference log-probabilities in it."""
    for index, cost in enumerate(costs):
        if cost.work.role == "reference" and ("align_planner", "planner") in notes:
            costs[index] = replace(cost, seconds=0.0, basis="measured")


def _verdict(own: Memory, at: Device, beside: int = 1) -> bool | None:
    """Whether it fits; `beside` processes of a CPU share its memory, where each GPU has its own."""
    times = beside if at.kind == "cpu" else 1
    return None if at.bytes is None else times * own.total <= memory.USABLE * at.bytes


def _trainings(settings: Params, arch: Architecture, here: Machine, at: Device, made: Plan) -> list[Use]:
    found: dict[str, Use] = {}
    for cost in made.costs:
        work = cost.work
        name = work.stage if work.stage != "cold_start" else f"cold_start@{work.role}"
        if not work.trained or name in found:
            continue
        try:
            how = training_of(settings, here, at, work)
        except PlanError as error:
            made.warnings.append(str(error))
            how = training_of(settings, here, at, work, checked=False)
        own = memory.training(arch, how)
        what = f"{how.rows} × {how.length:,} tokens, {how.strategy} over {how.processes}"
        found[name] = Use(name, own, _verdict(own, at, here.processes), what)
    return list(found.values())


def _engines(
    settings: Params, models: Mapping[str, Model], scorer: Model, here: Machine, at: Device, load: Workload
) -> list[Use]:
    """Each engine by itself at its stage, and the two of an evaluation together where they share a device."""

    def longest(*parts: str) -> int:
        return round(max((sum(getattr(group.lengths, part) for part in parts) for group in load.train), default=0.0))

    planner, grounder = models["planner"], models["grounder"]
    plans, actions = longest("planner"), longest("grounder", "plan")
    found = [
        _asked("sample", planner, at, plans, settings.sample),
        _asked("ground", grounder, at, actions, settings.ground),
        _scoring("score", scorer, here, at, actions, longest("actions")),
    ]
    if settings.align.enabled and settings.mode == "joint" and settings.align.loss == "dpo":
        found.append(_scoring("align_planner, reference", models["reference"], here, at, plans, longest("plan")))
    if "critic" in models:
        prompt = JUDGE_PROMPT + longest("grounder", "plan", "actions")
        found.append(_asked("critique", models["critic"], at, prompt, settings.critic))
    if "reader" in models:
        found.append(_asked("reader", models["reader"], at, PASSAGES, settings.tools.qa))
    if "openai" not in (planner.engine, scorer.engine):
        needed = [model.copies * model.each for model in (planner, scorer)]
        shared = sum(needed) > max(here.processes, *needed)
        own = {
            role: _asked("evaluate", _halved(model, role, here) if shared else model, at, prompt, settings.evaluate).memory
            for role, model, prompt in (("planner", planner, plans), ("grounder", scorer, actions))
        }
        both = Memory({role: one.total for role, one in own.items()}) if shared else max(own.values(), key=_total)
        found.append(Use("evaluate", both, _verdict(both, at), "both on one device" if shared else "each on its own device"))
    return [use for use in found if use.memory.parts]


def _total(own: Memory) -> int:
    return own.total


def _halved(model: Model, role: str, here: Machine) -> Model:
    """vLLM's share where two engines share a device: half of it, unless machine.yaml says what the role has."""
    stated = role in here.engines and here.engines[role].memory is not None
    return model if stated or model.engine != "vllm" else replace(model, share=model.share / 2)


def _asked(what: str, model: Model, at: Device, prompt: int, decoding: DecodingParams) -> Use:
    """A generating engine; nothing of a server's."""
    if model.engine == "openai":
        return Use(what, Memory(), True)
    if model.engine == "hf":
        how = Asking(model.rows, prompt, decoding.max_new_tokens, at.dtype, decoding.top_p < 1)
        own = memory.generating(model.arch, how)
        place = f"{how.rows} × {prompt + how.answer:,} tokens"
        return Use(f"{what} (hf)", own, _verdict(own, at, model.copies), place)
    own = memory.served(model.arch, at.dtype, model.share, model.each, at.bytes or 80 * GIB)
    length = prompt + decoding.max_new_tokens
    rows = memory.rows_at_once(model.arch, own, at.dtype, model.each, length)
    fits = None if at.bytes is None else rows > 0 and own.total <= at.bytes
    return Use(f"{what} (vllm)", own, fits, f"{min(rows, model.rows)} × {length:,} tokens")


def _scoring(what: str, model: Model, here: Machine, at: Device, prompt: int, answer: int) -> Use:
    if model.engine != "hf":
        return Use(what, Memory(), True)
    how = Asking(here.score_batch, prompt, answer, at.dtype)
    own = memory.scoring(model.arch, how)
    return Use(f"{what} (hf)", own, _verdict(own, at, model.copies), f"{how.rows} × {prompt + answer:,} tokens")


def _tables(settings: Params, arch: Architecture, at: Device, load: Workload, known: Mapping[str, float]) -> list[Table]:
    """Of one round; its evaluation's too. The base model, which is there once, is kept in float32."""
    key = min(settings.rounds, key=int, default=None)
    work = load.round(key, 1) if key else []
    found = []
    for name, (rows, tokens) in table_rows(work, load).items():
        each = known.get(name) or FIXED + BY_TOKEN * tokens
        found.append(Table(name, rows, round(rows * each), "measured" if name in known else "assumed"))
    size = memory.size_of(at.dtype)
    one = size * arch.parameters if not settings.lora.rank else 4 * arch.adapters(settings.lora.rank)
    found.append(Table("models of both roles", 2, 2 * one, "computed"))
    found.append(Table("models/base, once", 1, 4 * arch.parameters, "computed"))
    return found


def _driver(work: Work, k: int) -> int:
    """Bytes of the process that holds a stage's rows; the k candidates of a task share their prompt."""
    prompts = work.prompt // (k if work.stage == "sample" else 1)
    return work.requests * DRIVER_ROW + DRIVER_TOKEN * (prompts + work.generated + work.scored)


# --- told -----------------------------------------------------------------------------------------------------------------


def to_json(made: Plan) -> dict[str, Any]:
    """All figures, for programs; bytes and seconds, not rounded."""
    load = made.load
    return {
        "profile": made.profile,
        "model": {"name": made.model, "parameters": made.arch.parameters, **asdict(made.arch)},
        "device": asdict(made.at),
        "tasks": load.tasks,
        "rows": load.rows,
        "k": load.params.sample.k,
        "candidates": load.candidates,
        "rounds": len(load.params.rounds),
        "candidates_in_all": load.candidates * len(load.params.rounds),
        "stages": [
            asdict(cost.work)
            | {"seconds": cost.seconds, "devices": cost.devices, "basis": cost.basis, "server": cost.server}
            for cost in made.costs
        ],
        "memory": [
            {"what": use.what, "bytes": use.memory.total, "parts": use.memory.parts, "host": use.memory.host}
            | {"fits": use.fits, "note": use.note}
            for use in made.uses
        ],
        "fits": made.fits,
        "tables": [asdict(table) for table in made.tables],
        "driver": made.driver,
        "hours": sum(cost.seconds for cost in made.costs if not cost.server) / 3600,
        "device_hours": sum(cost.seconds * max(1, cost.devices) for cost in made.costs if not cost.server) / 3600,
        "server_device_hours": sum(cost.seconds * cost.devices for cost in made.costs if cost.server) / 3600,
        "warnings": made.warnings,
    }


def gib(size: float) -> str:
    """Bytes, in the unit that leaves one to three digits."""
    for unit, bytes_of in (("TiB", 2**40), ("GiB", GIB), ("MiB", 2**20)):
        if size >= bytes_of:
            return f"{size / bytes_of:,.1f} {unit}"
    return f"{size / 1024:,.0f} KiB"


def time(seconds: float) -> str:
    """A span, in the unit that suits."""
    return (
        f"{seconds / 3600:,.1f} h"
        if seconds >= 3600
        else f"{seconds / 60:,.1f} min"
        if seconds >= 60
        else f"{seconds:.0f} s"
    )


def number(value: int) -> str:
    """A count; large ones in millions and thousands of millions, none empty."""
    for unit, size in (("G", 10**9), ("M", 10**6)):
        if value >= 10 * size:
            return f"{value / size:,.1f} {unit}"
    return f"{value:,}" if value else ""

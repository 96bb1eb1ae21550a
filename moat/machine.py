"""The machine: `machine.yaml`, which says where a run happens and never what it computes.

It is no dependency of any stage, so artifacts made elsewhere are not stale here. A missing file means: this computer, one
process, the `hf` engine, the one GPU if there is one, else the CPU in float32.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated, Any, Literal, Self, get_args

from pydantic import ConfigDict, Field, model_validator

from moat.params import ParamsError, Section, check, parse, read_text

MACHINE = "machine.yaml"
Role = Literal["planner", "grounder", "actor", "critic", "reader"]
ROLES = get_args(Role)
Address = Annotated[str, Field(pattern="^https?://")]
TRAINED = ("planner", "grounder", "actor")  # whose models are this project's own


class BatchError(ValueError):
    """An effective batch that this machine's settings cannot make."""


class VLLM(Section):
    """How the vllm engine is opened; see machine.example.yaml."""

    tensor_parallel: int = Field(default=1, ge=1, description="GPUs that share one model.")
    memory: float = Field(default=0.9, gt=0, le=1, description="Share of the device's memory that one engine takes.")
    longest: int | None = Field(default=None, ge=2, description="Tokens of a prompt with its answer; null: what is needed.")
    eager: bool = Field(default=False, description="No CUDA graphs: starts sooner, generates more slowly.")
    score: bool = Field(default=False, description="Whether it scores too; else hf does.")
    tolerance: float = Field(default=0.01, gt=0, description="Nats by which its scores may differ from hf's.")


class RayActors(Section):
    """Copies as actors of Ray Data; see machine.example.yaml."""

    address: str = Field(
        default="",
        pattern=r"^$|^auto$|^(ray://)?([^\s/:@\[\]]+|\[[0-9a-fA-F:]+\]):[0-9]+$",
        description="Empty: a Ray of the stage's own, on this computer; auto, HOST:PORT, ray://HOST:PORT: a cluster.",
    )
    cpus: float = Field(default=0.5, gt=0, description="Ray's CPUs of one actor.")
    gpus: float = Field(default=0, ge=0, description="Ray's GPUs of one actor; a part of one, or a whole number.")

    @model_validator(mode="after")
    def _whole(self) -> Self:
        for name in ("cpus", "gpus"):
            value = getattr(self, name)
            if value > 1 and value != int(value):
                raise ValueError(f"{name}: a part of one, or a whole number; not {value:g}")
        return self


class RoleEngine(Section):
    """What one role asks: a model in processes of this project (hf, vllm), or an OpenAI-compatible server.

    What is null is as it is for the whole machine. It never holds a key.
    """

    engine: Literal["hf", "vllm", "openai"]
    copies: int | None = Field(default=None, ge=1, description="Engines side by side.")
    tensor_parallel: int | None = Field(default=None, ge=1)
    memory: float | None = Field(default=None, gt=0, le=1)
    longest: int | None = Field(default=None, ge=2)
    eager: bool | None = None
    tolerance: float | None = Field(default=None, gt=0)
    url: str = Field(default="", pattern=r"^$|^https?://[^\s/?#@]+(/[^\s?#@]*)?$", description="Address, without /v1.")
    model: str = Field(
        default="", description="The name that the server serves it under; empty: as params or the stage name it."
    )
    key_env: str = Field(default="", pattern="^[A-Z_0-9]{0,64}$", description="Environment variable that holds the key.")
    key_file: str = Field(default="", description="File that holds the key and nothing else, from the project's folder.")
    concurrency: int = Field(default=16, ge=1, description="Requests at once.")
    timeout: float = Field(default=600, gt=0, description="Seconds that one request may take.")
    attempts: int = Field(default=5, ge=1, description="Tries of one request.")
    score: bool | None = Field(
        default=None, description="vllm and openai: whether it scores too, by vLLM's prompt_logprobs."
    )

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        known = {"engine", *KEYS[self.engine]}
        for key in sorted(self.model_fields_set - known):
            takers = [name for name, keys in KEYS.items() if key in keys]
            raise ValueError(f"{key}: for engine {' and '.join(takers)} alone, not for {self.engine}")
        if self.engine != "openai":
            return self
        if not self.url:
            raise ValueError("url: missing; engine openai asks a server, such as http://127.0.0.1:8000")
        if self.url.rstrip("/").endswith("/v1"):
            raise ValueError("url: write it without /v1, which is added")
        if self.key_env and self.key_file:
            raise ValueError("key_env, key_file: set one of them")
        return self

    @property
    def scores(self) -> bool:
        """Whether what generates for the role scores too."""
        return self.engine == "hf" or bool(self.score)

    @property
    def vllm(self) -> VLLM:
        """How its vllm engine is opened."""
        own = {name: getattr(self, name) for name in VLLM.model_fields}
        return VLLM(**{name: value for name, value in own.items() if value is not None})


# Which keys of a role each engine takes, besides `engine`.
KEYS: dict[str, tuple[str, ...]] = {
    "hf": ("copies",),
    "vllm": ("copies", *VLLM.model_fields),
    "openai": ("url", "model", "key_env", "key_file", "concurrency", "timeout", "attempts", "score"),
}


class Machine(Section):
    """Settings of this computer; see machine.example.yaml for a sentence on each."""

    model_config = ConfigDict(hide_input_in_errors=True)  # a key in the wrong place must not get into a log

    engine: Literal["hf", "vllm"] = "hf"
    engines: dict[Role, RoleEngine] = Field(default_factory=dict)
    copies: int = Field(default=1, ge=1)
    ray: RayActors | None = None
    vllm: VLLM = Field(default_factory=VLLM)
    device: Literal["auto", "cpu", "cuda"] = "auto"
    dtype: Literal["auto", "float32", "bfloat16"] = "auto"
    threads: int = Field(default=1, ge=1)
    processes: int = Field(default=1, ge=1)
    strategy: Literal["plain", "ddp", "fsdp", "zero2", "zero3"] = "plain"
    offload: bool = False
    gradient_checkpointing: bool = False
    attention: Literal["auto", "eager", "sdpa", "flash_attention_2"] = "auto"
    generate_batch: int = Field(default=256, ge=1)
    score_batch: int = Field(default=256, ge=1)
    micro_batch: int | None = Field(default=None, ge=1)
    retry: int = Field(default=3, ge=1)
    checkpoint: int = Field(default=600, ge=0)
    device_memory: float | None = Field(default=None, gt=0, description="GiB of one device; null: what there is.")
    trees: int = Field(default=128, ge=1)
    servers: dict[Literal["webshop", "textcraft", "sciworld"], Address] = Field(default_factory=dict)
    scratch: str = Field(default=".scratch", min_length=1)

    @model_validator(mode="before")
    @classmethod
    def _servers_are_a_roles(cls, raw: Any) -> Any:
        if isinstance(raw, dict) and raw.get("engine") == "openai":
            raise ValueError("engine: a server is asked by role: write `engines: {planner: {engine: openai, url: …}}`")
        return raw

    @model_validator(mode="after")
    def _scores_what_is_scored(self) -> Self:
        for role in ("critic", "reader"):
            if role in self.engines and self.engines[role].score:
                raise ValueError(f"engines.{role}.score: nothing of a {role} is scored; remove it")
        return self

    @model_validator(mode="after")
    def _trains_as_it_can(self) -> Self:
        if self.strategy == "plain" and self.processes > 1:
            raise ValueError(
                f"strategy: plain is one process, and processes is {self.processes}: set strategy to ddp (each process has "
                "the whole model), fsdp, zero2 or zero3 (they share it)"
            )
        if self.offload and self.strategy in ("plain", "ddp"):
            raise ValueError(f"offload: strategy {self.strategy} has none; set strategy to fsdp, zero2 or zero3")
        return self

    @model_validator(mode="after")
    def _actors_see_gpus(self) -> Self:
        if self.ray and self.device == "cuda" and not self.ray.gpus:
            raise ValueError("ray.gpus: 0, with device: cuda; say how many GPUs each actor has, such as 1")
        if self.ray and self.device == "cpu" and self.ray.gpus:
            raise ValueError(f"ray.gpus: {self.ray.gpus:g}, with device: cpu; set device: auto, or gpus: 0")
        return self

    def accumulation(self, batch: int) -> tuple[int, int]:
        """Rows of a micro-batch, and micro-batches of an update of `batch` rows, in each process.

        Raises BatchError when there is a remainder.
        """
        each, rest = divmod(batch, self.processes)
        if rest:
            raise BatchError(
                f"the effective batch {batch} is not a multiple of the {self.processes} processes: change processes in "
                f"{MACHINE}"
            )
        micro_batch = self.micro_batch or each
        if each % micro_batch:
            raise BatchError(
                f"the effective batch {batch} is not a multiple of micro_batch {micro_batch} times processes "
                f"{self.processes}: change micro_batch in {MACHINE}"
            )
        return micro_batch, each // micro_batch

    def role(self, role: Role | None) -> RoleEngine:
        """What `role` asks, complete: what it does not say for itself is the machine's. No role: hf."""
        own = self.engines[role] if role in self.engines else RoleEngine(engine=self.engine if role else "hf")
        whole = {"copies": self.copies} | dict(self.vllm)
        return own.model_copy(
            update={key: whole[key] for key in whole if key in KEYS[own.engine] and getattr(own, key) is None}
        )


def load(root: Path) -> Machine:
    """Read `root`/machine.yaml, or the defaults when there is none. Raises ParamsError naming the key."""
    path = root / MACHINE
    if not path.exists() and not path.is_symlink():  # what is there and cannot be read is a fault, and no default
        return Machine()
    return read(path)


def read(path: Path) -> Machine:
    """Read a file like machine.yaml. Raises ParamsError naming the key."""
    raw = parse(read_text(path), path)
    return check({} if raw is None else raw, Machine, path)  # all lines may be comments


def scratch(root: Path, machine: Machine) -> Path:
    """Folder of journals, checkpoints and side notes: outside DVC's outputs, and one for a checkout and its experiments.

    `dvc exp run --temp` works in copies below .dvc/tmp/exps of the checkout; they use the checkout's own folder. The folder
    need not be there, but must be one that can be made and written. Raises ParamsError naming machine.yaml and the key.
    """
    for parent in root.parents:
        if parent.parts[-3:] == (".dvc", "tmp", "exps"):
            root = parent.parents[2]
            break
    folder = root / machine.scratch
    fault = _unusable(folder)
    if fault:
        raise ParamsError(f"{root / MACHINE}: scratch: {str(folder)!r} {fault}: name a folder that can be written")
    return folder


def _unusable(folder: Path) -> str | None:
    """Why `folder` cannot be made or written, judged by the nearest part of its path that is there; None when it can."""
    if "\0" in str(folder):
        return "is no path that can be used (it holds a null character)"
    try:
        above = next(path for path in (folder, *folder.parents) if path.exists())
    except OSError as error:  # too long, or not to be looked at
        return f"is no path that can be used ({error.strerror})"
    if not above.is_dir():
        return f"cannot be a folder, for {str(above)!r} is a file"
    if not os.access(above, os.W_OK | os.X_OK):
        return "cannot be written" if above == folder else f"cannot be made, for {str(above)!r} cannot be written"
    return None

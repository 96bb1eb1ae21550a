"""Engines in actors of Ray Data: several copies of one model, on this computer or on the nodes of a cluster.

The batches are the rows of a data set, one a block; a pool of `copies` actors maps them, each with one engine, which it
opens with its first batch; replies come back as they are finished, in any order. This process puts the batches into Ray
itself, so there are no readers that actors could starve (trap 55). What would then hang is an actor without room: that is
refused before the work begins.

An actor that dies is started again and its batch asked again; a batch that ends `TRIES` of them ends the stage. Every call
of `run` is a data set of its own and opens the engines anew.

A local Ray (`address` empty) ends with this process, however that ends: Ray has the kernel kill what it started (Linux),
and what that leaves, a shell ends.
Its logs are in the scratch folder. Of a cluster's nodes it is demanded that the project lies at the same path on each, with
the same model; whether it does, each actor looks before it opens its engine.
"""

from __future__ import annotations

import atexit
import importlib
import logging
import os
import platform
import secrets
import shutil
import socket
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil
import pyarrow as pa

import moat
from moat.engines.base import Engine, EngineError
from moat.launch import environment
from moat.layout import CARD
from moat.machine import MACHINE, RayActors
from moat.params import ParamsError
from moat.provenance import combined, file_hashes
from moat.wire import pack_raised, pack_reply, pack_work, unpack_reply, unpack_work
from moat.workers import Reply, Retry, Work, attend

TRIES = 3  # actors that one batch may end
REACHED = 10.0  # seconds that a cluster has to accept a connection
STALLED = 7200.0  # seconds without any reply: no engine opens, and no batch takes, as long
STORE = 512 << 20  # bytes of memory for batches and replies on their way in a local Ray; what is more goes to its folder
QUIET = {
    "RAY_USAGE_STATS_ENABLED": "0",  # nothing is told to anybody
    "RAY_BACKEND_LOG_LEVEL": "fatal",  # Ray Data's own actors set off an error line at every start
}
SILENT = {"log_to_driver": False, "logging_level": "ERROR"}
# What an actor on another computer has of the stage's environment.
HANDED_ON = ("PYTHONPATH", "OMP_NUM_THREADS", "MKL_NUM_THREADS", "TOKENIZERS_PARALLELISM", "PYTHONHASHSEED")


@dataclass(frozen=True)
class Job:
    """What an actor is told: how its engine is opened, and what it has to find on its computer.

    `root` is the project's folder, `contents` are hashes of model folders (without their cards). What `facts` tells there
    of engine, device and versions has to be what is `wanted`.
    """

    open: Callable[[], Engine]
    retry: Retry
    root: Path
    contents: Mapping[Path, str] = field(default_factory=dict)
    facts: Callable[[], Mapping[str, Any]] = dict
    wanted: Mapping[str, Any] = field(default_factory=dict)


class Attendant:
    """What each actor is: one engine, and answers to one batch after the other."""

    def __init__(self, job: Job) -> None:
        self.job = job
        self._engine: Engine | None = None

    def engine(self) -> Engine:
        """The engine, opened now if it was not. Raises OSError when this computer is not as the stage's is."""
        if self._engine is None:
            self._look()
            self._engine = self.job.open()
        return self._engine

    def __call__(self, batches: pa.Table) -> pa.Table:
        """Packed batches to packed replies."""
        works = [unpack_work(one.as_py()) for one in batches["work"]]
        replies = [self._attend(work) for work in works]
        return pa.table({"number": batches["number"], "reply": pa.array(replies, pa.large_binary())})

    def _attend(self, work: Work) -> bytes:
        try:
            return pack_reply(attend(self.engine, work, self.job.retry))
        except Exception as error:  # noqa: BLE001 -- raised again where it is read
            return pack_raised(error)

    def _look(self) -> None:
        root, where = self.job.root, f"on the computer {platform.node()}"
        mine = Path(moat.__file__).resolve().parent.parent
        if mine != root or not root.is_dir():
            raise OSError(
                f"{where} the project is at {mine}, not at {root}: share its folder under one path (docs/scale.md)"
            )
        os.chdir(root)
        told = self.job.facts()
        if told != self.job.wanted:
            raise OSError(
                f"{where} there is {told}, and here {self.job.wanted}: share one .venv, or install constraints.txt"
            )
        for folder, content in self.job.contents.items():
            if not folder.is_dir():
                raise OSError(f"{where} there is no {folder}: share the project's folder under one path (docs/scale.md)")
            found = combined({name: digest for name, digest in file_hashes(folder).items() if name != CARD})
            if found != content:
                raise OSError(f"{where} the model in {folder} is another than here: share the project's folder, or copy it")


class Driver:
    """Runs the data set inside a cluster, for a stage outside that only sends calls (ray://): Ray Data needs a node."""

    def __init__(self, *how: Any) -> None:
        self._found = _replies(*how)

    def next(self) -> tuple[int, bytes] | None:
        """The next finished batch and its packed reply, or None."""
        return next(self._found, None)


def _replies(job: Job, works: Sequence[bytes], copies: int, settings: RayActors) -> Iterator[tuple[int, bytes]]:
    """The number of each batch and its packed reply, as they are finished. Raises what Ray raises."""
    ray, data = importlib.import_module("ray"), importlib.import_module("ray.data")
    context = data.DataContext.get_current()
    context.enable_progress_bars = context.print_on_execution_start = False
    context.execution_no_progress_timeout_s = STALLED
    for handler in logging.getLogger("ray.data").handlers:
        if isinstance(handler, logging.StreamHandler):  # its file stays
            handler.setLevel(logging.CRITICAL)
    tables = [
        pa.table({"number": [number], "work": pa.array([work], pa.large_binary())}) for number, work in enumerate(works)
    ]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # max_task_retries has no successor yet; without it a batch may end actors for ever
        found = data.from_arrow(tables).map_batches(
            Attendant,
            batch_size=1,
            batch_format="pyarrow",
            fn_constructor_args=(job,),
            compute=data.ActorPoolStrategy(size=min(copies, len(works)), max_tasks_in_flight_per_actor=1),
            num_cpus=settings.cpus,
            num_gpus=settings.gpus,
            max_task_retries=TRIES - 1,
        )
    for bundle in found.iter_internal_ref_bundles():
        for entry in bundle.blocks:
            for row in ray.get(entry.ref).to_pylist():
                yield row["number"], row["reply"]


@dataclass
class Actors:
    """Workers on `copies` actors. Connects, and looks for room, at once.

    `scratch` is the folder for a local Ray's logs. Raises ParamsError when Ray is not installed, not there, or too small.
    """

    job: Job
    settings: RayActors
    copies: int
    scratch: Path
    threads: int = 1

    def __post_init__(self) -> None:
        self._ray = _connect(self.settings, self.job.root, self.scratch, self.threads)
        _refuse(self._ray.nodes(), self.settings, self.copies)

    def run(self, works: Sequence[Work]) -> Iterator[tuple[int, Reply]]:
        """The number of each batch and its reply, as they are finished.

        Raises what an engine raises, with the actor's traceback, and EngineError when Ray has failed.
        """
        if not works:
            return
        try:
            for number, reply in self._stream([pack_work(work) for work in works]):
                yield number, unpack_reply(reply)
        except Exception as error:
            if not type(error).__module__.startswith("ray."):
                raise
            said = " ".join(str(error).split())
            logs = "/tmp/ray on the nodes" if self.settings.address else _logs(self.scratch)
            raise EngineError(
                f"Ray has given up ({type(error).__name__}: {said[:300]} … {said[-500:]}); its logs are in {logs}; what was "
                "answered is kept"
            ) from error

    def _stream(self, works: Sequence[bytes]) -> Iterator[tuple[int, bytes]]:
        how = (self.job, works, self.copies, self.settings)
        if not self.settings.address.startswith("ray://"):
            yield from _replies(*how)
            return
        driver = self._ray.remote(num_cpus=0)(Driver).remote(*how)
        while (found := self._ray.get(driver.next.remote())) is not None:
            yield found

    def start(self) -> None:
        """Nothing: actors are started for their batches."""

    def close(self) -> None:
        """Nothing is left to let go: the engines end with every run."""


# --- Ray itself -------------------------------------------------------------------------------------------------------


def _logs(scratch: Path) -> Path:
    return scratch / "ray"


def _connect(settings: RayActors, root: Path, scratch: Path, threads: int) -> Any:
    """The connected module `ray`; once a process. Raises ParamsError."""
    for name, value in QUIET.items():
        os.environ.setdefault(name, value)
    address = settings.address
    if not address:  # a token of its own, so that none is written into the home folder
        os.environ.setdefault("RAY_AUTH_TOKEN", secrets.token_hex(32))
    try:
        ray = importlib.import_module("ray")
        importlib.import_module("ray.data")
    except ImportError as error:
        raise ParamsError(
            f"{MACHINE}: ray: Ray Data is not installed ({error}): `pip install -e '.[ray]' -c constraints.txt`"
        ) from error
    try:
        _start(ray, scratch) if not address else _join(ray, address, environment(root, threads))
    except Exception as error:
        said = " ".join(str(error).split())[-300:]
        what, then = (
            f"no cluster at {address!r}",
            'start one (`ray start --head`, docs/scale.md) or set address: "" for this',
        )
        then += " computer; RAY_AUTH_MODE must be the same here and on the nodes"
        if not address:
            what, then = "Ray does not start on this computer", f"its logs are in {_logs(scratch)}"
        raise ParamsError(f"{MACHINE}: ray.address: {what} ({type(error).__name__}: {said}): {then}") from error
    return ray


def _start(ray: Any, scratch: Path) -> None:
    if ray.is_initialized():
        return
    folder, here = _short(_logs(scratch)), psutil.Process()
    before = {child.pid for child in here.children(recursive=True)}
    with _stderr_to(folder / "start.log"):
        ray.init("local", include_dashboard=False, object_store_memory=STORE, _temp_dir=str(folder), **SILENT)
    # When this process is killed, two of Ray's helpers go on for a minute, telling a server that is gone. A shell that sees
    # the end of its input ends them, and removes the short name.
    started = [str(child.pid) for child in here.children(recursive=True) if child.pid not in before]
    shell = subprocess.Popen(
        ["/bin/sh", "-c", 'read -r _; rm -r "$0"; kill -9 "$@"', str(folder.parent), *started],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,  # Ctrl-C is the stage's business
    )
    atexit.register(shell.kill)


def _join(ray: Any, address: str, own: Mapping[str, str]) -> None:
    _knock(address)
    if not ray.is_initialized():
        with _stderr_to(Path(os.devnull)):
            ray.init(address, runtime_env={"env_vars": {name: own[name] for name in HANDED_ON}}, **SILENT)


@contextmanager
def _stderr_to(path: Path) -> Iterator[None]:
    """What Ray's own code writes to this process's standard error while the block runs goes to a file."""
    sys.stderr.flush()
    with path.open("ab") as file:
        kept = os.dup(2)
        os.dup2(file.fileno(), 2)
        try:
            yield
        finally:
            sys.stderr.flush()
            os.dup2(kept, 2)
            os.close(kept)


def _knock(address: str) -> None:
    """See that somebody listens there: Ray itself goes on trying for minutes. Raises OSError."""
    if address == "auto":
        services = importlib.import_module("ray._private.services")
        address = services.canonicalize_bootstrap_address("auto") or ""
        if not address:
            raise ConnectionError("no Ray runs on this computer")
    host, _, port = address.removeprefix("ray://").rpartition(":")
    socket.create_connection((host.strip("[]"), int(port)), timeout=REACHED).close()


def _short(folder: Path) -> Path:
    """A short name for a folder, emptied: Ray's sockets lie in it, whose paths may have 107 characters."""
    shutil.rmtree(folder, ignore_errors=True)  # of an earlier stage; one at a time works in a checkout
    folder.mkdir(parents=True)
    above = Path(tempfile.mkdtemp(prefix="moat-"))
    link = above / "ray"
    link.symlink_to(folder.resolve())

    def leave() -> None:
        with suppress(Exception):  # the process ends
            importlib.import_module("ray").shutdown()
        link.unlink(missing_ok=True)
        above.rmdir()

    atexit.register(leave)
    return link


def _refuse(nodes: Sequence[Mapping[str, Any]], settings: RayActors, copies: int) -> None:
    """Raises ParamsError when the nodes have no room for all actors: Ray Data would wait for it for ever."""
    alive = [node["Resources"] for node in nodes if node["Alive"]]
    wanted = {"CPU": settings.cpus} | ({"GPU": settings.gpus} if settings.gpus else {})
    room = sum(min(int(own.get(what, 0) / each + 1e-6) for what, each in wanted.items()) for own in alive)
    if room < copies:
        have = " and ".join(f"{sum(own.get(what, 0) for own in alive):g} {what}s" for what in ("CPU", "GPU"))
        raise ParamsError(
            f"{MACHINE}: copies: {copies} actors of {settings.cpus:g} CPUs and {settings.gpus:g} GPUs do not fit into Ray's "
            f"{len(alive)} node(s) with {have}; {room} would: set copies: {max(room, 1)}, ask for less (ray.cpus, ray.gpus) "
            "or start more nodes"
        )

"""What every stage shares: its command line, its header, progress and closing line, and the facts that go into its files.

A stage holds the checkout's lock while it runs, so that a training left behind by a killed dvc meets no second writer.
"""

from __future__ import annotations

import argparse
import atexit
import gc
import importlib
import json
import os
import platform
import signal
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Generic, NoReturn

from pydantic import BaseModel
from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    Task,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.text import Text
from typing_extensions import TypeVar  # one with a default: Python 3.13's own

import moat
from moat import lock, provenance
from moat import machine as machines
from moat import params as parameters
from moat.journal import Journal
from moat.launch import project_of
from moat.machine import Machine
from moat.params import Params, ParamsError, Pipeline
from moat.publish import publish_text
from moat.seeds import content_id
from moat.terminal import escape

Advance = Callable[[int], None]
P = TypeVar("P", bound=Pipeline, default=Params)


class _Rate(ProgressColumn):
    """Work per second."""

    def render(self, task: Task) -> Text:
        return Text(f"{task.speed:,.0f}/s" if task.speed and task.speed >= 10 else f"{task.speed or 0:.1f}/s")


@dataclass
class Counts:
    """Rows in = rows kept + rows dropped by reason."""

    rows_in: int
    kept: int
    dropped: dict[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.dropped = {reason: n for reason, n in sorted(self.dropped.items()) if n}
        if self.rows_in != self.kept + sum(self.dropped.values()):
            raise AssertionError(f"{self.rows_in} rows in, but {self.kept} kept and {self.dropped} dropped")

    def facts(self) -> dict[str, Any]:
        """As stored in a table's metadata."""
        return {"rows_in": self.rows_in, "kept": self.kept, "dropped": self.dropped}


def _plain(value: Any) -> Any:
    """Settings as plain values, as they are written: a key that was left out stays out."""
    if isinstance(value, BaseModel):
        return value.model_dump(exclude_unset=True)
    return {key: _plain(item) for key, item in value.items()} if isinstance(value, Mapping) else value


class Stage(Generic[P]):
    """One run of a stage: settings, screen, clock, and what it tells of itself.

    `root` is the pipeline's folder, which paths are relative to; `project` the one with the library and machine.yaml.
    `arguments` are the command line's, such as {"round": "1", "prev": "0"}.
    """

    def __init__(
        self, name: str, params: P, machine: Machine, root: Path, arguments: Mapping[str, str] | None = None
    ) -> None:
        self.name = name
        self.params = params
        self.machine = machine
        self.root = root
        self.project = project_of(root)
        self.arguments = dict(arguments or {})
        self.scratch = machines.scratch(self.project, machine)
        self.console = Console(highlight=False, soft_wrap=True)
        self.notes: dict[str, Any] = {}
        self._start, self._started = time.monotonic(), time.strftime("%Y-%m-%d %H:%M:%S")
        self._reads: list[Path] = []
        self._hashes: dict[Path, dict[str, str]] = {}

    @property
    def label(self) -> str:
        """Name of this stage in the scratch folder, as `sample-1`, `cold_start-planner` or `agent_r-search-1`."""
        pipeline = [] if self.root == self.project else [self.root.name]
        return "-".join([*pipeline, self.name, *(value for key, value in self.arguments.items() if key != "prev")])

    @property
    def note_path(self) -> Path:
        """Where the side note on this run goes: by checkout, because experiments beside it share the scratch folder."""
        return self.scratch / "runs" / content_id(self.root.resolve()) / f"{self.label}.json"

    @cached_property
    def journal(self) -> Journal:
        """Finished rows of this stage, earlier runs' among them. Raises JournalError."""
        return Journal(self.scratch / "journal" / self.label)

    def header(self, what: str, reads: list[Path], writes: list[Path]) -> None:
        """Say what happens, from which files to which. Raises FileNotFoundError for the first missing one."""
        self.console.print(f"[bold cyan]▸ {self.name}[/]  {escape(what)}")
        self.console.print(f"  [dim]from[/] {', '.join(map(str, reads)) or 'params.yaml'}")
        self.console.print(f"  [dim]to[/]   {', '.join(map(str, writes))}")
        for path in reads:
            if not path.exists():
                raise FileNotFoundError(f"{path} is missing: run the stage that writes it (`dvc repro`), or `dvc pull`")
        self._reads = reads

    def hash_of(self, path: Path, without: str | None = None) -> str:
        """Content hash of an input, leaving out the file `without` of a folder; every file is read once."""
        if path not in self._hashes:
            self._hashes[path] = provenance.file_hashes(path)
        return provenance.combined({name: digest for name, digest in self._hashes[path].items() if name != without})

    def facts(self, *parameters: str, counts: Counts | None = None, **more: Any) -> dict[str, Any]:
        """What an artifact of this stage says of itself: the `parameters` (dotted keys) and inputs it comes from, counts.

        Stable: two runs from the same inputs say the same.
        """
        read = {}
        for key in parameters:
            value: Any = self.params
            for part in key.split("."):
                value = value[part] if isinstance(value, Mapping) else getattr(value, part)
            read[key] = _plain(value)
        told: dict[str, Any] = {"stage": self.name, "arguments": self.arguments, "params": read}
        told["inputs"] = {path.as_posix(): self.hash_of(path) for path in self._reads}
        return told | ({"counts": counts.facts()} if counts else {}) | more

    @contextmanager
    def progress(self, label: str, total: int) -> Iterator[Advance]:
        """A bar with rate and time left; silent when the output is no terminal."""
        columns = (
            TextColumn("  {task.description}"),
            BarColumn(bar_width=30),
            MofNCompleteColumn(),
            _Rate(),
            TimeElapsedColumn(),
            TextColumn("left"),
            TimeRemainingColumn(),
        )
        with Progress(*columns, console=self.console, disable=not self.console.is_terminal, transient=True) as bar:
            task = bar.add_task(label, total=total)
            yield lambda n: bar.advance(task, n)

    def say(self, text: str) -> None:
        """An indented line of plain text."""
        self.console.print(f"  {escape(text)}")

    def warn(self, text: str) -> None:
        """A line that asks for attention."""
        self.console.print(f"  [bold yellow]warning[/] {escape(text)}")

    def close(self, counts: Counts | None = None) -> None:
        """The closing line (rows in, kept, dropped by reason, seconds), and the side note on this run."""
        seconds = time.monotonic() - self._start
        said = []
        if counts:
            said.append(f"{counts.rows_in:,} in, {counts.kept:,} kept")
            said += [f"{n:,} dropped: {reason}" for reason, n in counts.dropped.items()]
        said.append(f"{seconds:.1f} s")
        self.console.print(f"  [green]✓[/] {escape(' · '.join(said))}")
        note = {"stage": self.name, "arguments": self.arguments, "started": self._started, "seconds": round(seconds, 3)}
        note |= (
            {"root": str(self.root.resolve()), "host": platform.node(), "machine": self.machine.model_dump()}
            | provenance.checkout(self.root)
            | self.notes
        )
        publish_text(self.note_path, json.dumps(note, indent=1) + "\n")


@dataclass(frozen=True)
class Argument:
    """One command-line argument of a stage."""

    flag: str
    help: str
    choices: tuple[str, ...] | None = None


ROUND = Argument("--round", "the round, a key of `rounds` in params.yaml")
PREV = Argument("--prev", "the round whose models it starts from (0: the cold start)")
ROLE = Argument("--role", "planner or grounder", ("planner", "grounder"))


def check_round(params: Pipeline, arguments: Mapping[str, str]) -> None:
    """Refuse a round that params.yaml does not have, or one that starts from another. Raises ParamsError."""
    key, prev = arguments.get("round"), arguments.get("prev")
    rounds = params.before()
    known: Mapping[str, Any] = params.evaluated if prev is None else rounds
    if key is not None and key not in known:
        raise ParamsError(f"params.yaml has no round {key!r}; its rounds are {', '.join(sorted(known, key=int))}")
    if key is not None and prev is not None and prev != rounds[key]:
        raise ParamsError(f"round {key} starts from round {rounds[key]} (params.yaml), not from {prev!r}")


def main(file: str, run: Callable[..., None], *arguments: Argument, params: type[Pipeline] = Params) -> None:
    """Run a stage from the command line: parse `arguments`, load the settings `params`, call `run(stage, **values)`.

    Exits 2 on a wrong command line and 1, with one line that says what to do, on a fault in files or parameters; 130 when
    it was interrupted (Ctrl-C).
    """
    module = sys.modules["__main__"]
    parser = argparse.ArgumentParser(
        prog=f"python -m moat.launch stages/{Path(file).name}",
        description=module.__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    for argument in arguments:
        parser.add_argument(argument.flag, help=argument.help, choices=argument.choices, required=True)
    values = vars(parser.parse_args())
    root = Path.cwd()
    console = Console(stderr=True, highlight=False, soft_wrap=True)
    expected = project_of(Path(file).resolve().parent.parent)
    if Path(moat.__file__).resolve().parent.parent != expected:
        console.print(
            f"[bold red]error[/] the library was imported from {Path(moat.__file__).parent}, not from {expected}: "
            "start stages with `python -m moat.launch` from the project's folder"
        )
        sys.exit(1)
    expected_errors = (OSError, ValueError, RuntimeError, FloatingPointError)
    gc.enable()  # the launcher starts stages without it: imports make much and drop nothing
    gc.freeze()
    signal.signal(signal.SIGINT, signal.default_int_handler)  # the launcher leaves it at the kernel's: end at once
    try:
        settings = parameters.load_as(root / parameters.PARAMS, params)
        stage = Stage(Path(file).stem, settings, machines.load(project_of(root)), root, values)
        check_round(stage.params, values)
        with lock.hold(stage.scratch / "locks" / content_id(root), lock.command_line()):
            run(stage, **values)
        _leave(0)
    except KeyboardInterrupt:
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # a second Ctrl-C would only tear the way out
        kept = "finished batches and checkpoints are kept, and `dvc repro` goes on there"
        console.print(f"[bold red]interrupted[/] {Path(file).stem}: {kept}")
        _leave(130)
    except expected_errors as error:
        if type(error).__module__ == "builtins" and not isinstance(error, OSError | FloatingPointError):
            raise  # not one of our own: a bug, which needs its traceback
        console.print(f"[bold red]error[/] {Path(file).stem}: {escape(str(error))}")
        _leave(1)


def _leave(code: int) -> NoReturn:
    """End the process once what was registered for its end is done: tearing down the interpreter would cost time, and other
    libraries print what they leaked.
    """
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def versions(*packages: str) -> dict[str, str]:
    """Versions of the packages that made an artifact."""
    metadata = importlib.import_module("importlib.metadata")
    return {package: metadata.version(package) for package in packages}

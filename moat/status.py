"""Where a run stands: the artifacts of every round, and what DVC would run now, in words.

Counts come from the files' footers; no table is read and no model is loaded.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from moat import adapters, layout

ABSENT = "–"
SHOWN = 4  # reasons of one kind that are listed before "and n more"


@dataclass(frozen=True)
class Kinds:
    """What a pipeline makes: in a round its tables, after it its models, of it its evaluations (by name); and `once`, tables
    that are made once, by what they hold.
    """

    tables: tuple[str, ...]
    models: tuple[str, ...]
    evaluations: Mapping[str, Callable[[str], Path]]
    once: Mapping[str, Path]

    @property
    def names(self) -> tuple[str, ...]:
        """The artifacts of a round, in the order of a status."""
        return (*self.tables, *self.models, *self.evaluations)


TASKS = {"training tasks": layout.TRAIN_TASKS, "evaluation tasks": layout.EVAL_TASKS}
MOAT = Kinds(
    tables=("subgoals", "scores", "actions", "pairs", "critiques", "sft", "dynamics"),
    models=("planner", "grounder"),
    evaluations={"eval": layout.evals},
    once=TASKS,
)
AGENT_R = Kinds(
    tables=("nodes", "trees", "judgements", "revisions", "sft"),
    models=("actor",),
    evaluations={"evals": layout.evals, "recoveries": layout.recoveries},
    once=TASKS | {"recovery set": layout.RECOVERY},
)


class StatusError(RuntimeError):
    """DVC could not say what would run; the message says why and what to do."""


def rows_in(path: Path) -> str:
    """A table's number of rows from its footer, "–" when there is no such file, "unreadable" when it is no Parquet."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    if not path.is_file():
        return ABSENT
    try:
        return f"{pq.read_metadata(path).num_rows:,}"
    except (pa.ArrowInvalid, OSError):
        return "unreadable"


def folder(path: Path) -> str:
    """Whether a model folder is there: "yes" when it holds weights, "adapter" when they are an adapter's."""
    if not path.is_dir():
        return ABSENT
    if (path / adapters.WEIGHTS).is_file():
        return "adapter"
    return "yes" if any(path.glob("*.safetensors")) else "no weights"


def artifacts(root: Path, key: str, kinds: Kinds = MOAT) -> dict[str, str]:
    """State of each of a round's artifacts; empty where the round (the cold start) has no such thing."""
    found = {name: "" if key == "0" else rows_in(root / layout.table(name, key)) for name in kinds.tables}
    found |= {role: folder(root / layout.model(role, key)) for role in kinds.models}
    return found | {name: rows_in(root / path(key)) for name, path in kinds.evaluations.items()}


def running(dvc_folder: Path) -> set[int]:
    """Living processes that hold a part of the project, from DVC's own list of who reads and writes what."""
    try:
        lock = json.loads((dvc_folder / "tmp" / "rwlock").read_text(encoding="utf-8"))
    except (FileNotFoundError, json.JSONDecodeError):  # nobody, or being written just now
        return set()
    holders = [*lock.get("write", {}).values(), *(info for infos in lock.get("read", {}).values() for info in infos)]
    return {info["pid"] for info in holders if psutil.pid_exists(info["pid"])}


def dvc_status(root: Path) -> dict[str, Any]:
    """`dvc status --json` of the project in `root`, by stage. Raises StatusError.

    While a `dvc repro` runs it is not asked: it would hold the project's lock, for which the repro waits three seconds
    before it gives up.
    """
    dvc_folder = next((path for up in (root, *root.parents) if (path := up / ".dvc").is_dir()), None)
    if dvc_folder is None:
        raise StatusError(
            f"{root} is not under DVC yet: `dvc init` (in a git repository) or `dvc init --no-scm`, then `dvc repro`"
        )
    if pids := running(dvc_folder):
        raise StatusError(f"DVC is at work here (process {', '.join(map(str, sorted(pids)))}): ask again when it has ended")
    command = [sys.executable, "-m", "dvc", "status", "--json", "dvc.yaml"]
    done = subprocess.run(command, cwd=root, capture_output=True, text=True, check=False)
    try:
        if done.returncode:
            raise ValueError(f"exit status {done.returncode}")
        answer = json.loads(done.stdout)
    except ValueError as error:
        said = done.stderr.strip() or str(error)
        raise StatusError(f"`dvc status` failed: {said}") from error
    if not isinstance(answer, dict):
        raise StatusError(f"`dvc status --json` answered {done.stdout[:200]!r}: is another DVC version installed?")
    return answer


def recorded(root: Path) -> set[str]:
    """Stages that dvc.lock knows: those that have run."""
    from ruamel.yaml import YAML

    path = root / "dvc.lock"
    if not path.is_file():
        return set()
    lock = YAML(typ="safe", pure=True).load(path.read_text(encoding="utf-8")) or {}
    return set(lock.get("stages", {}))


def _listed(names: Sequence[str]) -> str:
    more = len(names) - SHOWN
    return ", ".join(names[:SHOWN]) + (f" and {more} more" if more > 0 else "")


def reasons(changes: Sequence[Any], has_run: bool) -> str:
    """Why a stage would run, from its entry in `dvc status --json`."""
    if not has_run:
        return "it has not run yet"
    words = {"deleted": "missing", "modified": "changed", "new": "new", "not in cache": "not in the cache"}
    said: dict[str, list[str]] = {}
    other: list[str] = []
    for change in changes:
        if not isinstance(change, Mapping):
            other.append(str(change).replace("changed command", "its command changed"))
            continue
        for kind, entries in change.items():
            of = "output " if "outs" in kind else ""
            for name, state in entries.items():
                if isinstance(state, Mapping):  # a parameter file, by key
                    for key, what in state.items():
                        said.setdefault(f"parameter {words.get(what, what)}", []).append(key)
                else:
                    said.setdefault(f"{of}{words.get(state, state)}", []).append(name)
    return "; ".join([*(f"{what}: {_listed(names)}" for what, names in said.items()), *other]) or "always"

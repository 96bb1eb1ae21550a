"""A checkout's tables and models, read once, each with the settings it was made with. `moat verify` looks through it.

The settings of an artifact are those of the moment it was made: what its own metadata says (`facts.params`), else what
dvc.lock says of its stage, else params.yaml. So an edit of params.yaml makes no table wrong; that it differs is a warning.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property, wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any

import polars as pl
from ruamel.yaml import YAML
from ruamel.yaml.error import YAMLError

from moat import layout
from moat import params as parameters
from moat.executor import outcome
from moat.params import Params, ParamsError
from moat.ranking import lexical
from moat.schemas.actions import ACTIONS
from moat.schemas.critiques import CRITIQUES
from moat.schemas.demos import DEMOS
from moat.schemas.dynamics import DYNAMICS
from moat.schemas.evals import EVALS
from moat.schemas.gold import GOLD
from moat.schemas.pairs import PAIRS
from moat.schemas.passages import PASSAGES
from moat.schemas.scores import SCORES
from moat.schemas.sft import SFT
from moat.schemas.subgoals import SUBGOALS
from moat.schemas.tasks import TASKS
from moat.tables import Table, TableError, metadata
from moat.tokens import Role
from moat.toolbox import Goal, Toolbox, ToolboxError, goal_of

if TYPE_CHECKING:
    from moat.tokens import Renderer

LOCK = Path("dvc.lock")
ROUND_TABLES: Mapping[str, Table] = {
    "subgoals": SUBGOALS,
    "scores": SCORES,
    "actions": ACTIONS,
    "pairs": PAIRS,
    "critiques": CRITIQUES,
    "sft": SFT,
    "pool": SFT,
    "dynamics": DYNAMICS,
}


class Level(StrEnum):
    """How bad a finding is: a fault makes `moat verify` fail, a warning does not."""

    FAULT = "fault"
    WARNING = "warning"


@dataclass(frozen=True, slots=True)
class Finding:
    """Something that is not as it should be: in which file, what, and what to do."""

    level: Level
    path: str
    what: str
    remedy: str


Findings = Iterator[Finding]
Check = Callable[["Checkout"], Findings]


class Absent(Exception):  # noqa: N818 -- no error: what a check needs is not there, or is reported as unreadable already
    """A table or model that a check needs has not been made yet, or cannot be read."""


def each_round(check: Callable[[Checkout, str], Findings]) -> Check:
    """Make a check of one round into one of all rounds in params.yaml; a round that has not been run is left out."""

    @wraps(check)
    def every(checkout: Checkout) -> Findings:
        found = False
        for key in checkout.rounds:
            try:
                yield from check(checkout, key)
                found = True
            except Absent:
                continue
        if not found:
            raise Absent

    return every


class Checkout:
    """The project in the folder `root`. Raises ParamsError or FileNotFoundError for its params.yaml or dvc.lock."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.params = parameters.load(root / parameters.PARAMS)
        self.raw = YAML(typ="safe", pure=True).load((root / parameters.PARAMS).read_text(encoding="utf-8"))
        self.lock = _lock(root / LOCK)
        self.rounds = sorted(self.params.rounds, key=int)
        self.evaluated = sorted(self.params.evaluated, key=int)
        self.unreadable: dict[Path, str] = {}
        self._tables: dict[Path, pl.DataFrame] = {}
        self._facts: dict[Path, dict[str, Any]] = {}
        self._settings: dict[Path, Params] = {}
        self._toolbox = Toolbox(lexical if self.params.tools.web.ranker == "lexical" else None)
        self._came: dict[tuple[str, Goal], tuple[str, str | None]] = {}
        self._renderers: dict[str, Renderer] = {}

    # --- what there should be -----------------------------------------------------------------------------------------

    @cached_property
    def schemas(self) -> dict[Path, Table]:
        """Every table of the project, in the order in which they are made."""
        found = {layout.TRAIN_TASKS: TASKS, layout.EVAL_TASKS: TASKS, layout.PASSAGES: PASSAGES, layout.GOLD: GOLD}
        found |= {layout.demos(role): DEMOS for role in Role} | {layout.table("pool", "0"): SFT}
        for key in self.rounds:
            found |= {layout.table(name, key): schema for name, schema in ROUND_TABLES.items()}
        return found | {layout.evals(key): EVALS for key in self.evaluated}

    @cached_property
    def models(self) -> list[Path]:
        """Every model folder of the project."""
        return [layout.BASE_MODEL, *(layout.model(role, key) for key in self.evaluated for role in Role)]

    @cached_property
    def stages(self) -> dict[str, dict[str, Any]]:
        """dvc.lock's stages, without those of rounds that params.yaml no longer has."""
        return {name: entry for name, entry in self.lock.items() if self._in_params(name)}

    def _in_params(self, stage: str) -> bool:
        key = stage.partition("@")[2]
        return not key.isdigit() or key in self.evaluated

    @cached_property
    def makers(self) -> dict[Path, str]:
        """The stage that made each output, by dvc.lock."""
        return {Path(out["path"]): name for name, entry in self.stages.items() for out in entry.get("outs", [])}

    def missing(self) -> list[Path]:
        """Tables and models of params.yaml's rounds that are not there."""
        return [path for path in [*self.schemas, *self.models] if not (self.root / path).exists()]

    # --- what there is ------------------------------------------------------------------------------------------------

    def table(self, path: Path) -> pl.DataFrame:
        """A table's rows. Raises Absent when it is not there or not readable (which `unreadable` then tells)."""
        if path not in self._tables:
            if path in self.unreadable or not (self.root / path).exists():
                raise Absent
            try:
                self._tables[path] = self.schemas[path].read(self.root / path)
            except (TableError, OSError) as error:
                self.unreadable[path] = str(error).replace(f"{self.root}/", "")
                raise Absent from error
        return self._tables[path]

    def round_table(self, name: str, key: str) -> pl.DataFrame:
        """A round's table; raises as `table`."""
        return self.table(layout.table(name, key))

    def present(self) -> Iterator[tuple[Path, Table, pl.DataFrame]]:
        """Every table that is there and readable: path, schema, rows."""
        for path, schema in self.schemas.items():
            try:
                yield path, schema, self.table(path)
            except Absent:
                continue

    def facts(self, path: Path) -> dict[str, Any]:
        """What a table's metadata or a model's moat.json says of itself; empty when there is nothing to read."""
        if path not in self._facts:
            found: Any = {}
            if path in self.schemas:
                self.table(path)
                found = metadata(self.root / path).get("facts")
            elif (self.root / path / layout.CARD).is_file():
                try:
                    found = json.loads((self.root / path / layout.CARD).read_text(encoding="utf-8"))
                except (OSError, ValueError):
                    found = {}
            self._facts[path] = found if isinstance(found, dict) else {}
        return self._facts[path]

    def folder(self, path: Path) -> Path:
        """A model folder on disk. Raises Absent."""
        if not (self.root / path).is_dir():
            raise Absent
        return self.root / path

    # --- how it was made ----------------------------------------------------------------------------------------------

    def recorded_params(self, path: Path) -> dict[str, Any]:
        """The parameters an artifact was made with, by dotted key, from its own facts or from dvc.lock; else empty."""
        own = self.facts(path).get("params")
        if isinstance(own, dict):
            return own
        stage = self.stages.get(self.makers.get(path, ""), {})
        return dict(stage.get("params", {}).get(parameters.PARAMS, {}))

    def settings(self, path: Path) -> Params:
        """All parameters, with those that `path` was made with in place of params.yaml's."""
        if path not in self._settings:
            raw = json.loads(json.dumps(self.raw))
            for key, value in self.recorded_params(path).items():
                put(raw, key, value)
            try:
                self._settings[path] = parameters.check(raw, Params, self.root / parameters.PARAMS)
            except ParamsError:  # made by older code with other keys: `changed_params` warns of it
                self._settings[path] = self.params
        return self._settings[path]

    def remedy(self, path: Path) -> str:
        """How to get an artifact that is as its stage writes it."""
        stage = self.makers.get(path)
        if stage is None:
            return "write it anew with `dvc repro`"
        return (
            f"`dvc checkout --force {path}` for the recorded one, or `dvc repro --force --single-item {stage}` for a new one"
        )

    # --- findings -----------------------------------------------------------------------------------------------------

    def fault(self, path: Path, what: str, remedy: str | None = None) -> Finding:
        """A fault of an artifact."""
        return Finding(Level.FAULT, str(path), what, remedy or self.remedy(path))

    def warning(self, path: Path, what: str, remedy: str) -> Finding:
        """A warning about an artifact."""
        return Finding(Level.WARNING, str(path), what, remedy)

    def rows(
        self, path: Path, bad: pl.DataFrame, what: str, level: Level = Level.FAULT, remedy: str | None = None
    ) -> Findings:
        """One finding for all rows of `bad` (none: no finding), naming the first by the table's key."""
        if not len(bad):
            return
        names = [name for name in self.schemas[path].key if name in bad.columns] or bad.columns[:1]
        first = ", ".join(f"{name} {bad[name][0]}" for name in names)
        said = f"{what}: {len(bad):,} row{'s' if len(bad) > 1 else ''}, the first {first}"
        yield Finding(level, str(path), said, remedy or self.remedy(path))

    def differences(self, path: Path, expected: pl.DataFrame, found: pl.DataFrame, of: str) -> Findings:
        """Rows of `expected` that `found` lacks, and the other way round; both have the same columns."""
        names = expected.columns
        lacking = expected.join(found.select(names), on=names, how="anti", nulls_equal=True)
        surplus = found.select(names).join(expected, on=names, how="anti", nulls_equal=True)
        yield from self.rows(path, lacking, f"{of} missing here, or other here")
        yield from self.rows(path, surplus, f"not as in {of}, or not among them")

    # --- recomputing --------------------------------------------------------------------------------------------------

    def goal(self, row: Mapping[str, Any]) -> Goal | None:
        """What a task's actions are run against; None for a metric or a context that is none (which is reported)."""
        try:
            return goal_of(row)
        except (KeyError, ValueError):
            return None

    def came(self, actions: str, goal: Goal | None) -> tuple[str, str | None] | None:
        """Outcome and answer of actions that are executed again; None when their tools cannot be opened here.

        `not_run`, which no stored outcome of theirs is, for a task whose context is none.
        """
        if goal is None:
            return None
        key = (actions, goal)
        try:
            if key not in self._came and self._toolbox.knows(goal):
                execution = self._toolbox.execute(actions, goal)
                self._came[key] = (outcome(execution, goal.gold_answer, goal.metric).value, execution.answer)
        except ToolboxError:  # a context that is none
            self._came[key] = ("not_run", None)
        return self._came.get(key)

    def renderer(self, path: Path) -> Renderer:
        """The renderer that an artifact's stage used, with the base model's tokenizer. Raises Absent without one."""
        format = self.settings(path).format
        if format not in self._renderers:
            folder = self.folder(layout.BASE_MODEL)
            if not (folder / "tokenizer_config.json").is_file():
                raise Absent
            from transformers import AutoTokenizer

            from moat.tokens import Renderer

            try:
                self._renderers[format] = Renderer(AutoTokenizer.from_pretrained(folder, local_files_only=True), format)
            except (OSError, ValueError) as error:  # a broken tokenizer: its files are checked apart
                raise Absent from error
        return self._renderers[format]


def put(raw: dict[str, Any], key: str, value: Any) -> None:
    """Set a dotted key of nested dictionaries; a dictionary's own keys are set one by one, and others stay."""
    if isinstance(value, dict):
        for name, inner in value.items():
            put(raw, f"{key}.{name}", inner)
        return
    *above, last = key.split(".")
    for name in above:
        raw = raw.setdefault(name, {})
    raw[last] = value


def get(raw: Any, key: str) -> Any:
    """The value of a dotted key of nested dictionaries, or None."""
    for name in key.split("."):
        raw = raw.get(name) if isinstance(raw, dict) else None
    return raw


def _lock(path: Path) -> dict[str, dict[str, Any]]:
    if not path.is_file():
        return {}
    try:
        raw = YAML(typ="safe", pure=True).load(path.read_text(encoding="utf-8")) or {}
        stages = raw.get("stages", {})
        if not all(isinstance(out["path"], str) for entry in stages.values() for out in entry.get("outs", [])):
            raise TypeError("an output without a path")
    except (YAMLError, AttributeError, KeyError, TypeError) as error:
        raise ParamsError(
            f"{path} is not a lock file of DVC ({error}): `git checkout -- {path.name}`, or `dvc repro`"
        ) from error
    return dict(stages)

"""A checkout's tables and models, read once, each with the settings it was made with. `moat verify` looks through it.

What both pipelines share is here; which tables and models a pipeline has is said in `moat/moat_checkout.py` and in
`moat/agent_r/checkout.py`. Paths are relative to the pipeline's folder, as those of its dvc.lock.

The settings of an artifact are those of the moment it was made: what its own metadata says (`facts.params`), else what
dvc.lock says of its stage, else params.yaml. So an edit of params.yaml makes no table wrong; that it differs is a warning.
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property, wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import polars as pl
from ruamel.yaml import YAML
from ruamel.yaml.error import YAMLError

from moat import layout
from moat import params as parameters
from moat.params import ParamsError, Pipeline
from moat.tables import Table, TableError, metadata

if TYPE_CHECKING:
    from moat.tokens import Renderer

LOCK = Path("dvc.lock")
P = TypeVar("P", bound=Pipeline)


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
Due = list[tuple[str, Any, Any]]  # what is counted, as a table's own counts say it, as the tables are


class Absent(Exception):  # noqa: N818 -- no error: what a check needs is not there, or is reported as unreadable already
    """A table or model that a check needs has not been made yet, or cannot be read."""


Looked = TypeVar("Looked", bound="Checkout[Any]")


def each_round(check: Callable[[Looked, str], Findings]) -> Callable[[Looked], Findings]:
    """Make a check of one round into one of all rounds in params.yaml; a round that has not been run is left out."""

    @wraps(check)
    def every(checkout: Looked) -> Findings:
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


class Checkout(ABC, Generic[P]):
    """The pipeline in the folder `root`. Raises ParamsError or FileNotFoundError for its params.yaml or dvc.lock.

    `kind` is what its params.yaml is checked against, `roles` those that have a model after every round.
    """

    kind: type[P]
    roles: tuple[str, ...]

    def __init__(self, root: Path) -> None:
        self.root = root
        self.params = parameters.load_as(root / parameters.PARAMS, self.kind)
        self.raw = YAML(typ="safe", pure=True).load((root / parameters.PARAMS).read_text(encoding="utf-8"))
        self.lock = _lock(root / LOCK)
        self.rounds = sorted(self.params.before(), key=int)
        self.evaluated = sorted(self.params.evaluated, key=int)
        self.unreadable: dict[Path, str] = {}
        self._tables: dict[Path, pl.DataFrame] = {}
        self._facts: dict[Path, dict[str, Any]] = {}
        self._settings: dict[Path, P] = {}
        self._renderers: dict[str, Renderer] = {}

    # --- what there should be -----------------------------------------------------------------------------------------

    @abstractmethod
    def tables(self) -> dict[Path, Table]:
        """Every table of the pipeline, in the order in which they are made."""

    @abstractmethod
    def uncounted(self, path: Path) -> bool:
        """Whether a table says nothing of rows in, kept and dropped."""

    @abstractmethod
    def expected_counts(self, path: Path, rows: pl.DataFrame, rows_in: int, kept: int, dropped: dict[str, int]) -> Due:
        """What a table's counts must be; what cannot be known because a parent is missing is left out."""

    @cached_property
    def schemas(self) -> dict[Path, Table]:
        """What `tables` says, once."""
        return self.tables()

    @cached_property
    def models(self) -> list[Path]:
        """Every model folder of the pipeline."""
        return [layout.BASE_MODEL, *(layout.model(role, key) for key in self.evaluated for role in self.roles)]

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

    def size(self, path: Path) -> int | None:
        """A table's number of rows, None when it is not there or not readable."""
        try:
            return len(self.table(path))
        except Absent:
            return None

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

    def settings(self, path: Path) -> P:
        """All parameters, with those that `path` was made with in place of params.yaml's."""
        if path not in self._settings:
            raw = json.loads(json.dumps(self.raw))
            for key, value in self.recorded_params(path).items():
                put(raw, key, value)
            try:
                self._settings[path] = parameters.check(raw, self.kind, self.root / parameters.PARAMS)
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

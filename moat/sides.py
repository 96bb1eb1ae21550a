"""What a side of `moat diff` means, and where its tables are read: the workspace, DVC's cache, or a remote.

| side | its tables |
| --- | --- |
| `1` | those of round 1 |
| `1@main~3` | those of round 1 at a git revision or a DVC experiment |
| `main~3`, `workspace` | all tables of a revision or an experiment; all that are here |
| `pairs.parquet` | a file |
| `dvc://PATH@REVISION::REPOSITORY` | a file that DVC tracks, here or in another repository; the last two may be left out |

Nothing is checked out: a table that is not in the workspace is read where DVC's cache has it, or fetched from a remote into
a temporary folder.
"""

from __future__ import annotations

import re
import tempfile
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from moat import layout

if TYPE_CHECKING:
    from dvc.api import DVCFileSystem

WORKSPACE = "workspace"
DVC = "dvc://"
SHOWN = 12  # names that an error lists


class SideError(ValueError):
    """A side that is nothing, or a table that cannot be had; the message says what there is or what to do."""


class Kind(StrEnum):
    """What a side names."""

    FILE = "file"
    ROUND = "round"
    ALL = "all"


@dataclass(frozen=True, slots=True)
class Source:
    """A table of a side: what errors call it, what kind of table it is, DVC's hash of it, and how to get its file."""

    label: str
    kind: str
    digest: str | None
    fetch: Callable[[], Path]


@dataclass(frozen=True, slots=True)
class Side:
    """A side as it was given, and its tables by name: of a round by kind, of a revision by path, of a file the one."""

    text: str
    kind: Kind
    tables: dict[str, Source]


def of_round(path: Path) -> tuple[str, str] | None:
    """The round and the kind of a round's table, such as ("1", "pairs"); None for a table that is of no round."""
    for key, kind, where in (
        (path.parent.name, path.stem, layout.table(path.stem, path.parent.name)),
        (path.stem, "evals", layout.evals(path.stem)),
        (path.stem, "recoveries", layout.recoveries(path.stem)),
    ):
        if path == where:
            return key, kind
    return None


def kind_of(path: Path) -> str:
    """What `--table` calls a table: pairs, evals, train."""
    found = of_round(path)
    return found[1] if found else path.stem


class Tracked:
    """What DVC tracks at a revision. `said` names the place in errors; fetched files go to `temporary`."""

    def __init__(self, files: DVCFileSystem, folder: Path, said: str, temporary: Path) -> None:
        self.files, self.folder, self.said, self.temporary = files, folder, said, temporary

    @cached_property
    def tables(self) -> dict[Path, str]:
        """The pipeline's tables, which lie in its `data`, with their hashes. Raises SideError."""
        from dvc.exceptions import DvcException

        repo = self.files.repo
        try:
            outs = {Path(*repo.fs.relparts(out.fs_path, repo.root_dir)): out.hash_info for out in repo.index.outs}
        except DvcException as error:
            raise SideError(
                f"DVC cannot read the pipeline {self.said} ({error}): look at its dvc.yaml and dvc.lock"
            ) from error
        found = {path.relative_to(self.folder): said for path, said in outs.items() if path.is_relative_to(self.folder)}
        return {
            path: said.value
            for path, said in sorted(found.items())
            if said.value and path.suffix == ".parquet" and path.parts[0] == layout.SOURCES.parts[0]
        }

    def info(self, path: Path) -> dict[str, Any] | None:
        """What DVC knows of a file; None when it is no file there."""
        try:
            found: dict[str, Any] = self.files.info((self.folder / path).as_posix())
        except FileNotFoundError:
            return None
        return found if found["type"] == "file" else None

    def source(self, path: Path, digest: str | None) -> Source:
        """A table that DVC tracks."""
        return Source(f"{path} {self.said}".strip(), kind_of(path), digest, lambda: self.fetch(path, digest))

    def fetch(self, path: Path, digest: str | None) -> Path:
        """A file with the table's bytes: DVC's own in the cache, or a fetched one. Raises SideError."""
        from dvc.exceptions import DvcException

        if digest is not None and (cached := Path(self.files.repo.cache.local.oid_to_path(digest))).is_file():
            return cached
        target = self.temporary / f"{len(list(self.temporary.iterdir()))}.parquet"
        try:
            self.files.get_file((self.folder / path).as_posix(), str(target))
        except (OSError, DvcException) as error:
            every = "" if not self.said else " --all-commits"
            raise SideError(
                f"{path} {self.said}".strip() + f" is neither in DVC's cache nor in a remote that can be read ({error}): "
                f"`dvc fetch{every}` (or `dvc pull`) here, after `dvc push{every}` where it was made"
            ) from error
        return target


class Sides:
    """Finds sides for the pipeline in `root`; files are named from the folder `here`.

    A context, which removes what it fetched.
    """

    def __init__(self, root: Path, here: Path) -> None:
        self.root, self.here = root.absolute(), here.absolute()
        self._stack = ExitStack()
        self._tracked: dict[tuple[str, str], Tracked] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def find(self, text: str) -> Side:
        """What a side means. Raises SideError when it means nothing."""
        if match := re.fullmatch(r"(\d+)(?:@(.+))?", text):
            return self._round(text, match[1], match[2])
        if text.startswith(DVC):
            return self._address(text)
        if text == WORKSPACE:
            return Side(text, Kind.ALL, {str(path): source for path, source in self._here().items()})
        if (path := self.here / text).is_file():
            return Side(text, Kind.FILE, {text: Source(text, kind_of(Path(text)), None, lambda: path)})
        if (revision := self._revision(text)) is not None:
            tables = {str(path): revision.source(path, digest) for path, digest in revision.tables.items()}
            if not tables:
                raise SideError(f"{text} knows no table: has the pipeline been run and its dvc.lock committed there?")
            return Side(text, Kind.ALL, tables)
        if (tracked := self._missing_file(text)) is not None:
            return Side(text, Kind.FILE, {text: tracked})
        raise SideError(
            f"{text!r} is no round, no git revision, no experiment, no file in {self.here} and no {DVC} address; rounds "
            f"here: {_listed(self._rounds(self._here()))}; revisions: `git log --oneline`; experiments: `dvc exp list -A`"
        )

    # --- rounds -------------------------------------------------------------------------------------------------------

    def _round(self, text: str, key: str, revision: str | None) -> Side:
        there = self._here() if revision is None else self._at(revision)
        found = {one[1]: source for path, source in there.items() if (one := of_round(path)) and one[0] == key}
        if not found:
            where = "here" if revision is None else f"at {revision}"
            rounds = _listed(self._rounds(there))
            raise SideError(f"round {key} has no table {where}; rounds with tables: {rounds}; `dvc repro` makes them")
        return Side(text, Kind.ROUND, found)

    @staticmethod
    def _rounds(tables: dict[Path, Source]) -> list[str]:
        return sorted({one[0] for path in tables if (one := of_round(path))}, key=lambda key: (len(key), key))

    def _at(self, revision: str) -> dict[Path, Source]:
        tracked = self._revision(revision)
        if tracked is None:
            raise SideError(f"{revision!r} is no git revision and no experiment: `git log --oneline`, `dvc exp list -A`")
        return {path: tracked.source(path, digest) for path, digest in tracked.tables.items()}

    def _here(self) -> dict[Path, Source]:
        """The tables of the workspace, and those that only DVC has."""
        found: dict[Path, Source] = {}
        for file in sorted((self.root / layout.SOURCES.parts[0]).rglob("*.parquet")):
            path = file.relative_to(self.root)
            if not path.is_relative_to(layout.SOURCES) and file.is_file():
                found[path] = Source(str(path), kind_of(path), None, partial(Path, file))
        if (tracked := self._open("")) is not None:
            found |= {path: tracked.source(path, said) for path, said in tracked.tables.items() if path not in found}
        return dict(sorted(found.items()))

    # --- files --------------------------------------------------------------------------------------------------------

    def _address(self, text: str) -> Side:
        said, _, repository = text.removeprefix(DVC).partition("::")
        name, _, revision = said.partition("@")
        path = Path(name)
        if not name or path.is_absolute():
            raise SideError(
                f"{text!r} is no address: write {DVC}PATH@REVISION::REPOSITORY, the path from the pipeline's folder"
            )
        tracked = self._open(revision, repository)
        if tracked is None:
            raise SideError(f"{text}: no such revision of a DVC repository in {repository or self.root}")
        if (info := tracked.info(path)) is None:
            raise SideError(f"{text}: no such file there; it has {_listed([str(path) for path in tracked.tables])}")
        return Side(text, Kind.FILE, {text: tracked.source(path, info.get("md5"))})

    def _missing_file(self, text: str) -> Source | None:
        """A file that DVC tracks and that is not in the workspace."""
        path = self.here / text
        tracked = self._open("")
        if tracked is None or not path.is_relative_to(self.root):
            return None
        own = path.relative_to(self.root)
        info = tracked.info(own)
        return tracked.source(own, info.get("md5")) if info else None

    # --- DVC ----------------------------------------------------------------------------------------------------------

    def _revision(self, name: str) -> Tracked | None:
        """What DVC tracks at a git revision or an experiment; None for a name that is neither."""
        return self._open(name)

    def _open(self, revision: str, repository: str = "") -> Tracked | None:
        """What DVC tracks at a revision (blank: now) of a repository (blank: this one). None where there is no such."""
        if (revision, repository) not in self._tracked:
            tracked = self._opened(revision, repository)
            if tracked is None:
                return None
            self._tracked[revision, repository] = tracked
        return self._tracked[revision, repository]

    def _opened(self, revision: str, repository: str) -> Tracked | None:
        own = next((folder for folder in (self.root, *self.root.parents) if (folder / ".dvc").is_dir()), None)
        if own is None and not repository:
            return None
        from dvc.api import DVCFileSystem
        from dvc.exceptions import DvcException
        from dvc.scm import RevError, SCMError

        files = DVCFileSystem(repository or str(own), rev=revision or None)
        try:
            _ = files.repo  # opens it
        except RevError:
            return None
        except (DvcException, OSError) as error:
            if isinstance(error, SCMError) and not repository:
                raise SideError(
                    f"{own} is not under git, so {revision!r} is no revision, and it is no file either"
                ) from error
            raise SideError(f"DVC cannot open {repository or own} ({error})") from error
        self._stack.callback(files.close)
        folder = Path() if repository or own is None else self.root.relative_to(own)
        at, of = f"at {revision}" if revision else "", f"of {repository}" if repository else ""
        temporary = self._stack.enter_context(tempfile.TemporaryDirectory(prefix="moat-diff-"))
        return Tracked(files, folder, f"{at} {of}".strip(), Path(temporary))


def _listed(names: list[str]) -> str:
    more = len(names) - SHOWN
    return (", ".join(names[:SHOWN]) or "none") + (f" and {more} more" if more > 0 else "")

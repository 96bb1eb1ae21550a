"""From a source to records: reading, dropping repeats, and what came of each row."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from moat.sources.base import Dropped, Imported, Passage, Record, SourceError
from moat.sources.files import Advance, Rows, hub_rows, open_rows
from moat.sources.registry import Importer, importer

REPEATED = "the same task again"
UNWRITABLE = "half of a surrogate pair"
EXAMPLES = 3  # dropped rows of a reason that a summary shows


@dataclass(frozen=True, slots=True)
class Import:
    """What came of a source: the records kept, in the source's order, and the rows that gave none."""

    records: tuple[Record, ...]
    dropped: tuple[Dropped, ...]

    @property
    def reasons(self) -> Mapping[str, int]:
        """Dropped rows by reason, most first."""
        return dict(Counter(drop.reason for drop in self.dropped).most_common())

    def summary(self) -> str:
        """Rows in, kept and dropped by reason, with the first dropped ones of each, in lines."""
        total = len(self.records) + len(self.dropped)
        lines = [f"{total:,} rows in, {len(self.records):,} kept, {len(self.dropped):,} dropped"]
        for reason, count in self.reasons.items():
            lines.append(f"  {count:,} {reason}")
            shown = [drop for drop in self.dropped if drop.reason == reason][:EXAMPLES]
            lines += [f"    row {drop.number}: {_spelt(' '.join(drop.detail.split())[:150])}" for drop in shown]
        return "\n".join(lines)


def import_files(
    name: str, paths: Sequence[Path], settings: Mapping[str, Any] | None = None, advance: Advance | None = None
) -> Import:
    """Import local files in the format `name`, one path for each of the importer's files.

    `advance` is told of the bytes read, of all files together. Raises SourceError for an unknown format or setting, a wrong
    number of files, a file that cannot be read, and files without rows.
    """
    found = _importer(name, settings or {})
    if len(paths) != len(found.files):
        raise SourceError(f"{name} takes {len(found.files)} files ({', '.join(found.files)}), not {len(paths)}")
    return _import(found, [open_rows(path, advance) for path in paths], settings or {}, ", ".join(map(str, paths)))


def import_hub(
    name: str,
    data_sets: Sequence[str],
    config: str | None,
    split: str,
    revisions: Sequence[str],
    settings: Mapping[str, Any] | None = None,
    advance: Advance | None = None,
) -> Import:
    """Import hub data sets, each at its own fixed revision, in the format `name`. `advance` is told of the rows read."""
    found = _importer(name, settings or {})
    if not len(data_sets) == len(revisions) == len(found.files):
        raise SourceError(
            f"{name} takes {len(found.files)} data sets ({', '.join(found.files)}) and as many revisions, not "
            f"{len(data_sets)} and {len(revisions)}"
        )
    rows = [hub_rows(one, config, split, at, advance) for one, at in zip(data_sets, revisions, strict=True)]
    return _import(found, rows, settings or {}, ", ".join(data_sets))


def distinct(items: Iterable[Record | Dropped]) -> Imported:
    """The same items, but a task that came before (equal `identity`) is dropped."""
    seen: dict[tuple[str, ...], int] = {}
    for item in items:
        if isinstance(item, Dropped):
            yield item
        elif (first := seen.get(identity(item))) is not None:
            yield Dropped(item.number, REPEATED, f"as row {first}: {item.text[:100]}")
        else:
            seen[identity(item)] = item.number
            yield item


def identity(record: Record) -> tuple[str, ...]:
    """What makes a task the same task: text and answer; of an episode its step too; without an answer, the actions."""
    if record.step:
        return (record.text, record.gold_answer, record.episode, str(len(record.turns)))
    return (record.text, record.gold_answer) if record.gold_answer else (record.text, "", record.actions)


def corpus(records: Iterable[Record]) -> list[Passage]:
    """The passages of all records, each once, in order."""
    return list(dict.fromkeys(passage for record in records for passage in record.passages))


def _spelt(text: str) -> str:
    """A text that can be printed: halves of surrogate pairs, which JSON can spell and UTF-8 cannot, written out."""
    return text.encode(errors="backslashreplace").decode()


def _writable(item: Record | Dropped) -> Record | Dropped:
    """The item; but a record whose text no UTF-8 file can hold is dropped (half of a surrogate pair)."""
    if isinstance(item, Record):
        try:
            json.dumps(asdict(item), ensure_ascii=False).encode()
        except UnicodeEncodeError as error:
            return Dropped(item.number, UNWRITABLE, f"{error.object[error.start]!r} in: {item.text[:100]}")
    return item


def _importer(name: str, settings: Mapping[str, Any]) -> Importer:
    found = importer(name)
    for setting, value in settings.items():
        if setting not in found.settings:
            raise SourceError(f"{name} has no setting {setting!r}; it has {', '.join(found.settings) or 'none'}")
        if type(value) is not found.settings[setting]:
            raise SourceError(f"{name}: the setting {setting} takes a {found.settings[setting].__name__}, not {value!r}")
    return found


def _import(found: Importer, rows: Sequence[Rows], settings: Mapping[str, Any], where: str) -> Import:
    items = list(distinct(map(_writable, found.read(*rows, **settings))))
    if not items:
        raise SourceError(f"{where}: no rows: is it the right file{f' ({found.hub})' if found.hub else ''}?")
    return Import(
        tuple(item for item in items if isinstance(item, Record)), tuple(item for item in items if isinstance(item, Dropped))
    )

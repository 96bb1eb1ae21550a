"""From a source to rows of the tasks table: reading, dropping repeats, and checking the gold with the real tools."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from moat.answers import same_answer
from moat.executor import execute
from moat.seeds import content_id
from moat.sources.base import Dropped, Imported, Passage, Record, SourceError
from moat.sources.files import Advance, Rows, hub_rows, open_rows
from moat.sources.registry import Importer, importer
from moat.tools.base import Tool

REPEATED = "the same task again"
GOLD_FAILS = "gold actions miss the gold answer"
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
            lines += [f"    row {drop.number}: {' '.join(drop.detail.split())[:150]}" for drop in shown]
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


def task_rows(source: str, records: Iterable[Record]) -> list[dict[str, Any]]:
    """Rows of the tasks table of a source's records."""
    return [
        {
            "task_id": content_id(source, *identity(record)),
            "episode_id": record.episode,
            "step": record.step,
            "source": source,
            "split": record.split,
            "domain": record.domain,
            "metric": record.metric.value,
            "text": record.text,
            "gold_subgoals": record.subgoals,
            "gold_actions": record.actions,
            "gold_answer": record.gold_answer,
            "turns": [{"subgoal": turn.subgoal, "actions": turn.actions} for turn in record.turns],
            "context": record.context,
        }
        for record in records
    ]


def corpus(records: Iterable[Record]) -> list[Passage]:
    """The passages of all records, each once, in order."""
    return list(dict.fromkeys(passage for record in records for passage in record.passages))


def gold_fault(record: Record, tools: Mapping[str, Tool], right: Callable[[str, str], bool] = same_answer) -> str | None:
    """Why a record's gold actions do not come to its gold answer, or None when they do.

    `tools` are those of the record's domain (of its page or corpus, where it has one); `right(answer, gold)` grades. A
    record without actions, which is only evaluated on, has no fault, and one without an answer must merely execute.
    """
    if not record.actions:
        return None
    execution = execute(record.actions, tools)
    if execution.answer is None:
        return f"{execution.failure}: {execution.message}"
    if record.gold_answer and not right(execution.answer, record.gold_answer):
        return f"they come to {execution.answer[:100]!r}, the answer is {record.gold_answer[:100]!r}"
    return None


def check_gold(
    items: Iterable[Record | Dropped],
    tools: Callable[[Record], Mapping[str, Tool]],
    right: Callable[[str, str], bool] = same_answer,
) -> Imported:
    """The same items, but a record whose gold does not pass is dropped; `tools` gives the tools for a record."""
    for item in items:
        fault = gold_fault(item, tools(item), right) if isinstance(item, Record) else None
        yield item if fault is None else Dropped(item.number, GOLD_FAILS, fault)


def _importer(name: str, settings: Mapping[str, Any]) -> Importer:
    found = importer(name)
    for setting, value in settings.items():
        if setting not in found.settings:
            raise SourceError(f"{name} has no setting {setting!r}; it has {', '.join(found.settings) or 'none'}")
        if type(value) is not found.settings[setting]:
            raise SourceError(f"{name}: the setting {setting} takes a {found.settings[setting].__name__}, not {value!r}")
    return found


def _import(found: Importer, rows: Sequence[Rows], settings: Mapping[str, Any], where: str) -> Import:
    items = list(distinct(found.read(*rows, **settings)))
    if not items:
        raise SourceError(f"{where}: no rows: is it the right file{f' ({found.hub})' if found.hub else ''}?")
    return Import(
        tuple(item for item in items if isinstance(item, Record)), tuple(item for item in items if isinstance(item, Dropped))
    )

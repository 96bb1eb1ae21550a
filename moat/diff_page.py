"""A report of `moat diff` on the terminal and as a page that stands alone."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from rich import box
from rich.console import Console
from rich.padding import Padding
from rich.table import Table as Grid
from rich.text import Text

from moat.diff import Comparison, SchemaChange
from moat.diff_report import ColumnShift, Report, Status, TableDiff
from moat.reporting import number, percent, rendered
from moat.shifts import STYLE, Figures, Shares
from moat.telling import Row
from moat.terminal import escape, visible
from moat.words import Edit, Part, shortened

COLOURS = {Edit.SAME: "", Edit.REMOVED: "red strike", Edit.ADDED: "green underline"}
MARKS = {Edit.SAME: ("", ""), Edit.REMOVED: ("[-", "-]"), Edit.ADDED: ("{+", "+}")}  # where there are no colours
KEYS = 5  # keys that are named
COLUMNS = 6  # changed columns that the overview names
STATUS = {Status.EQUAL: "dim", Status.DIFFERS: "bold yellow", Status.FIRST: "red", Status.SECOND: "green"}


def key_of(row: Row) -> str:
    """A row's key in a line: task_id 0f3c, k 3."""
    return ", ".join(f"{name} {value}" for name, value in row.items())


def keys_of(rows: Sequence[Row], n: int) -> str:
    """Some of `n` keys, without the columns' names."""
    shown = ["/".join(str(value) for value in row.values()) for row in rows[:KEYS]]
    return ", ".join(shown) + (f" and {n - len(shown):,} more" if n > len(shown) else "")


def change_of(change: SchemaChange, docs: dict[str, str]) -> str:
    """A change of the schema in words."""
    doc = f": {docs[change.column]}" if change.column in docs else ""
    if change.before is None:
        return f"{change.column} ({change.after}) is only in the second{doc}"
    if change.after is None:
        return f"{change.column} ({change.before}) is only in the first{doc}"
    return f"{change.column} is {change.before} in the first, {change.after} in the second"


def value_of(value: Any) -> str:
    """A value in a line; null as a dash."""
    if value is None:
        return "–"
    return f"{value:.6g}" if isinstance(value, float) else str(value)


def shifted(table: TableDiff) -> list[ColumnShift]:
    """The columns worth a line: those with changed rows, and where rows came or went those whose figures moved."""
    return [column for column in table.columns if column.changed or column.before != column.after]


def share_lines(table: TableDiff) -> Iterator[tuple[str, list[tuple[str, str, str]]]]:
    """For each column of names that shifted, and for the styles: its values with their shares on both sides."""
    found = [
        (column.name, column.before.shares, column.after.shares)
        for column in shifted(table)
        if column.before and column.after
    ]
    for name, one, other in [*found, (STYLE, *table.styles)]:
        if one is not None and other is not None and one != other:
            yield name, _shares(one, other)


def _shares(one: Shares, other: Shares) -> list[tuple[str, str, str]]:
    names = dict.fromkeys([*other, *one])
    return [(value_of(name), percent(one.get(name, 0.0)), percent(other.get(name, 0.0))) for name in names]


def unit_of(column: ColumnShift) -> str:
    """What the means of a column are of; blank where it has none, or where shares say more."""
    return column.before.of if column.before and column.after and None in (column.before.shares, column.after.shares) else ""


def mean_of(column: ColumnShift) -> str:
    """A column's means on both sides: numbers, or the share of true."""
    if not unit_of(column):
        return ""
    sides = (figures for figures in (column.before, column.after) if figures)
    return " → ".join(percent(one.mean) if one.of == "share" else number(one.mean) for one in sides)


def quantiles_of(figures: Figures | None) -> str:
    """The quantiles of a column of numbers."""
    return " · ".join(number(value) for value in figures.quantiles.values()) if figures else ""


def nulls_of(column: ColumnShift) -> str:
    """How many nulls the two sides have, when they have some."""
    if column.before is None or column.after is None or not (column.before.nulls or column.after.nulls):
        return ""
    return f"{column.before.nulls:,} → {column.after.nulls:,}"


def sentences(table: TableDiff) -> Iterator[str]:
    """What a table's comparison comes to, in sentences: rows, what turned, PPL."""
    found = table.comparison
    if found is None:
        return
    counts = f"{found.n_added:,} added, {found.n_removed:,} removed, {found.n_changed:,} changed"
    yield f"{found.rows[0]:,} → {found.rows[1]:,} rows: {counts}"
    if found.n_added:
        yield f"added: {keys_of(found.added, found.n_added)}"
    if found.n_removed:
        yield f"removed: {keys_of(found.removed, found.n_removed)}"
    yield from _turned(table, found)
    if (ppl := found.perplexity) is not None and ppl.n_lower + ppl.n_higher:
        yield (
            f"PPL of {ppl.n:,} tasks (by {ppl.column}): {number(ppl.before)} → {number(ppl.after)} in the geometric mean; "
            f"lower for {ppl.n_lower:,}, higher for {ppl.n_higher:,}"
        )
        for word, moves in (("fell", ppl.fell), ("rose", ppl.rose)):
            if moves:
                yield f"PPL {word} most: " + ", ".join(f"{task} {number(a)} → {number(b)}" for task, a, b in moves)


def _turned(table: TableDiff, found: Comparison) -> Iterator[str]:
    if (turned := found.turned) is None or not (turned.n_right or turned.n_wrong):
        return
    p = "" if table.turned_p is None else f" (McNemar's p {table.turned_p:.2g})"
    yield f"by {turned.column}, {turned.n_right:,} turned right and {turned.n_wrong:,} turned wrong{p}"
    for word, rows, n in (("right", turned.right, turned.n_right), ("wrong", turned.wrong, turned.n_wrong)):
        if n:
            yield f"turned {word}: {keys_of(rows, n)}"


# --- the terminal ---------------------------------------------------------------------------------------------------


def show(report: Report, out: Console) -> None:
    """Print it: a line for every table, then those that differ, schema first."""
    out.print(f"[bold]{escape(report.first)}[/] → [bold]{escape(report.second)}[/]")
    out.print(_overview(report))
    for table in report.tables:
        if table.status is Status.DIFFERS:
            _show_table(table, out)
    if report.equal:
        out.print("no difference")


def _overview(report: Report) -> Grid:
    grid = Grid(box=box.SIMPLE_HEAD, pad_edge=False)
    for name in ("table", "", "rows", "added", "removed", "changed", "changed columns"):
        grid.add_column(name, justify="right" if name in ("rows", "added", "removed", "changed") else "left")
    for table in report.tables:
        found, cells = table.comparison, [""] * 5
        if found is not None:
            columns = [column.name for column in table.columns if column.changed]
            more = f" and {len(columns) - COLUMNS} more" if len(columns) > COLUMNS else ""
            rows = f"{found.rows[0]:,} → {found.rows[1]:,}" if found.rows[0] != found.rows[1] else f"{found.rows[0]:,}"
            counts = (f"{n:,}" for n in (found.n_added, found.n_removed, found.n_changed))
            cells = [rows, *counts, ", ".join(columns[:COLUMNS]) + more]
        grid.add_row(escape(table.name), f"[{STATUS[table.status]}]{table.status}[/]", *(escape(cell) for cell in cells))
    return grid


def _show_table(table: TableDiff, out: Console) -> None:
    out.print(f"[bold]{escape(table.name)}[/]  [dim]by {escape(', '.join(table.key))}[/]")
    for change in table.schema:
        _line(out, f"[yellow]column[/] {escape(change_of(change, table.docs))}")
    if table.versions[0] != table.versions[1]:
        _line(out, f"[yellow]version[/] of the schema: {table.versions[0]} → {table.versions[1]}")
    for said in sentences(table):
        _line(out, escape(said))
    if columns := shifted(table):
        out.print(Padding(_columns(columns), (0, 0, 0, 2)))
    for name, shares in share_lines(table):
        told = ", ".join(f"{value} {one} → {other}" for value, one, other in shares)
        _line(out, f"[dim]{escape(name)}[/]  {escape(told)}")
    if table.comparison is not None and table.comparison.examples:
        _examples(table.comparison, out)
    out.print()


def _line(out: Console, markup: str) -> None:
    out.print(Padding(markup, (0, 0, 0, 2)))


def _columns(columns: Sequence[ColumnShift]) -> Grid:
    grid = Grid(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False)
    for name in ("column", "changed", "mean of", "", "p10 · p50 · p90", "nulls"):
        grid.add_column(name, justify="right" if name in ("changed", "") else "left", overflow="fold")
    for column in columns:
        grid.add_row(
            escape(column.name),
            f"{column.changed:,}",
            unit_of(column),
            mean_of(column),
            f"{quantiles_of(column.before)} → {quantiles_of(column.after)}"
            if column.before and column.before.quantiles
            else "",
            nulls_of(column),
        )
    return grid


def _examples(found: Comparison, out: Console) -> None:
    _line(out, "[dim]the most telling rows: what turned with the fewest changed words[/]")
    for example in found.examples:
        values = "; ".join(f"{name} {value_of(one)} → {value_of(other)}" for name, (one, other) in example.values.items())
        _line(out, f"[bold]{escape(key_of(example.key))}[/]  {escape(values)}")
        grid = Grid.grid(padding=(0, 2, 0, 0))
        grid.add_column(style="dim", no_wrap=True)
        grid.add_column(overflow="fold")
        for name, parts in example.texts.items():
            grid.add_row(escape(name), on_terminal(parts, coloured=out.color_system is not None and not out.no_color))
        out.print(Padding(grid, (0, 0, 0, 4)))


def on_terminal(parts: Sequence[Part], *, coloured: bool) -> Text:
    """A text's parts in colours, or between marks where there are none."""
    found = Text()
    for part in shortened(parts):
        before, after = ("", "") if coloured else MARKS[part.edit]
        found.append(f"{before}{visible(part.text)}{after}", COLOURS[part.edit])
    return found


# --- the page -------------------------------------------------------------------------------------------------------


def page(report: Report) -> str:
    """The report as a page of its own; texts of models are text in it."""
    sides = visible(report.first), visible(report.second)
    tables = [_for_page(table) for table in report.tables]
    return rendered("diff.html.j2", title=" → ".join(sides), equal=report.equal, tables=tables)


def _for_page(table: TableDiff) -> dict[str, Any]:
    found = table.comparison
    return {
        "name": visible(table.name),
        "status": table.status.value,
        "differs": table.status is Status.DIFFERS,
        "key": ", ".join(table.key),
        "schema": [visible(change_of(change, table.docs)) for change in table.schema],
        "versions": table.versions if table.versions[0] != table.versions[1] else None,
        "found": found,
        "sentences": [visible(said) for said in sentences(table)],
        "columns": [
            {
                "name": column.name,
                "doc": column.doc,
                "changed": column.changed,
                "of": unit_of(column),
                "mean": mean_of(column),
                "quantiles": [quantiles_of(column.before), quantiles_of(column.after)],
                "nulls": nulls_of(column),
            }
            for column in shifted(table)
        ],
        "shares": [(name, [tuple(map(visible, line)) for line in lines]) for name, lines in share_lines(table)],
        "examples": [
            {
                "key": visible(key_of(example.key)),
                "values": [(name, *(visible(value_of(value)) for value in pair)) for name, pair in example.values.items()],
                "texts": {
                    name: [(part.edit.value, visible(part.text)) for part in shortened(parts)]
                    for name, parts in example.texts.items()
                },
            }
            for example in (found.examples if found else [])
        ],
    }

"""`moat show-tree TASK`: a search tree, on the terminal and as HTML, with the pairs that revision made of its paths.

Reads a round's tables of trees and nodes, and that of revisions where it is there; no model is loaded.
The page stands alone: no scripts, nothing from elsewhere; a node is opened and closed by the browser itself.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from difflib import get_close_matches
from html import escape
from pathlib import Path
from typing import Any

import polars as pl
from rich.console import Group, RenderableType
from rich.text import Text
from rich.tree import Tree as Branches

from moat import layout
from moat.agent_r.tree import ROOT
from moat.agent_r.turns import Kind
from moat.schemas.nodes import NODES
from moat.schemas.revisions import REVISIONS
from moat.schemas.trees import TREES
from moat.terminal import visible

SHOWN = 5  # tasks that are named where one is not known
SHORT = 30  # characters of an observation on the terminal, or as many as there is room for
SAID = 100  # characters of a turn without an action

Row = dict[str, Any]


class NoTreeError(ValueError):
    """A task or a round without a tree; the message says which there are."""


@dataclass(frozen=True, slots=True)
class Pair:
    """A bad and a good path by their last nodes; `turn` is the turning point's node, None where there is none."""

    number: int
    bad: int
    good: int
    turn: int | None
    dropped: str | None

    @property
    def text(self) -> str:
        """In a sentence."""
        turned = "no turning point" if self.turn is None else f"turning point {self.turn}"
        became = f"dropped: {self.dropped}" if self.dropped else "trained on"
        return f"pair {self.number}: bad path to node {self.bad}, good path to node {self.good}, {turned}; {became}"


@dataclass(frozen=True)
class Drawing:
    """A task's tree in a round: its row of the trees, its nodes by number, and the pairs of its paths."""

    round: str
    tree: Row
    nodes: dict[int, Row]
    pairs: list[Pair]
    children: dict[int, list[Row]] = field(init=False)

    def __post_init__(self) -> None:
        children: dict[int, list[Row]] = {number: [] for number in self.nodes}
        for node in self.nodes.values():
            if node["parent"] is not None:
                children[node["parent"]].append(node)
        object.__setattr__(self, "children", children)

    def side(self, node: Row) -> str:
        """good or bad: the paths that a node is on, where they are of one kind; else blank."""
        number = node["node"]
        bad = any(number in path(self.nodes, pair.bad) for pair in self.pairs)
        good = any(number in path(self.nodes, pair.good) for pair in self.pairs)
        return "" if bad is good else "bad" if bad else "good"

    def marks(self, node: Row) -> list[tuple[str, str]]:
        """What is told of a node besides its figures, as (style, words); styles are good, bad and plain."""
        found = [("plain", name) for name in ("simulated", "refused", "repeated") if node[name]]
        if node["end"]:
            found.append(("good" if node["reward"] >= 1 else "plain", "end"))
        for pair in self.pairs:
            for style, name, number in (("bad", "bad", pair.bad), ("good", "good", pair.good), ("bad", "turn", pair.turn)):
                if number == node["node"]:
                    found.append((style, f"{name} {pair.number}"))
        return found

    @property
    def summary(self) -> str:
        """The tree's row in a sentence."""
        tree = self.tree
        parts = [f"round {self.round}", f"{tree['rollouts']} rollouts", f"stopped: {tree['stopped']}"]
        parts.append(f"rewards {tree['worst']:.2f} to {tree['best']:.2f}")
        parts.append(f"{tree['calls']} calls, {tree['tokens']} tokens, {tree['steps']} steps")
        return " · ".join(parts + ([f"dropped: {tree['message']}"] if tree["dropped"] else []))


def find(root: Path, task: str, round_key: str | None = None) -> Drawing:
    """A task's tree in the pipeline in `root`, by default in the last round that has it.

    Raises NoTreeError, FileNotFoundError where the nodes are missing, TableError.
    """
    searched = sorted(path.parent.name for path in root.glob(str(layout.table(TREES.name, "*"))))
    if not searched:
        raise NoTreeError(f"no round in {root} has trees: `dvc repro -R {root.name}` in the project's folder makes them")
    if round_key is not None and round_key not in searched:
        raise NoTreeError(f"round {round_key} has no trees in {root}; there are those of round {', '.join(searched)}")
    rounds = searched if round_key is None else [round_key]
    known: set[str] = set()
    for key in sorted(rounds, key=lambda key: int(key) if key.isdigit() else 0, reverse=True):
        trees = TREES.read(root / layout.table(TREES.name, key))
        for tree in trees.filter(pl.col("task_id") == task).to_dicts():
            nodes = NODES.read(root / layout.table(NODES.name, key)).filter(pl.col("task_id") == task)
            return _drawing(key, tree, nodes.to_dicts(), root / layout.table(REVISIONS.name, key))
        known.update(trees["task_id"])
    near = [name for name in sorted(known) if task in name][:SHOWN] or get_close_matches(task, sorted(known), SHOWN, 0.5)
    there = f"near ones: {', '.join(near)}" if near else f"there are, for example, {', '.join(sorted(known)[:SHOWN])}"
    where = f"round {round_key}" if round_key else f"round(s) {', '.join(sorted(rounds))}"
    raise NoTreeError(f"no tree of a task {task!r} in {where}; " + (there if known else "no task was searched there"))


def _drawing(round_key: str, tree: Row, rows: Iterable[Row], revisions: Path) -> Drawing:
    nodes = {row["node"]: row for row in rows}
    pairs = []
    if revisions.is_file():
        found = REVISIONS.read(revisions).filter(pl.col("task_id") == tree["task_id"])
        for number, row in enumerate(found.sort("bad", "good").iter_rows(named=True), 1):
            turn = None if row["turn"] is None else path(nodes, row["bad"])[row["turn"]]
            pairs.append(Pair(number, row["bad"], row["good"], turn, row["dropped"]))
    return Drawing(round_key, tree, nodes, pairs)


def path(nodes: dict[int, Row], last: int) -> list[int]:
    """The nodes from the first turn to `last`, by number."""
    found = []
    while (before := nodes[last]["parent"]) is not None:
        found.append(last)
        last = before
    return found[::-1]


def said(node: Row) -> str:
    """What was done: the action, or else what the turn was."""
    if node["kind"] in (Kind.ACTION, ROOT):
        return str(node["action"] or node["task_id"])
    return f"({node['kind']}) {short(node['text'], SAID)}"


def short(text: str, length: int) -> str:
    """A text on one line, cut."""
    line = " ".join(text.split())
    return line if len(line) <= length else line[: length - 1].rstrip() + "…"


def figures(node: Row) -> str:
    """Reward, visits (N) and mean final reward (Q) of a node."""
    reward = "" if node["kind"] == ROOT else f"reward {node['reward']:.2f}  "
    return reward + (f"N {node['visits']}  Q {node['value']:.2f}" if node["visits"] else "not visited")


# --- the terminal ---------------------------------------------------------------------------------------------------

SIDES = {"good": "bold green", "bad": "bold red", "": "bold"}
STYLES = {"good": "bold green", "bad": "bold red", "plain": "yellow"}


def on_terminal(drawing: Drawing, width: int) -> RenderableType:
    """The tree as rich draws it in so many columns, with the pairs below."""
    lines: list[RenderableType] = [Text(visible(drawing.summary), "dim")]
    if drawing.nodes:
        branches = {0: Branches(_line(drawing, drawing.nodes[0], width), guide_style="dim")}
        for number, node in sorted(drawing.nodes.items()):
            if node["parent"] is not None:
                branches[number] = branches[node["parent"]].add(_line(drawing, node, width))
        lines.append(branches[0])
    lines += [Text(visible(pair.text)) for pair in drawing.pairs]
    return Group(*lines)


def _line(drawing: Drawing, node: Row, width: int) -> Text:
    line = Text.assemble(
        (f"{node['node']} ", "dim"), (visible(said(node)), SIDES[drawing.side(node)]), (f"  {figures(node)}", "cyan")
    )
    for style, words in drawing.marks(node):
        line.append(f"  {words}", STYLES[style])
    if node["kind"] != ROOT:
        room = width - 4 * node["depth"] - len(line) - len("  → ")
        line.append(f"  → {short(visible(node['observation']), max(room, SHORT))}", "dim")
    return line


# --- the page -------------------------------------------------------------------------------------------------------

CSS = """
.tree { --text: #1d2125; --quiet: #5d666f; --rule: #c9cdd1; --tint: #f0f2f4; --good: #1d6f42; --good-tint: #e0f2e7;
  --bad: #a33327; --bad-tint: #fae5e2; color: var(--text); overflow-wrap: anywhere; }
@media (prefers-color-scheme: dark) { .tree { --text: #e4e6e8; --quiet: #9aa4ad; --rule: #444a51; --tint: #272b30;
  --good: #8fd6ab; --good-tint: #1f3a2a; --bad: #f0a197; --bad-tint: #46241f; } }
.tree details details { margin-left: .5rem; border-left: 1px solid var(--rule); padding-left: .6rem; }
.tree summary { cursor: pointer; padding: .15rem 0; }
.tree pre { margin: .1rem 0 .4rem 1.1rem; white-space: pre-wrap; color: var(--quiet); }
@media (max-width: 46rem) { .tree details details { margin-left: 0; padding-left: .3rem; }
  .tree pre { margin-left: .3rem; } }
.tree code, .tree pre { font: .85em/1.45 ui-monospace, SFMono-Regular, Menlo, Consolas, monospace; }
.tree .quiet { color: var(--quiet); font-size: .85rem; }
.tree .mark { border-radius: 4px; padding: 0 .35rem; font-size: .8rem; background: var(--tint); white-space: nowrap; }
.tree .good { background: var(--good-tint); color: var(--good); }
.tree .bad { background: var(--bad-tint); color: var(--bad); }
"""
PAGE = """<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'">
<title>{title}</title>
<style>
:root {{ color-scheme: light dark; }}
body {{ margin: 0 auto; max-width: 70rem; padding: 1.5rem 1rem 4rem; font: 16px/1.5 system-ui, sans-serif; }}
h1 {{ font-size: 1.3rem; }}
{css}</style>
</head>
<body>
<h1>{title}</h1>
{body}
</body>
</html>
"""


def page(drawing: Drawing) -> str:
    """The tree as a page of its own."""
    return PAGE.format(title=f"Search tree of {escape(drawing.tree['task_id'])}", css=CSS, body=fragment(drawing))


def fragment(drawing: Drawing) -> str:
    """The tree as a part of a page whose style has `CSS`."""
    lines = ['<div class="tree">', f'<p class="quiet">{escape(drawing.summary)}</p>']
    if drawing.pairs:
        lines += ["<ul>", *(f"<li>{escape(pair.text)}</li>" for pair in drawing.pairs), "</ul>"]
    left: list[Row | None] = [drawing.nodes[0]] if drawing.nodes else []
    while left:  # None: the children of a node are done
        node = left.pop()
        if node is None:
            lines.append("</details>")
            continue
        lines += ["<details open>", f"<summary>{_summary(drawing, node)}</summary>", *_texts(node)]
        left += [None, *reversed(drawing.children[node["node"]])]
    return "\n".join([*lines, "</div>"])


def _summary(drawing: Drawing, node: Row) -> str:
    marks = "".join(f' <span class="mark {style}">{escape(words)}</span>' for style, words in drawing.marks(node))
    side = f' class="{drawing.side(node)}"' if drawing.side(node) else ""
    figured = f'<span class="quiet">{figures(node)}</span>'
    return f'<span class="quiet">{node["node"]}</span> <code{side}>{escape(said(node))}</code> {figured}{marks}'


def _texts(node: Row) -> list[str]:
    """The turn, where it is more than its action, and the observation."""
    more = node["text"].strip() not in ("", f"Action: {node['action']}")
    return [f"<pre>{escape(text)}</pre>" for text in ([node["text"]] if more else []) + [node["observation"]]]

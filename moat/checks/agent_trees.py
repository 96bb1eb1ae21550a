"""A round's search trees: their shape, what was backed up in them, and what they say of themselves."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence

from moat import layout
from moat.agent_r.actor import conversation
from moat.agent_r.checkout import AgentCheckout, Row
from moat.agent_r.tree import ROOT
from moat.agent_r.turns import normal
from moat.checkout import Absent, Findings, each_round
from moat.checks.agent_tasks import of_tasks
from moat.tokens import Renderer

Told = Iterator[tuple[int, str]]
OfTree = Callable[[str, Sequence[Row], Mapping[int, list[Row]]], Told]
STOPPED = ("iterations", "exhausted", "solved", "dropped")


@each_round
def searched(checkout: AgentCheckout, key: str) -> Findings:
    """Every searched task has one tree, with nodes unless it was dropped; in mode bc none has"""
    path, nodes = layout.table("trees", key), layout.table("nodes", key)
    rows, goals = checkout.table(path), checkout.goals(layout.TRAIN_TASKS)
    yield from of_tasks(checkout, path, layout.TRAIN_TASKS)
    wanted = {task for task, goal in goals.items() if goal["searched"]} if checkout.settings(path).mode != "bc" else set()
    yield from checkout.rows(
        path, rows.filter(~rows["task_id"].is_in(list(wanted))), "a tree of a task that is not searched"
    )
    if lacking := sorted(wanted - set(rows["task_id"])):
        yield checkout.fault(path, f"{len(lacking):,} searched tasks have no tree, the first {lacking[0]}")
    used, found = set(rows.filter(rows["dropped"].is_null())["task_id"]), checkout.table(nodes)
    strange = found.filter(~found["task_id"].is_in(list(used)))
    yield from checkout.rows(nodes, strange, f"a node of a task without a tree that is used in {path}")
    if without := sorted(used - set(found["task_id"])):
        yield checkout.fault(nodes, f"{len(without):,} trees have no nodes, the first {without[0]}")


@each_round
def shape(checkout: AgentCheckout, key: str) -> Findings:
    """Node 0 is the root with the task's first observation; every other one is made after its parent and a turn below it"""
    path, goals = layout.table("nodes", key), checkout.goals(layout.TRAIN_TASKS)
    rows = checkout.table(path)
    depths = {(task, node): depth for task, node, depth in rows.select("task_id", "node", "depth").iter_rows()}
    counts = Counter(rows["task_id"])
    told: list[str | None] = []
    for row in rows.iter_rows(named=True):
        task, node, parent = row["task_id"], row["node"], row["parent"]
        what = None
        if not 0 <= node < counts[task]:
            what = "the nodes of a tree are not numbered from 0 without a gap"
        elif node == 0:
            first = goals[task]["first"] if task in goals else row["observation"]
            if parent is not None or row["depth"] or row["kind"] != ROOT or row["text"] or row["action"]:
                what = "node 0 is no root"
            elif row["observation"] != first:
                what = "the root's observation is not the task's first"
        elif parent is None or (task, parent) not in depths or parent >= node:
            what = "its parent is not there, or was made after it"
        elif row["depth"] != depths[task, parent] + 1:
            what = "depth is not the parent's and one"
        told.append(what)
    yield from checkout.each(path, rows, told)


@each_round
def ends(checkout: AgentCheckout, key: str) -> Findings:
    """A path ends where the episode does, at search.depth turns or over max_length, and there alone"""
    settings = checkout.settings(layout.table("nodes", key))
    goals = checkout.goals(layout.TRAIN_TASKS)
    try:
        renderer: Renderer | None = checkout.renderer(layout.table("nodes", key))
    except Absent:
        renderer = None

    def told(task: str, rows: Sequence[Row], children: Mapping[int, list[Row]]) -> Told:
        for row in rows:
            due = row["terminal"] or row["depth"] >= settings.search.depth
            if row["end"] and children[row["node"]]:
                yield row["node"], "a path ends here, and yet goes on"
            elif due and not row["end"]:
                yield row["node"], "the path does not end here, though it must"
            elif row["end"] and not due and renderer is not None and task in goals:
                said = conversation(goals[task]["instruction"], goals[task]["first"], before(rows, row))
                if sum(map(len, renderer.conversation(said))) <= settings.max_length:
                    yield row["node"], "the path ends here without a reason"

    yield from _of_trees(checkout, key, told)


def before(rows: Sequence[Row], last: Row) -> list[tuple[str, str]]:
    """What was said and answered on the way to a node, itself included."""
    found = []
    while last["parent"] is not None:
        found.append((last["text"], last["observation"]))
        last = rows[last["parent"]]
    return found[::-1]


@each_round
def backed_up(checkout: AgentCheckout, key: str) -> Findings:
    """A node's visits are its children's, where a path does not end, and its value is the mean of what they ended with"""

    def told(task: str, rows: Sequence[Row], children: Mapping[int, list[Row]]) -> Told:
        for row in rows:
            below, visits = children[row["node"]], row["visits"]
            through = visits if row["end"] else sum(child["visits"] for child in below)
            rewards = row["reward"] * visits if row["end"] else sum(child["visits"] * child["value"] for child in below)
            if visits < 0 or visits != through:
                yield row["node"], "its visits are not those of its children"
            elif not math.isclose(row["value"], rewards / visits if visits else 0.0, abs_tol=1e-9):
                yield row["node"], "its value is not the mean final reward of the rollouts through it"

    yield from _of_trees(checkout, key, told)


@each_round
def distinct(checkout: AgentCheckout, key: str) -> Findings:
    """No two children of a node are the same action, whatever its case and spacing, or the same without an action"""

    def told(task: str, rows: Sequence[Row], children: Mapping[int, list[Row]]) -> Told:
        for below in children.values():
            seen = set()
            for child in below:
                if (name := (child["kind"], normal(child["action"]))) in seen:
                    yield child["node"], "another child of its parent is the same"
                seen.add(name)

    yield from _of_trees(checkout, key, told)


@each_round
def costs(checkout: AgentCheckout, key: str) -> Findings:
    """Rollouts, rewards and costs of a tree agree with its nodes, and what stopped it with the settings"""
    path = layout.table("trees", key)
    rows, trees, settings = checkout.table(path), checkout.trees(key), checkout.settings(path).search
    told: list[str | None] = []
    for row in rows.iter_rows(named=True):
        own = trees.get(row["task_id"])
        if (row["stopped"] == "dropped") != (row["dropped"] is not None) or bool(row["message"]) != (
            row["dropped"] is not None
        ):
            told.append("stopped and message do not say whether it was dropped")
        elif own is None or row["dropped"] is not None:
            told.append(None)  # that its nodes are missing, or no tree, is told elsewhere
        else:
            told.append(disagreement(row, own, settings.iterations, settings.stop_when_solved))
    yield from checkout.each(path, rows, told)


def disagreement(tree: Row, nodes: Sequence[Row], iterations: int, stops_solved: bool) -> str | None:
    """In what a tree's row is not as its nodes."""
    rewards = [row["reward"] for row in nodes if row["end"]]
    solved = stops_solved and any(row["reward"] >= 1 and row["visits"] for row in nodes if row["end"])
    if (tree["best"], tree["worst"]) != (max(rewards, default=0.0), min(rewards, default=0.0)):
        return "best and worst are not those of its paths"
    if tree["rollouts"] != nodes[0]["visits"]:
        return "rollouts is not its root's visits"
    if (tree["stopped"] == "solved") != solved or tree["stopped"] not in STOPPED:
        return "stopped is not what stopped it"
    if tree["rollouts"] > iterations or (tree["stopped"] == "iterations" and tree["rollouts"] < iterations):
        return "its rollouts are not those of search.iterations"
    acted = sum(row["kind"] == "action" for row in nodes)
    if tree["calls"] < len(nodes) - 1 or tree["tokens"] < sum(row["n_tokens"] for row in nodes) or tree["steps"] < acted:
        return "it cost less than its nodes did"
    return None if 0 <= tree["replayed"] <= tree["steps"] else "more steps brought back a state than were taken"


def _of_trees(checkout: AgentCheckout, key: str, told: OfTree) -> Findings:
    """What `told` says of the nodes of every tree, by number, given the children of each."""
    path, found = layout.table("nodes", key), dict[tuple[str, int], str]()
    for task, rows in checkout.trees(key).items():
        children: dict[int, list[Row]] = {row["node"]: [] for row in rows}
        for row in rows[1:]:
            children[row["parent"]].append(row)
        found |= {(task, node): what for node, what in told(task, rows, children)}
    table = checkout.table(path)
    yield from checkout.each(path, table, [found.get(name) for name in table.select("task_id", "node").iter_rows()])

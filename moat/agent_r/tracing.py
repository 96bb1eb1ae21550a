"""`moat trace KEY` of Agent-R: the story of a trajectory that was trained on, from its task to how its actor fares.

A key is a `row_id` of a training set (`revision/TASK/BAD/GOOD`, `good/TASK/END`, `gold/TASK`, `general/NUMBER`), whether it
was trained on or dropped; a demonstration, a task, or a cut (`TASK#ATTEMPT#CUT`). Paths are named by the nodes that end
them, which are numbered anew in every round. Reads tables and the models' moat.json; no model is loaded.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from difflib import get_close_matches
from functools import cached_property
from pathlib import Path
from typing import Any

import polars as pl
from rich import box
from rich.console import Console
from rich.padding import Padding
from rich.table import Table as Grid

from moat import layout
from moat.agent_r.checkout import ACTOR, DEMOS, GENERAL
from moat.agent_r.params import AgentParams
from moat.agent_r.paths import finished
from moat.schemas.cuts import CUTS
from moat.schemas.dialogues import DIALOGUES
from moat.schemas.goals import GOALS
from moat.schemas.judgements import JUDGEMENTS
from moat.schemas.nodes import NODES
from moat.schemas.plays import PLAYS
from moat.schemas.revisions import REVISIONS
from moat.schemas.trained import TRAINED
from moat.schemas.trees import TREES
from moat.terminal import escape
from moat.trace import Lookup, Row, TraceError, fields, head, line, trained_on

KINDS = (
    "a row_id such as revision/TASK/BAD/GOOD, good/TASK/END, gold/TASK or general/NUMBER, a demonstration "
    "judged/TASK/NUMBER, a task, or a cut TASK#ATTEMPT#CUT"
)
SHOWN = 3  # keys given as examples
REVISION = re.compile("revision/(.+)/([0-9]+)/([0-9]+)")
GOOD = re.compile("good/(.+)/([0-9]+)")


class AgentTracer(Lookup):
    """Looks up keys in Agent-R's pipeline in `root`."""

    def __init__(self, root: Path, params: AgentParams) -> None:
        super().__init__(root)
        self.params = params
        self.rounds = sorted(params.rounds, key=int)

    @cached_property
    def goals(self) -> dict[str, Row]:
        """The training tasks by name. Raises FileNotFoundError, saying what makes them."""
        return {row["task_id"]: row for row in self.read(GOALS, layout.TRAIN_TASKS).iter_rows(named=True)}

    # --- keys ---------------------------------------------------------------------------------------------------------

    def trace(self, text: str, round_key: str | None = None) -> Row:
        """The story of a key, as data for JSON. Raises TraceError, TableError or FileNotFoundError."""
        if round_key is not None and round_key not in self.rounds:
            raise TraceError(f"no round {round_key!r}: params.yaml has {', '.join(self.rounds)}")
        found: Row | None
        if named := REVISION.fullmatch(text):
            found = self.revision(text, named[1], int(named[2]), int(named[3]), round_key)
        elif named := GOOD.fullmatch(text):
            found = self.good(text, named[1], int(named[2]), round_key)
        elif text in self.goals:
            found = self.task(text, round_key)
        else:
            found = self.demonstration(text) or self.cut(text) or self.evaluated(text)
        if found is None:
            raise self.unknown(text)
        return {"key": text} | found

    def unknown(self, text: str) -> TraceError:
        """The error for a key that is nowhere, with near ones or examples."""
        rows = [name for key in self.rounds for name in self._names(TRAINED, layout.table("sft", key), "row_id")]
        cuts = self._names(CUTS, layout.RECOVERY, "cut_id")
        tests = self._names(GOALS, layout.EVAL_TASKS, "task_id")
        pool = list(dict.fromkeys([*rows, *cuts, *self.goals, *tests]))
        near = [name for name in pool if text and name.startswith(text)][:SHOWN] or get_close_matches(text, pool, SHOWN, 0.7)
        some = [one[0] for one in (rows, list(self.goals), cuts) if one][:SHOWN]
        said = f"Did you mean {' or '.join(near)}?" if near else f"For example {' or '.join(some)}" if some else ""
        return TraceError(f"nothing is known of {text!r}: a key is {KINDS}. {said}".strip())

    def _names(self, schema: Any, path: Path, column: str) -> list[str]:
        return [row[column] for row in self.of(schema, path)]

    def last(self, text: str, round_key: str | None, known: Callable[[str], bool]) -> tuple[str, list[str]]:
        """The round that a key is looked at in, the named one or the last, and all that know it. Raises TraceError."""
        has = [key for key in self.rounds if known(key)]
        if not has:
            raise self.unknown(text)
        if round_key is not None and round_key not in has:
            raise TraceError(f"round {round_key} knows nothing of {text}: only {', '.join(has)}")
        return round_key or has[-1], has

    # --- stories ------------------------------------------------------------------------------------------------------

    def revision(self, text: str, task: str, bad: int, good: int, round_key: str | None) -> Row:
        """A pair's two paths, their judgements, and the splice, which was trained on or dropped."""

        def rows(key: str) -> list[Row]:
            return self.of(REVISIONS, layout.table("revisions", key), task_id=task, bad=bad, good=good)

        key, has = self.last(text, round_key, lambda key: bool(rows(key)))
        row = rows(key)[0]
        trained = self.training_rows(key, row_id=text)
        return (
            {"kind": "revision", "rounds": has}
            | self.searched(task, key)
            | {
                "bad": self.path(task, bad, key, judged=True),
                "good": self.path(task, good, key),
                "revision": {name: value for name, value in row.items() if name != "turns"},
                "splice": learned(row["turns"], trained),
            }
            | self.trained_by(trained, [])
        )

    def good(self, text: str, task: str, end: int, round_key: str | None) -> Row:
        """A finished path, which was trained on or not."""

        def ended(key: str) -> bool:
            return bool(self.of(NODES, layout.table("nodes", key), task_id=task, node=end, end=True))

        key, has = self.last(text, round_key, ended)
        trained = self.training_rows(key, row_id=text)
        found = self.path(task, end, key)
        found["turns"] = learned(found["turns"], trained)
        return {"kind": "good", "rounds": has} | self.searched(task, key) | {"good": found} | self.trained_by(trained, [])

    def task(self, task: str, round_key: str | None) -> Row:
        """A training task's tree in a round, the pairs of its paths, and what was trained on."""
        has = [key for key in self.rounds if self.of(TREES, layout.table("trees", key), task_id=task)]
        if round_key is not None and round_key not in has:
            raise TraceError(f"round {round_key} has no tree of {task}: only {', '.join(has) or 'none'}")
        found: Row = {"kind": "task", "rounds": has, "task": self.goals[task], "round": None, "tree": None, "revisions": []}
        key = round_key or (has[-1] if has else None)
        shown = [row["row_id"] for row in self.of(DIALOGUES, DEMOS, task_id=task)]
        trained = [row for one in self.rounds for row in self.training_rows(one, task_id=task) if key in (None, one)]
        if key is not None:
            pairs = self.of(REVISIONS, layout.table("revisions", key), task_id=task)
            found |= self.searched(task, key)
            found["revisions"] = [{name: value for name, value in row.items() if name != "turns"} for row in pairs]
        return found | {"demonstrations": shown} | self.trained_by(trained, [self._cold_start()] if shown else [])

    def demonstration(self, text: str) -> Row | None:
        """A demonstration or a general conversation, the training sets that have it, and the models that it trained."""
        rows = [row for path in (DEMOS, GENERAL) for row in self.of(DIALOGUES, path, row_id=text)]
        if not rows:
            return None
        trained = [row for key in self.rounds for row in self.training_rows(key, row_id=text)]
        first = [] if rows[0]["origin"] == "general" else [self._cold_start()]
        return {
            "kind": "demonstration",
            "task": self.goals.get(rows[0]["task_id"]),
            "demonstration": rows[0],
        } | self.trained_by(trained, first)

    def cut(self, text: str) -> Row | None:
        """A cut, and how every round's actor went on from there."""
        rows = self.of(CUTS, layout.RECOVERY, cut_id=text)
        if not rows:
            return None
        goals = self.of(GOALS, layout.EVAL_TASKS, task_id=rows[0]["task_id"])
        plays = self.plays(layout.recoveries, text)
        return {"kind": "cut", "task": goals[0] if goals else None, "cut": rows[0], "plays": plays}

    def evaluated(self, text: str) -> Row | None:
        """An evaluation task, how every round's actor played it, and the cuts in its failures."""
        goals = self.of(GOALS, layout.EVAL_TASKS, task_id=text)
        if not goals:
            return None
        cuts = [row["cut_id"] for row in self.of(CUTS, layout.RECOVERY, task_id=text)]
        return {"kind": "evaluation task", "task": goals[0], "plays": self.plays(layout.evals, text), "cuts": cuts}

    # --- parts --------------------------------------------------------------------------------------------------------

    def searched(self, task: str, key: str) -> Row:
        """A task, its tree in a round, and who grew it and judged its bad paths."""
        trees = self.of(TREES, layout.table("trees", key), task_id=task)
        return {
            "round": key,
            "task": self.goals.get(task),
            "tree": trees[0] if trees else None,
            "searched_by": str(layout.model(ACTOR, self.params.rounds[key].prev)),
        }

    def path(self, task: str, end: int, key: str, judged: bool = False) -> Row:
        """A finished path: its turns by node, with `judged` with the judge's and the tree's labels. Raises TraceError."""
        rows = self.of(NODES, layout.table("nodes", key), task_id=task)
        one = next((path for path in finished(rows) if path.end == end), None)
        if one is None:
            raise TraceError(
                f"{layout.table('nodes', key)} has no path to node {end} of {task}: `dvc repro` makes both anew"
            )
        turns = [{"node": node} | turn.row() for node, turn in zip(one.nodes, one.turns, strict=True)]
        if judged:
            found = {row["turn"]: row for row in self.of(JUDGEMENTS, layout.table("judgements", key), task_id=task, bad=end)}
            for number, turn in enumerate(turns):
                turn |= {name: found[number][name] if number in found else None for name in ("label", "reasons", "tree")}
        return {"end": end, "reward": one.reward, "turns": turns}

    def training_rows(self, key: str, **where: Any) -> list[Row]:
        """Rows of a round's training set; `set` is the round."""
        return [row | {"set": key} for row in self.of(TRAINED, layout.table("sft", key), **where)]

    def trained_by(self, rows: Sequence[Row], first: Iterable[Path | None]) -> Row:
        """What rows of training sets trained, and how these models fare; `first` are models that came before the rounds."""
        paths = [path for path in first if path is not None]
        paths += [layout.model(ACTOR, row["set"]) for row in rows]
        models = self.models(paths)
        for model in models:
            key = Path(model["path"]).name
            model["from_the_start"], model["recovery"] = (self.fares(of(key)) for of in (layout.evals, layout.recoveries))
        return {"training_rows": list(rows), "models": models}

    def _cold_start(self) -> Path | None:
        return layout.model(ACTOR, "0") if self.params.cold_start.enabled else None

    def fares(self, path: Path) -> dict[str, Row]:
        """By environment, of an evaluation's plays that count: how many, share of full rewards, mean reward."""
        if not (self.root / path).exists():
            return {}
        plays = self.read(PLAYS, path).filter(pl.col("dropped").is_null())
        by_name = plays.group_by("environment").agg(
            n=pl.len(), success=pl.col("success").mean(), reward=pl.col("reward").mean()
        )
        return {row.pop("environment"): row for row in by_name.sort("environment").to_dicts()}

    def plays(self, of: Callable[[str], Path], play_id: str) -> list[Row]:
        """What every round's actor did at one beginning."""
        keys = sorted(self.params.evaluated, key=int)
        return [row | {"round": key} for key in keys for row in self.of(PLAYS, of(key), play_id=play_id)]


def learned(turns: Sequence[Row], trained: Sequence[Row]) -> list[Row]:
    """The turns, each with whether it was learned from in the training row of `trained`; null where there is none."""
    marks = trained[0]["supervised"][1::2] if trained else [None] * len(turns)
    return [turn | {"learned": own} for turn, own in zip(turns, marks, strict=True)]


# --- the screen -------------------------------------------------------------------------------------------------------


def show(story: Row, out: Console) -> None:
    """Print a story."""
    {
        "revision": _show_revision,
        "good": _show_good,
        "task": _show_task,
        "demonstration": _show_demonstration,
        "cut": _show_cut,
        "evaluation task": _show_evaluated,
    }[story["kind"]](story, out)
    if "training_rows" not in story:
        return
    head(out, "Training rows", "" if story["training_rows"] else "in no round's training set")
    for row in story["training_rows"]:
        counts = f"in {layout.table('sft', row['set'])}: {row['n_supervised']:,} tokens are learned from, "
        line(out, f"{escape(row['row_id'])} [dim]{counts}each counts {row['weight']:.3g}[/]")
    head(out, "Models", "" if story["models"] else "none was trained on it")
    for model in story["models"]:
        line(out, f"{model['path']} [dim]{escape(trained_on(model))}[/]")
        for name, words in (("from_the_start", "from the start"), ("recovery", "recovery")):
            for world, figures in model[name].items():
                line(out, f"  [dim]{words}, {escape(world)}:[/] {_figures(figures)}")


def _figures(figures: Mapping[str, Any]) -> str:
    return f"full reward in {figures['success']:.1%} of {figures['n']:,}, mean reward {figures['reward']:.3f}"


def _title(out: Console, name: str, key: str, note: str) -> None:
    out.print(f"[bold]{name}[/] {escape(key)}  [dim]{escape(note)}[/]")


def _task(out: Console, task: Row | None) -> None:
    if task is not None:
        gold = "; ".join(task["gold"]) or None
        fields(out, {"task": f"{task['task_id']} ({task['environment']}, {task['kind']})", "gold": gold})


def _tree(out: Console, story: Row) -> None:
    tree = story["tree"]
    if tree is None:
        return
    head(out, "Tree", f"grown by {story['searched_by']}")
    if tree["dropped"]:
        line(out, f"dropped: {escape(tree['message'])}")
        return
    rewards = f"rewards {tree['worst']:.2f} to {tree['best']:.2f}"
    line(out, f"{tree['rollouts']} rollouts, stopped: {tree['stopped']}; {rewards}; {tree['calls']} turns were asked for")


def _turns(out: Console, turns: Sequence[Row], columns: Mapping[str, Callable[[int, Row], str]]) -> None:
    """Turns in a table: number, what was said and answered, and the `columns` by heading."""
    grid = Grid(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False)
    grid.add_column("turn", justify="right", no_wrap=True)
    grid.add_column("said", overflow="fold")
    grid.add_column("answered", overflow="fold")
    for name in columns:
        grid.add_column(name, no_wrap=True)
    for number, turn in enumerate(turns):
        said = turn["action"] if turn["kind"] == "action" else turn["text"]
        cells = (cell(number, turn) for cell in columns.values())
        grid.add_row(str(number), escape(said), escape(turn["observation"]), *cells)
    out.print(Padding(grid, (0, 0, 0, 2)))


def _learned(number: int, turn: Row) -> str:
    return "[green]yes[/]" if turn["learned"] else ""


def _show_revision(story: Row, out: Console) -> None:
    row, bad, good = story["revision"], story["bad"], story["good"]
    _title(out, "Revision", story["key"], f"{row['environment']}, round {story['round']}")
    _task(out, story["task"])
    _tree(out, story)

    def place(number: int, turn: Row) -> str:
        return "shared" if number < row["shared"] else "[bold red]turns here[/]" if number == row["turn"] else ""

    labels: dict[str, Callable[[int, Row], str]] = {"": place}
    if any(turn["label"] for turn in bad["turns"]):
        labels |= {"judge": lambda number, turn: turn["label"] or "–", "tree": lambda number, turn: turn["tree"] or "–"}
    head(out, f"Bad path to node {bad['end']}", f"reward {bad['reward']:.2f}")
    _turns(out, bad["turns"], labels)
    head(out, f"Good path to node {good['end']}", f"reward {good['reward']:.2f}")
    _turns(out, good["turns"], {"": lambda number, turn: "shared" if number < row["shared"] else ""})
    if not story["splice"]:
        head(out, "Splice", f"none: {row['message']}")
        return
    came = f"{'replayed' if row['replayed'] else 'not replayed'}, reward {row['reward']:.2f}"
    head(out, "Splice", f"{came}; {'dropped: ' + row['dropped'] if row['dropped'] else 'kept'}")
    _turns(out, story["splice"], {"learned": _learned})


def _show_good(story: Row, out: Console) -> None:
    world = story["task"]["environment"] if story["task"] else ""
    _title(out, "Path", story["key"], f"{world}, round {story['round']}")
    _task(out, story["task"])
    _tree(out, story)
    head(out, f"Path to node {story['good']['end']}", f"reward {story['good']['reward']:.2f}")
    _turns(out, story["good"]["turns"], {"learned": _learned})


def _show_task(story: Row, out: Console) -> None:
    of_round = f"round {story['round']}" if story["round"] else "not searched yet"
    _title(out, "Task", story["key"], f"{story['task']['environment']}, {of_round}")
    _task(out, story["task"])
    fields(out, {"shown in": ", ".join(story["demonstrations"]) or None})
    _tree(out, story)
    if story["tree"] is not None:
        head(out, "Pairs", "" if story["revisions"] else "none")
    for row in story["revisions"]:
        became = f"dropped: {row['dropped']}" if row["dropped"] else f"turns at {row['turn']}, kept"
        name = f"revision/{row['task_id']}/{row['bad']}/{row['good']}"
        line(out, f"{escape(name)} [dim]{row['bad_reward']:.2f} → {row['good_reward']:.2f}; {escape(became)}[/]")


def _show_demonstration(story: Row, out: Console) -> None:
    row = story["demonstration"]
    _title(out, "Demonstration", story["key"], f"{row['environment']}, {row['origin']}")
    _task(out, story["task"])
    for text, learned in zip(row["texts"], row["supervised"], strict=True):
        line(out, f"[green]{escape(text)}[/]" if learned else f"[dim]{escape(text)}[/]")


def _show_cut(story: Row, out: Console) -> None:
    cut = story["cut"]
    _title(out, "Cut", story["key"], f"{cut['environment']}, {len(cut['turns'])} of {cut['n_failed']} turns are kept")
    _task(out, story["task"])
    head(out, "Turns before it", f"of {layout.model(ACTOR, '0')}")
    _turns(out, cut["turns"], {})
    _plays(out, story["plays"], "Recoveries")


def _show_evaluated(story: Row, out: Console) -> None:
    _title(out, "Evaluation task", story["key"], "nothing is trained on it")
    _task(out, story["task"])
    _plays(out, story["plays"], "Plays from the start")
    head(out, "Cuts", "" if story["cuts"] else "none")
    for name in story["cuts"]:
        line(out, escape(name))


def _plays(out: Console, plays: Sequence[Row], name: str) -> None:
    head(out, name, "" if plays else "none")
    for row in plays:
        ended = f"dropped: {row['message']}" if row["dropped"] else f"reward {row['reward']:.2f}, ended by {row['ended']}"
        line(out, f"{layout.model(ACTOR, row['round'])} [dim]{escape(ended)} after {row['n_turns']} turns[/]")
        _turns(out, row["turns"], {})

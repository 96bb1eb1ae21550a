"""`moat trace KEY`: the story of a row that was trained on, from its task to the models that it trained.

A key is a `task_id`, a candidate `task_id/k`, a `demo_id`, or a `row_id` of a training set (`origin/round/parent/number`).
Reads tables and the models' moat.json; no model is loaded.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
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
from moat.adapters import CONFIG
from moat.params import Params
from moat.schemas.actions import ACTIONS
from moat.schemas.critiques import CRITIQUES
from moat.schemas.demos import DEMOS
from moat.schemas.pairs import PAIRS
from moat.schemas.scores import SCORES
from moat.schemas.sft import SFT
from moat.schemas.subgoals import SUBGOALS
from moat.schemas.tasks import TASKS
from moat.tables import Table
from moat.terminal import escape
from moat.turns import history, shown

KINDS = "a task_id, task_id/k, a demo_id, or a row_id of a training set such as accepted/1/TASK_ID/0"
SHOWN = 3  # ids given as examples
Row = dict[str, Any]


class TraceError(ValueError):
    """A key that leads nowhere; the message says what keys look like and gives some."""


@dataclass(frozen=True, slots=True)
class Key:
    """A key taken apart: the task or demonstration it is about, and how far it narrows the story."""

    task_id: str | None = None
    k: int | None = None
    demo_id: str | None = None
    row_id: str | None = None
    round: str | None = None


class Lookup:
    """Reads tables and models' cards of the pipeline in `root`, each once."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self._read: dict[Path, pl.DataFrame] = {}

    def read(self, schema: Table, path: Path) -> pl.DataFrame:
        """A table, once. Raises FileNotFoundError or TableError as `Table.read`."""
        if path not in self._read:
            self._read[path] = schema.read(self.root / path)
        return self._read[path]

    def of(self, schema: Table, path: Path, **where: Any) -> list[Row]:
        """The rows of a table with these values, in its order; none when the table is not there yet."""
        if not (self.root / path).exists():
            return []
        return self.read(schema, path).filter(**where).to_dicts()

    def models(self, paths: Iterable[Path]) -> list[Row]:
        """The models, each once, with what moat.json says of their training, without its log."""
        found = []
        for path in dict.fromkeys(paths):
            card: Row = {}
            try:
                card = json.loads((self.root / path / "moat.json").read_text(encoding="utf-8"))
            except FileNotFoundError:
                pass
            except ValueError as error:
                raise TraceError(f"{path}/moat.json is not JSON ({error}): `dvc checkout {path}`") from error
            on = str(layout.BASE_MODEL) if (self.root / path / CONFIG).is_file() else None
            own = {name: value for name, value in card.items() if name != "log"}
            found.append({"path": str(path), "there": bool(card), "adapter_of": on} | own)
        return found


class Tracer(Lookup):
    """Looks up keys in the project in `root`."""

    def __init__(self, root: Path, params: Params) -> None:
        super().__init__(root)
        self.params = params
        self.rounds = sorted(params.rounds, key=int)

    @property
    def trains(self) -> bool:
        """Whether the rounds' pairs and training sets train; under `mode: independent` they only set the updates' number."""
        return self.params.mode == "joint"

    @cached_property
    def tasks(self) -> pl.DataFrame:
        """The training tasks. Raises FileNotFoundError, saying what makes them."""
        return self.read(TASKS, layout.TRAIN_TASKS)

    @cached_property
    def demos(self) -> dict[str, pl.DataFrame]:
        """Each role's demonstrations, where they are there."""
        paths = {role: layout.demos(role) for role in ("planner", "grounder")}
        return {role: self.read(DEMOS, path) for role, path in paths.items() if (self.root / path).exists()}

    # --- keys ---------------------------------------------------------------------------------------------------------

    def parse(self, text: str, round_key: str | None) -> Key:
        """Take a key apart. Raises TraceError for one that is not known, FileNotFoundError when there are no tasks yet."""
        if round_key is not None and round_key not in self.rounds:
            raise TraceError(f"no round {round_key!r}: params.yaml has {', '.join(self.rounds)}")
        head, *rest = text.split("/")
        if head in ("accepted", "corrected", "initial") and len(rest) == 3:
            round_, parent, number = rest
            key = Key(demo_id=parent, row_id=text, round=round_)
            if head != "initial" and number.isdigit():
                key = Key(task_id=parent, k=int(number), row_id=text, round=round_)
            if round_key not in (None, round_):
                raise TraceError(f"{text} is a row of round {round_}: leave --round out")
            if any(self.of(SFT, layout.table("sft", name), row_id=text) for name in self.rounds):
                return key
            raise self.unknown(text)
        if not rest and any(head in set(demos["demo_id"]) for demos in self.demos.values()):
            return Key(demo_id=head, round=round_key)
        number = rest[0] if len(rest) == 1 else ""
        if self.tasks.filter(task_id=head).is_empty() or (rest and not number.isdigit()):
            raise self.unknown(text)
        return Key(task_id=head, k=int(number) if rest else None, round=round_key)

    def unknown(self, text: str) -> TraceError:
        """The error for a key that is nowhere, with near ones or examples."""
        if self.of(TASKS, layout.EVAL_TASKS, task_id=text.split("/")[0]):
            return TraceError(f"{text} is an evaluation task: nothing was trained on it. A key is {KINDS}")
        known = [*self.tasks["task_id"], *(demo for demos in self.demos.values() for demo in demos["demo_id"])]
        rows = [self.read(SFT, path)["row_id"].to_list() for path in self.sets()]
        pool = [row for some in rows for row in some] if text.count("/") > 1 else known
        near = [name for name in pool if name.startswith(text)][:SHOWN] or get_close_matches(text, pool, SHOWN, 0.7)
        some = [*(one[0] for one in (self.tasks["task_id"].to_list(), *rows) if one)][:SHOWN]
        said = f"Did you mean {' or '.join(near)}?" if near else f"For example {' or '.join(some)}" if some else ""
        return TraceError(f"nothing is known of {text!r}: a key is {KINDS}. {said}".strip())

    def sets(self) -> Iterator[Path]:
        """The training sets that are there."""
        return (path for key in self.rounds if (self.root / (path := layout.table("sft", key))).exists())

    # --- stories ------------------------------------------------------------------------------------------------------

    def trace(self, text: str, round_key: str | None = None) -> Row:
        """The story of a key, as data for JSON. Raises TraceError, TableError or FileNotFoundError."""
        key = self.parse(text, round_key)
        if key.demo_id is not None:
            return {"key": text, "kind": "demonstration"} | self.demonstration(key)
        return {"key": text, "kind": "candidate" if key.k is not None else "task"} | self.task(key)

    def task(self, key: Key) -> Row:
        """A task's candidates of one round, its pair, their verdicts, and what they trained."""
        assert key.task_id is not None
        has = [name for name in self.rounds if self.of(SUBGOALS, layout.table("subgoals", name), task_id=key.task_id)]
        if not has:
            raise TraceError(f"task {key.task_id} has no candidate yet: `dvc repro` samples plans for it")
        round_ = key.round or has[-1]
        if round_ not in has:
            raise TraceError(f"round {round_} has no candidate of task {key.task_id}: only {', '.join(has)} have")
        candidates = self.candidates(key.task_id, round_)
        numbers = [candidate["k"] for candidate in candidates]
        if key.k is not None and key.k not in numbers:
            raise TraceError(
                f"task {key.task_id} has no candidate {key.k} in round {round_}: it has {numbers[0]} to {numbers[-1]}"
            )
        pair = next(iter(self.of(PAIRS, layout.table("pairs", round_), task_id=key.task_id)), None)
        rows = self.training_rows(task_id=key.task_id, round=int(round_))
        for candidate in candidates:
            candidate["pair"] = pair and next(
                (side for side in ("chosen", "rejected") if pair[f"{side}_k"] == candidate["k"]), None
            )
            candidate["rows"] = [row["row_id"] for row in rows if row["k"] == candidate["k"]]
        for candidate in candidates:
            candidate["same_as"] = None if candidate["rows"] else self.twin(candidate, candidates)
        if key.k is not None:
            rows = [row for row in rows if row["k"] == key.k]
        trained = []
        if self.trains:
            if pair is not None and not pair["dropped"] and not self.narrowed_out(key, pair):
                trained.append(layout.model("planner", round_))
            trained += [layout.model("grounder", row["set"]) for row in rows]
        prev = self.params.rounds[round_]["prev"]
        return {
            "round": round_,
            "rounds": has,
            "k": key.k,
            "task": self.tasks.filter(task_id=key.task_id).to_dicts()[0],
            "sampled_by": str(layout.model("planner", prev)),
            "scored_by": str(layout.model("grounder", prev)),
            "candidates": candidates,
            "pair": pair,
            "min_gap": self.params.pairs.min_gap,
            "training_rows": rows,
            "trains": self.trains,
            "models": self.models(trained),
        }

    @staticmethod
    def narrowed_out(key: Key, pair: Row) -> bool:
        """Whether the key is of one candidate that its task's pair leaves out."""
        return key.k is not None and key.k not in (pair["chosen_k"], pair["rejected_k"])

    def candidates(self, task_id: str, round_: str) -> list[Row]:
        """All candidates of a task in a round, with score, actions and verdict where these are there."""
        found = []
        for row in self.of(SUBGOALS, layout.table("subgoals", round_), task_id=task_id):
            for schema in (SCORES, ACTIONS, CRITIQUES):
                own = self.of(schema, layout.table(schema.name, round_), task_id=task_id, k=row["k"])
                named = {"finish_reason": "actions_finish_reason"}
                blank = dict.fromkeys(column.name for column in schema.columns)
                row |= {named.get(n, n): v for n, v in (own[0] if own else blank).items() if n not in schema.key}
            del row["task_id"]
            found.append(row)
        return found

    @staticmethod
    def twin(candidate: Row, candidates: Iterable[Row]) -> int | None:
        """The candidate of equal plan and equal trained actions that is in the training set in this one's place."""

        def content(row: Row) -> tuple[str, str]:
            return row["subgoals"], row["corrected_actions"] or row["actions"]

        if candidate["verdict"] not in ("accept", "correct"):
            return None
        same = (row["k"] for row in candidates if row["rows"] and content(row) == content(candidate))
        return next(same, None)

    def training_rows(self, **where: Any) -> list[Row]:
        """Rows of all training sets; `set` is the round of the set."""
        return [row | {"set": key} for key in self.rounds for row in self.of(SFT, layout.table("sft", key), **where)]

    def demonstration(self, key: Key) -> Row:
        """A demonstration, the training sets that drew it, and the models that it trained."""
        owners = {role: rows.filter(demo_id=key.demo_id).to_dicts() for role, rows in self.demos.items()}
        role, demo = next(((role, rows[0]) for role, rows in owners.items() if rows), (None, None))
        if demo is None or role is None:
            raise TraceError(f"demonstration {key.demo_id} is in no table of data/demos: `dvc repro` makes them anew")
        rows = self.training_rows(demo_id=key.demo_id) if key.row_id is None else self.training_rows(row_id=key.row_id)
        rows = [row for row in rows if key.round in (None, row["set"])]
        trained = [layout.model(role, "0")]
        if self.trains:
            trained += [layout.model("grounder", row["set"]) for row in rows]
        else:  # the role goes on with all its own demonstrations in every round
            trained += [layout.model(role, name) for name in self.rounds if key.round in (None, name)]
        return {
            "round": key.round,
            "role": role,
            "demonstration": demo,
            "training_rows": rows,
            "trains": self.trains,
            "models": self.models(trained),
        }


# --- the screen -------------------------------------------------------------------------------------------------------


def show(story: Row, out: Console) -> None:
    """Print a story."""
    if story["kind"] == "demonstration":
        _show_demonstration(story, out)
    else:
        _show_task(story, out)
    note = (
        "" if story["trains"] else "of the sets that joint training would use: under mode: independent they trained nothing"
    )
    head(out, "Training rows", note if story["training_rows"] else "none")
    for row in story["training_rows"]:
        line(out, f"{escape(row['row_id'])} [dim]in {layout.table('sft', row['set'])}[/]")
    head(out, "Models", "" if story["models"] else "none was trained on it")
    for model in story["models"]:
        line(out, f"{model['path']} [dim]{escape(trained_on(model))}[/]")


def trained_on(model: Row) -> str:
    """What a model's moat.json says of its training, in words."""
    if not model["there"]:
        return "not there"
    of = next((f"{model[name]:,} {name}" for name in ("pairs", "rows") if name in model), "nothing")
    on = f"; an adapter of {model['adapter_of']}" if model["adapter_of"] else ""
    return f"by {model.get('stage')}: {of}, {model.get('updates', 0):,} updates{on}"


def head(out: Console, name: str, note: str = "") -> None:
    """Print a heading, with what is to be noted of it."""
    out.print()
    out.print(f"[bold]{name}[/]" + (f"  [dim]{escape(note)}[/]" if note else ""))


def line(out: Console, markup: str) -> None:
    """Print an indented line."""
    out.print(Padding(markup, (0, 0, 0, 2)))


def fields(out: Console, values: Mapping[str, str | None]) -> None:
    """Print values under their names; None: nothing."""
    grid = Grid.grid(padding=(0, 2, 0, 0))
    grid.add_column(style="dim", no_wrap=True)
    grid.add_column(overflow="fold")
    for name, value in values.items():
        if value is not None:
            grid.add_row(name, escape(value))
    out.print(Padding(grid, (0, 0, 0, 2)))


def _before(row: Row) -> dict[str, str | None]:
    """The turns that stand before the one that a row is about, as fields."""
    turns = enumerate(history(row) or (), 1)
    return {f"turn {n}": f"{turn.subgoal}: {turn.actions} → {shown(turn.result)}" for n, turn in turns}


def _show_demonstration(story: Row, out: Console) -> None:
    demo = story["demonstration"]
    out.print(f"[bold]Demonstration[/] {demo['demo_id']}  [dim]of the {story['role']}, {escape(demo['source'])}[/]")
    names = {"task": "task_id", "question": "text", "style": "style", "plan": "subgoals", "actions": "actions"}
    shown = {name: demo[column] for name, column in names.items()}
    fields(out, {"task": shown.pop("task"), "question": shown.pop("question")} | _before(demo) | shown)


def _show_task(story: Row, out: Console) -> None:
    task, pair = story["task"], story["pair"]
    out.print(f"[bold]Task[/] {task['task_id']}  [dim]{escape(task['source'])}, round {story['round']}[/]")
    gold = {"gold": f"{task['gold_actions']} → {task['gold_answer']}"}
    fields(out, {"question": task["text"]} | _before(task) | gold)
    head(out, "Candidates", f"sampled by {story['sampled_by']}; scored and acted on by {story['scored_by']}")
    out.print(Padding(_candidates(story), (0, 0, 0, 2)))
    if pair is not None:
        head(out, "Pair")
        line(out, _pair(story, pair))
    head(out, "Actions and verdicts")
    for candidate in story["candidates"]:
        if story["k"] in (None, candidate["k"]):
            _show_actions(candidate, out)


def _candidates(story: Row) -> Grid:
    grid = Grid(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False)
    for name, right in (("k", True), ("PPL", True), ("", False), ("outcome", False), ("verdict", False)):
        grid.add_column(name, justify="right" if right else "left", no_wrap=True)
    grid.add_column("plan", overflow="fold")
    marks = {"chosen": "[green]chosen[/]", "rejected": "[red]rejected[/]", None: ""}
    dropped = (story["pair"] or {}).get("dropped")
    for row in story["candidates"]:
        mark = f"[dim]({row['pair']})[/]" if dropped and row["pair"] else marks[row["pair"]]
        grid.add_row(
            str(row["k"]),
            "–" if row["ppl"] is None else f"{row['ppl']:.3f}",
            mark,
            escape(row["outcome"] or (f"dropped: {row['dropped']}" if row["dropped"] else "–")),
            row["verdict"] or "–",
            escape(row["subgoals"]),
            style="bold" if row["k"] == story["k"] else None,
        )
    return grid


def _pair(story: Row, pair: Row) -> str:
    if pair["chosen_k"] is None:
        return f"none: {escape(pair['dropped'])}"
    sides = [f"{side} k {pair[f'{side}_k']}, PPL {pair[f'{side}_ppl']:.3f}" for side in ("chosen", "rejected")]
    gap = f"; they differ by {pair['rejected_ppl'] - pair['chosen_ppl']:.3f}"
    if pair["dropped"]:
        return f"not trained on: {escape(pair['dropped'])} ({' · '.join(sides)}{gap})"
    end = str(layout.model("planner", story["round"])) if story["trains"] else "trained nothing (mode: independent)"
    return f"{' · '.join(sides)}{gap} → {end}"


def _show_actions(row: Row, out: Console) -> None:
    if row["actions"] is None:
        fields(out, {f"k {row['k']}": f"dropped: {row['dropped']}" if row["dropped"] else "not acted on yet"})
        return
    came = (
        f"{row['outcome']}, answer {row['answer']}" if row["answer"] is not None else f"{row['outcome']}: {row['message']}"
    )
    said = {f"k {row['k']}": f"{row['actions']} → {came}"}
    if row["verdict"] is not None:
        said["verdict"] = f"{row['verdict']}: {row['reason']}"
        said["corrected"] = row["corrected_actions"]
        if row["same_as"] is not None:
            said["equal to"] = f"candidate {row['same_as']}, which is in the training set for both"
        elif not row["rows"]:
            said["trained"] = "not on this"
    fields(out, said)

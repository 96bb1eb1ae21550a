"""Faults to put into a checkout's tables and models, each with the file and the words of the finding that must name it."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow.parquet as pq

from moat.checks.lock import md5
from moat.params import yaml

R1 = "data/rounds/1"


def rewrite(path, change, meta=None):
    """Change a table's frame and its metadata (`table`, `version`, `facts`) behind the back of moat.tables."""
    table = pq.read_table(path)
    frame = change(pl.from_arrow(table))
    said = json.loads(table.schema.metadata[b"moat"])
    if meta:
        meta(said)
    schema = table.schema.with_metadata({b"moat": json.dumps(said, sort_keys=True).encode()})
    pq.write_table(frame.to_arrow().cast(schema), path)


def cell(name, value, where=0):
    """Set one cell: `value` is the new one or a function of the old one, `where` a row number or an expression."""

    def change(frame):
        row = where if isinstance(where, int) else frame.with_row_index().filter(where)["index"][0]
        new = value(frame[name][row]) if callable(value) else value
        column = frame[name].to_list()
        column[row] = new
        return frame.with_columns(pl.Series(name, column, dtype=frame[name].dtype))

    return change


def without(where):
    """Leave out the first row that `where` holds for."""

    def change(frame):
        row = frame.with_row_index().filter(where)["index"][0]
        return frame.with_row_index().filter(pl.col("index") != row).drop("index")

    return change


def sides_swapped(frame):
    """Chosen and rejected in each other's place."""
    pairs = [("chosen", "rejected"), *((f"chosen_{name}", f"rejected_{name}") for name in ("k", "nll", "ppl"))]
    return frame.rename({a: b for pair in pairs for a, b in (pair, pair[::-1])}).select(frame.columns)


def question_of_training(frame):
    """An evaluation task asks what a demonstration asks, in capitals."""
    demo = pl.read_parquet("data/demos/planner.parquet")["text"][0]
    return cell("text", f"  {demo.upper()}")(frame)


def demonstrated_otherwise(frame):
    """The demonstration of a training task shows other actions than that task's gold ones."""
    tasks = pl.read_parquet("data/tasks/train.parquet")["task_id"]
    return cell("actions", "R1 = Calculator(0)", pl.col("task_id").is_in(tasks.to_list()))(frame)


def counts(name, by):
    """Miscount."""

    def change(said):
        said["facts"]["counts"][name] += by

    return change


def same(frame):
    """The rows as they are."""
    return frame


def lock(place, **stages):
    """Write dvc.lock in `place`; a stage is (deps, outs, params), deps and outs by path, hashed as they are now."""

    def entry(path):
        files = list((place / path).rglob("*")) or [place / path]
        return {"path": path, "hash": "md5", "md5": md5(place / path), "size": sum(part.stat().st_size for part in files)}

    made = {
        name: {"cmd": "x", "deps": [*map(entry, deps)], "outs": [*map(entry, outs)], "params": {"params.yaml": params}}
        for name, (deps, outs, params) in stages.items()
    }
    with (place / "dvc.lock").open("w") as file:
        yaml().dump({"schema": "2.0", "stages": made}, file)


@dataclass(frozen=True)
class Damage:
    """What is done to which file, and the fault that must be found (`at`: its path, when it is another)."""

    name: str
    path: str
    change: Any
    said: str
    meta: Any = None
    at: str = ""

    def do(self):
        """Do it in the current folder."""
        rewrite(Path(self.path), self.change, self.meta)


KEPT, FAILED = pl.col("dropped").is_null(), pl.col("outcome") != "reached"
TABLES = (
    Damage("version", f"{R1}/scores.parquet", same, "version 99", lambda said: said.update(version=99)),
    Damage("key twice", f"{R1}/pairs.parquet", lambda f: pl.concat([f[:1], f]), "twice"),
    Damage("order", f"{R1}/subgoals.parquet", lambda f: f.reverse(), "not in the order of the key"),
    Damage("sum of counts", f"{R1}/scores.parquet", same, "do not add up", counts("rows_in", 1)),
    Damage("counted rows", "data/evals/1.parquet", same, "its counts say kept", counts("kept", 1)),
    Damage("gold answer", "data/tasks/train.parquet", cell("gold_answer", "-1"), "gold actions miss the gold answer"),
    Damage("gold row", "data/tasks/gold.parquet", without(pl.lit(True)), "the tasks missing here"),
    Damage("gold of another task", "data/tasks/gold.parquet", cell("task_id", "0" * 16), "not as in the tasks"),
    Damage("gold outcome", "data/tasks/gold.parquet", cell("outcome", "not_reached"), "not what the gold actions come to"),
    Damage("gold counted", "data/tasks/gold.parquet", same, "its counts say rows_in", counts("rows_in", 1)),
    Damage("id", "data/tasks/train.parquet", cell("text", lambda t: t + " "), "task_id is not that of the content"),
    Damage("held out", "data/demos/planner.parquet", cell("source", "stories_travel"), "of a held-out source"),
    Damage("decontamination", "data/tasks/eval.parquet", question_of_training, "stands in", at="data/demos/planner.parquet"),
    Damage("K", f"{R1}/subgoals.parquet", without(KEPT), "a candidate of the task is missing"),
    Damage("seed", f"{R1}/subgoals.parquet", cell("seed", lambda seed: seed ^ 1), "seed is not the hash"),
    Damage("drop reason", f"{R1}/subgoals.parquet", cell("dropped", "length", KEPT), "dropped is not"),
    Damage("parent", f"{R1}/scores.parquet", cell("task_id", "0" * 16), "no usable candidate in"),
    Damage("PPL", f"{R1}/scores.parquet", cell("ppl", lambda ppl: ppl * 1.01), "ppl is not exp(nll)"),
    Damage(
        "token count", f"{R1}/scores.parquet", cell("n_action_tokens", lambda n: n + 1), "number of the gold actions' tokens"
    ),
    Damage("outcome", f"{R1}/actions.parquet", cell("outcome", "reached", FAILED), "not what the actions come to"),
    Damage("sides", f"{R1}/pairs.parquet", sides_swapped, "not the lowest and highest by ppl"),
    Damage("one side", f"{R1}/pairs.parquet", cell("rejected_k", None, KEPT), "the pair has no rejected candidate"),
    Damage("plan of a pair", f"{R1}/pairs.parquet", cell("chosen", "another", KEPT), "chosen is not as in"),
    Damage("no row", f"{R1}/pairs.parquet", without(KEPT), "the task has no row"),
    Damage(
        "verdict",
        f"{R1}/critiques.parquet",
        cell("verdict", "accept", pl.col("verdict") == "correct"),
        "miss the gold answer",
    ),
    Damage(
        "correction",
        f"{R1}/critiques.parquet",
        cell("corrected_actions", "R1 = Calculator(0)", pl.col("verdict") == "correct"),
        "corrected actions miss the gold answer",
    ),
    Damage(
        "trained actions",
        f"{R1}/sft.parquet",
        cell("actions", "R1 = Calculator(0)", pl.col("origin") != "initial"),
        "not as in the verdicts' rows",
    ),
    Damage("ratio", f"{R1}/sft.parquet", without(pl.col("origin") == "initial"), "mix.initial_ratio"),
    Damage("row id", f"{R1}/sft.parquet", cell("row_id", "initial/1/x/0", pl.col("origin") == "initial"), "row_id is not"),
    Damage(
        "demonstration",
        f"{R1}/sft.parquet",
        cell("subgoals", "x", pl.col("origin") == "initial"),
        "an initial row is not as in",
    ),
    Damage("pool", f"{R1}/pool.parquet", without(pl.lit(True)), "missing here"),
    Damage("length", f"{R1}/sft.parquet", cell("text", "kites " * 300), "moat.json says rows", at="models/grounder/1"),
    Damage("success", "data/evals/1.parquet", cell("success", lambda success: not success), "success is not"),
    Damage("score", "data/evals/1.parquet", cell("score", lambda score: 1 - score), "not what the answer is worth"),
    Damage("element", "data/evals/1.parquet", cell("element", 1.0), "not what the answer is worth"),
    Damage("evaluated gold", "data/evals/1.parquet", cell("gold_answer", "-1"), "not as in data/tasks/eval.parquet"),
    Damage("control", "data/evals/1.parquet", cell("control_task_id", "x"), "not the plan of another task"),
    Damage("demonstrated actions", "data/demos/grounder.parquet", demonstrated_otherwise, "not as its task in"),
    Damage("no log-probability", f"{R1}/subgoals.parquet", cell("logprob", 0.5), "logprob is no log-probability"),
    Damage("too many tokens", f"{R1}/subgoals.parquet", cell("n_tokens", 10_000), "n_tokens is not in 0 to max_new_tokens"),
    Damage("finish reason", f"{R1}/actions.parquet", cell("finish_reason", "eos"), "neither stop nor length"),
    Damage("no score", f"{R1}/scores.parquet", without(pl.lit(True)), "usable candidates are missing"),
    Damage(
        "candidates counted",
        f"{R1}/pairs.parquet",
        cell("n_distinct", lambda n: n + 1),
        "n_candidates or n_distinct is wrong",
    ),
    Damage(
        "evaluated answer", "data/evals/0.parquet", cell("answer", "no"), "outcome or answer is not what the actions come to"
    ),
    Damage("samples", "data/evals/0.parquet", cell("samples", ["one"]), "not 2 samples"),
)

"""The page of a run: figures of every round from metrics.json, the critic's calibration, and examples of the last round.

Nothing is measured here: figures are those of `summarize` and `calibrate_critic`. The page is one file that loads nothing,
and equal inputs give equal bytes. Whatever a model or a task source wrote is text in it, never markup.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import polars as pl

from moat import paper
from moat.charts import Line, Track, lines, shares, tracks
from moat.dynamics import track, updates
from moat.reporting import Block, ReportError, drawn, number, rendered, tick
from moat.summary import NEAR_CHANCE

N_EXAMPLES = 10
N_WITHOUT_PAIR = 3  # of the examples, where the round has as many
POINTS = 50  # of a training curve, per round
STYLES = ("numbers", "operation", "vague")  # bottom to top in the chart; others follow


def read_calibration(path: Path) -> Block:
    """What the stage calibrate_critic found. Raises FileNotFoundError or ReportError."""
    if not path.is_file():
        raise FileNotFoundError(f"{path} is missing: run the stage calibrate_critic (`dvc repro calibrate_critic`)")
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
        missing = {"critic", "n", "agreement", "low", "high", "right_accepted", "wrong_accepted", "forms"} - set(found)
    except (json.JSONDecodeError, TypeError) as error:
        raise ReportError(
            f"{path} is not what calibrate_critic writes ({error!r}): `dvc repro -f calibrate_critic`"
        ) from error
    if missing:
        raise ReportError(f"{path} lacks {', '.join(sorted(missing))}: `dvc repro -f calibrate_critic`")
    return dict(found)


def charts(rounds: Mapping[str, Block]) -> list[dict[str, Any]]:
    """The curves, each with title, note and SVG. Those of a round's samples leave the cold start out."""
    every = [tick(key) for key in rounds]
    tuned = {key: block for key, block in rounds.items() if "distinct_share" in block}
    sampled = [tick(key) for key in tuned]

    def line(label: str, name: str, low: str | None = None, high: str | None = None, dashed: bool = False) -> Line:
        def values(field: str) -> list[float | None]:
            return [block.get(field) for block in rounds.values()]

        return Line(label, values(name), values(low) if low else None, values(high) if high else None, dashed)

    drawn = [
        {
            "title": "Success",
            "note": "Share of evaluation tasks whose actions reach the gold answer, with 95% intervals.",
            "svg": lines(
                "success",
                every,
                [
                    line("all tasks", "success", "success_low", "success_high"),
                    line("held-in", "held_in_avg"),
                    line("held-out", "held_out_avg"),
                    line("another task's plan", "control_success", dashed=True),
                ],
                "",
                True,
                None,
            ),
        },
        {
            "title": "PPL of the gold actions",
            "note": "Geometric mean over evaluation tasks. Lower: the grounder predicts the gold actions better.",
            "svg": lines(
                "ppl",
                every,
                [line("given sampled plans", "ppl_gold"), line("given the plan used", "ppl_plan", dashed=True)],
                "",
                False,
                None,
            ),
        },
    ]
    if not tuned:
        return drawn
    styles = {name for block in tuned.values() for name in block["sample_styles"]}
    ordered = [name for name in STYLES if name in styles] + sorted(styles - set(STYLES))
    sources = sorted({source for block in tuned.values() for source in block["premise"]})
    distinct = Line("distinct", [block["distinct_share"] for block in tuned.values()])
    parts = [Line(name, [block["sample_styles"].get(name, 0.0) for block in tuned.values()]) for name in ordered]
    premise = [Line(source, [block["premise"].get(source, {}).get("auc") for block in tuned.values()]) for source in sources]
    drawn += [
        {
            "title": "Distinct plans",
            "note": "Different texts among the sampled candidates of a task, as a share of all candidates.",
            "svg": lines("distinct", sampled, [distinct], "", True, None),
        },
        {
            "title": "Styles of the sampled plans",
            "note": "Shares among all candidates of the round, which the planner of the round before sampled.",
            "svg": shares("styles", sampled, parts, ""),
        },
        {
            "title": "Premise: does a low PPL mean a good plan?",
            "note": "AUC of −PPL for reaching the answer, per task source. Dotted: chance.",
            "svg": lines("premise", sampled, premise, "", False, 0.5),
        },
    ]
    return drawn


def learned(rounds: Mapping[str, Block]) -> list[dict[str, Any]]:
    """The rows of the table of learning dynamics: a figure and its value in each round that has tables.

    A logged value is shown by its beginning and its end; a figure that no round has is left out.
    """
    tuned = {key: block["dynamics"] for key, block in rounds.items() if "dynamics" in block}
    asked = [
        ("planner", "updates", "planner: updates", 0),
        ("planner", "loss", "planner: loss", 3),
        ("planner", "logps/chosen", "planner: log-probability of chosen, nats", 2),
        ("planner", "logps/rejected", "planner: log-probability of rejected, nats", 2),
        ("planner", "rewards/margins", "planner: margin", 3),
        ("planner", "rewards/accuracies", "planner: accuracy", 2),
        ("grounder", "updates", "grounder: updates", 0),
        ("grounder", "loss", "grounder: loss", 3),
        ("samples", "entropy", "samples: entropy, nats per token", 3),
        ("samples", "tokens/mean", "samples: tokens, mean", 2),
        ("samples", "distinct/mean", "samples: distinct plans per task, mean", 2),
        ("pairs", "gap_ppl/p50", "pairs: gap in PPL, median", 3),
        ("pairs", "gap_nll/p50", "pairs: gap in NLL, median", 3),
        ("pairs", "chosen_tokens/mean", "pairs: tokens of chosen, mean", 2),
        ("pairs", "rejected_tokens/mean", "pairs: tokens of rejected, mean", 2),
    ]

    def say(value: float | Mapping[str, float] | None, digits: int) -> str:
        if isinstance(value, Mapping):
            return f"{number(value['first'], digits)} → {number(value['last'], digits)}"
        return number(value, digits)

    rows = []
    for part, name, words, digits in asked:
        values = {key: block.get(part, {}).get(name) for key, block in tuned.items()}
        if any(value is not None for value in values.values()):
            rows.append({"name": words, "values": {key: say(value, digits) for key, value in values.items()}})
    return rows


def learning(tables: Mapping[str, pl.DataFrame]) -> list[dict[str, Any]]:
    """Training curves over the updates of all rounds, from their dynamics tables; those with nothing logged are left out."""
    asked = [
        ("planner", "Planner: log-probability of a pair's plans", ("logps/chosen", "logps/rejected"), "logps"),
        ("planner", "Planner: loss", ("loss",), "planner-loss"),
        ("grounder", "Grounder: loss", ("loss",), "grounder-loss"),
    ]
    drawn = []
    for part, title, names, short in asked:
        found = [(name, *track(list(tables.values()), part, name, POINTS)) for name in names]
        curves = [Track(name.removeprefix("logps/"), x, y) for name, x, y in found if x]
        counts = [updates(table, part) for table in tables.values()]
        bounds = [sum(counts[: i + 1]) + 0.5 for i in range(len(counts) - 1)]
        said = ", ".join(f"round {key} {n:,}" for key, n in zip(tables, counts, strict=True))
        if curves:
            note = f"Updates: {said}. A point is the mean of up to {-(-max(counts) // POINTS)} of them."
            drawn.append({"title": title, "note": note, "svg": tracks(short, curves, bounds)})
    return drawn


def control_note(key: str, block: Block, first: Block) -> str:
    """The control in words: own plan against another task's, and whether the distance shrank since the cold start."""
    own, other = block["success"], block["control_success"]
    said = (
        f"Given another task's plan the grounder reaches {100 * other:.1f}% of the answers, given the task's own "
        f"{100 * own:.1f}%: a distance of {100 * (own - other):.1f} points."
    )
    before = first["success"] - first["control_success"]
    if key != "0" and own - other < before:
        said += (
            f" That is less than the cold start's {100 * before:.1f} points: the grounder relies less on the plan "
            "than before."
        )
    return said


def premise_notes(block: Block) -> list[str]:
    """Warnings about task sources in which PPL hardly tells good plans from bad ones."""
    return [
        f"{source}: the AUC of {found['auc']:.2f} is near chance; the pairs of this source say little."
        for source, found in block.get("premise", {}).items()
        if found["auc"] is not None and found["auc"] < NEAR_CHANCE
    ]


def beside_the_paper(base_model: str, rounds: Mapping[str, Block]) -> list[paper.Result]:
    """The paper's rows of this base model, then a row for each round; nothing when the paper has no such base model."""
    published = list(paper.rows_for(base_model))
    if not published:
        return []
    scores = {key: {source: found["score"] for source, found in block["sources"].items()} for key, block in rounds.items()}
    return published + [paper.own_row(f"this run, {tick(key)}", base_model, found) for key, found in scores.items()]


def compared(rounds: Mapping[str, Block]) -> list[dict[str, Any]]:
    """The rows of the table of paired comparisons: each round against the cold start and the round before, by source.

    Without the row of all tasks where there is one source alone.
    """
    rows = []
    for key, block in rounds.items():
        for other, found in block.get("comparison", {}).items():
            parts = {"all tasks": found["all"]} if len(found["sources"]) > 1 else {}
            rows += [{"round": key, "against": other, "of": of} | own for of, own in (parts | found["sources"]).items()]
    return rows


def pick_examples(pairs: pl.DataFrame, n: int = N_EXAMPLES, without: int = N_WITHOUT_PAIR) -> list[str]:
    """`n` task ids in the order of their hashes: kept pairs, and up to `without` tasks whose pair was not kept.

    Dropped pairs come before tasks that have none to show. Where one kind is short, the others fill up.
    """

    def order(task_id: str) -> str:
        return hashlib.sha256(task_id.encode()).hexdigest()

    kinds: list[list[str]] = [[], [], []]  # kept, dropped with both plans at hand, nothing to compare
    for row in pairs.select("task_id", "dropped", "chosen_k").iter_rows(named=True):
        kinds[0 if row["dropped"] is None else 2 if row["chosen_k"] is None else 1].append(row["task_id"])
    kept = sorted(kinds[0], key=order)
    others = sorted(kinds[1], key=order) + sorted(kinds[2], key=order)
    n_others = min(len(others), max(without, n - len(kept)))
    return sorted(kept[: n - n_others] + others[:n_others], key=order)


def cards(
    task_ids: Sequence[str],
    tasks: pl.DataFrame,
    pairs: pl.DataFrame,
    subgoals: pl.DataFrame,
    scores: pl.DataFrame,
    actions: pl.DataFrame,
    critiques: pl.DataFrame,
) -> list[dict[str, Any]]:
    """One card per task id: task, pair and all K candidates by PPL; those without a score come last.

    Every join is by key, (task_id, k). Raises ReportError for an id without task or pair row.
    """
    own = pl.col("task_id").is_in(list(task_ids))
    joined = (
        subgoals.filter(own)
        .join(scores.filter(own).select("task_id", "k", "ppl"), on=["task_id", "k"], how="left")
        .join(actions.filter(own).drop("finish_reason"), on=["task_id", "k"], how="left")
        .join(
            critiques.filter(own).select("task_id", "k", "verdict", "corrected_actions"),
            on=["task_id", "k"],
            how="left",
        )
        .sort("ppl", "k", nulls_last=True)
    )
    task_of = {row["task_id"]: row for row in tasks.filter(own).iter_rows(named=True)}
    pair_of = {row["task_id"]: row for row in pairs.filter(own).iter_rows(named=True)}
    candidates: dict[str, list[dict[str, Any]]] = {}
    for row in joined.iter_rows(named=True):
        candidates.setdefault(row["task_id"], []).append(row)
    found = []
    for task_id in task_ids:
        if task_id not in task_of or task_id not in pair_of:
            raise ReportError(
                f"task {task_id} has no row in data/tasks/train.parquet or no pair row: "
                "the tables are of different runs (`dvc repro`)"
            )
        pair = pair_of[task_id]
        mark = {pair["chosen_k"]: "chosen", pair["rejected_k"]: "rejected"} if pair["dropped"] is None else {}
        rows = [row | {"mark": mark.get(row["k"])} for row in candidates.get(task_id, [])]
        found.append({"task": task_of[task_id], "pair": pair, "candidates": rows})
    return found


def steps(text: str | None) -> str:
    """A plan or an action text with one subgoal or action a line, for reading."""
    return re.sub(r"; *(?=Subgoal \d+:|R\d+ *=)", ";\n", text or "")


def render(
    context: Mapping[str, Any], rounds: Mapping[str, Block], tables: Mapping[str, pl.DataFrame], base_model: str = ""
) -> str:
    """The page. `context` carries `facts`, `deviations`, `calibration`, `cards` and `last`, the key of the examples' round.

    `tables` are the rounds' dynamics tables, by round. `base_model` is the hub id or folder that the run started from,
    empty for one that it made itself: the page shows the paper's figures of the same one.
    """
    first = next(iter(rounds.values()))
    notes = {key: control_note(key, block, first) for key, block in rounds.items()}
    return rendered(
        "report.html.j2",
        **context,
        steps=steps,
        rounds=rounds,
        charts=drawn(charts(rounds)),
        trained=drawn(learning(tables)),
        learned=learned(rounds),
        compared=compared(rounds),
        paper=beside_the_paper(base_model, rounds),
        paper_tasks=paper.TASKS,
        paper_source=paper.SOURCE,
        base_model=base_model,
        control_notes=notes,
        premise_notes={key: premise_notes(block) for key, block in rounds.items()},
    )

"""summarize: the figures of every round, for people, `dvc metrics` and `dvc plots`.

Reads    data/tasks, data/rounds, data/evals; params.yaml: rounds, evaluated, pairs
Writes   metrics.json, curves.csv (both in git, not in DVC's cache)
Differs  reports what the paper assumes: whether a lower PPL goes with reaching the answer (premise_auc), and whether the
         grounder reads the plan at all (control_success, with another task's plan)

    python -m moat.launch stages/summarize.py
"""

from __future__ import annotations

import json
from itertools import pairwise
from typing import Any

from rich import box
from rich.table import Table

from moat import layout
from moat.publish import publish_text
from moat.schemas.actions import ACTIONS
from moat.schemas.critiques import CRITIQUES
from moat.schemas.dynamics import DYNAMICS
from moat.schemas.evals import EVALS
from moat.schemas.pairs import PAIRS
from moat.schemas.scores import SCORES
from moat.schemas.sft import SFT
from moat.schemas.subgoals import SUBGOALS
from moat.schemas.tasks import TASKS
from moat.stage import Stage, main
from moat.summary import NEAR_CHANCE, comparisons, curves, evaluation, pairs_near_gap, round_block, tidy
from moat.tables import metadata

CURVES = (
    "success",
    "success_low",
    "success_high",
    "held_in_avg",
    "held_out_avg",
    "control_success",
    "ppl_gold",
    "ppl_control",
    "distinct_share",
    "sample_tokens",
    "sample_entropy",
    "pairs_kept",
    "premise_auc",
)


def screen(rounds: dict[str, dict[str, Any]]) -> Table:
    """The table at the end of a run; success, shares and verdicts in percent. Fits 80 columns."""
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 0, 0, 1), pad_edge=False)
    for name in ("round", "success (95%)", "held\nin", "held\nout", "other's\nplan", "PPL of\ngold", "distinct", "pairs"):
        table.add_column(name, justify="left" if name == "round" else "right", no_wrap=True)
    table.add_column("accept/\ncorrect", justify="right", no_wrap=True)

    def percent(value: float | None) -> str:
        return "" if value is None else f"{100 * value:.1f}"

    for key, block in rounds.items():
        verdicts = block.get("verdicts")
        table.add_row(
            key,
            f"{percent(block['success'])} ({percent(block['success_low'])}–{percent(block['success_high'])})",
            percent(block["held_in_avg"]),
            percent(block["held_out_avg"]),
            percent(block["control_success"]),
            "" if block["ppl_gold"] is None else f"{block['ppl_gold']:.3f}",
            percent(block.get("distinct_share")),
            str(block.get("pairs_kept", "")),
            "/".join(f"{100 * verdicts.get(name, 0):.0f}" for name in ("accept", "correct")) if verdicts else "",
        )
    return table


def shrunk(rounds: dict[str, dict[str, Any]]) -> list[str]:
    """A sentence for each round after which the grounder relies less on the plan than before (the control came closer)."""
    distance = {key: 100 * (block["success"] - block["control_success"]) for key, block in rounds.items()}
    return [
        f"round {key}: the distance between own and another task's plan shrank from {distance[before]:.1f} to "
        f"{distance[key]:.1f} points: the grounder relies less on the plan than in round {before}"
        for before, key in pairwise(distance)
        if distance[key] < distance[before]
    ]


def run(stage: Stage) -> None:
    """All input and output of the stage."""
    params = stage.params
    keys = sorted(params.evaluated, key=int)
    stage.header(
        "the figures of every round", [layout.TRAIN_TASKS, *map(layout.evals, keys)], [layout.METRICS, layout.CURVES]
    )
    tasks = TASKS.read(layout.TRAIN_TASKS)
    rounds: dict[str, dict[str, Any]] = {}
    evals = {key: EVALS.read(layout.evals(key)) for key in keys}
    for key in keys:
        block = evaluation(evals[key])
        if key in params.rounds:
            read = {
                schema.name: schema.read(layout.table(schema.name, key))
                for schema in (SUBGOALS, SCORES, ACTIONS, PAIRS, CRITIQUES, SFT, DYNAMICS)
            }
            block |= round_block(tasks, min_gap=params.pairs.min_gap, **read)
            noise = metadata(layout.table("scores", key))["facts"]["noise"]
            block["pairs_near_gap"] = pairs_near_gap(read["pairs"], params.pairs.min_gap, noise)
        rounds[key] = tidy(block)
    for key, found in comparisons(evals, {key: entry["prev"] for key, entry in params.rounds.items()}).items():
        rounds[key]["comparison"] = tidy(found)
    final = {name: value for name, value in rounds[keys[-1]].items() if isinstance(value, int | float)}
    publish_text(layout.METRICS, json.dumps({"rounds": rounds, "final": final}, indent=1, ensure_ascii=False) + "\n")
    publish_text(layout.CURVES, curves(rounds, CURVES))
    stage.console.print(screen(rounds))
    for key, block in rounds.items():
        for source, found in block.get("premise", {}).items():
            if found["auc"] is not None and found["auc"] < NEAR_CHANCE:
                stage.warn(f"round {key}, {source}: AUC of -PPL for reaching the answer is {found['auc']:.2f}, near chance")
    for sentence in shrunk(rounds):
        stage.warn(sentence)
    stage.close()


if __name__ == "__main__":
    main(__file__, run)

"""summarize: the figures of every round, for people, `dvc metrics` and `dvc plots`.

Reads    data/tasks/train.parquet, data/recovery.parquet, data/evals, data/recoveries, data/rounds; params.yaml: rounds,
         evaluated, several, seed
Writes   metrics.json, curves.csv (both in git, not in DVC's cache)
Differs  from the start and recovery stand apart and are never averaged; beside the judge's labels stands what the search
         tree and the environment say (moat/agent_r/summary.py defines every figure)

    python -m moat.launch stages/summarize.py
"""

from __future__ import annotations

import json
from functools import partial
from typing import Any

from rich import box
from rich.table import Table

from moat import layout
from moat.agent_r.params import AgentParams
from moat.agent_r.summary import CURVES, NOTHING_MADE, Tables, grouped, headline, made, plays, recovery_set_block
from moat.publish import publish_text
from moat.react import Several
from moat.schemas.cuts import CUTS
from moat.schemas.goals import GOALS
from moat.schemas.judgements import JUDGEMENTS
from moat.schemas.plays import PLAYS
from moat.schemas.revisions import REVISIONS
from moat.schemas.trained import TRAINED
from moat.schemas.trees import TREES
from moat.stage import Stage, main
from moat.summary import curves, tidy
from moat.tables import metadata

ROUND_TABLES = ("trees", "judgements", "revisions", "sft")


def read(key: str) -> Tables:
    """A round's tables, with what their files say of pairs that were not made and of rows that were left out."""
    trees, judgements, revisions, sft = (layout.table(name, key) for name in ROUND_TABLES)
    return Tables(
        trees=TREES.read(trees),
        judgements=JUDGEMENTS.read(judgements),
        revisions=REVISIONS.read(revisions),
        trained=TRAINED.read(sft),
        found=metadata(revisions)["facts"].get("found"),
        left_out=metadata(sft)["facts"].get("counts", {}).get("dropped", {}),
    )


def screen(rounds: dict[str, dict[str, Any]], part: str) -> Table:
    """The figures of `main` or of `recovery`, a line for each round and environment; shares in percent. Fits 80 columns."""
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 0, 0, 1), pad_edge=False, title=part, title_justify="left")
    for name in ("round", "environment"):
        table.add_column(name, no_wrap=True)
    for name in ("n", "success (95%)", "reward", "loops", "invalid", "reflect", "turns"):
        table.add_column(name, justify="right", no_wrap=True)

    def percent(value: float | None) -> str:
        return "" if value is None else f"{100 * value:.1f}"

    for key, block in rounds.items():
        for name, own in block[part]["environments"].items():
            interval = f" ({percent(own['success_low'])}–{percent(own['success_high'])})" if own["n"] else ""
            means = ["" if own[name] is None else f"{own[name]:.2f}" for name in ("reflections", "turns")]
            shown = [percent(own[name]) for name in ("reward", "loop_rate", "invalid_rate")]
            table.add_row(key, name, str(own["n"]), percent(own["success"]) + interval, *shown, *means)
    return table


def run(stage: Stage[AgentParams]) -> None:
    """All input and output of the stage."""
    params, several = stage.params, Several(stage.params.several)
    keys = sorted(params.evaluated, key=int)
    played = [path(key) for key in keys for path in (layout.evals, layout.recoveries)]
    rounds_tables = [layout.table(name, key) for key in keys if key in params.rounds for name in ROUND_TABLES]
    reads = [layout.TRAIN_TASKS, layout.RECOVERY, *played, *rounds_tables]
    stage.header("the figures of every round", reads, [layout.METRICS, layout.CURVES])
    goals = GOALS.read(layout.TRAIN_TASKS)
    rounds: dict[str, dict[str, Any]] = {}
    for key in keys:
        figures = partial(plays, seed=params.seed)
        block = {"main": figures(PLAYS.read(layout.evals(key))), "recovery": figures(PLAYS.read(layout.recoveries(key)))}
        block |= made(read(key), goals, params.alpha(key), several) if key in params.rounds else NOTHING_MADE
        rounds[key] = tidy(block)
    recovery_set = tidy(grouped(CUTS.read(layout.RECOVERY), recovery_set_block))
    lines = {key: headline(block) for key, block in rounds.items()}
    told = {"rounds": rounds, "recovery_set": recovery_set, "final": lines[keys[-1]]}
    publish_text(layout.METRICS, json.dumps(told, indent=1, ensure_ascii=False) + "\n")
    publish_text(layout.CURVES, curves(lines, CURVES))
    for part in ("main", "recovery"):
        stage.console.print(screen(rounds, part))
    if not recovery_set["cuts"]:
        stage.warn("the recovery set is empty: no recovery was measured (recovery_set says why)")
    stage.close()


if __name__ == "__main__":
    main(__file__, run, params=AgentParams)

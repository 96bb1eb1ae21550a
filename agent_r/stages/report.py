"""report: the page of a run, one file for a browser.

Reads    metrics.json, data/tasks/{train,eval}.parquet, data/recovery.parquet, data/recoveries/{last}.parquet,
         data/rounds/{round}/{trees,nodes,judgements,revisions,sft}.parquet; params.yaml: all of it (the page names the
         settings and quotes the comments that start with "deviates")
Writes   report.html
Differs  the paper shows means over environments; the page shows each environment, the start and recovery apart, what every
         threshold removed, the judge beside the tree, and trees, splices and recoveries turn by turn

    python -m moat.launch stages/report.py
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import polars as pl

from moat import layout
from moat.agent_r.drawn_tree import find
from moat.agent_r.page import recoveries, render, searched_tasks, splices, trees
from moat.agent_r.params import AgentParams
from moat.params import PARAMS
from moat.publish import publish_text
from moat.reporting import base_model, deviations, read_metrics
from moat.schemas.cuts import CUTS
from moat.schemas.goals import GOALS
from moat.schemas.judgements import JUDGEMENTS
from moat.schemas.plays import PLAYS
from moat.schemas.revisions import REVISIONS
from moat.schemas.trained import TRAINED
from moat.stage import Stage, main
from moat.tables import metadata

ROUND_TABLES = ("trees", "nodes", "judgements", "revisions", "sft")


def facts(
    params: AgentParams,
    train: pl.DataFrame,
    evaluation: pl.DataFrame,
    recovery_set: Mapping[str, Any],
    left_out: Sequence[str],
) -> list[tuple[str, str]]:
    """What was run, in the words of params.yaml, with the numbers of tasks that the tables have."""
    keys = sorted(params.rounds, key=int)
    rounds = [f"{key}: alpha {params.alpha(key):g}, {params.rounds[key].epochs:g} epochs" for key in keys]
    updates = f" ({params.train.updates:,} updates in place of epochs)" if params.train.updates else ""
    environments = []
    for name in sorted({*train["environment"], *evaluation["environment"]}):
        own, tests = train.filter(train["environment"] == name), len(evaluation.filter(evaluation["environment"] == name))
        used = f"{own['searched'].sum():,} tasks searched, {own['demonstrated'].sum():,} demonstrated, "
        environments.append(f"{name} ({used if len(own) else 'not trained on, '}{tests:,} evaluated)")
    search, pairs, general = params.search, params.pairs, params.mix.general
    trained = [name for name in params.train_on if name in set(train["environment"])]
    revises = params.mode in ("agent_r", "direct_revision")
    cuts = f"{recovery_set['cuts']:,} cuts ({recovery_set['distinct']:,} distinct) of {recovery_set['tasks']:,} tasks"
    return [
        ("mode", params.mode),
        ("judge", params.judge.kind if params.mode == "agent_r" else f"none in mode {params.mode}"),
        ("splice.replay", params.splice.replay if revises else f"no splices in mode {params.mode}"),
        ("rounds", ("; ".join(rounds) or "none") + updates),
        ("environments", "; ".join(environments)),
        *([("left out", ", ".join(left_out))] if left_out else []),
        ("trained on", f"{', '.join(trained)} ({'multi' if len(trained) > 1 else 'single'}-task)"),
        ("recovery set", cuts if recovery_set["cuts"] else "empty"),
        ("search", f"{search.iterations} rollouts of a tree, {search.n} turns drawn at a node, {search.depth} turns deep"),
        ("pairs", f"beta {pairs.beta:g} as a {pairs.beta_rule}, at most {pairs.max_per_tree} of a tree"),
        ("general data", general.file or general.hub or "none"),
        ("base model", base_model(params.base_model)),
        ("round 0", f"cold start, {params.cold_start.epochs:g} epochs" if params.cold_start.enabled else "the base model"),
        ("init_from", params.init_from),
        ("format", params.format),
        ("seed", str(params.seed)),
    ]


def run(stage: Stage[AgentParams]) -> None:
    """All input and output of the stage."""
    params = stage.params
    keys, rounds = sorted(params.evaluated, key=int), sorted(params.rounds, key=int)
    tables = [layout.table(name, key) for key in rounds for name in ROUND_TABLES]
    played = layout.recoveries(keys[-1])
    reads = [layout.METRICS, layout.TRAIN_TASKS, layout.EVAL_TASKS, layout.RECOVERY, played, *tables]
    stage.header("the page of the run", reads, [layout.REPORT])
    metrics = read_metrics(layout.METRICS, keys)
    train, evaluation = GOALS.read(layout.TRAIN_TASKS), GOALS.read(layout.EVAL_TASKS)
    left_out = metadata(layout.EVAL_TASKS)["facts"].get("left_out", [])
    context: dict[str, Any] = {
        "facts": facts(params, train, evaluation, metrics["recovery_set"], left_out),
        "deviations": deviations(Path(PARAMS).read_text(encoding="utf-8")),
        "last": keys[-1],
        "recoveries": recoveries(PLAYS.read(played), CUTS.read(layout.RECOVERY), evaluation),
        "examples": None,
        "trees": [],
        "splices": [],
    }
    for key in reversed(rounds):
        revisions = REVISIONS.read(layout.table("revisions", key))
        if len(revisions):
            drawings = [find(Path(), task, key) for task in searched_tasks(revisions)]
            judgements = JUDGEMENTS.read(layout.table("judgements", key))
            spliced = splices(revisions, judgements, TRAINED.read(layout.table("sft", key)), train)
            context |= {"examples": key, "trees": trees(drawings), "splices": spliced}
            break
    publish_text(layout.REPORT, render(context, metrics, params, left_out))
    shown = ", ".join(f"{len(context[name])} {name}" for name in ("trees", "splices", "recoveries"))
    stage.say(f"the cold start, {len(rounds)} rounds, and as examples {shown}: open {layout.REPORT} in a browser")
    stage.close()


if __name__ == "__main__":
    main(__file__, run, params=AgentParams)

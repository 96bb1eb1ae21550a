"""report: the page of a run, one file for a browser.

Reads    metrics.json, data/calibration.json, data/tasks/train.parquet,
         data/rounds/{last}/{subgoals,scores,actions,pairs,critiques}.parquet, data/rounds/{every round}/dynamics.parquet;
         params.yaml: all of it (the page names the settings and quotes the comments that start with "deviates")
Writes   report.html
Differs  the paper shows final tables; the page also shows each round's pairs, verdicts and premise, the control with
         another task's plan, and ten tasks with all their candidates

    python -m moat.launch stages/report.py
"""

from __future__ import annotations

from pathlib import Path

from moat import layout
from moat.params import PARAMS, Params
from moat.publish import publish_text
from moat.report import cards, pick_examples, read_calibration, render
from moat.reporting import base_model, deviations, read_metrics
from moat.schemas.actions import ACTIONS
from moat.schemas.critiques import CRITIQUES
from moat.schemas.dynamics import DYNAMICS
from moat.schemas.pairs import PAIRS
from moat.schemas.scores import SCORES
from moat.schemas.subgoals import SUBGOALS
from moat.schemas.tasks import TASKS
from moat.stage import Stage, main

TABLES = (SUBGOALS, SCORES, ACTIONS, PAIRS, CRITIQUES)


def facts(params: Params) -> list[tuple[str, str]]:
    """What was run, in the words of params.yaml."""
    sources = [
        f"{name} ({source.n_train:,} training tasks, {source.n_eval:,} evaluation tasks)"
        if source.trained
        else f"{name} (held out, {source.n_eval:,} evaluation tasks)"
        for name, source in params.prepare.sources.items()
    ]
    critic = params.critic
    asks = f"asks {critic.judge} at {critic.revision}, subgoals: {critic.subgoals}"
    how = {
        "executor": f"executor, on failure: {critic.on_failure}",
        "llm": f"llm, {asks}",
        "executor_then_llm": f"executor_then_llm, {asks}",
        "none": "none",
    }
    updates = [
        f"planner {'sft' if params.mode == 'independent' else params.align.loss}" if params.align.enabled else "planner off",
        "grounder sft" if params.train_grounder.enabled else "grounder off",
        *(["each on its own demonstrations"] if params.mode == "independent" else []),
    ]
    return [
        ("mode", params.mode),
        ("rounds", f"{len(params.rounds)}, after the cold start"),
        ("K, plans per task", str(params.sample.k)),
        ("init_from", params.init_from),
        ("reference", params.reference),
        ("data_window", params.data_window),
        ("pairs", f"{params.pairs.select} by {params.pairs.score}, smallest gap {params.pairs.min_gap:g}"),
        ("updates", ", ".join(updates)),
        ("critic", how[critic.kind]),
        ("format", params.format),
        ("base model", base_model(params.base_model)),
        ("seed", str(params.seed)),
        ("task sources", "; ".join(sources)),
    ]


def run(stage: Stage) -> None:
    """All input and output of the stage."""
    params = stage.params
    last = max(params.rounds, key=int, default=None)
    paths = {} if last is None else {schema.name: layout.table(schema.name, last) for schema in TABLES}
    reads = [layout.METRICS, layout.CALIBRATION, layout.TRAIN_TASKS, *paths.values()]
    stage.header("the page of the run", reads, [layout.REPORT])
    rounds = read_metrics(layout.METRICS, sorted(params.evaluated, key=int))["rounds"]
    shown = []
    if last is not None:
        tables = {schema.name: schema.read(paths[schema.name]) for schema in TABLES}
        shown = cards(pick_examples(tables["pairs"]), TASKS.read(layout.TRAIN_TASKS), **tables)
    context = {
        "facts": facts(params),
        "deviations": deviations(Path(PARAMS).read_text(encoding="utf-8")),
        "calibration": read_calibration(layout.CALIBRATION),
        "cards": shown,
        "last": last,
    }
    dynamics = {key: DYNAMICS.read(layout.table("dynamics", key)) for key in sorted(params.rounds, key=int)}
    base = getattr(params.base_model, "name", "")  # of a pretrained one
    publish_text(layout.REPORT, render(context, rounds, dynamics, base))
    stage.say(f"{len(rounds)} rounds and {len(shown)} example tasks: open {layout.REPORT} in a browser")
    stage.close()


if __name__ == "__main__":
    main(__file__, run)

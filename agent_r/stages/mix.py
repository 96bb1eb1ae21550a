"""mix: good and revised trajectories, and general conversations, into the actor's training set of a round.

Reads    data/rounds/{round}/{nodes,revisions}.parquet, data/tasks/train.parquet, data/demos/{actor,general}.parquet,
         models/base (its tokenizer); params.yaml: mode, mix, rounds.{round}.alpha, format, max_length, seed
Writes   data/rounds/{round}/sft.parquet
Paper    Agent-R, section 3.3: L = eta (L_good + L_revision) + (1 - eta) L_general, eta = 0.2
Differs  each L is a mean over the tokens of the round's whole set, so that it depends on no batch; of a tree at most
         `mix.max_good` good trajectories, the best and of these the shortest; of revisions that differ in their reflection
         alone one; without general data L_good + L_revision

    python -m moat.launch stages/mix.py --round 1 --prev 0
"""

from __future__ import annotations

from typing import Any

from moat import layout, models
from moat.agent_r import mixing
from moat.agent_r.examples import rendered
from moat.agent_r.mixing import PLAYED, good_row, shown_row, tokens_by_origin, weights
from moat.agent_r.params import AgentParams, good
from moat.agent_r.paths import Path, finished
from moat.examples import OVER_LENGTH
from moat.mixing import draw_initial
from moat.schemas.dialogues import DIALOGUES
from moat.schemas.goals import GOALS
from moat.schemas.nodes import NODES
from moat.schemas.revisions import REVISIONS
from moat.schemas.trained import TRAINED
from moat.seeds import seed_of
from moat.stage import PREV, ROUND, Counts, Stage, main
from moat.tokens import Renderer

Row = dict[str, Any]


def run(stage: Stage[AgentParams], round: str, prev: str) -> None:
    """All input and output of the stage."""
    params, target, alpha = stage.params, layout.table("sft", round), stage.params.alpha(round)
    tables = [layout.table(name, round) for name in ("nodes", "revisions")]
    demos = [layout.demos(name) for name in ("actor", "general")]
    stage.header(
        f"the actor's training set, round {round}", [*tables, layout.TRAIN_TASKS, *demos, layout.BASE_MODEL], [target]
    )
    goals = {row["task_id"]: row for row in GOALS.read(layout.TRAIN_TASKS).iter_rows(named=True)}
    found: list[Row] = []
    drops = {"not good enough": 0, f"over max_good ({params.mix.max_good} of a tree)": 0}
    if params.mode == "bc":
        shown = DIALOGUES.read(demos[0]).to_dicts()
        found = [shown_row(row) for row in shown if row["origin"] in PLAYED]
    else:
        least = 1.0 if params.mode == "optimal_only" else alpha
        for (task,), own in NODES.read(tables[0]).group_by("task_id", maintain_order=True):
            paths = finished(own.to_dicts())
            fine = sorted((path for path in paths if good(path.reward, least)), key=_order)
            drops["not good enough"] += len(paths) - len(fine)
            drops[f"over max_good ({params.mix.max_good} of a tree)"] += max(0, len(fine) - params.mix.max_good)
            found += [good_row(goals[task], path.end, path.turns) for path in fine[: params.mix.max_good]]
    revisions = REVISIONS.read(tables[1])
    kept = revisions.filter(revisions["dropped"].is_null())
    drops["revision not kept"] = len(revisions) - len(kept)
    lessons = mixing.lessons(goals, kept.iter_rows(named=True))
    drops["equal to another revision"] = len(kept) - len(lessons)
    found += lessons
    chats = [shown_row(row) for row in DIALOGUES.read(demos[1]).iter_rows(named=True)]
    wanted = min(params.mix.general.n, len(chats)) or len(chats)
    found += draw_initial(chats, wanted, seed_of(params.seed, "general", round))
    renderer = Renderer(models.load_tokenizer(layout.BASE_MODEL), params.format)
    table = []
    for row in found:
        one = rendered(renderer, row["texts"], row["supervised"])
        if len(one) <= params.max_length:
            table.append(row | {"n_supervised": sum(one.mask)})
    drops[OVER_LENGTH] = len(found) - len(table)
    tokens = tokens_by_origin(table)
    counted = weights(tokens, params.mix.eta)
    for row in table:
        row["weight"] = counted[row["origin"]]
    counts = Counts(len(table) + sum(drops.values()), len(table), drops)
    read = ("mode", "mix", f"rounds.{round}.alpha", "format", "max_length", "seed")
    TRAINED.write(target, table, stage.facts(*read, counts=counts, tokens=dict(sorted(tokens.items()))))
    for origin in sorted(tokens):
        rows = sum(row["origin"] == origin for row in table)
        stage.say(f"{origin}: {rows:,} rows, {tokens[origin]:,} supervised tokens, each counts {counted[origin]:.3g}")
    if not table:
        bar = "has the full reward" if params.mode == "optimal_only" else f"passes alpha {alpha:g}"
        stage.warn(f"nothing to train on: no trajectory {bar}, and none was revised; the actor will stay")
    stage.close(counts)


def _order(path: Path) -> tuple[float, int, int]:
    """The best first, of these the shortest."""
    return -path.reward, len(path.turns), path.end


if __name__ == "__main__":
    main(__file__, run, ROUND, PREV, params=AgentParams)

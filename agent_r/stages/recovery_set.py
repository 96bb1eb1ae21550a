"""recovery_set: where recoveries begin, once for all rounds: inside trajectories on which the base actor failed.

Reads    data/tasks/eval.parquet, models/actor/0 (an adapter: models/base too); params.yaml: recovery (without max_turns),
         evaluate.max_turns, environments, several, format, max_length, seed, limits
Writes   data/recovery.parquet
Paper    Agent-R, section 4: a random step inside a trajectory whose reward is zero
Differs  `recovery.attempts` trajectories are sampled of each task; the cut lies after the first turn or later and before any
         turn that ended the episode, is drawn by seed, and is the same for every round and mode

    python -m moat.launch stages/recovery_set.py
"""

from __future__ import annotations

from collections import Counter
from typing import Any

from moat import adapters, layout, models, runners
from moat.agent_r.actor import Actor
from moat.agent_r.params import AgentParams
from moat.agent_r.rollouts import Played, Start, count_drops, rollouts
from moat.agent_r.worlds import opened
from moat.react import Several
from moat.rows import tell
from moat.schemas.cuts import CUTS
from moat.schemas.goals import GOALS
from moat.seeds import seed_of
from moat.stage import Counts, Stage, main
from moat.tokens import Renderer

SUCCEEDED = "reward over 0"
NO_TURN = "no turn before the end of the episode"
TOO_SHORT = "fewer turns than cuts"
READ = (
    "recovery.attempts",
    "recovery.cuts",
    "recovery.temperature",
    "recovery.top_p",
    "recovery.max_new_tokens",
    "evaluate.max_turns",
    "several",
    "format",
    "max_length",
    "seed",
)


def places(played: Played, cuts: int, seed: int) -> list[int]:
    """After how many turns a trajectory is cut: distinct, at most `cuts`, drawn by `seed`; never after a terminal turn."""
    last = sum(not turn.terminal for turn in played.turns)
    return sorted(sorted(range(1, last + 1), key=lambda place: seed_of(seed, "cut", played.start.play_id, place))[:cuts])


def cut(played: list[Played], cuts: int, seed: int) -> tuple[list[dict[str, Any]], dict[str, int]]:
    """The rows of all cuts; and of the cuts that there are not, how many for which reason."""
    rows: list[dict[str, Any]] = []
    without = Counter[str]()
    for one in played:
        if one.dropped is not None:
            without[one.dropped] += cuts
        elif one.reward > 0:
            without[SUCCEEDED] += cuts
        else:
            found = places(one, cuts, seed)
            without[TOO_SHORT if found else NO_TURN] += cuts - len(found)
            rows += [
                {
                    "cut_id": f"{one.start.play_id}#{place}",
                    "task_id": one.start.task_id,
                    "environment": one.start.environment,
                    "kind": one.start.kind,
                    "first": one.start.first,
                    "n_failed": len(one.turns),
                    "turns": [turn.row() for turn in one.turns[:place]],
                }
                for place in found
            ]
    return rows, dict(without)


def run(stage: Stage[AgentParams]) -> None:
    """All input and output of the stage."""
    params, target, model = stage.params, layout.RECOVERY, layout.model("actor", "0")
    settings = params.recovery
    reads = [layout.EVAL_TASKS, *adapters.parts(model)]
    stage.header(f"{settings.attempts} trajectories of the base actor per task, cut where they failed", reads, [target])
    goals = GOALS.read(layout.EVAL_TASKS)
    starts = [
        Start(
            f"{goal['task_id']}#{attempt}",
            *(goal[name] for name in ("task_id", "environment", "kind", "instruction", "first")),
        )
        for goal in goals.iter_rows(named=True)
        for attempt in range(settings.attempts)
    ]
    runner = runners.runner(stage, model, params.limits.max_failed, "actor")
    actor = Actor(runner, Renderer(models.load_tokenizer(model), params.format), settings, params.max_length)
    with (
        opened(params.environments, stage.machine, set(goals["environment"])) as environments,
        stage.progress("playing", len(starts)) as advance,
    ):
        played = rollouts(
            starts,
            environments,
            actor,
            Several(params.several),
            params.evaluate.max_turns,
            lambda start, turn: seed_of(params.seed, "recovery_set", start.play_id, turn),
            stage.machine.trees,
            advance,
        )
    count_drops(played, params.limits.max_dropped, stage.warn)
    rows, without = cut(played, settings.cuts, params.seed)
    counts = Counts(len(played) * settings.cuts, len(rows), without)
    CUTS.write(target, rows, stage.facts(*READ, counts=counts, **runner.facts))
    tasks = {row["task_id"] for row in rows}
    distinct = {(row["task_id"], *(turn["text"] for turn in row["turns"])) for row in rows}
    stage.say(f"{len(rows):,} cuts ({len(distinct):,} distinct) of {len(tasks):,} of {len(goals):,} tasks")
    if not rows:
        stage.warn(
            "the recovery set is empty, and no round's recovery will be measured: the counts below say why; raise "
            "recovery.attempts or recovery.temperature, or take harder tasks"
        )
    tell(stage, runner)
    stage.close(counts)


if __name__ == "__main__":
    main(__file__, run, params=AgentParams)

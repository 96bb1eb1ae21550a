"""evaluate: what the actor of a round does from the start of the evaluation tasks, and from inside failed trajectories.

Reads    data/tasks/eval.parquet, data/recovery.parquet, models/actor/{round} (an adapter: models/base too); params.yaml:
         evaluate, recovery.max_turns, environments, several, format, max_length, seed, limits
Writes   data/evals/{round}.parquet, data/recoveries/{round}.parquet
Paper    Agent-R, section 4: at most 100 turns from the start, at most 50 from a cut; the two are never averaged together
Differs  a recovery's state is brought back by taking the recorded actions again, and what is answered differently is dropped
         and named; what the actor says is decoded alike in both

    python -m moat.launch stages/evaluate.py --round 0
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import polars as pl

from moat import adapters, layout, models, runners
from moat.agent_r.actor import Actor
from moat.agent_r.params import AgentParams
from moat.agent_r.play import Turn
from moat.agent_r.rollouts import Played, Start, count_drops, rollouts
from moat.agent_r.worlds import opened
from moat.react import Several
from moat.rows import tell
from moat.schemas.cuts import CUTS
from moat.schemas.goals import GOALS
from moat.schemas.plays import PLAYS
from moat.seeds import seed_of
from moat.stage import ROUND, Counts, Stage, main
from moat.tables import TableError
from moat.tokens import Renderer

READ = ("evaluate", "several", "format", "max_length", "seed")
READ_TOO = (*READ, "recovery.max_turns")  # of a recovery


def beginnings(goals: pl.DataFrame) -> list[Start]:
    """The evaluation tasks, from their first observation."""
    named = ("task_id", "task_id", "environment", "kind", "instruction", "first")
    return [Start(*(goal[name] for name in named)) for goal in goals.iter_rows(named=True)]


def middles(cuts: pl.DataFrame, goals: pl.DataFrame) -> list[Start]:
    """The cuts, each after its turns. Raises TableError for one of another evaluation's task."""
    told = dict(goals.select("task_id", "instruction").iter_rows())
    unknown = sorted(set(cuts["task_id"]) - set(told))
    if unknown:
        raise TableError(
            f"{layout.RECOVERY} has a cut of {unknown[0]}, which is no task in {layout.EVAL_TASKS}: `dvc repro` makes both"
        )
    return [
        Start(
            cut["cut_id"],
            cut["task_id"],
            cut["environment"],
            cut["kind"],
            told[cut["task_id"]],
            cut["first"],
            tuple(Turn.of(turn) for turn in cut["turns"]),
        )
        for cut in cuts.iter_rows(named=True)
    ]


def results(played: Sequence[Played]) -> list[str]:
    """A line for each environment: how many plays ended with the full reward, and their mean reward."""
    lines = []
    for name in sorted({one.start.environment for one in played}):
        rewards = [one.reward for one in played if one.start.environment == name and one.dropped is None]
        full = sum(reward >= 1 for reward in rewards)
        share = f" ({full / len(rewards):.1%}), mean reward {sum(rewards) / len(rewards):.3f}" if rewards else ""
        lines.append(f"{name}: full reward in {full:,} of {len(rewards):,}{share}")
    return lines


def run(stage: Stage[AgentParams], round: str) -> None:
    """All input and output of the stage."""
    params, model = stage.params, layout.model("actor", round)
    targets = [layout.evals(round), layout.recoveries(round)]
    reads = [layout.EVAL_TASKS, layout.RECOVERY, *adapters.parts(model)]
    stage.header(f"play from the start and on from failures, round {round}", reads, targets)
    goals, cuts = GOALS.read(layout.EVAL_TASKS), CUTS.read(layout.RECOVERY)
    runner = runners.runner(stage, model, params.limits.max_failed, "actor")
    actor = Actor(runner, Renderer(models.load_tokenizer(model), params.format), params.evaluate, params.max_length)
    with opened(params.environments, stage.machine, set(goals["environment"])) as environments:

        def play(label: str, starts: list[Start], max_turns: int) -> list[Played]:
            def seed(start: Start, turn: int) -> int:
                return seed_of(params.seed, label, round, start.play_id, turn)

            with stage.progress(label, len(starts)) as advance:
                several, at_once = Several(params.several), stage.machine.trees
                return rollouts(starts, environments, actor, several, max_turns, seed, at_once, advance)

        main_plays = play("main", beginnings(goals), params.evaluate.max_turns)
        recoveries = play("recovery", middles(cuts, goals), params.recovery.max_turns)
    counts = []
    for played in (main_plays, recoveries):
        dropped = count_drops(played, params.limits.max_dropped, stage.warn)
        counts.append(Counts(len(played), len(played) - sum(dropped.values()), dropped))
    for target, played, counted, read in zip(targets, (main_plays, recoveries), counts, (READ, READ_TOO), strict=True):
        PLAYS.write(target, [one.row() for one in played], stage.facts(*read, counts=counted, **runner.facts))
    for label, played in (("from the start", main_plays), ("recovery", recoveries)):
        for line in results(played):
            stage.say(f"{label}, {line}")
    tell(stage, runner)
    dropped = Counter[str]()
    for counted in counts:
        dropped.update(counted.dropped)
    stage.close(Counts(sum(one.rows_in for one in counts), sum(one.kept for one in counts), dict(dropped)))


if __name__ == "__main__":
    main(__file__, run, ROUND, params=AgentParams)

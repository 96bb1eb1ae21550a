"""search: a search tree for each task, grown by the actor of the round before in the task's environment.

Reads    data/tasks/train.parquet, models/actor/{prev} (an adapter: models/base too); params.yaml: search, mode, several,
         environments, format, max_length, seed, limits
Writes   data/rounds/{round}/nodes.parquet, data/rounds/{round}/trees.parquet; without rows in mode bc
Paper    Agent-R, section 3.1: trajectories by Monte Carlo tree search with UCT
Differs  a node's children are distinct actions; a rollout's turns are stored, and become children of nodes that are
         expanded later

    python -m moat.launch stages/search.py --round 1 --prev 0
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from typing import Any

from moat import adapters, layout, models, runners
from moat.agent_r import losses, worlds
from moat.agent_r.actor import Actor, Playing, together
from moat.agent_r.params import AgentParams, World
from moat.agent_r.search import Grown, Row, code, groups, grow
from moat.react import Several
from moat.rows import Runner, tell
from moat.schemas.goals import GOALS
from moat.schemas.nodes import NODES
from moat.schemas.trees import TREES
from moat.seeds import seed_of
from moat.stage import PREV, ROUND, Advance, Counts, Stage, main
from moat.tokens import Renderer

KEPT = "Finished trees are kept: mend the cause, run again, and the others are grown"


def journal_keys(stage: Stage[AgentParams], runner: Runner, goals: list[Row], round: str) -> dict[str, str]:
    """By task the hash of everything that determines its tree. Raises TypeError for a part without a stable form."""
    params = stage.params
    said = params.model_dump(include={"search", "several", "format", "max_length", "seed"})
    shared = [code(), dict(runner.identity), said, round]
    drawing = set(World.model_fields)  # which tasks there are, and not what they are
    own = {name: world.model_dump(exclude=drawing) for name, world in params.environments.items()}

    def key(goal: Row) -> str:
        task = [goal["task_id"], goal["instruction"], goal["first"], goal["environment"], own[goal["environment"]]]
        return hashlib.sha256(json.dumps(["tree", shared, task], sort_keys=True).encode()).hexdigest()[:32]

    return {goal["task_id"]: key(goal) for goal in goals}


def told(growing: Playing[Grown], advance: Advance) -> Playing[Grown]:
    """The same, and the progress bar hears of its end."""
    grown = yield from growing
    advance(1)
    return grown


def trees(stage: Stage[AgentParams], runner: Runner, actor: Actor, goals: list[Row], round: str) -> list[Grown]:
    """The tasks' trees, those that an earlier run finished from the journal.

    A group is in the journal whole or not at all, so that a killed search asks again what it asked before, and goes on
    with the same batches. What was dropped is not in it: another run tries again.
    """
    params, journal = stage.params, stage.journal
    keys = journal_keys(stage, runner, goals, round)
    left = {goal["task_id"]: goal["environment"] for goal in goals if keys[goal["task_id"]] not in journal}
    lost: list[Grown] = []

    def growing(goal: Row, environments: dict[str, Any]) -> Playing[Grown]:
        task = goal["task_id"]

        def seed(node: int, draw: int) -> int:
            return seed_of(params.seed, "search", round, task, node, draw)

        return grow(goal, environments[goal["environment"]], params.search, Several(params.several), seed)

    with (
        worlds.opened(params.environments, stage.machine, set(left.values())) as environments,
        stage.progress("searching", len(goals)) as advance,
    ):
        advance(len(goals) - len(left))
        for group in groups(goals, stage.machine.trees):
            playing = [told(growing(goal, environments), advance) for goal in group if goal["task_id"] in left]
            made = together(playing, actor)
            finished = {keys[one.tree["task_id"]]: [one.tree, one.nodes] for one in made if not one.dropped}
            if finished:
                journal.add(finished)
            lost += [one for one in made if one.dropped]
            named = [(str(one.dropped), str(one.tree["message"])) for one in lost]
            losses.check(named, "tasks", len(goals), params.limits.max_dropped, KEPT)
    return [Grown(*journal[key]) for key in keys.values() if key in journal] + lost


def run(stage: Stage[AgentParams], round: str, prev: str) -> None:
    """All input and output of the stage."""
    params, model = stage.params, layout.model("actor", prev)
    nodes, trees_path = layout.table("nodes", round), layout.table("trees", round)
    reads = [layout.TRAIN_TASKS, *adapters.parts(model)]
    stage.header(f"a search tree for each task, round {round}", reads, [nodes, trees_path])
    goals = GOALS.read(layout.TRAIN_TASKS)
    searched = goals.filter(goals["searched"]).to_dicts()
    grown: list[Grown] = []
    made_by: dict[str, Any] = {}
    if params.mode == "bc":
        stage.say("mode bc searches nothing: both tables are empty")
    else:
        runner = runners.runner(stage, model, params.limits.max_failed, "actor")
        renderer = Renderer(models.load_tokenizer(model), params.format)
        grown = trees(stage, runner, Actor(runner, renderer, params.search, params.max_length), searched, round)
        made_by = dict(runner.facts)
    drops = Counter(one.dropped for one in grown)
    counts = Counts(len(grown), drops.pop(None, 0), {str(reason): n for reason, n in drops.items()})
    read = ("search", "mode", "several", "environments", "format", "max_length", "seed")
    facts = stage.facts(*read, counts=counts, **made_by)
    NODES.write(nodes, [row for one in grown for row in one.nodes], facts)
    TREES.write(trees_path, [one.tree for one in grown], facts)
    if grown:
        used = [one.tree for one in grown if not one.dropped]
        solved = sum(tree["best"] >= 1 for tree in used)
        sums = {name: sum(one.tree[name] for one in grown) for name in ("rollouts", "calls", "tokens", "steps", "replayed")}
        said = ", ".join(f"{n:,} {name}" for name, n in sums.items())
        stage.say(f"{said} (steps that only brought back a state); {solved:,} of {len(used):,} solved")
        tell(stage, runner)
    stage.close(counts)


if __name__ == "__main__":
    main(__file__, run, ROUND, PREV, params=AgentParams)

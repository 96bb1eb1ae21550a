"""revise: failed paths of the search, turned where they went wrong and continued as a good path of the same tree.

Reads    data/tasks/train.parquet, data/rounds/{round}/{nodes,trees}.parquet; for a judge of kind
         actor or actor_label models/actor/{prev} (an adapter: models/base too); params.yaml: mode, rounds.{round}.alpha,
         pairs, judge, splice, environments, several, format, max_length, seed, limits. Where nothing is revised: mode
Writes   data/rounds/{round}/judgements.parquet, a row per step of each bad path that is in a pair, and
         data/rounds/{round}/revisions.parquet, a row per pair, those that are not trained on with the reason
Paper    Agent-R (arXiv 2501.11425): pairs by alpha and beta, the actor finds the turning point, bad prefix + reflection +
         good continuation; direct_revision turns at the bad path's end
Differs  the turning point lies after the common history, an unreadable label is not good, and with splice.replay: required
         the good actions are taken again after the bad ones, and count for what they then come to

    python -m moat.launch stages/revise.py --round 1 --prev 0
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from moat import adapters, layout, models, runners
from moat.agent_r import judges, losses, splicing
from moat.agent_r.judges import Judged, Label
from moat.agent_r.params import AgentParams
from moat.agent_r.paths import ALPHA, BETA, BOTH_GOOD, CAP, Found, Pair, Path, finished, pairs
from moat.agent_r.splicing import Spliced
from moat.agent_r.turns import reflection
from moat.agent_r.worlds import opened
from moat.react import Several
from moat.rows import tell
from moat.schemas.goals import GOALS
from moat.schemas.judgements import JUDGEMENTS
from moat.schemas.nodes import NODES
from moat.schemas.revisions import REVISIONS
from moat.schemas.trees import TREES
from moat.stage import PREV, ROUND, Counts, Stage, main
from moat.tables import TableError
from moat.tokens import Renderer

Row = dict[str, Any]
REMEDY = "Mend the environment, or set splice.replay to off"
MODES = ("agent_r", "direct_revision")  # those that revise


@dataclass(frozen=True)
class Tree:
    """A task's searched tree: its nodes' rows, its finished paths and their pairs."""

    task: str
    environment: str
    instruction: str
    first: str
    nodes: list[Row]
    paths: list[Path]
    found: Found

    @property
    def bad(self) -> list[Path]:
        """The bad paths that are in a pair, each once, by their last node."""
        return [path for _, path in sorted({pair.bad.end: pair.bad for pair in self.found.pairs}.items())]


def read_trees(stage: Stage[AgentParams], round: str) -> list[Tree]:
    """The trees of a round that are used, with their pairs, by task. Raises TableError where tables do not fit."""
    params, trees_path, nodes_path = stage.params, layout.table("trees", round), layout.table("nodes", round)
    trees, goals = TREES.read(trees_path), GOALS.read(layout.TRAIN_TASKS)
    of_goal = {row["task_id"]: row for row in goals.select("task_id", "instruction", "first").iter_rows(named=True)}
    nodes = NODES.read(nodes_path)
    of_tree = {str(task): part.to_dicts() for (task,), part in nodes.group_by("task_id", maintain_order=True)}
    made = []
    for row in trees.filter(trees["dropped"].is_null()).iter_rows(named=True):
        task = row["task_id"]
        for path, known in ((layout.TRAIN_TASKS, of_goal), (nodes_path, of_tree)):
            if task not in known:
                raise TableError(f"{path} lacks the task {task}, which {trees_path} has: `dvc repro` makes both anew")
        goal, own = of_goal[task], of_tree[task]
        ended = finished(own)
        found = pairs(ended, params.alpha(round), params.pairs)
        made.append(Tree(task, row["environment"], goal["instruction"], goal["first"], own, ended, found))
    return made


def questions(tree: Tree, path: Path) -> list[str]:
    """What a judge is asked of each step of a bad path."""
    said = [(turn.text, turn.observation) for turn in path.turns]
    return [judges.judge_texts(tree.instruction, tree.first, said[: n + 1]) for n in range(len(said))]


def judge(stage: Stage[AgentParams], round: str, prev: str, trees: Sequence[Tree]) -> tuple[list[Row], Mapping[str, Any]]:
    """The judgements table, and what answered. Raises TooManyUnparsed."""
    settings = stage.params.judge
    steps = [(tree, path, number) for tree in trees for path in tree.bad for number in range(len(path.turns))]
    by_tree = {tree.task: judges.by_tree(tree.nodes) for tree in trees}
    judged = [Judged(by_tree[tree.task][path.nodes[number]]) for tree, path, number in steps]
    facts: Mapping[str, Any] = {}
    if settings.kind != "tree" and steps:
        asked = [question for tree in trees for path in tree.bad for question in questions(tree, path)]
        model = layout.model("actor", prev)
        runner = runners.runner(stage, model, stage.params.limits.max_failed, "actor", scores=settings.kind == "actor_label")
        renderer = Renderer(models.load_tokenizer(model), stage.params.format)
        actor, facts = judges.ActorJudge(runner, renderer, stage.params.max_length), runner.facts
        with stage.progress("judging", len(asked)) as advance:
            if settings.kind == "actor":
                judged = actor.by_words(asked, settings, stage.params.seed, advance)
            else:
                judged = actor.by_likelihood(asked, advance)
        tell(stage, runner)
        runner.drop_engine()  # nothing is left to ask it, and environments want memory too
        judges.check_unparsed(judged, stage.params.limits.max_unparsed)
    table = [
        {
            "task_id": tree.task,
            "bad": path.end,
            "turn": number,
            "node": path.nodes[number],
            "label": one.label.value,
            "reasons": one.reasons,
            "tree": by_tree[tree.task][path.nodes[number]].value,
            "refused": path.turns[number].refused,
        }
        for (tree, path, number), one in zip(steps, judged, strict=True)
    ]
    return table, {**facts, "unparsed": dict(sorted(Counter(one.why for one in judged if one.why).items()))}


def labels_of(judgements: Sequence[Row]) -> dict[tuple[str, int], list[Label]]:
    """The labels of each bad path, by task and last node, in the order of its steps."""
    labels: dict[tuple[str, int], list[Label]] = {}
    for row in sorted(judgements, key=lambda row: (row["task_id"], row["bad"], row["turn"])):
        labels.setdefault((row["task_id"], row["bad"]), []).append(Label(row["label"]))
    return labels


def splice(
    stage: Stage[AgentParams], round: str, trees: Sequence[Tree], labels: Mapping[tuple[str, int], list[Label]]
) -> list[Row]:
    """The revisions table. Raises LostError, and EpisodeError when an environment cannot be opened."""
    params, table = stage.params, []
    required, lost = params.splice.replay == "required", list[tuple[str, str]]()
    pairs = [(tree, pair) for tree in trees for pair in tree.found.pairs]
    names = {tree.environment for tree, _ in pairs} if required else set()
    with opened(params.environments, stage.machine, names) as worlds, stage.progress("splicing", len(pairs)) as advance:
        for tree, pair in pairs:
            own = labels[tree.task, pair.bad.end] if params.mode == "agent_r" else None
            turn = splicing.turning_point(pair, own, params.judge.no_turn == "end", required)
            said = reflection(params.seed, round, tree.task, pair.bad.end, pair.good.end)
            if isinstance(turn, str):
                one = splicing.unspliced(pair, turn, f"{tree.task}: {turn}, of {len(pair.bad.turns)} turns")
            elif required:
                one = splicing.replayed(
                    pair,
                    turn,
                    said,
                    environment=worlds[tree.environment],
                    several=Several(params.several),
                    task=tree.task,
                    first=tree.first,
                    alpha=params.alpha(round),
                    settings=params.pairs,
                )
            else:
                one = splicing.textual(pair, turn, said)
            if one.dropped in losses.LOST:
                lost.append((one.dropped, one.message))
                losses.check(lost, "pairs", len(pairs), params.limits.max_dropped, REMEDY)
            table.append(revision_row(tree, pair, one, own))
            advance(1)
    if lost:
        stage.warn(f"{len(lost):,} of {len(pairs):,} pairs were lost to their environment; the first: {lost[0][1]}")
    return table


def revision_row(tree: Tree, pair: Pair, one: Spliced, labels: Sequence[Label] | None) -> Row:
    """One row of the revisions table."""
    first = None if labels is None else splicing.first_bad(labels)
    return {
        "task_id": tree.task,
        "environment": tree.environment,
        "bad": pair.bad.end,
        "good": pair.good.end,
        "shared": pair.shared,
        "n_bad": len(pair.bad.turns),
        "bad_reward": pair.bad.reward,
        "good_reward": pair.good.reward,
        "first_bad": first,
        "turn": one.turn,
        "revision_length": None if first is None else first + 1,
        "reflection": one.reflection,
        "turns": [turn.row() for turn in one.turns],
        "replayed": one.replayed,
        "reward": one.reward,
        "dropped": one.dropped,
        "message": one.message,
    }


def tell_pairs(stage: Stage[AgentParams], round: str, trees: Sequence[Tree]) -> dict[str, Any]:
    """Say what alpha, beta and the cap removed, and what emptied a round without pairs; returns the counts as facts."""
    alpha, beta = stage.params.alpha(round), stage.params.pairs.beta
    made = sum(len(tree.found.pairs) for tree in trees)
    removed = sum((Counter(tree.found.removed) for tree in trees), Counter[str]())
    empty = Counter(tree.found.empty for tree in trees if tree.found.empty)
    rewards = [path.reward for tree in trees for path in tree.paths]
    stage.say(
        f"{len(trees):,} trees with {len(rewards):,} finished paths; of {made + removed.total():,} combinations of two with "
        f"different rewards {made:,} are pairs: alpha ({alpha:g}) removed {removed[ALPHA]:,}, beta ({beta:g}) "
        f"{removed[BETA]:,}, max_per_tree {removed[CAP]:,}, and {removed[BOTH_GOOD]:,} are both good"
    )
    reasons = ", ".join(f"{n:,} {why}" for why, n in sorted(empty.items())) or "none"
    highest = f"; the highest reward is {max(rewards):g}, the lowest {min(rewards):g}" if rewards else ""
    said = f"trees without a pair: {reasons} (alpha {alpha:g}, beta {beta:g}{highest})"
    if made:
        stage.say(said)
    else:
        stage.warn(f"nothing to revise in round {round}; {said}")
    told = {"trees": len(trees), "paths": len(rewards), "pairs": made}
    return told | {"removed": dict(sorted(removed.items())), "empty": dict(sorted(empty.items()))}


def tell_judgements(stage: Stage[AgentParams], table: Sequence[Row]) -> None:
    """Say what the judge found, and how far it agrees with the search tree and with refusals."""
    if not table:
        return
    found = Counter(row["label"] for row in table)
    stage.say(f"{len(table):,} steps judged: " + ", ".join(f"{label} {n:,}" for label, n in sorted(found.items())))
    same = sum(row["label"] == row["tree"] for row in table) / len(table)
    refused = [row["label"] for row in table if row["refused"]]
    stage.say(f"the tree says the same of {same:.0%}; of {len(refused):,} refused actions {refused.count('bad'):,} are bad")


def tell_survival(stage: Stage[AgentParams], table: Sequence[Row]) -> None:
    """Say how many replayed splices survived, by environment."""
    for name in sorted({row["environment"] for row in table if row["replayed"]}):
        played = [row for row in table if row["replayed"] and row["environment"] == name]
        kept = sum(row["dropped"] is None for row in played)
        stage.say(f"{name}: {kept:,} of {len(played):,} replayed splices survived ({kept / len(played):.0%})")


def run(stage: Stage[AgentParams], round: str, prev: str) -> None:
    """All input and output of the stage."""
    params, settings = stage.params, stage.params.judge
    targets = [layout.table(name, round) for name in ("judgements", "revisions")]
    revises = params.mode in MODES
    by_actor = params.mode == "agent_r" and settings.kind != "tree"
    tables = [layout.TRAIN_TASKS, *(layout.table(name, round) for name in ("nodes", "trees"))]
    reads = [*tables * revises, *(adapters.parts(layout.model("actor", prev)) if by_actor else [])]
    how = [f"mode {params.mode}"]
    how += [f"judge {settings.kind}"] if params.mode == "agent_r" else []
    how += [f"replay {params.splice.replay}"] if revises else []
    stage.header(f"{', '.join(how)}, round {round}", reads, targets)
    if not revises:
        stage.say(f"mode {params.mode} revises nothing: both tables are empty")
    trees = read_trees(stage, round) if revises else []
    about_pairs = tell_pairs(stage, round, trees) if revises else {}
    judgements, answered = judge(stage, round, prev, trees) if params.mode == "agent_r" else ([], {})
    tell_judgements(stage, judgements)
    revisions = splice(stage, round, trees, labels_of(judgements))
    tell_survival(stage, revisions)
    drops = Counter(row["dropped"] for row in revisions)
    counts = Counts(len(revisions), drops.pop(None, 0), {str(reason): n for reason, n in drops.items()})
    read = ["mode", *([f"rounds.{round}.alpha", "pairs", "seed"] if revises else [])]
    read += ["judge", *(["format", "max_length"] if by_actor else [])] if params.mode == "agent_r" else []
    judged = Counts(len(judgements), len(judgements))
    JUDGEMENTS.write(targets[0], judgements, stage.facts(*read, counts=judged, **answered))
    read += ["splice", *(["several", "environments"] if params.splice.replay == "required" else [])] if revises else []
    REVISIONS.write(targets[1], revisions, stage.facts(*read, counts=counts, found=about_pairs))
    stage.close(counts)


if __name__ == "__main__":
    main(__file__, run, ROUND, PREV, params=AgentParams)

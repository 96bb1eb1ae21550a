"""Growing search trees: an actor's turns, taken in the environment (Monte Carlo tree search, one tree a task).

The root is expanded first. Then, until the tree stops: select a node; one that was visited is expanded; from one that was
not, a rollout goes on to an end, and its final reward is backed up. Rollouts are what `search.iterations` counts.

Every node has n draws, each with a seed of its own. To expand a node is to make all of them, in one batch; equal
actions are one child, which is taken in the environment once. A rollout makes the draw 0 of each node that it comes to, so
when such a node is expanded later, its turn is there already: n - 1 draws are left, and equal ones fall on it.

A path ends where the environment ends it, at `search.depth` turns, or where the conversation is over max_length. A
draw that the engine fails on is missing; a rollout that meets one is given up, and nothing more is tried below its start.

The environment's state at a node is kept where it can be copied. Elsewhere a tree has one episode, and a compared replay
brings each state back.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import moat
from moat.agent_r.actor import Answer, Answers, Missing, Playing, Request, conversation
from moat.agent_r.losses import LOST
from moat.agent_r.params import Search
from moat.agent_r.play import Play
from moat.agent_r.tree import Node, Tree
from moat.agent_r.turns import Kind, read
from moat.closure import closure
from moat.environments.base import Environment, EpisodeError
from moat.provenance import combined, content_hash
from moat.react import Several

DROPPED = "dropped"

Row = dict[str, Any]
Asking = Generator[list[Request], Answers, None]


@dataclass(frozen=True, slots=True)
class Grown:
    """A finished tree: its row of the table of trees, and those of its nodes, none where the tree is dropped."""

    tree: Row
    nodes: list[Row]

    @property
    def dropped(self) -> str | None:
        """Why it is not used."""
        reason: str | None = self.tree["dropped"]
        return reason


def grow(
    goal: Mapping[str, Any], environment: Environment, settings: Search, several: Several, seed: Callable[[int, int], int]
) -> Playing[Grown]:
    """Grow the tree of a task, a row of the goals. `seed` gives that of a node's draw, both by number.

    A task that its environment fails on is dropped by reason. Raises EpisodeError for what is wrong with the machine.
    """
    growth, lost = _Growth(goal, environment, settings, several, seed), None
    try:
        yield from growth.run()
        growth.close()
    except EpisodeError as error:
        if error.kind not in LOST:
            raise
        lost = error
    finally:
        with suppress(EpisodeError):  # on the way out what went wrong first is what matters
            growth.close()
    return growth.grown(lost)


class _Growth:
    """A tree, what it has cost, and the plays that are open, by their nodes' numbers: at those whose turns are still to be
    taken, or, where states are not copied, one at the newest node.
    """

    def __init__(
        self,
        goal: Mapping[str, Any],
        environment: Environment,
        settings: Search,
        several: Several,
        seed: Callable[[int, int], int],
    ) -> None:
        self.goal, self.environment, self.settings, self.several, self.seed = goal, environment, settings, several, seed
        self.tree = Tree(goal["first"], settings.depth, settings.c)
        self.plays: dict[int, Play] = {}
        self.copies = False
        self.calls = self.tokens = self.steps = self.replayed = 0
        self.missing = Missing.ENGINE

    def run(self) -> Asking:
        """Grow until it stops."""
        play = self.plays[0] = Play(self.environment, self.several, self.settings.depth)
        self.copies = play.copies
        play.bring_back(self.goal["task_id"], self.goal["first"], [])
        yield from self.expand(self.tree.root)
        while not self.stopped:
            node = self.tree.select()
            yield from self.expand(node) if node.visits else self.roll_out(node)

    @property
    def stopped(self) -> str:
        """Why the tree grows no more, empty while it does."""
        if self.tree.solved and self.settings.stop_when_solved:
            return "solved"
        if self.tree.root.exhausted:
            return "exhausted"
        return "iterations" if self.tree.root.visits >= self.settings.iterations else ""

    def expand(self, node: Node) -> Asking:
        """Make a node's draws, and a child of each turn that is another."""
        left = range(len(node.children), self.settings.n)
        answers = yield from self.ask(node, left)
        for answer in answers:
            if isinstance(answer, Missing):
                self.missing = answer
                continue
            said = read(answer.text, self.several, Kind(node.turn.kind) if node.depth else None)
            if node.child(said.kind, said.action or "") is None:
                self.take(node, answer, simulated=False)
        self.tree.expand(node)
        self.release(node)

    def roll_out(self, start: Node) -> Asking:
        """Take one turn after another to an end."""
        node = start
        while not node.end:
            (answer,) = yield from self.ask(node, range(1))
            if answer is Missing.LENGTH:
                node.end = True
                self.release(node)
            elif answer is Missing.ENGINE:
                self.tree.close(start)
                self.release(start)
                return
            else:
                node = self.take(node, answer, simulated=True)
        self.tree.back_up(node)

    def ask(self, node: Node, draws: range) -> Generator[list[Request], Answers, Answers]:
        """Draws at a node."""
        if not draws:
            return []
        said = [(turn.text, turn.observation) for turn in node.turns]
        texts = conversation(self.goal["instruction"], self.goal["first"], said)
        answers = yield [Request(texts, self.seed(node.number, draw)) for draw in draws]
        self.calls += len(answers)
        self.tokens += sum(answer.n_tokens for answer in answers if isinstance(answer, Answer))
        return answers

    def take(self, parent: Node, answer: Answer, simulated: bool) -> Node:
        """Take a turn from a node's state; the new child."""
        number = len(self.tree.nodes)
        if self.copies:
            play = self.plays[number] = self.plays[parent.number].fork()
        else:
            ((here, play),) = self.plays.items()
            if here != parent.number:
                play.bring_back(self.goal["task_id"], self.goal["first"], parent.turns)
            self.plays = {number: play}
        child = self.tree.add(parent, play.say(answer.text), answer.n_tokens, answer.logprob, simulated)
        if child.end:
            self.release(child)
        return child

    def release(self, node: Node) -> None:
        """Close the play at a node from which no turn will be taken any more."""
        if self.copies and node.number in self.plays:
            self.retire(self.plays.pop(node.number))

    def retire(self, play: Play) -> None:
        """Close a play and count what it took."""
        self.steps += play.taken
        self.replayed += play.replayed
        play.close()

    def close(self) -> None:
        """Close every play. Raises EpisodeError."""
        while self.plays:
            self.retire(self.plays.popitem()[1])

    def grown(self, lost: EpisodeError | None) -> Grown:
        """The finished tree; it is dropped for the error, or when no rollout was finished."""
        task, tree, dropped, message = self.goal["task_id"], self.tree, None, ""
        if lost is not None:
            dropped, message = lost.kind.value, str(lost)
        elif not tree.root.visits:
            dropped, message = self.missing.value, f"{task}: no path could be finished: {self.missing.value}"
        ends = [node.turn.reward for node in tree.nodes if node.end]
        row = {
            "task_id": task,
            "environment": self.goal["environment"],
            "rollouts": tree.root.visits,
            "stopped": DROPPED if dropped else self.stopped,
            "best": max(ends, default=0.0),
            "worst": min(ends, default=0.0),
            "calls": self.calls,
            "tokens": self.tokens,
            "steps": self.steps,
            "replayed": self.replayed,
            "dropped": dropped,
            "message": message,
        }
        return Grown(row, [] if dropped else tree.rows(task))


def groups(goals: Sequence[Row], size: int) -> list[list[Row]]:
    """The tasks in the groups that grow together, in the order of their names."""
    ordered = sorted(goals, key=lambda goal: str(goal["task_id"]))
    return [ordered[start : start + size] for start in range(0, len(ordered), size)]


def code() -> str:
    """A hash of the library that trees come from: what is known of a tree holds for the code that grew it."""
    root = Path(moat.__file__).resolve().parent.parent
    scripts = [Path("moat/agent_r/search.py"), Path("moat/agent_r/worlds.py")]
    files = {*scripts, *(file for script in scripts for file in closure(script, root))}
    return combined({str(file): content_hash(root / file) for file in files})

"""A search tree over an actor's turns: from which node a rollout starts, and what it leaves behind.

    UCT(s) = Q(s) + c sqrt(ln N(parent) / N(s))

No model and no environment are asked here. A node is a turn with what came of it. What hangs below a node that is not
expanded is one rollout's path; when the node is expanded, the first turn of that path is one of its children, with the
visits and the value that it has.

A node is exhausted when nothing is left to try from it: a path ends at it and has been followed to there, or it is expanded
and all its children are exhausted.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

from moat.agent_r.play import Turn
from moat.agent_r.turns import normal

ROOT = "root"  # the kind of the root's turn, which nobody took


@dataclass(slots=True, eq=False)
class Node:
    """A turn in a tree, `depth` turns from the root; `n_tokens` and `logprob` (nats) are the turn's.

    `visits` counts the finished rollouts through it, `value` is the mean of their final rewards (Q). `end`: a path ends
    here. `simulated`: a rollout made it, and its parent is not expanded.
    """

    number: int
    parent: Node | None
    turn: Turn
    depth: int = 0
    n_tokens: int = 0
    logprob: float = 0.0
    end: bool = False
    simulated: bool = False
    expanded: bool = False
    exhausted: bool = False
    visits: int = 0
    value: float = 0.0
    children: list[Node] = field(default_factory=list)

    @property
    def turns(self) -> list[Turn]:
        """The turns from the root's first child to this one."""
        found, node = [], self
        while node.parent is not None:
            found.append(node.turn)
            node = node.parent
        return found[::-1]

    def child(self, kind: str, action: str) -> Node | None:
        """The child of an equal turn: of the same normalised action (trap 44); where there is none, of the same kind."""
        wanted = (kind, normal(action))
        return next((one for one in self.children if (one.turn.kind, normal(one.turn.action)) == wanted), None)


def uct(value: float, visits: int, parent_visits: int, c: float) -> float:
    """The upper confidence bound of a visited node."""
    return value + c * math.sqrt(math.log(parent_visits) / visits)


class Tree:
    """One task's tree, with its first observation at the root; a path ends after `depth` turns.

    `solved`: a rollout ended with the reward 1.
    """

    def __init__(self, first: str, depth: int, c: float) -> None:
        self.depth, self.c = depth, c
        self.root = Node(0, None, Turn("", ROOT, "", first, 0.0, 0.0, False, False, False))
        self.nodes = [self.root]
        self.solved = False

    def add(self, parent: Node, turn: Turn, n_tokens: int, logprob: float, simulated: bool) -> Node:
        """A new child; its number says how many nodes there were before."""
        depth = parent.depth + 1
        end = turn.terminal or depth >= self.depth
        node = Node(len(self.nodes), parent, turn, depth, n_tokens, logprob, end, simulated)
        parent.children.append(node)
        self.nodes.append(node)
        return node

    def select(self) -> Node:
        """Where to go on: from the root down the best children to a node that is not expanded.

        Children that are exhausted are passed over. Unvisited ones come first, in the order of making; then the one with the
        highest bound, of equals the first. Raises ValueError when the root is exhausted.
        """
        if self.root.exhausted:
            raise ValueError("nothing is left to try in this tree")
        node = self.root
        while node.expanded:
            left = [child for child in node.children if not child.exhausted]
            bounds = [uct(one.value, one.visits, node.visits, self.c) if one.visits else math.inf for one in left]
            node = left[bounds.index(max(bounds))]
        return node

    def expand(self, node: Node) -> None:
        """Say that a node has all the children it gets."""
        node.expanded = True
        for child in node.children:
            child.simulated = False
        self._settle(node)

    def close(self, node: Node) -> None:
        """Take a node out of the search, with all that is below it."""
        node.exhausted = True
        self._settle(node.parent)

    def back_up(self, last: Node) -> None:
        """A rollout has ended at `last`: its final reward goes to every node of its path, the root among them."""
        reward, node = last.turn.reward, last
        while True:
            node.visits += 1
            node.value += (reward - node.value) / node.visits
            if node.parent is None:
                break
            node = node.parent
        self.solved |= reward >= 1
        self._settle(last)

    def _settle(self, node: Node | None) -> None:
        """Mark what is exhausted, from a node towards the root; an end is one that was followed."""
        while node is not None:
            if not node.end and not (node.expanded and all(child.exhausted for child in node.children)):
                return
            node.exhausted = True
            node = node.parent

    def rows(self, task_id: str) -> list[dict[str, Any]]:
        """As the table of nodes holds it."""
        return [
            node.turn.row()
            | {
                "task_id": task_id,
                "node": node.number,
                "parent": node.parent.number if node.parent else None,
                "depth": node.depth,
                "kind": str(node.turn.kind),
                "end": node.end,
                "simulated": node.simulated,
                "visits": node.visits,
                "value": node.value,
                "n_tokens": node.n_tokens,
                "logprob": node.logprob,
            }
            for node in self.nodes
        ]

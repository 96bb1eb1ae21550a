"""The tools of every domain with what they read, and running actions with them.

What a domain's tools need beyond an action's arguments is opened once per stage: the corpus and its reader for `qa`, the
ranking of a page's elements for `web`, the shop for `webshop`. `arithmetic` and `maths` need nothing.

A tool that asks a model (QA) cannot do so in the midst of one program, or every question would be a batch of its own. So
programs run until a question is open, all open questions are asked in one batch, and the programs with an open question
run again with its answer known; tools give equal results for equal arguments, so running again changes nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from moat.executor import Execution, Outcome, execute, outcome
from moat.sources.base import Metric
from moat.stage import Stage
from moat.tools.base import Tool
from moat.tools.maths import CALCULATOR_TOOLS, MATHS_TOOLS
from moat.turns import history


@dataclass(frozen=True, slots=True)
class Goal:
    """What actions are run against: the tools' domain and context, the actions of earlier turns, the gold answer."""

    domain: str
    gold_answer: str
    metric: Metric = Metric.NUMBER
    context: str = ""
    earlier: tuple[str, ...] = ()


def goal_of(row: Mapping[str, Any]) -> Goal:
    """What the actions of a task's row are run against; for a turn, after the gold turns before it."""
    earlier = tuple(turn.actions for turn in history(row) or ())
    return Goal(row["domain"], row["gold_answer"], Metric(row["metric"]), row["context"], earlier)


class Toolbox:
    """Runs actions with the real tools of their domain."""

    def __init__(self) -> None:
        self._plain: Mapping[str, Mapping[str, Tool]] = {"arithmetic": CALCULATOR_TOOLS, "maths": MATHS_TOOLS}

    def knows(self, domain: str) -> bool:
        """Whether there are tools to run this domain's actions with."""
        return domain in self._plain

    def execute(self, actions: str, goal: Goal) -> Execution:
        """Run one action text."""
        return self.run([(actions, goal)])[0]

    def outcome(self, actions: str, goal: Goal) -> Outcome:
        """What one action text comes to."""
        return outcome(self.execute(actions, goal), goal.gold_answer, goal.metric)

    def run(self, programs: Sequence[tuple[str, Goal]]) -> list[Execution]:
        """Run every action text, in order; the actions of earlier turns are run before it, for their results."""
        return [self._run(actions, goal) for actions, goal in programs]

    def _run(self, actions: str, goal: Goal) -> Execution:
        tools = self._plain[goal.domain]
        known: dict[str, str] = {}
        for text in goal.earlier:
            known |= execute(text, tools, known).results
        return execute(actions, tools, known)


def open_toolbox(stage: Stage, domains: Iterable[str]) -> Toolbox:
    """The tools that a stage's tasks need, opened with what they read."""
    return Toolbox()

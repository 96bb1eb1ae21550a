"""Iterative planning, played: the planner names a subgoal, the grounder acts on it, the result is told, until it stops.

All episodes go on together, a turn at a time, so that model calls are batched; an episode that has ended costs nothing more.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from moat.acting import Act, Request, act
from moat.engines.base import DecodingParams, decoding_of
from moat.executor import Execution, Outcome, outcome
from moat.rows import Runner
from moat.stage import Advance
from moat.tokens import Renderer
from moat.toolbox import Goal, Toolbox
from moat.turns import STOP, Done, planned, subgoal_of


@dataclass
class Episode:
    """A task that is played.

    `turns` are those that have been acted on, the last of them with a blank result when its actions failed. `outcome` is
    None while the episode goes on.
    """

    text: str
    goal: Goal
    turns: list[Done] = field(default_factory=list)
    outcome: Outcome | None = None
    answer: str | None = None
    message: str = ""

    @property
    def actions(self) -> tuple[str, ...]:
        """The actions of all turns so far."""
        return tuple(turn.actions for turn in self.turns)

    def end(self, came: Outcome, message: str) -> None:
        """End without an answer."""
        self.outcome, self.answer, self.message = came, None, message


Seed = Callable[[int, int], int]  # (index of the episode, turn) -> seed
Plan = Callable[[list[int]], list[str | None]]  # indices of the episodes that go on -> the planner's answers


def planner(runner: Runner, renderer: Renderer, episodes: Sequence[Episode], how: DecodingParams, seed: Seed) -> Plan:
    """Ask the planner's model for the next subgoals."""
    decoding = decoding_of(how)

    def plan(live: list[int]) -> list[str | None]:
        prompts = [renderer.planner_prompt(episodes[i].text, episodes[i].turns) for i in live]
        seeds = [seed(i, len(episodes[i].turns)) for i in live]
        made = runner.generate(prompts, seeds, decoding, lambda n: None)
        return [None if one is None else renderer.decode(one.ids) for one in made]

    return plan


def script(episodes: Sequence[Episode], subgoals: Sequence[Sequence[str]]) -> Plan:
    """Subgoals that are there already (another task's), turn by turn, then the decision to stop."""

    def plan(live: list[int]) -> list[str | None]:
        places = [(len(episodes[index].turns), subgoals[index]) for index in live]
        return [planned(turn + 1, given[turn]) if turn < len(given) else STOP for turn, given in places]

    return plan


def play(
    episodes: Sequence[Episode],
    plan: Plan,
    grounder: Runner,
    renderer: Renderer,
    toolbox: Toolbox,
    how: DecodingParams,
    max_turns: int,
    seed: Seed,
    advance: Advance,
) -> None:
    """Play every episode to its end.

    An episode ends when the planner stops (its answer is the last result), when actions fail (the failure is its outcome),
    when the engine fails on it, and when it has had `max_turns` turns and the planner would go on.
    """
    for turn in range(max_turns + 1):
        live = [index for index, episode in enumerate(episodes) if episode.outcome is None]
        asked: list[tuple[int, str]] = []
        for index, said in zip(live, plan(live) if live else [], strict=True):
            episode = episodes[index]
            subgoal = None if said is None else subgoal_of(said)
            if said is None:
                episode.end(Outcome.UNANSWERED, "the engine failed on the planner's request")
            elif subgoal is None:
                _stop(episode)
            elif not subgoal:
                episode.end(Outcome.EMPTY, "the planner named no subgoal")
            elif turn == max_turns:
                episode.end(Outcome.TURN_LIMIT, f"no decision to stop within {max_turns} turns")
            else:
                asked.append((index, subgoal))
        requests = [
            Request(
                episodes[index].text,
                subgoal,
                replace(episodes[index].goal, earlier=episodes[index].actions),
                seed(index, turn),
                tuple(episodes[index].turns),
            )
            for index, subgoal in asked
        ]
        for (index, subgoal), made in zip(
            asked, act(grounder, renderer, toolbox, requests, how, lambda n: None), strict=True
        ):
            _act(episodes[index], subgoal, made)
        advance(sum(episodes[index].outcome is not None for index in live))


def _stop(episode: Episode) -> None:
    """The planner has stopped: the last result is the answer."""
    if not episode.turns:
        episode.end(Outcome.EMPTY, "the planner stopped before its first subgoal")
        return
    goal = episode.goal
    episode.outcome = outcome(Execution(episode.answer, None, "", ()), goal.gold_answer, goal.metric)


def _act(episode: Episode, subgoal: str, made: Act) -> None:
    """A turn's actions: on with their result, or the end."""
    failed = made.execution.answer is None
    if made.finish_reason is not None:
        episode.turns.append(Done(subgoal, made.actions, "" if failed else made.execution.results[-1][1]))
    if failed:
        episode.end(made.outcome, made.execution.message)
    episode.answer = made.execution.answer

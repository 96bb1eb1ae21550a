"""Tasks played by an actor, from their first observation or on from turns that were taken before; many at once.

What a play is lost to, it is dropped for and named: an environment that answers differently than recorded, or fails, a task
that it does not know, an engine that gave no turn. A package or a server that is not there ends all of them at once.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from moat.agent_r import losses
from moat.agent_r.actor import Actor, Answers, Missing, Request, conversation, together
from moat.agent_r.play import Play, Turn
from moat.agent_r.turns import Kind
from moat.environments.base import Environment, EpisodeError
from moat.react import Several
from moat.stage import Advance

TERMINAL, TURNS, LENGTH = "terminal", "turns", "length"  # how a play ends that is not dropped
NAMED = 5  # plays that the screen names as dropped


@dataclass(frozen=True, slots=True)
class Start:
    """Where a play begins: at a task's first observation, or after turns that were taken before (`given`)."""

    play_id: str
    task_id: str
    environment: str
    kind: str
    instruction: str
    first: str
    given: tuple[Turn, ...] = ()


@dataclass(frozen=True, slots=True)
class Played:
    """A play that has ended. `turns` are those of the actor who was asked; the rewards are those at the end."""

    start: Start
    turns: tuple[Turn, ...]
    reward_raw: float
    reward: float
    ended: str
    dropped: str | None = None
    message: str = ""

    def row(self) -> dict[str, Any]:
        """As the table of plays holds it."""
        start = self.start
        return {
            "play_id": start.play_id,
            "task_id": start.task_id,
            "environment": start.environment,
            "kind": start.kind,
            "given": len(start.given),
            "turns": [turn.row() for turn in self.turns],
            "reward_raw": self.reward_raw,
            "reward": self.reward,
            "success": self.reward >= 1,
            "ended": self.ended,
            "n_turns": len(self.turns),
            "n_reflections": sum(turn.kind == Kind.REFLECTION for turn in self.turns),
            "n_invalid": sum(turn.refused or turn.kind == Kind.UNREADABLE for turn in self.turns),
            "n_repeated": sum(turn.repeated for turn in self.turns),
            "dropped": self.dropped,
            "message": self.message,
        }


def play(
    start: Start, environment: Environment, several: Several, max_turns: int, seed: Callable[[int], int]
) -> Generator[list[Request], Answers, Played]:
    """Play one task for at most `max_turns` turns beyond those given; `seed` gives the one of each turn, from 0.

    The first observation and the answers to the given turns must be the recorded ones. A conversation that has grown over
    max_length ends the play, and its rewards are those so far. Raises EpisodeError where no play is possible.
    """
    given = len(start.given)
    turns = start.given
    dropped, message, ended = None, "", TURNS
    try:
        with Play(environment, several, given + max_turns) as going:
            going.bring_back(start.task_id, start.first, start.given)
            while not going.over:
                said = [(turn.text, turn.observation) for turn in turns]
                (answer,) = yield [Request(conversation(start.instruction, start.first, said), seed(len(turns) - given))]
                if answer is Missing.LENGTH:
                    ended = LENGTH
                    break
                if isinstance(answer, Missing):
                    dropped, message = str(answer), f"{start.task_id}: the engine gave no turn after {len(turns)} turns"
                    break
                turns = (*turns, going.say(answer.text))
            if going.terminal:
                ended = TERMINAL
    except EpisodeError as error:
        if error.kind not in losses.LOST:
            raise
        dropped, message = str(error.kind), str(error)
    raw, reward = (turns[-1].reward_raw, turns[-1].reward) if turns else (0.0, 0.0)
    return Played(start, turns[given:], raw, reward, dropped or ended, dropped, message)


def rollouts(
    starts: Sequence[Start],
    environments: Mapping[str, Environment],
    actor: Actor,
    several: Several,
    max_turns: int,
    seed: Callable[[Start, int], int],
    at_once: int,
    advance: Advance,
) -> list[Played]:
    """Play all of them, `at_once` together, in order; `seed` gives that of a play's turn, from 0. Raises as `play`."""

    def one(start: Start) -> Generator[list[Request], Answers, Played]:
        played = yield from play(start, environments[start.environment], several, max_turns, lambda turn: seed(start, turn))
        advance(1)
        return played

    groups = [starts[number : number + at_once] for number in range(0, len(starts), at_once)]
    return [played for group in groups for played in together([one(start) for start in group], actor)]


def count_drops(played: Sequence[Played], allowed: float, warn: Callable[[str], None]) -> dict[str, int]:
    """How many plays were dropped, by reason; the first ones are named through `warn`.

    Raises LostError when they are more than `allowed`, a share of all.
    """
    lost = [one for one in played if one.dropped is not None]
    named = [(str(one.dropped), one.message) for one in lost]
    losses.check(named, "plays", len(played), allowed, "What was said is kept: mend the cause, and run again")
    for one in lost[:NAMED]:
        warn(f"{one.start.play_id} is dropped ({one.dropped}): {one.message}")
    if len(lost) > NAMED:
        warn(f"{len(lost) - NAMED:,} more are dropped; the table names them")
    return dict(sorted(Counter(reason for reason, _ in named).items()))

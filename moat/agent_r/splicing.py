"""Revisions: a bad path up to its turning point, a reflection, and then what a good path does after the common history.

The turning point is the first step that was judged bad at or after the divergence. One in the common history is none: the
good path took it too, so that "I was wrong" would be followed by the same again (trap 38). It moves back over what no
reflection can follow: the step that ended the episode, where the splice is replayed, and another reflection.

Under `required` the splice happens: the bad turns bring back the state, compared with the record, then reflection and good
turns are said, and what the environment answers is what is stored (trap 39). It is kept when it is good by alpha and the bad
path's reward is beta below. Under `off`, the paper's textual splice, nothing is executed: the good path's observations stand
as they were recorded, and so does its reward.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import dropwhile

from moat.agent_r.judges import Label
from moat.agent_r.losses import LOST
from moat.agent_r.params import Pairs, good
from moat.agent_r.paths import Pair, apart
from moat.agent_r.play import Play, Turn
from moat.agent_r.turns import ACKNOWLEDGED, Kind
from moat.environments.base import Environment, EpisodeError
from moat.react import Several

NO_TURN = "no bad step after the common history"
NOTHING_LEFT = "no bad step before the end of the episode or a reflection"
NOT_GOOD = "replayed: not over alpha"
NOT_BETTER = "replayed: not over the bad path by beta"


@dataclass(frozen=True, slots=True)
class Spliced:
    """A pair's revision, as far as it went. `turn` and `reflection` are None, and `turns` empty, where there is none.

    `reward` is what the replay came to, and of what was not replayed the good path's. `dropped` says why it is not used.
    """

    turn: int | None
    reflection: int | None
    turns: tuple[Turn, ...]
    replayed: bool
    reward: float
    dropped: str | None
    message: str


def first_bad(labels: Sequence[Label]) -> int | None:
    """The first step of a path that was judged bad, wherever it is."""
    return next((number for number, label in enumerate(labels) if label is Label.BAD), None)


def turning_point(pair: Pair, labels: Sequence[Label] | None, at_end: bool, replayed: bool) -> int | str:
    """The last turn of a pair's bad path that is kept, from 0, or why there is none.

    `labels` are those of its steps; None: there is no judge, and it turns at its end.
    `at_end`: so does one without a bad step after the common history. `replayed`: it turns before a step that ended it.
    """
    turns, shared = pair.bad.turns, pair.shared
    turn = len(turns) - 1
    if labels is not None:
        found = first_bad(labels[shared:])
        if found is None and not at_end:
            return NO_TURN
        turn = turn if found is None else shared + found
    while turn >= shared and ((replayed and turns[turn].terminal) or turns[turn].kind == Kind.REFLECTION):
        turn -= 1
    return turn if turn >= shared else NOTHING_LEFT


def continuation(pair: Pair) -> tuple[Turn, ...]:
    """What the good path does after the common history; a reflection with which it begins is left out, as one was said."""
    return tuple(dropwhile(lambda turn: turn.kind == Kind.REFLECTION, pair.good.turns[pair.shared :]))


def unspliced(pair: Pair, dropped: str, message: str) -> Spliced:
    """A pair without a revision, and why."""
    return Spliced(None, None, (), False, pair.good.reward, dropped, message)


def textual(pair: Pair, turn: int, reflection: str) -> Spliced:
    """The splice as a text: nothing is executed, and what was recorded stands."""
    kept = pair.bad.turns[: turn + 1]
    said = replace(
        kept[-1],
        text=reflection,
        kind=Kind.REFLECTION.value,
        action="",
        observation=ACKNOWLEDGED,
        terminal=False,
        refused=False,
        repeated=False,
    )
    turns = (*kept, said, *continuation(pair))
    return Spliced(turn, turn + 1, turns, False, pair.good.reward, None, "")


def replayed(
    pair: Pair,
    turn: int,
    reflection: str,
    *,
    environment: Environment,
    several: Several,
    task: str,
    first: str,
    alpha: float,
    settings: Pairs,
) -> Spliced:
    """The splice as it happens in the environment, up to the episode's end; `first` is the first observation.

    What the environment fails on, or answers differently than recorded, is dropped by reason, with the task and the step.
    """
    try:
        with Play(environment, several, sys.maxsize) as play:
            play.bring_back(task, first, pair.bad.turns[: turn + 1])
            play.say(reflection)
            for one in continuation(pair):
                if play.terminal:
                    break
                play.say(one.text)
            turns, reward = tuple(play.turns), play.reward
    except EpisodeError as error:
        if error.kind not in LOST:
            raise
        return unspliced(pair, error.kind.value, str(error))
    dropped = message = None
    if not good(reward, alpha):
        dropped, message = NOT_GOOD, f"{task}: the splice ends with {reward:g}, which is no good path's reward"
    elif not apart(pair.bad.reward, reward, settings.beta, settings.beta_rule):
        dropped, message = NOT_BETTER, f"{task}: the splice ends with {reward:g}, the bad path with {pair.bad.reward:g}"
    return Spliced(turn, turn + 1, turns, True, reward, dropped, message or "")

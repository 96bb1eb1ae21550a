"""What every environment is: something that has tasks, and episodes that take actions as text and answer with text.

    with TextCraft() as environment, environment.episode() as episode:
        text = episode.reset("textcraft/oak_sign")
        step = episode.step("get 2 oak logs")

A task's id is a stable name that begins with the environment's: the same task is the same text in every process and on every
machine. The observation is what the environment answers, word for word; so is `reward_raw`, its score so far.
`reward` is that score on the scale from 0 to 1 that thresholds and search use, and a penalty is 0. Rewards are
numbers here: what an environment gives as text is converted where it comes in, and compared nowhere as text (trap 37).

An episode ends when the environment ends it (`terminal`) or after `horizon` steps, which is the caller's bound: the
environments' own step limits are not used. A step after the end is an error. An action that the environment does not know
goes to it all the same, and its answer is the observation.

Going back to an earlier state is a replay: `rebuild` takes the recorded actions again and compares every answer with the
record, `clone` makes a second episode in the same state. Where `cheap_clone` is true that is a copy, elsewhere a
replay on its own. A replay that answers differently is an EpisodeError that names the task and the step.
"""

from __future__ import annotations

import re
import sys
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from types import TracebackType
from typing import Self


class EpisodeErrorKind(StrEnum):
    """What went wrong with an environment; the first three are about a task, the others about the machine."""

    UNKNOWN_TASK = "unknown_task"  # there is no task of that name
    OVER = "over"  # a step before the first reset, or after the end
    REPLAY = "replay"  # the environment answers differently when the same actions are taken again
    MISSING = "missing"  # a package or Java is not installed
    UNREACHABLE = "unreachable"  # no server there, or one that does not answer
    FAULT = "fault"  # the environment itself fails: its answer is an error, or none that can be read


class EpisodeError(RuntimeError):
    """A task or an environment that cannot be used; `task` is empty where no task is concerned."""

    def __init__(self, kind: EpisodeErrorKind, environment: str, task: str, what: str) -> None:
        super().__init__(f"{task or environment}: {what}")
        self.kind = kind
        self.environment = environment
        self.task = task


@dataclass(frozen=True, slots=True)
class Step:
    """One action and what came of it.

    `reward_raw` is the environment's score so far in its own unit, `reward` the same from 0 to 1. `terminal`: the
    environment ended the episode; `done`: it is over, for that reason or because the horizon is reached.
    """

    action: str
    observation: str
    reward_raw: float
    reward: float
    terminal: bool
    done: bool


class Episode(ABC):
    """One episode at a time, of any task of its environment. Not for two threads at once."""

    cheap_clone = False

    def __init__(self, environment: Environment) -> None:
        self.environment = environment
        self.horizon = environment.horizon  # of all steps from the reset; may be set
        self.task = ""
        self.first = ""  # the first observation
        self.steps: list[Step] = []

    @property
    def reward(self) -> float:
        """The scaled score so far, 0 before the first step."""
        return self.steps[-1].reward if self.steps else 0.0

    @property
    def done(self) -> bool:
        """Whether the episode is over."""
        return bool(self.steps) and self.steps[-1].done

    def reset(self, task: str) -> str:
        """Begin a task; returns the first observation. Raises EpisodeError, UNKNOWN_TASK for a name that is none."""
        self.task, self.first, self.steps = "", "", []
        self.first = self._reset(task)
        self.task = task
        return self.first

    def step(self, action: str) -> Step:
        """Take one action. Raises EpisodeError, OVER before a reset and after the end."""
        if not self.task:
            raise self.error(EpisodeErrorKind.OVER, "no task has begun: reset the episode first")
        if self.done:
            raise self.error(EpisodeErrorKind.OVER, f"the episode is over after {len(self.steps)} steps: reset it first")
        observation, raw, terminal = self._step(action)
        done = terminal or len(self.steps) + 1 >= self.horizon
        step = Step(action, observation, float(raw), self.environment.scale(float(raw)), terminal, done)
        self.steps.append(step)
        return step

    def replay(self, task: str, actions: Iterable[str]) -> str:
        """Begin a task and take actions; returns the first observation, the answers are in `steps`. Raises EpisodeError."""
        first = self.reset(task)
        for action in actions:
            self.step(action)
        return first

    def rebuild(self, task: str, first: str, steps: Sequence[Step]) -> None:
        """Bring back a recorded state: take its actions again, and require its answers.

        Raises EpisodeError, REPLAY naming the task and the first step whose answer is another than recorded.
        """
        self.begin_again(task, first)
        for number, recorded in enumerate(steps, 1):
            self.take_again(recorded, f"step {number} of {len(steps)}")

    def begin_again(self, task: str, first: str) -> None:
        """Begin a recorded task. Raises EpisodeError, REPLAY when its first observation is another than recorded."""
        if self.reset(task) != first:
            raise self.error(EpisodeErrorKind.REPLAY, _differs("the first observation", first, self.first))

    def take_again(self, recorded: Step, place: str) -> Step:
        """Take a recorded step's action. Raises EpisodeError, REPLAY naming `place` when it is answered differently."""
        step, place = self.step(recorded.action), f"{place}, {recorded.action!r},"
        if step.observation != recorded.observation:
            raise self.error(EpisodeErrorKind.REPLAY, _differs(place, recorded.observation, step.observation))
        if (step.reward_raw, step.terminal) != (recorded.reward_raw, recorded.terminal):
            was, now = (f"{one.reward_raw:g}{' (the end)' * one.terminal}" for one in (recorded, step))
            raise self.error(EpisodeErrorKind.REPLAY, f"{place} scored {was} when recorded and {now} now")
        return step

    def state(self) -> str:
        """A text that tells states apart, for counting repeats; where nothing better is known, the last observation."""
        return self.steps[-1].observation if self.steps else self.first

    def clone(self) -> Episode:
        """Another episode in the same state; each goes its own way from here. Raises EpisodeError, as `rebuild`."""
        other = self.environment.episode()
        other.horizon = self.horizon
        try:
            if self.task:
                other.rebuild(self.task, self.first, self.steps)
        except BaseException:
            other.close()
            raise
        return other

    def close(self) -> None:  # noqa: B027 - some hold nothing
        """Give back what the episode holds. A closed episode cannot be used."""

    def error(self, kind: EpisodeErrorKind, what: str) -> EpisodeError:
        """An error of this episode's task."""
        return EpisodeError(kind, self.environment.name, self.task, what)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        try:
            self.close()
        except EpisodeError as second:
            if error is None:
                raise
            error.add_note(f"and the episode could not be closed: {second}")  # what went wrong first is what matters

    @abstractmethod
    def _reset(self, task: str) -> str:
        """Begin; the first observation."""

    @abstractmethod
    def _step(self, action: str) -> tuple[str, float, bool]:
        """Take an action: the observation, the environment's score so far, and whether it ended the episode."""


class Environment(ABC):
    """Where episodes come from. Use it in a `with` block: some hold a process or connections.

    `horizon` is the largest number of steps of an episode, and every episode's to begin with.
    """

    name: str

    def __init__(self, horizon: int = 100) -> None:
        if horizon < 1:
            raise ValueError(f"horizon is {horizon}; an episode has 1 step or more")
        self.horizon = horizon

    @abstractmethod
    def episode(self) -> Episode:
        """A new episode, not yet reset. Raises EpisodeError."""

    @abstractmethod
    def scale(self, raw: float) -> float:
        """The environment's score as a reward from 0 to 1."""

    @abstractmethod
    def gold(self, task: str) -> tuple[str, ...] | None:
        """Actions that solve a task, the same at each call, None where none are known; the horizon is not looked at.

        Raises EpisodeError, UNKNOWN_TASK for a name that is none.
        """

    def refused(self, observation: str) -> bool:
        """Whether an answer says that there is no such action, or that it cannot be done here."""
        return False

    def solving(self, task: str, actions: Iterable[str]) -> tuple[str, ...] | None:
        """The actions up to the one that ends the task with full reward, None if none does. Raises EpisodeError."""
        with self.episode() as episode:
            episode.horizon = sys.maxsize
            episode.reset(task)
            for action in actions:
                if episode.step(action).terminal:
                    return tuple(step.action for step in episode.steps) if episode.reward == 1 else None
        return None

    def close(self) -> None:  # noqa: B027 - some hold nothing
        """Give back what the environment holds."""

    def unknown(self, task: str, remedy: str) -> EpisodeError:
        """The error for a name that is no task's."""
        what = f"there is no such task in {self.name}; {remedy}"
        return EpisodeError(EpisodeErrorKind.UNKNOWN_TASK, self.name, task, what)

    def part(self, task: str, remedy: str) -> str:
        """A task's name without the environment's. Raises EpisodeError, UNKNOWN_TASK, where that is missing."""
        name, slash, part = task.partition("/")
        if name != self.name or not slash:
            raise self.unknown(task, remedy)
        return part

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()


def share(raw: float, full: float) -> float:
    """`raw` as a share of `full`, not below 0 nor above 1."""
    return min(max(raw / full, 0.0), 1.0)


def whole_number(text: str) -> int | None:
    """The number that a part of a task's name says, None for anything but a number's one usual spelling, as `17`."""
    return int(text) if re.fullmatch("0|[1-9][0-9]{0,8}", text) else None


def _differs(place: str, recorded: str, answered: str) -> str:
    """What is said of two texts that should be equal, from where they part."""
    pairs = enumerate(zip(recorded, answered, strict=False))
    same = next((place for place, (one, other) in pairs if one != other), min(len(recorded), len(answered)))
    start = max(same - 20, 0)
    return f"{place} read {recorded[start : start + 80]!r} when recorded and {answered[start : start + 80]!r} now"

"""A task that an actor plays: its conversation with an environment, turn by turn, and the same from a record of it."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any, Self

from moat.agent_r.turns import Kind, read
from moat.environments.base import Environment, Episode, Step
from moat.react import Several


@dataclass(frozen=True, slots=True)
class Turn:
    """What the actor said, what it was read as, and what came of it.

    `action` is empty where there is none; then no step was taken in the environment, and the rewards are as before.
    `refused`: the environment said that there is no such action, or that it cannot be done. `repeated`: the same action had
    been taken in the same state before.
    """

    text: str
    kind: str
    action: str
    observation: str
    reward_raw: float
    reward: float
    terminal: bool
    refused: bool
    repeated: bool

    @property
    def step(self) -> Step:
        """What it was in the environment; of an action alone."""
        return Step(self.action, self.observation, self.reward_raw, self.reward, self.terminal, self.terminal)

    def row(self) -> dict[str, Any]:
        """As tables hold it."""
        return asdict(self)

    @classmethod
    def of(cls, row: Mapping[str, Any]) -> Self:
        """From a table."""
        return cls(**{name: row[name] for name in cls.__dataclass_fields__})


class Play:
    """One task in one episode. `turns` are those taken so far; `max_turns` of them end it.

    `taken` counts the environment's steps, `replayed` those among them that only brought back a state.
    """

    def __init__(self, environment: Environment, several: Several, max_turns: int) -> None:
        self.environment = environment
        self.several = several
        self.max_turns = max_turns
        self.turns: list[Turn] = []
        self.taken = self.replayed = 0
        self._episode: Episode = environment.episode()
        self._episode.horizon = sys.maxsize  # turns are what is bounded, and they are counted here
        self._tried: set[tuple[str, str]] = set()

    @property
    def task(self) -> str:
        """The task's name."""
        return self._episode.task

    @property
    def first(self) -> str:
        """The first observation."""
        return self._episode.first

    @property
    def reward(self) -> float:
        """The scaled score so far."""
        return self.turns[-1].reward if self.turns else 0.0

    @property
    def copies(self) -> bool:
        """Whether `fork` is a copy; elsewhere it takes all steps again."""
        return self._episode.cheap_clone

    @property
    def terminal(self) -> bool:
        """Whether the environment has ended it."""
        return bool(self.turns) and self.turns[-1].terminal

    @property
    def over(self) -> bool:
        """Whether it has ended, by the environment or by its turns."""
        return self.terminal or len(self.turns) >= self.max_turns

    def begin(self, task: str) -> str:
        """Start a task; returns the first observation. Raises EpisodeError."""
        self.turns, self._tried = [], set()
        return self._episode.reset(task)

    def say(self, text: str) -> Turn:
        """Take a turn. Raises EpisodeError, and ValueError when the play is over."""
        return self._take(text, self._episode.step)

    def _take(self, text: str, act: Callable[[str], Step]) -> Turn:
        if self.over:
            raise ValueError(f"{self.task}: the play is over after {len(self.turns)} turns")
        before = self.turns[-1] if self.turns else None
        said = read(text, self.several, Kind(before.kind) if before else None)
        if said.action is None:
            raw = before.reward_raw if before else 0.0
            turn = Turn(text, said.kind, "", said.answer or "", raw, self.reward, False, False, False)
        else:
            here = (self._episode.state(), said.action)
            self.taken += 1
            step = act(said.action)
            refused = self.environment.refused(step.observation)
            repeated = here in self._tried
            self._tried.add(here)
            turn = Turn(
                text,
                said.kind,
                said.action,
                step.observation,
                step.reward_raw,
                step.reward,
                step.terminal,
                refused,
                repeated,
            )
        self.turns.append(turn)
        return turn

    def bring_back(self, task: str, first: str, turns: Sequence[Turn]) -> None:
        """Bring back a recorded state: take its actions again, and require the recorded answers.

        Raises EpisodeError, REPLAY naming the task and the step where the environment answers differently.
        """
        self.turns, self._tried = [], set()
        self._episode.begin_again(task, first)
        for number, turn in enumerate(turns, 1):
            self._take(turn.text, partial(self._again, turn, f"turn {number} of {len(turns)}"))

    def _again(self, recorded: Turn, place: str, action: str) -> Step:
        self.replayed += 1
        return self._episode.take_again(recorded.step, place)

    def fork(self) -> Play:
        """Another play in the same state; each goes its own way from here. Raises EpisodeError."""
        other = Play.__new__(Play)
        other.environment, other.several, other.max_turns = self.environment, self.several, self.max_turns
        other.turns, other._tried = list(self.turns), set(self._tried)
        other.taken = other.replayed = 0 if self._episode.cheap_clone else len(self._episode.steps)
        other._episode = self._episode.clone()
        return other

    def close(self) -> None:
        """Give back what the episode holds."""
        self._episode.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

"""An episode with an environment, whatever stands behind it: a shop in this process or a server.

A session is reset to a task, takes actions as text, and is done when the environment says so. Its reward, from 0 to 1, is
what the environment gave with the last action. `episode_reward` is what an episode is graded by, `reward_metrics` what
a set of episodes comes to: WebShop's score is the mean over all episodes, the unfinished and failed ones as 0 (an average
over finished episodes alone rewards giving up, trap 36).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from statistics import fmean
from typing import Protocol

SOLVED = 1.0 - 1e-6  # a reward from here on is full: it has passed through six decimals


@dataclass(frozen=True, slots=True)
class Observed:
    """What came of an action: the text seen, the reward so far (0 to 1), and whether the episode is over."""

    observation: str
    reward: float
    done: bool


@dataclass(frozen=True, slots=True)
class Available:
    """What can be done on a shop's page: whether it has a search bar, and what can be clicked, in the page's order."""

    search: bool
    clickables: tuple[str, ...]


class Session(Protocol):
    """One episode at a time. A step after the end is an error, not an empty answer."""

    @property
    def reward(self) -> float:
        """The reward that came with the last action, 0 before the first."""

    @property
    def done(self) -> bool:
        """Whether the episode is over."""

    def reset(self, task: int) -> str:
        """Begin the episode of a task; returns the first observation."""

    def step(self, action: str) -> Observed:
        """Take one action."""

    def observe(self) -> str:
        """The present observation, without an action."""

    def available_actions(self) -> Available:
        """What can be done now."""

    def close(self) -> None:
        """Give the session back. A closed session cannot be used."""


@dataclass(frozen=True, slots=True)
class RewardMetrics:
    """`mean_reward` and `success_rate` are over all `n` episodes; `unfinished` of them had no reward and count as 0."""

    n: int
    unfinished: int
    mean_reward: float
    success_rate: float


def episode_reward(session: Session) -> float:
    """What the episode is worth: its reward if it is over, 0 if it is not."""
    return session.reward if session.done else 0.0


def format_reward(reward: float) -> str:
    """A reward as text, up to six decimals: `1`, `0.75`, `0.666667`."""
    return f"{reward:.6f}".rstrip("0").rstrip(".")


def reward_metrics(rewards: Iterable[float | None]) -> RewardMetrics:
    """Over all episodes; None is one that was not finished, or failed. Raises ValueError for none, or beyond 0 to 1."""
    given = list(rewards)
    if not given:
        raise ValueError("no episodes to average")
    for number, reward in enumerate(given, 1):
        if reward is not None and not 0 <= reward <= 1:
            raise ValueError(f"episode {number}: the reward {reward} is not from 0 to 1")
    worth = [reward or 0.0 for reward in given]
    return RewardMetrics(
        n=len(given),
        unfinished=sum(reward is None for reward in given),
        mean_reward=fmean(worth),
        success_rate=fmean(reward >= SOLVED for reward in worth),
    )

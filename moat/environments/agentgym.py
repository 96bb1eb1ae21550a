"""The environments of AgentGym's servers, behind the interface of this package; the protocol is `moat.agentgym`'s.

A task is the environment's number in the server's list: `agentgym_sciworld/17`. How a server numbers its tasks, and whether
a task is the same text each time, is the server's affair: a replay compares, and says where it is not.

A step whose answer was lost is not sent again, as it may have been taken. Instead a new session is begun, the episode is
brought back to where it was, its answers compared, and the step taken there. A session that the server has forgotten is
replaced at the next reset. Sessions are closed with their episodes, the last of them with the environment.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable

from moat.agentgym import AgentGymSession, Server, ServerError, ServerErrorKind
from moat.environments.base import Environment, Episode, EpisodeError, EpisodeErrorKind, share, whole_number

RECOVERIES = 3  # of one step
_LOST = (ServerErrorKind.CONNECTION, ServerErrorKind.TIME, ServerErrorKind.STATUS)
_REMEDY = "a task is the number of one in the server's list"


class AgentGym(Environment):
    """What a server offers. The reward's unit is the environment's: 1, or ScienceWorld's 100 with penalties as 0."""

    def __init__(self, server: Server, horizon: int = 100) -> None:
        super().__init__(horizon)
        self.server = server
        self.name = f"agentgym_{server.environment}"
        self._open: set[AgentGymEpisode] = set()

    def episode(self) -> AgentGymEpisode:
        """A new episode; its session is begun with the first reset."""
        episode = AgentGymEpisode(self)
        self._open.add(episode)
        return episode

    def scale(self, raw: float) -> float:
        """The score over the environment's full one; a penalty is 0."""
        return share(raw, self.server.protocol.reward_unit)

    def tasks(self, numbers: Iterable[int]) -> tuple[str, ...]:
        """The tasks of these numbers."""
        return tuple(f"{self.name}/{number}" for number in numbers)

    def refused(self, observation: str) -> bool:
        """Whether an answer begins as the environments' own refusals do."""
        return observation.startswith(("Could not ", "Wrong item format", "No known action matches", "Unknown action"))

    def gold(self, task: str) -> tuple[str, ...] | None:
        """None: the servers tell no gold actions."""
        self.number(task)
        return None

    def number(self, task: str) -> int:
        """A task's number. Raises EpisodeError, UNKNOWN_TASK."""
        number = whole_number(self.part(task, _REMEDY))
        if number is None:
            raise self.unknown(task, _REMEDY)
        return number

    def close(self) -> None:
        """Close the sessions that are still open, all of them; then raises EpisodeError for the first that failed to."""
        errors = []
        for episode in list(self._open):
            try:
                episode.close()
            except EpisodeError as error:
                errors.append(error)
        if errors:
            raise errors[0]

    def forget(self, episode: AgentGymEpisode) -> None:
        """An episode that has closed."""
        self._open.discard(episode)


class AgentGymEpisode(Episode):
    """An episode in a session of its own."""

    environment: AgentGym

    def __init__(self, environment: AgentGym) -> None:
        super().__init__(environment)
        self._session: AgentGymSession | None = None

    def close(self) -> None:
        """Let the server drop the session. Raises EpisodeError."""
        self.environment.forget(self)
        session, self._session, self.task = self._session, None, ""
        if session is not None:
            try:
                session.close()
            except ServerError as error:
                raise self._error(error) from error

    def _reset(self, task: str) -> str:
        number = self.environment.number(task)
        try:
            if self._session is not None:
                try:
                    return self._session.reset(number)
                except ServerError as error:
                    if error.kind is not ServerErrorKind.REFUSED:
                        raise
                self._abandon()  # it may be the session that it does not know
            self._session = self.environment.server.create()
            return self._session.reset(number)
        except ServerError as error:
            if error.kind is ServerErrorKind.REFUSED and error.endpoint == "/reset":
                raise self.environment.unknown(task, str(error)) from error
            raise self._error(error, task) from error

    def _step(self, action: str) -> tuple[str, float, bool]:
        recoveries = 0
        while True:
            try:
                return self._take(action)
            except ServerError as error:
                if error.kind not in _LOST or recoveries == RECOVERIES:
                    fault = self._error(error)
                    if error.kind in _LOST:
                        self.task = ""  # nobody knows its state: it takes a reset
                    raise fault from error
            recoveries += 1
            self._bring_back()

    def _take(self, action: str) -> tuple[str, float, bool]:
        assert self._session is not None  # an episode steps after a reset alone
        observed = self._session.step(action)
        return observed.observation, self._session.reward_raw, observed.done

    def _bring_back(self) -> None:
        """The same state in a new session. Raises EpisodeError, REPLAY where that is another."""
        self._abandon()
        other = AgentGymEpisode(self.environment)
        other.horizon = self.horizon
        try:
            other.rebuild(self.task, self.first, self.steps)
        except BaseException:
            other._abandon()
            self.task = ""
            raise
        self._session = other._session

    def _abandon(self) -> None:
        """Let the session go, whether or not the server still knows it."""
        session, self._session = self._session, None
        if session is not None:
            with contextlib.suppress(ServerError):  # it was lost before
                session.close()

    def _error(self, error: ServerError, task: str = "") -> EpisodeError:
        kind = EpisodeErrorKind.UNREACHABLE if error.kind in _LOST else EpisodeErrorKind.FAULT
        return EpisodeError(kind, self.environment.name, task or self.task, str(error))

"""A client of AgentGym's environment servers (Xi et al. 2024, arXiv 2406.04151; github.com/WooooDyy/AgentGym) over HTTP.

    with Server("http://127.0.0.1:36001", Environment.WEBSHOP).create() as session:
        observation = session.reset(7)
        observed = session.step("search[red mug]")

What the servers have in common: POST /create, /reset, /step and /close with JSON bodies, GET /observation; every fault of an
environment comes as HTTP 200 with a key `error`; a step after the end is an error, or undefined (trap 43). What differs is
held in `PROTOCOLS`:

* WebShop     the session is `env_idx` and the task `session_id`; a step answers `state`; actions are sent bare
              (`search[red mug]`); it alone has GET /available_actions.
* TextCraft   `id` and `data_idx`; a step answers `observation`; a bare action is read as an empty one, so `Action: get 1
              stick` is sent. /create wants a JSON object.
* SciWorld    as TextCraft; a step also answers `score`, the sum so far from -100 to 100, and that is the reward (`reward` is
              the last action's alone). Rewards here are from 0 to 1: the score over 100, a negative one as 0.

Some releases of the TextCraft and SciWorld servers take bare actions and leave the reading of `Action:` to AgentGym's own
client: `prefix=""` suits them. `Server.check`
finds out; besides, TextCraft says back what it could not execute, and a step that it misread raises MISREAD.

Faults are ServerErrors that name server, endpoint, what was wrong and what to do. A refused connection and a server
that says that it failed (500, 503) are tried again after a pause that doubles; a time-out, a connection lost on the way
and a gateway's 502 or 504 only where asking twice does no harm: a step may have been taken, so its loss is reported
instead. No proxy is used, and no address but the given one is asked.
"""

from __future__ import annotations

import http.client
import json
import math
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass, replace
from enum import StrEnum
from types import TracebackType
from typing import Any, Self, TypeGuard

from moat.sessions import Available, Observed

MAX_ANSWER = 20_000_000  # bytes of an answer


class Environment(StrEnum):
    """The environments that this client knows."""

    WEBSHOP = "webshop"
    TEXTCRAFT = "textcraft"
    SCIWORLD = "sciworld"


@dataclass(frozen=True, slots=True)
class Protocol:
    """How an environment's server is spoken to."""

    id_key: str  # the session in a request, and in the answer to /create where that is an object
    task_key: str  # the task in a request to /reset
    state_key: str  # the text in the answer to /step
    reward_key: str  # the reward in the answer to /step
    reward_unit: float  # what counts as a reward of 1
    prefix: str  # before each action
    has_available: bool  # whether there is GET /available_actions


PROTOCOLS = {
    Environment.WEBSHOP: Protocol("env_idx", "session_id", "state", "reward", 1.0, "", has_available=True),
    Environment.TEXTCRAFT: Protocol("id", "data_idx", "observation", "reward", 1.0, "Action: ", has_available=False),
    Environment.SCIWORLD: Protocol("id", "data_idx", "observation", "score", 100.0, "Action: ", has_available=False),
}


class ServerErrorKind(StrEnum):
    """What went wrong between client and server."""

    CONNECTION = "connection"  # no connection, or one lost on the way
    TIME = "time"  # no answer in time
    STATUS = "status"  # an HTTP status other than 200
    GARBAGE = "garbage"  # an answer that is not what the endpoint gives
    REFUSED = "refused"  # HTTP 200 with an `error`
    OVER = "over"  # a step after the end, or a call on a closed session
    UNSUPPORTED = "unsupported"  # this environment's server has no such endpoint
    MISREAD = "misread"  # the server reads actions in another form than the one sent


class ServerError(Exception):
    """A call to a server that failed; `server` and `endpoint` say which, the message says all."""

    def __init__(self, kind: ServerErrorKind, server: str, endpoint: str, what: str, remedy: str) -> None:
        super().__init__(f"{server}{endpoint}: {what}; {remedy}")
        self.kind = kind
        self.server = server
        self.endpoint = endpoint


class Server:
    """An environment server at a base URL.

    `timeout` is in seconds and bounds each wait for bytes of an attempt; `attempts` counts the first; the pause before the
    second is `pause` seconds and doubles from there. `prefix` overrides what stands before each action.
    """

    def __init__(
        self,
        url: str,
        environment: Environment,
        *,
        timeout: float = 60.0,
        attempts: int = 4,
        pause: float = 0.5,
        prefix: str | None = None,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        parts = urllib.parse.urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.netloc or parts.query or parts.fragment:
            raise ValueError(f"{url!r} is no server's address, such as http://127.0.0.1:36001")
        if attempts < 1 or timeout <= 0:
            raise ValueError(f"attempts is 1 or more and timeout above 0, not {attempts} and {timeout}")
        self.url = url.rstrip("/")
        self.environment = environment
        self.protocol = PROTOCOLS[environment] if prefix is None else replace(PROTOCOLS[environment], prefix=prefix)
        self._timeout, self._attempts, self._pause, self._sleep = timeout, attempts, pause, sleep
        self._opener = urllib.request.build_opener(urllib.request.ProxyHandler({}), _NoRedirect())

    def create(self) -> AgentGymSession:
        """Begin a session. Use it in a `with` block, so that the server can let it go. Raises ServerError."""
        answer = self.call("POST", "/create", {})
        number = answer.get(self.protocol.id_key) if isinstance(answer, dict) else answer
        if isinstance(number, bool) or not isinstance(number, int):
            raise self.error(ServerErrorKind.GARBAGE, "/create", f"no session number in {_short(answer)}", _OTHER_SERVER)
        return AgentGymSession(self, number)

    def check(self) -> None:
        """Find out, in a session of its own, that the server is there and reads actions in the form sent.

        TextCraft and SciWorld know the action `inventory` in every state. Raises ServerError, MISREAD for the other form.
        """
        with self.create() as session:
            session.reset(0)
            if self.environment is Environment.WEBSHOP:
                session.available_actions()
            elif session.step("inventory").observation.startswith(_UNKNOWN_ACTION):
                other = "" if self.protocol.prefix else "Action: "
                what, remedy = "it does not know the action `inventory`", f'give the server prefix="{other}"'
                raise self.error(ServerErrorKind.MISREAD, "/step", what, remedy)

    def call(self, method: str, endpoint: str, values: dict[str, Any], *, once: bool = False) -> Any:
        """One request: `values` are the JSON body of a POST or the query of a GET. Returns the JSON answered.

        `once`: the request must not reach the server twice. Raises ServerError.
        """
        pause = self._pause
        for attempt in range(1, self._attempts + 1):
            try:
                return self._ask(method, endpoint, values)
            except _FaultError as fault:
                last = attempt == self._attempts
                if last or not (fault.harmless or (fault.lost and not once)):
                    tried = f" (attempt {attempt})" if attempt > 1 else ""
                    remedy = _LOST_STEP if fault.lost and once else fault.remedy
                    raise self.error(fault.kind, endpoint, f"{fault.what}{tried}", remedy) from fault.__cause__
            self._sleep(pause)
            pause *= 2
        raise AssertionError("unreachable")

    def error(self, kind: ServerErrorKind, endpoint: str, what: str, remedy: str) -> ServerError:
        """An error of this server."""
        return ServerError(kind, f"{self.environment} server {self.url}", endpoint, what, remedy)

    def _ask(self, method: str, endpoint: str, values: dict[str, Any]) -> Any:
        url = self.url + endpoint
        if method == "GET":
            request = urllib.request.Request(f"{url}?{urllib.parse.urlencode(values)}")
        else:
            body = json.dumps(values).encode()
            request = urllib.request.Request(url, body, {"Content-Type": "application/json"}, method=method)
        try:
            with self._opener.open(request, timeout=self._timeout) as response:
                data = response.read(MAX_ANSWER + 1)
        except urllib.error.HTTPError as error:
            raise self._status(error) from error
        except TimeoutError as error:
            raise self._late() from error
        except urllib.error.URLError as error:
            if isinstance(error.reason, TimeoutError):
                raise self._late() from error
            refused = isinstance(error.reason, ConnectionRefusedError)
            what = f"no connection ({error.reason})"
            fault = _FaultError(ServerErrorKind.CONNECTION, what, _START, harmless=refused, lost=True)
            raise fault from error
        except (OSError, http.client.HTTPException) as error:
            fault = _FaultError(ServerErrorKind.CONNECTION, f"the connection was lost ({error!r})", _START, lost=True)
            raise fault from error
        return self._read(data)

    def _status(self, error: urllib.error.HTTPError) -> _FaultError:
        """What an answer with another status than 200 means: 500 and 503 are the server's own, 502 and 504 a gateway's."""
        code = error.code
        remedy = "see the server's log" if code >= 500 else _OTHER_SERVER
        what = f"HTTP {code} {error.reason}"
        error.close()
        return _FaultError(ServerErrorKind.STATUS, what, remedy, harmless=code in (500, 503), lost=code in (502, 504))

    def _late(self) -> _FaultError:
        return _FaultError(
            ServerErrorKind.TIME,
            f"no answer within {self._timeout:g} s",
            "raise the timeout or ask for less at once",
            lost=True,
        )

    def _read(self, data: bytes) -> Any:
        """The JSON of an answer with status 200, whose `error` is an error all the same (trap 43)."""
        if len(data) > MAX_ANSWER:
            raise _FaultError(ServerErrorKind.GARBAGE, f"an answer of more than {MAX_ANSWER} bytes", _OTHER_SERVER)
        try:
            answer = json.loads(data)
        except (ValueError, RecursionError) as error:
            said = _short(data[:200].decode("utf-8", "replace"))
            raise _FaultError(ServerErrorKind.GARBAGE, f"the answer is not JSON: {said}", _OTHER_SERVER) from error
        if isinstance(answer, dict) and "error" in answer:
            raise _FaultError(
                ServerErrorKind.REFUSED, f"the server says {_short(answer['error'])}", "reset or create the session anew"
            )
        return answer


class AgentGymSession:
    """One session on a server: the session interface of `moat.sessions`. Every method raises ServerError."""

    def __init__(self, server: Server, number: int) -> None:
        self.number = number
        self.reward = 0.0
        self.reward_raw = 0.0  # in the environment's own unit
        self.done = False
        self._server = server
        self._observation: str | None = None
        self._closed = False

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if kind is None:
            self.close()
            return
        try:
            self.close()
        except ServerError as second:  # what went wrong first is what matters
            assert error is not None
            error.add_note(f"and the session could not be closed: {second}")

    def reset(self, task: int) -> str:
        """Begin the episode of a task of the server's list, by its number; returns the first observation."""
        answer = self._call("POST", "/reset", {self._protocol.task_key: task})
        if self._server.environment is Environment.WEBSHOP:  # a pair: the observation, and nothing
            observation = answer[0] if isinstance(answer, list) and answer else None
        else:
            observation = answer.get("observation") if isinstance(answer, dict) else None
        if not isinstance(observation, str):
            raise self._garbage("/reset", answer)
        if self._server.environment is Environment.SCIWORLD and isinstance(answer.get("task_description"), str):
            observation = f"{answer['task_description']}\n{observation}"
        self.reward, self.reward_raw, self.done, self._observation = 0.0, 0.0, False, observation
        return observation

    def step(self, action: str) -> Observed:
        """Take one action, given without the prefix; blanks in it become single spaces. Not tried again once sent."""
        if self.done:
            what, remedy = "the episode is over", "reset the session before another action"
            raise self._server.error(ServerErrorKind.OVER, "/step", what, remedy)
        action = " ".join(action.split())
        answer = self._call("POST", "/step", {"action": self._protocol.prefix + action}, once=True)
        keys = (self._protocol.state_key, self._protocol.reward_key, "done")
        observation, reward, done = (answer.get(key) for key in keys) if isinstance(answer, dict) else (None, None, None)
        if not isinstance(observation, str) or not isinstance(done, bool) or not _is_number(reward):
            raise self._garbage("/step", answer)
        self._check_read(action, observation)
        self.reward, self.reward_raw = min(max(reward / self._protocol.reward_unit, 0.0), 1.0), float(reward)
        self.done = done
        self._observation = observation
        return Observed(observation, self.reward, done)

    def observe(self) -> str:
        """The present observation, as the server has it; the last one seen once the episode is over."""
        if self.done and self._observation is not None:  # SciWorld's server has none for a finished episode
            return self._observation
        answer = self._call("GET", "/observation", {})
        if not isinstance(answer, str):
            raise self._garbage("/observation", answer)
        return answer

    def available_actions(self) -> Available:
        """What can be done now; WebShop's server alone tells."""
        if not self._protocol.has_available:
            what, remedy = "this environment does not list its actions", "read them from the observation"
            raise self._server.error(ServerErrorKind.UNSUPPORTED, "/available_actions", what, remedy)
        answer = self._call("GET", "/available_actions", {})
        listed = answer if isinstance(answer, dict) else {}
        search, clickables = listed.get("has_search_bar"), listed.get("clickables")
        if not isinstance(search, bool) or not isinstance(clickables, list):
            raise self._garbage("/available_actions", answer)
        if not all(isinstance(button, str) for button in clickables):
            raise self._garbage("/available_actions", answer)
        return Available(search, tuple(clickables))

    def close(self) -> None:
        """Let the server drop the session, once. A release without /close (HTTP 404 or 405) has nothing to do."""
        if self._closed:
            return
        try:
            self._call("POST", "/close", {})
        except ServerError as error:
            if error.kind is not ServerErrorKind.STATUS or not isinstance(error.__cause__, urllib.error.HTTPError):
                raise
            if error.__cause__.code not in (404, 405):
                raise
        finally:
            self._closed = True

    @property
    def _protocol(self) -> Protocol:
        return self._server.protocol

    def _call(self, method: str, endpoint: str, values: dict[str, Any], *, once: bool = False) -> Any:
        if self._closed:
            raise self._server.error(ServerErrorKind.OVER, endpoint, "the session is closed", "create another")
        return self._server.call(method, endpoint, {self._protocol.id_key: self.number} | values, once=once)

    def _check_read(self, action: str, observation: str) -> None:
        """TextCraft says back what it could not execute, which shows how it read the action (trap 43)."""
        if self._server.environment is not Environment.TEXTCRAFT or not observation.startswith("Could not execute"):
            return
        read = observation.removeprefix("Could not execute").strip()
        if (action and not read) or read.startswith("Action:"):
            remedy = 'give the server prefix=""' if read else 'give the server prefix="Action: "'
            raise self._server.error(ServerErrorKind.MISREAD, "/step", f"it read {action[:80]!r} as {read[:80]!r}", remedy)

    def _garbage(self, endpoint: str, answer: Any) -> ServerError:
        return self._server.error(
            ServerErrorKind.GARBAGE, endpoint, f"an answer of another form: {_short(answer)}", _OTHER_SERVER
        )


_UNKNOWN_ACTION = "No known action matches that input"  # ScienceWorld's answer
_START = "start the server, or correct its address"
_OTHER_SERVER = "check that this is the environment's server, of a release that this client knows"
_LOST_STEP = "the action may have been taken or not: reset the session"


class _FaultError(Exception):
    """One attempt that failed. `harmless`: the server did nothing, or says that it failed; `lost`: it may have acted."""

    def __init__(self, kind: ServerErrorKind, what: str, remedy: str, *, harmless: bool = False, lost: bool = False) -> None:
        super().__init__(what)
        self.kind, self.what, self.remedy, self.harmless, self.lost = kind, what, remedy, harmless, lost


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """A redirection is an error: it leads to another address than the given one."""

    def redirect_request(self, *args: Any, **kwargs: Any) -> None:
        """No request follows."""


def _is_number(value: Any) -> TypeGuard[float]:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)


def _short(value: Any) -> str:
    text = value if isinstance(value, str) else repr(value)
    return repr(text if len(text) <= 200 else text[:200] + "…")

"""The `openai` engine: any server that speaks OpenAI's completions protocol (`vllm serve`, llama.cpp, a vendor).

Prompts go as token ids, one request a row (n = 1) with its own seed, an explicit `max_tokens`, and no stop strings: they
would be cut from the text, or fire inside a judge's thoughts. Fields that servers of a kind know (vLLM's) are sent when a
first request shows that this one takes them: `return_token_ids`, and neutral values for the sampling defaults that a server
reads from the model's generation_config.json.

What differs from `hf`, and cannot be helped here: a server has random numbers of its own; a model may have more end tokens
in its generation_config.json than the tokenizer names (each ends a text, and is taken off it); where the server gives no
ids, they are those of its text under the local tokenizer, which need not be the ones that it drew.

A request that fails for a while (429, 408, 5xx, a time-out, a lost connection, a body that is no answer) is tried again.
What stays wrong is an EngineError. Answers that came before it are kept for the next call, so that a batch which is asked
again in halves costs no request twice. Once the server is away or refuses the key, every further call fails at once.
"""

from __future__ import annotations

import http.client
import json
import math
import random
import socket
import ssl
import threading
import time
import urllib.parse
from collections.abc import Callable, Hashable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any, TypeVar

import numpy as np

from moat.engines.base import Decoding, EngineError, FinishReason, Generation

FIRST_PAUSE, LONGEST_PAUSE = 1.0, 60.0  # seconds between two tries: doubled each time, times a random 0.5 to 1.5
LONGEST_WAIT = 600.0  # seconds; a server that asks for more is given up
CHECK_TIMEOUT = 30.0  # seconds for the list of models
LARGEST = 64 << 20  # bytes of an answer
SHOWN = 300  # characters of a server's answer in an error
CLOSE = 0.01  # nats; two readings of one log-probability, which differ by the batch's shape
NEUTRAL = {"top_k": -1, "min_p": 0.0, "repetition_penalty": 1.0}  # no sampling but temperature and nucleus
PROBE = "Subgoal 1: Add 12.5 to 4; R1 = Calculator(12.5 + 4)"
Answer = TypeVar("Answer")


class _AgainError(EngineError):
    """A try that another may mend, after `wait` seconds at least."""

    def __init__(self, said: str, wait: float = 0.0) -> None:
        super().__init__(said)
        self.wait = wait


class _GoneError(EngineError):
    """The server is away, or will not answer anybody with these settings."""


@dataclass(frozen=True)
class Address:
    """A server, the model's name there, and how it is asked. `where` names it in errors: the key in machine.yaml."""

    url: str
    model: str
    where: str
    key: str = field(default="", repr=False)
    timeout: float = 600.0
    attempts: int = 5
    concurrency: int = 16


@dataclass(frozen=True)
class Told:
    """What a server was found to tell: token ids, raw log-probabilities, its context in tokens, the model's folder there.

    `folder` of an adapter is its own, and `base` the folder of the model that it lies on.
    """

    ids: bool
    logprobs: bool
    longest: int | None
    folder: str | None
    base: str | None


class OpenAIEngine:
    """One model of a server. `encode` turns text into ids (no BOS, no special tokens), `end` is the end token, `end_text`
    its name.

    `score` allows scoring (vLLM alone); `logprobs` says that generations without log-probabilities are no answers.
    Opening it asks the server: raises EngineError, with what to do, when it is away, refuses the key, does not serve the
    model, has another tokenizer, or cannot give what is needed.
    """

    def __init__(
        self,
        address: Address,
        encode: Callable[[str], list[int]],
        end: int,
        end_text: str,
        *,
        score: bool = False,
        logprobs: bool = False,
    ) -> None:
        self.address = address
        self.encode = encode
        self.end = end
        self.end_text = end_text
        self.may_score = score
        self._http = _Http(address)
        self._kept: dict[Hashable, Any] = {}
        self._gone: _GoneError | None = None
        self._stop = threading.Event()
        self._extras = True
        self._needs_logprobs = logprobs
        self.told = self._find_out()
        if logprobs and not self.told.logprobs:
            raise EngineError(
                f"{address.where}: the server gives no log-probabilities as the model has them, before temperature and for "
                "every token (vLLM gives them, unless started with --logprobs-mode processed_logprobs): take another "
                "server, or set `engine: hf` for this role"
            )

    # --- what the server is ---

    def check(self) -> tuple[dict[str, Any], dict[str, Any]]:
        """What the server says of the model, and of the one under it (vLLM's `parent` of an adapter; else empty).

        Raises EngineError when it is away or does not serve the model.
        """
        where, model = self.address.where, self.address.model
        try:
            found = self._http.json("GET", "/v1/models", None, min(CHECK_TIMEOUT, self.address.timeout))
        except _AgainError as error:
            raise _GoneError(f"{error}. Start the server, or correct {where}.url in machine.yaml") from error
        served = found.get("data")
        if not isinstance(served, list) or not all(isinstance(one, dict) for one in served):
            raise _GoneError(
                f"{where}: /v1/models gave no list of models: {where}.url is no OpenAI-compatible server's address"
            )
        names = [str(one.get("id")) for one in served]
        if model not in names:
            some = ", ".join(map(repr, names[:5])) + (", …" if len(names) > 5 else "")
            raise _GoneError(
                f"{where}: the server does not serve {model!r} but {some or 'nothing'}: start it with "
                f"--served-model-name {model}, or set {where}.model in machine.yaml"
            )
        entry: dict[str, Any] = served[names.index(model)]
        return entry, next((one for one in served if one.get("id") == entry.get("parent")), {})

    def _find_out(self) -> Told:
        """Ask for one token, in few ways, and see what is told."""
        entry, parent = self.check()
        ids = self.encode(PROBE)

        def first_token(prompt: Sequence[int] | str, temperature: float) -> dict[str, Any]:
            return self._tried(lambda: self._choice(prompt, 1, Decoding(temperature, 1.0, 1)))

        try:
            warm = first_token(ids, 1.0)
        except _RefusedError:  # a server that takes the protocol's own fields alone
            self._extras = False
            warm = first_token(ids, 1.0)
        usual, cold = _most_probable(warm), _most_probable(first_token(ids, 0.5))
        raw = usual is not None and cold is not None and math.isclose(usual, cold, abs_tol=CLOSE)
        told = Told(
            ids=warm.get("token_ids") is not None,
            logprobs=raw,
            longest=next((n for one in (entry, parent) if isinstance(n := one.get("max_model_len"), int)), None),
            folder=entry["root"] if isinstance(entry.get("root"), str) else None,
            base=parent["root"] if isinstance(parent.get("root"), str) else None,
        )
        if told.ids:
            own = first_token(PROBE, 0.0).get("prompt_token_ids")
            if own is not None and own != ids:
                raise EngineError(
                    f"{self.address.where}: the server's tokenizer is another than the local one: it cuts the same text "
                    "into other tokens. Serve the model that the tokenizer belongs to, or name its tokenizer"
                )
        if self.may_score:
            try:
                self._tried(lambda: self._logprobs(tuple(ids[:-1]), tuple(ids[-1:])))
            except _RefusedError as error:
                raise EngineError(f"{error}. {no_scores(self.address.where)}") from error
        return told

    # --- requests ---

    def generate(self, prompts: Sequence[Sequence[int]], seeds: Sequence[int], decoding: Decoding) -> list[Generation]:
        """Continue each prompt, one request a row; results in the prompts' order. Raises EngineError.

        `logprob` is NaN where the server does not tell the log-probability of every token, the end token among them.
        """
        requests = [(tuple(prompt), seed, decoding) for prompt, seed in zip(prompts, seeds, strict=True)]
        return self._all(
            requests, lambda r: self._tried(lambda: self._generation(self._choice(list(r[0]), r[1], r[2]), r[2]))
        )

    def score(self, prompts: Sequence[Sequence[int]], completions: Sequence[Sequence[int]]) -> list[np.ndarray]:
        """Log-probability (nats, float32) of every completion token given its prompt and the tokens before it.

        Raises EngineError, and ValueError when a prompt or a completion is empty.
        """
        if not self.may_score:
            raise EngineError(no_scores(self.address.where))
        if not all(prompts) or not all(completions):
            raise ValueError("scoring needs at least one prompt token and one completion token in every row")
        requests = [(tuple(prompt), tuple(own)) for prompt, own in zip(prompts, completions, strict=True)]
        return self._all(requests, lambda request: self._tried(lambda: self._logprobs(*request)))

    def _all(self, requests: Sequence[Hashable], ask: Callable[[Any], Answer]) -> list[Answer]:
        """The answers to all requests, at most `concurrency` at once; when one fails, the others' answers are kept."""
        missing = [request for request in dict.fromkeys(requests) if request not in self._kept]
        if missing and self._gone:
            raise EngineError(str(self._gone))
        failure: EngineError | None = None

        def one(request: Hashable) -> Answer:
            try:
                return ask(request)
            except _GoneError:
                self._stop.set()  # whoever waits for another try ends, whoever was not asked yet is not
                raise

        pool = ThreadPoolExecutor(max_workers=min(self.address.concurrency, max(1, len(missing))))
        try:
            for request, future in [(request, pool.submit(one, request)) for request in missing]:
                try:
                    self._kept[request] = future.result()
                except _GoneError as error:
                    self._gone, failure = self._gone or error, error
                except EngineError as error:
                    failure = failure or error
        finally:
            self._stop.set()
            pool.shutdown(cancel_futures=True)
            self._stop.clear()
        if failure:
            raise EngineError(str(failure)) from failure
        answers = [self._kept[request] for request in requests]
        for request in set(requests):
            del self._kept[request]
        return answers

    def _tried(self, ask: Callable[[], Answer]) -> Answer:
        """An answer, or after all attempts an EngineError; _GoneError when the server is not there any more."""
        for attempt in range(1, self.address.attempts + 1):
            if self._stop.is_set():
                break
            try:
                return ask()
            except _AgainError as error:
                if error.wait > LONGEST_WAIT:
                    raise _GoneError(f"{error}; it asks to wait {error.wait:,.0f} s: run again then") from error
                if attempt == self.address.attempts:
                    self.check()
                    raise EngineError(f"{error} (after {attempt} attempts)") from error
                pause = min(LONGEST_PAUSE, FIRST_PAUSE * 2 ** (attempt - 1)) * random.uniform(0.5, 1.5)
                self._wait(max(pause, error.wait))
        raise EngineError(f"{self.address.where}: not asked, for the server failed on another request")

    def _wait(self, seconds: float) -> None:
        self._stop.wait(seconds)

    def _choice(
        self, prompt: Sequence[int] | str, seed: int, decoding: Decoding, prompt_logprobs: int | None = None
    ) -> dict[str, Any]:
        """One completion, as the server gives it. Raises _AgainError for an answer that is none."""
        body: dict[str, Any] = {
            "model": self.address.model,
            "prompt": prompt,
            "n": 1,
            "seed": seed,
            "max_tokens": decoding.max_new_tokens,
            "temperature": decoding.temperature,
            "top_p": decoding.top_p,
            "presence_penalty": 0.0,
            "frequency_penalty": 0.0,
            "logprobs": 1,
            "stream": False,
        }
        if self._extras:
            body |= NEUTRAL | {"return_token_ids": True}
            if isinstance(prompt, str):
                body["add_special_tokens"] = False
        if prompt_logprobs is not None:
            body["prompt_logprobs"] = prompt_logprobs
        found = self._http.json("POST", "/v1/completions", body, self.address.timeout)
        choices = found.get("choices")
        if not isinstance(choices, list) or len(choices) != 1 or not isinstance(choices[0], dict):
            raise _AgainError(f"{self.address.where}: the server's answer holds no one completion")
        choice: dict[str, Any] = choices[0]
        return choice

    # --- answers ---

    def _generation(self, choice: dict[str, Any], decoding: Decoding) -> Generation:
        where = self.address.where
        said, why = choice.get("finish_reason"), choice.get("stop_reason")
        if said not in (FinishReason.STOP.value, FinishReason.LENGTH.value):
            raise EngineError(f"{where}: the server ended a text for the reason {str(said)[:SHOWN]!r}, not stop or length")
        if isinstance(why, str):
            raise EngineError(f"{where}: the server ended a text at a stop string of its own: start it without stop strings")
        reason = FinishReason(said)
        ids, text = choice.get("token_ids"), choice.get("text")
        values = _listed(choice, "token_logprobs")
        if values is not None and not all(map(_is_logprob, values)):
            values = None
        if self.told.ids:
            if not isinstance(ids, list) or not all(type(one) is int and 0 <= one < 1 << 31 for one in ids):
                raise _AgainError(f"{where}: the server gave no token ids, which it gave before")
            if len(ids) > decoding.max_new_tokens:
                raise _AgainError(f"{where}: the server gave {len(ids)} tokens, over max_tokens {decoding.max_new_tokens}")
            if reason is FinishReason.STOP and ids and ids[-1] in (self.end, why):
                ids = ids[:-1]
            whole = values is not None and len(values) == len(ids) + (reason is FinishReason.STOP)
        else:
            if not isinstance(text, str):
                raise _AgainError(f"{where}: the server's completion has no text")
            ids = self.encode(text)
            tokens = _listed(choice, "tokens")
            ended = tokens is not None and tokens[-1:] == [self.end_text]
            whole = values is not None and (reason is FinishReason.LENGTH or ended)
        logprob = sum(values or []) if whole and self.told.logprobs else math.nan
        if self._needs_logprobs and math.isnan(logprob):
            raise _AgainError(f"{where}: the server left out the log-probability of a token, or of the end token")
        return Generation(ids, reason, logprob)

    def _logprobs(self, prompt: tuple[int, ...], completion: tuple[int, ...]) -> np.ndarray:
        where, ids = self.address.where, [*prompt, *completion]
        # A token has to be generated; the prompt's log-probabilities are what is wanted.
        found = self._choice(ids, 0, Decoding(0.0, 1.0, 1), prompt_logprobs=1).get("prompt_logprobs")
        if found is None:
            raise EngineError(f"{where}: the server gives no prompt_logprobs, as vLLM does. {no_scores(where)}")
        if not isinstance(found, list) or len(found) != len(ids):
            raise _AgainError(f"{where}: the server scored another number of tokens than it was asked to")
        values = []
        for token, said in zip(completion, found[len(prompt) :], strict=True):
            value = said.get(str(token)) if isinstance(said, dict) else None
            value = value.get("logprob") if isinstance(value, dict) else None
            if not _is_logprob(value):
                raise _AgainError(f"{where}: the server left out the log-probability of a token that it was to score")
            values.append(value)
        return np.array(values, dtype=np.float32)


def no_scores(where: str) -> str:
    """Why a server is not asked to score, and what to do."""
    return (
        f"{where}: scores come from a model in this process: set `engine: hf` for this role, or `score: true` if the server "
        "is vLLM, whose prompt_logprobs are the scores"
    )


def _is_logprob(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and -1e6 < value < 1e-3


def _listed(choice: dict[str, Any], name: str) -> list[Any] | None:
    """A list in a completion's `logprobs`, one entry a token."""
    logprobs = choice.get("logprobs")
    values = logprobs.get(name) if isinstance(logprobs, dict) else None
    return values if isinstance(values, list) else None


def _most_probable(choice: dict[str, Any]) -> float | None:
    """The log-probability of the most probable first token."""
    tops = _listed(choice, "top_logprobs")
    first = tops[0] if tops else None
    found = [value for value in first.values() if _is_logprob(value)] if isinstance(first, dict) else []
    return max(found, default=None)


# --- HTTP -------------------------------------------------------------------------------------------------------------


class _RefusedError(EngineError):
    """A request that the server will not take as it is."""


class _Http:
    """JSON over a connection of its own each time; follows no redirect, so that a key goes to the named server alone."""

    def __init__(self, address: Address) -> None:
        self.address = address
        parts = urllib.parse.urlsplit(address.url.rstrip("/"))
        self._host, self._path = parts.netloc, parts.path
        self._context = ssl.create_default_context() if parts.scheme == "https" else None
        self._headers = {"Content-Type": "application/json", "Accept": "application/json", "Connection": "close"}
        if address.key:
            self._headers["Authorization"] = f"Bearer {address.key}"

    def json(self, method: str, path: str, body: Any, timeout: float) -> dict[str, Any]:
        """The object that the server answers with. Raises _AgainError, _RefusedError or _GoneError."""
        where = self.address.where
        try:
            status, wait, raw = self._exchange(method, path, body, timeout)
        except TimeoutError as error:
            raise _AgainError(f"{where}: the server did not answer within {timeout:g} s") from error
        except ssl.SSLCertVerificationError as error:
            raise _GoneError(f"{where}: the server's certificate is not trusted ({error.verify_message})") from error
        except (OSError, http.client.HTTPException, ValueError) as error:
            said = self._shown(f"{type(error).__name__}: {error}".encode())
            raise _AgainError(f"{where}: no answer from the server at {self._host} ({said})") from error
        if status in (401, 403):  # what is said then may repeat the key
            remedy = "check the key that key_env or key_file names" if self.address.key else "set key_env or key_file"
            raise _GoneError(f"{where}: the server refused the key (HTTP {status}): {remedy}")
        if status in (404, 405) or 300 <= status < 400:
            raise _GoneError(
                f"{where}: there is no {path} at the server (HTTP {status}: {self._shown(raw)}): {where}.url in "
                "machine.yaml is the address without /v1, of a server that has the completions protocol"
            )
        if status in (408, 409, 425, 429) or status >= 500:
            raise _AgainError(f"{where}: the server answered HTTP {status}: {self._shown(raw)}", wait)
        if status != 200:
            raise _RefusedError(f"{where}: the server refused the request (HTTP {status}): {self._shown(raw)}")
        try:
            found = json.loads(raw)
        except (ValueError, RecursionError) as error:
            raise _AgainError(f"{where}: the server's answer is no JSON: {self._shown(raw)}") from error
        if not isinstance(found, dict):
            raise _AgainError(f"{where}: the server's answer is no JSON object: {self._shown(raw)}")
        return found

    def _exchange(self, method: str, path: str, body: Any, timeout: float) -> tuple[int, float, bytes]:
        """Status, seconds of Retry-After, and body, all of it within `timeout` seconds."""
        until = time.monotonic() + timeout
        connection = (
            http.client.HTTPSConnection(self._host, timeout=timeout, context=self._context)
            if self._context
            else http.client.HTTPConnection(self._host, timeout=timeout)
        )
        try:
            data = None if body is None else json.dumps(body).encode()
            connection.request(method, self._path + path, body=data, headers=self._headers)
            line: socket.socket = connection.sock
            response = connection.getresponse()
            pieces, size = [], 0
            while piece := self._read(response, line, until):
                pieces.append(piece)
                size += len(piece)
                if size > LARGEST:
                    raise ValueError(f"an answer of over {LARGEST:,} bytes")
            if response.length:
                raise http.client.IncompleteRead(b"", response.length)
            return response.status, _seconds(response.headers.get("Retry-After")), b"".join(pieces)
        finally:
            connection.close()

    def _read(self, response: http.client.HTTPResponse, line: socket.socket, until: float) -> bytes:
        left = until - time.monotonic()
        if left <= 0:
            raise TimeoutError
        if not response.isclosed():
            line.settimeout(left)
        return response.read1(1 << 16)

    def _shown(self, raw: bytes) -> str:
        """The beginning of what a server said, without the key."""
        text, key = raw.decode("utf-8", "replace"), self.address.key
        for form in {key, key.replace("/", "\\/")} - {""}:
            text = text.replace(form, "[key]")
        return " ".join(text.split())[:SHOWN]


def _seconds(said: str | None) -> float:
    """Retry-After in seconds: a number of them, or a date; 0 when it is neither."""
    if not said:
        return 0.0
    if said.strip().isdecimal():
        return float(said)
    try:
        return max(0.0, (parsedate_to_datetime(said) - datetime.now(UTC)).total_seconds())
    except (ValueError, TypeError):  # not a date, or one without a zone
        return 0.0

"""A stand-in for an OpenAI-compatible server: the completions protocol over HTTP, answered by the hf engine.

It has a server's own defaults (16 tokens, one seed for whoever sends none, stop strings that cut), so that a client which
forgets to say something gets what a real one would give. `faults` are used up by the next completions, one each.
"""

from __future__ import annotations

import json
import threading
import time
from collections import deque
from http.server import BaseHTTPRequestHandler

import torch

from moat.engines.base import Decoding, FinishReason
from moat.engines.hf import HFEngine
from tests.serving import served

STANDARD = {"model", "prompt", "n", "seed", "max_tokens", "temperature", "top_p", "presence_penalty", "frequency_penalty"}
STANDARD |= {"logprobs", "stream", "stop"}


class StandIn:
    """One model under `names`. `extras`: it takes and gives vLLM's fields. `logprobs`: raw, processed (after temperature)
    or none. `root`: its folder; `base`: that of the model under it, of which it is an adapter."""

    def __init__(
        self, model, tokenizer, names=("tiny",), key="", extras=True, logprobs="raw", root=None, longest=None, base=None
    ):
        self.engine = HFEngine(model, tokenizer.pad_token_id, tokenizer.eos_token_id)
        self.tokenizer, self.names, self.key, self.extras, self.logprobs = tokenizer, names, key, extras, logprobs
        self.about = {"root": root, "max_model_len": longest, "parent": None}
        self.others = []
        if base is not None:  # as vLLM lists an adapter: it names the model under it, which has the context
            self.about |= {"parent": "base", "max_model_len": None}
            self.others = [{"id": "base", "root": base, "max_model_len": longest, "parent": None}]
        self.bodies, self.faults, self.broken = [], deque(), None
        self.active = self.most = 0
        self.hold = 0.0  # seconds that each answer takes at least
        self.change = lambda choice: None
        self.lock = threading.Lock()

    @property
    def asked(self):
        """The completions asked for after the client had found out what the server is."""
        return [body for body in self.bodies if body["max_tokens"] > 1 or "prompt_logprobs" in body]

    def completion(self, body):
        prompt = body["prompt"]
        if isinstance(prompt, str):
            prompt = self.tokenizer(prompt, add_special_tokens=body.get("add_special_tokens", True)).input_ids
        how = Decoding(body.get("temperature", 1.0), body.get("top_p", 1.0), body.get("max_tokens", 16))
        with self.lock:
            (made,) = self.engine.generate([prompt], [body.get("seed", 0)], how)
            ids = made.ids + [self.engine.end] * (made.finish_reason is FinishReason.STOP)
            (values,) = self.engine.score([prompt], [ids])
            with torch.inference_mode():
                logits = self.engine.model(torch.tensor([prompt])).logits[0, -1].float()
            scores = self.engine.score([prompt[:1]], [prompt[1:]])[0].tolist() if "prompt_logprobs" in body else []
        if self.logprobs == "processed" and how.temperature:
            logits = logits / how.temperature
        text = self.tokenizer.decode(made.ids, skip_special_tokens=True)
        reason, why = made.finish_reason.value, None
        for stop in body.get("stop") or []:
            if stop in text:
                text, reason, why = text.split(stop)[0], "stop", stop
        choice = {"index": 0, "text": text, "finish_reason": reason, "stop_reason": why, "logprobs": None}
        if self.logprobs != "none" and body.get("logprobs"):
            top = torch.log_softmax(logits, -1).max().item()
            tops = [{"t": top}] + [{} for _ in ids[1:]]
            tokens = [self.tokenizer.convert_ids_to_tokens(one) for one in ids]
            choice["logprobs"] = {"token_logprobs": values.tolist(), "tokens": tokens, "top_logprobs": tops}
        if self.extras and body.get("return_token_ids"):
            choice |= {"token_ids": ids, "prompt_token_ids": prompt}
        if self.extras and scores:
            given = [{str(token): {"logprob": value, "rank": 1}} for token, value in zip(prompt[1:], scores, strict=True)]
            choice["prompt_logprobs"] = [None, *given]
        self.change(choice)
        return {"object": "text_completion", "choices": [choice]}

    def refusal(self, body):
        """Why a request gets HTTP 400, or None."""
        unknown = set() if self.extras else set(body) - STANDARD
        return f"unknown fields {sorted(unknown)}" if unknown else None


def _handler(server):
    class Handler(BaseHTTPRequestHandler):
        def log_message(self, *_):
            pass

        def give(self, status, body, headers=None, length=None):
            raw = body if isinstance(body, bytes) else json.dumps(body).encode()
            self.send_response(status)
            for name, value in (headers or {}).items():
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(raw) if length is None else length))
            self.end_headers()
            self.wfile.write(raw)

        def let_in(self):
            said = self.headers.get("Authorization", "")
            if server.key and said != f"Bearer {server.key}":
                self.give(401, {"error": {"message": f"wrong key: {said}"}})
                return False
            return True

        def do_GET(self):
            if self.path != "/v1/models":
                self.give(404, {"detail": "Not Found"})
            elif self.let_in():
                own = [{"id": name} | server.about for name in server.names]
                self.give(200, {"object": "list", "data": [*server.others, *own]})

        def do_POST(self):
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            if self.path != "/v1/completions":
                self.give(404, {"detail": "Not Found"})
                return
            if not self.let_in():
                return
            with server.lock:
                server.bodies.append(body)
                fault = server.faults.popleft() if server.faults else server.broken and server.broken(body)
                server.active += 1
                server.most = max(server.most, server.active)
            try:
                time.sleep(server.hold)
                why = None if fault else server.refusal(body)
                answer = None if fault or why is not None else server.completion(body)
            finally:
                with server.lock:  # before it is told: whoever has the answer may ask again at once
                    server.active -= 1
            if fault:
                self.fail(fault)
            elif why is not None:
                self.give(400, {"error": {"message": why}})
            else:
                self.give(200, answer)

        def fail(self, fault):
            if fault == "drop":
                pass  # the connection ends without a word
            elif fault == "half":
                self.give(200, b'{"choices": [{"text": "', length=1000)
            elif fault == "slow":
                time.sleep(1.0)
            elif fault == "drip":  # every piece comes in time, and the whole never
                self.give(200, b"", length=1000)
                for _ in range(20):
                    self.wfile.write(b" ")
                    self.wfile.flush()
                    time.sleep(0.1)
            elif fault == "echo":
                self.give(500, {"error": f"could not serve {dict(self.headers)}"})
            elif isinstance(fault, bytes):
                self.give(200, fault)
            else:
                self.give(*fault)

    return Handler


def serve(server):
    """Its address while it runs, on a free port of this computer."""
    return served(_handler(server))

"""A proxy in front of any HTTP server, which now and then does to a completion what networks and busy servers do.

Which requests it spoils is drawn by a seed; each request body is spoilt `times` times at most and then let through, so that
a client which goes on trying gets every answer. Everything else (the list of models) passes.
"""

from __future__ import annotations

import http.client
import random
import select
import socket
import struct
import threading
from collections import Counter
from http.server import BaseHTTPRequestHandler
from urllib.parse import urlsplit

from tests.serving import served

FAULTS = ("drop", "delay", "garble", "half", "reset", "busy", "broken")


class FaultProxy:
    """Spoils `share` of the completions in one of the ways `faults`; `delay` is until the client waits no longer.

    `counts` tells how often each was done. With `forever`, prompts for which it is true are refused whenever they come.
    """

    def __init__(self, url, share=0.5, faults=FAULTS, times=2, seed=0, forever=lambda body: False):
        self.target, self.share, self.faults, self.times = urlsplit(url), share, faults, times
        self.random, self.lock, self.forever = random.Random(seed), threading.Lock(), forever
        self.counts, self.spoilt = Counter(), Counter()

    def fault(self, body):
        """What is done to this request; None: nothing."""
        with self.lock:
            if self.forever(body):
                return "broken"
            if self.spoilt[body] >= self.times or self.random.random() >= self.share:
                self.counts["passed"] += 1
                return None
            self.spoilt[body] += 1
            fault = self.random.choice(self.faults)
            self.counts[fault] += 1
            return fault

    def ask(self, method, path, body, headers):
        """The server's own answer: status, headers, body."""
        connection = http.client.HTTPConnection(self.target.netloc, timeout=120)
        try:
            connection.request(method, path, body=body, headers=headers)
            found = connection.getresponse()
            return found.status, dict(found.getheaders()), found.read()
        finally:
            connection.close()


def _handler(proxy):
    class Handler(BaseHTTPRequestHandler):
        def log_message(self, *_):
            pass

        def passed(self):
            length = int(self.headers.get("Content-Length") or 0)
            self.body = self.rfile.read(length) if length else None
            own = {name: value for name, value in self.headers.items() if name.lower() not in ("host", "connection")}
            return lambda: proxy.ask(self.command, self.path, self.body, own)

        def give(self, status, raw, length=None, **headers):
            self.send_response(status)
            for name, value in headers.items():
                self.send_header(name.replace("_", "-"), value)
            self.send_header("Content-Length", str(len(raw) if length is None else length))
            self.end_headers()
            self.wfile.write(raw)
            self.wfile.flush()

        def do_GET(self):
            status, _, raw = self.passed()()
            self.give(status, raw)

        def do_POST(self):
            ask = self.passed()
            fault = proxy.fault(self.body) if self.path == "/v1/completions" else None
            if fault == "drop":  # the connection ends without a word
                return
            if fault == "busy":
                self.give(429, b'{"error": {"message": "slow down"}}', Retry_After="0")
                return
            if fault == "broken":
                self.give(500, b"<html>Internal Server Error</html>")
                return
            status, _, raw = ask()
            if fault == "delay":
                select.select([self.connection], [], [], 60)  # until the client has had enough
            elif fault == "garble":  # some of it is what it was
                raw = raw[: len(raw) // 3] + b'\x00\xff{"' + raw[len(raw) // 3 + 4 :]
            if fault in ("half", "reset"):
                self.give(status, raw[: len(raw) // 2], length=len(raw))
                if fault == "reset":
                    self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                    self.connection.close()
                return
            self.give(status, raw)

    return Handler


def through(proxy):
    """Its address while it runs, on a free port of this computer."""
    return served(_handler(proxy))

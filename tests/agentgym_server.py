"""Servers that speak AgentGym's published protocol, written out, with small games behind it."""

import json
import socket
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, urlsplit

from moat.environments.textcraft import TextCraft as Crafting
from moat.worlds.shop import Shop, ShopSession

STATUSES = (302, 400, 404, 422, 500, 502, 503, 504)


class Raw(bytes):
    """An answer's body that is not JSON."""


class Gym:
    """A server in a thread. Subclasses answer (path, values); `faults` come first, each once.

    A fault is an HTTP status, `slow` (sleeps), `drop` (closes the connection), a body, or any other answer.
    """

    def __init__(self):
        self.requests, self.faults, self.released = [], [], threading.Event()
        gym = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self):
                parts = urlsplit(self.path)
                self.reply(parts.path, {key: int(values[0]) for key, values in parse_qs(parts.query).items()})

            def do_POST(self):
                assert self.headers["Content-Type"] == "application/json"
                self.reply(self.path, json.loads(self.rfile.read(int(self.headers["Content-Length"]))))

            def reply(self, path, values):
                gym.requests.append((path, values))
                fault = gym.faults.pop(0) if gym.faults else None
                if fault == "slow":
                    gym.released.wait(10)
                    return
                if fault == "drop":
                    self.connection.shutdown(socket.SHUT_RDWR)
                    return
                status, answer = (fault, {}) if fault in STATUSES else (200, fault)
                if fault is None:
                    status, answer = gym.answer(path, values)
                body = answer if isinstance(answer, Raw) else json.dumps(answer).encode()
                self.send_response(status)
                if status == 302:
                    self.send_header("Location", "/elsewhere")
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *args):
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}"
        threading.Thread(target=self.server.serve_forever, args=(0.01,), daemon=True).start()

    def __enter__(self):
        return self

    def __exit__(self, *error):
        self.released.set()
        self.server.shutdown()
        self.server.server_close()

    def answer(self, path, values):
        try:
            method = getattr(self, path[1:])
        except AttributeError:
            return 404, {"detail": "Not Found"}
        try:
            return 200, method(**values)
        except TypeError as error:
            return 422, {"detail": str(error)}


class WebShop(Gym):
    """The session is a bare number; the in-process shop stands behind it, under WebShop's form of answers."""

    def create(self):
        self.session = ShopSession(Shop(0))
        self.session.reset(0)
        return 48950

    def reset(self, env_idx, session_id=None):
        return [self.session.reset(session_id), None]

    def step(self, env_idx, action):
        observed = self.session.step(action)
        return {"state": observed.observation, "reward": observed.reward, "done": observed.done, "info": None}

    def observation(self, env_idx):
        return self.session.observe()

    def available_actions(self, env_idx):
        available = self.session.available_actions()
        return {"has_search_bar": available.search, "clickables": list(available.clickables)}

    def close(self, env_idx):
        return {"closed": True}


class TextCraft(Gym):
    """Takes `Action: …` alone: what stands bare is read as an empty action. `get 1 stick` reaches the goal."""

    reads_prefix = True

    def create(self, commands=None, goal=None):
        return {"id": 3, "observation": "Goal: craft stick.", "done": False, "reward": 0}

    def reset(self, id, data_idx=0):
        return {"id": id, "observation": f"Goal {data_idx}: craft stick.", "done": False, "reward": 0}

    def step(self, id, action):
        if self.reads_prefix:
            action = action.partition("Action: ")[2]
        if action == "get 1 stick":
            return {"observation": "Got 1 stick", "reward": 1, "done": True}
        if action == "inventory":
            return {"observation": "Inventory: You are not carrying anything.", "reward": 0, "done": False}
        return {"observation": f"Could not execute {action}", "reward": 0, "done": False}

    def observation(self, id):
        return "Inventory:"


class SciWorld(Gym):
    """`score` is the sum so far, up to 100; a finished episode has no observation; /close answers a bare truth value."""

    score, finished, prefix = 0, False, "Action: "

    def create(self):
        return {"id": 0}

    def reset(self, id, data_idx):
        self.score, self.finished = 0, False
        return {
            "task_name": "boil",
            "var_num": data_idx,
            "task_description": "Boil water.",
            "observation": "A kitchen.",
            "reward": 0,
            "score": 0,
            "deleted": False,
            "done": False,
        }

    def step(self, id, action):
        if self.finished:
            return {"error": "The task with environment 0 has finished."}
        gains = {"focus on water": 25, "wait": 75, "eat poison": -100, "inventory": 0}
        name = action.removeprefix(self.prefix)
        if name not in gains or (self.prefix and name == action):
            return {"observation": "No known action matches that input.", "reward": 0, "score": self.score, "done": False}
        gained = gains[name]
        self.score += gained
        self.finished = abs(self.score) >= 100 or gained < 0
        return {"observation": name, "reward": gained, "score": self.score, "done": self.finished}

    def observation(self, id):
        return {"error": "The task with environment 0 has finished."} if self.finished else "A kitchen."

    def close(self, id):
        return True


class Crafts(TextCraft):
    """A TextCraft server with the game behind it: tasks numbered as they are listed, a session for each /create."""

    def __init__(self):
        super().__init__()
        self.game, self.sessions, self.created = Crafting(), {}, 0

    def create(self):
        self.created += 1
        self.sessions[self.created] = self.game.episode()
        return {"id": self.created, "observation": "", "done": False, "reward": 0}

    def reset(self, id, data_idx=0):
        if id not in self.sessions or data_idx >= 544:
            return {"error": f"{id} or {data_idx} is not valid"}
        return {"id": id, "observation": self.sessions[id].reset(self.game.tasks()[data_idx]), "done": False, "reward": 0}

    def step(self, id, action):
        step = self.sessions[id].step(action.partition("Action: ")[2])
        return {"observation": step.observation, "reward": step.reward_raw, "done": step.terminal}

    def close(self, id):
        return {"closed": self.sessions.pop(id, None) is not None}

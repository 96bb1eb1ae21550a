"""A tiny graded world, an actor that follows a script, and a search that is written without a tree, to compare with."""

import math
import random

from moat.agent_r.actor import Answer
from moat.agent_r.params import Search
from moat.agent_r.search import grow
from moat.agent_r.turns import REFLECTIONS, read
from moat.environments.base import Environment, Episode, share
from moat.react import Several
from moat.seeds import seed_of

TASK, FIRST, TARGET = "path/a", "the start", "abc"
REFLECTION = f"Thought: {REFLECTIONS[3]}"


class Path(Environment):
    """`a`, `b` and `c` lead on when they are next in TARGET, `back` to the start, `stop` ends; the score is 10 a step.

    `copies`: whether states can be copied. `fault`: raised at the step of this number, over all episodes. `drift`: from this
    step on, observations have a mark. `open`: the episodes that were not closed.
    """

    name = "path"

    def __init__(self, copies=True, fault=None, drift=None):
        super().__init__()
        self.copies, self.fault, self.drift = copies, fault, drift
        self.open, self.steps, self.resets = set(), 0, []

    def episode(self):
        episode = Walk(self)
        self.open.add(episode)
        return episode

    def scale(self, raw):
        return share(raw, 10.0 * len(TARGET))

    def gold(self, task):
        return tuple(TARGET)

    def refused(self, observation):
        return observation.startswith("no")


class Walk(Episode):
    def __init__(self, environment):
        super().__init__(environment)
        self.cheap_clone, self.at = environment.copies, 0

    def clone(self):
        if not self.cheap_clone:
            return super().clone()
        other = self.environment.episode()
        other.horizon, other.task, other.first, other.steps, other.at = (
            self.horizon,
            self.task,
            self.first,
            [*self.steps],
            self.at,
        )
        return other

    def _reset(self, task):
        self.environment.resets.append(task)
        if not task.startswith("path/"):
            raise self.environment.unknown(task, "there is path/a")
        self.at = 0
        return FIRST

    def _step(self, action):
        world = self.environment
        world.steps += 1
        if world.fault and world.steps >= world.fault[0]:
            raise world.fault[1] if isinstance(world.fault[1], BaseException) else self.error(world.fault[1], "it broke")
        self.at, observation, over = walked(self.at, action)
        return observation + "!" * bool(world.drift and world.steps >= world.drift), 10.0 * self.at, over

    def close(self):
        self.environment.open.discard(self)


def walked(at, action):
    """Where an action leads, what is answered, and whether that is the end."""
    if action == "stop":
        return at, "you stop", True
    if action == "back":
        return 0, "at 0", False
    if action == TARGET[at]:
        return at + 1, f"at {at + 1}", at + 1 == len(TARGET)
    return at, "no way", False


def settings(**own):
    return Search(
        **{"iterations": 6, "n": 3, "depth": 5, "c": 0.25, "stop_when_solved": False}
        | {"temperature": 1.0, "top_p": 1.0, "max_new_tokens": 8}
        | own
    )


def goal(task=TASK):
    return {"task_id": task, "environment": "path", "instruction": "Walk.\n", "first": FIRST}


def script(seed, said=("a", "b", "c", "back", "stop", "Hm.", REFLECTION)):
    """An actor that says any of these, by what was said before and the number of the draw; `answer(request)`."""

    def turn(before, draw):
        one = random.Random(seed_of(seed, *before, draw)).choice(said)
        return one if one in ("Hm.", REFLECTION) else f"Action: {one}"

    def answer(request):
        return Answer(turn(request.texts[1::2], request.seed), 2, -1.0)

    answer.turn = turn
    return answer


def grown(environment, answer, goal_row=None, draws=None, **own):
    """A tree, asked of `answer(request)`; `draws` gets the size of every batch. A request's seed is its draw's number."""
    growing = grow(goal_row or goal(), environment, settings(**own), Several.LAST, lambda node, draw: draw)
    answers = None
    while True:
        try:
            asked = next(growing) if answers is None else growing.send(answers)
        except StopIteration as end:
            return end.value
        if draws is not None:
            draws.append(len(asked))
        answers = [answer(request) for request in asked]


def by_paths(rows):
    """A table of nodes by what was said on the way to each."""
    said, found = {}, {}
    for row in rows:
        said[row["node"]] = (*said[row["parent"]], row["text"]) if row["node"] else ()
        found[said[row["node"]]] = row
    return found


class BruteForce:
    """The search once more, by paths of turns: N and Q are counted anew each time, from the list of finished rollouts."""

    def __init__(self, turn, iterations, n, depth, c):
        self.turn, self.n, self.depth, self.c = turn, n, depth, c
        self.rollouts, self.children = [], {}
        self.expand(())
        while len(self.rollouts) < iterations and not self.exhausted(()):
            path = ()
            while path in self.children:
                path = self.best(path)
            if self.visits(path):
                self.expand(path)
                continue
            while not self.ends(path):
                path = (*path, self.turn(path, 0))
            self.rollouts.append(path)

    def expand(self, path):
        kinds = {}
        for draw in range(self.n):
            text = self.turn(path, draw)
            said = read(text, Several.LAST, self.kind(path))
            kinds.setdefault(said.action or said.kind, (*path, text))
        self.children[path] = list(kinds.values())

    def kind(self, path):
        """The kind of a path's last turn, None at the start."""
        return read(path[-1], Several.LAST, self.kind(path[:-1])).kind if path else None

    def walk(self, path):
        """The reward that a path has reached, and whether the environment ended it."""
        at, over = 0, False
        for text in path:
            if text.startswith("Action: "):
                at, _, over = walked(at, text.removeprefix("Action: "))
        return at / len(TARGET), over

    def ends(self, path):
        return len(path) == self.depth or self.walk(path)[1]

    def visits(self, path):
        return len(self.through(path))

    def through(self, path):
        return [one for one in self.rollouts if one[: len(path)] == path]

    def value(self, path):
        through = self.through(path)
        return sum(self.walk(one)[0] for one in through) / len(through) if through else 0.0

    def best(self, path):
        left = [one for one in self.children[path] if not self.exhausted(one)]
        fresh = [one for one in left if not self.visits(one)]
        if fresh:
            return fresh[0]
        parent = self.visits(path)
        bounds = [self.value(one) + self.c * math.sqrt(math.log(parent) / self.visits(one)) for one in left]
        return left[bounds.index(max(bounds))]

    def exhausted(self, path):
        if self.ends(path):
            return self.visits(path) > 0
        return path in self.children and all(self.exhausted(one) for one in self.children[path])

    def nodes(self):
        """Every path that a node stands for."""
        simulated = {one[:length] for one in self.rollouts for length in range(1, len(one) + 1)}
        return {(), *simulated, *(one for children in self.children.values() for one in children)}

"""TextWorldExpress (Jansen and Côté 2022, arXiv 2208.01174) in a Java process: eight text games with graded rewards.

A task is a game, its settings where they are not the game's own, a fold and a seed:

    textworld_express/coin/train/12
    textworld_express/cookingworld?numIngredients=2,numLocations=3/test/20001

Folds are train, dev and test with a thousand seeds each, as the package has them (train 0…, dev 10000…, test 20000…). The
first observation is the task's description, an empty line, and what is seen. The score goes from 0 to 1, and to -1 for the
act that fails a task and ends the episode (the wrong thing in the box): as a reward that is 0. `help` is an action of the
package's Python layer, and none here.

The gold paths are the package's gold agents', with a generator of our own: theirs is seeded by the clock for `coin` and
`twc`, so their paths differ from run to run. They explore before they act, as somebody would who does not know the
place; of ten, the shortest is taken. What follows the end of the episode in them is cut off.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from moat.environments.base import Environment, Episode, EpisodeErrorKind, share, whole_number
from moat.environments.java import Java
from moat.seeds import seed_of

GAMES = {  # and the name of its gold agent in the jar
    "arithmetic": "Arithmetic",
    "coin": "Coin",
    "cookingworld": "CookingWorld",
    "mapreader": "MapReader",
    "peckingorder": "PeckingOrder",
    "simonsays": "SimonSays",
    "sorting": "Sorting",
    "twc": "TWC",
}
FOLDS = {"train": range(1000), "dev": range(10000, 11000), "test": range(20000, 21000)}
GOLD_PATHS = 10  # drawn for each task
_ATTEMPTS = 100  # at them: an agent that walks at random may not arrive
_SETTINGS = re.compile(r"[A-Za-z]+=[0-9]{1,4}(,[A-Za-z]+=[0-9]{1,4})*")
_REMEDY = "a task is GAME/FOLD/SEED or GAME?name=number,…/FOLD/SEED, such as textworld_express/coin/train/12"


class TextWorldExpress(Environment):
    """The environment. `memory` bounds the heap of its Java process, as in `1g`.

    Raises EpisodeError: MISSING without Java or the package `textworld-express`, FAULT when Java does not start.
    """

    name = "textworld_express"

    def __init__(self, horizon: int = 100, memory: str = "1g") -> None:
        super().__init__(horizon)
        self.java = Java(self.name, "textworld_express", "textworld-express==1.1.0", "textworld-express.jar", memory)
        self._generators: dict[tuple[str, str], Any] = {}  # Java's, by game and settings

    def episode(self) -> TextWorldExpressEpisode:
        """A new episode."""
        return TextWorldExpressEpisode(self)

    def scale(self, raw: float) -> float:
        """The score, which is a share already; a penalty is 0."""
        return share(raw, 1.0)

    def refused(self, observation: str) -> bool:
        """Whether the action was none of those that can be taken."""
        return observation.startswith("Unknown action")

    def close(self) -> None:
        """End the Java process."""
        self.java.close()

    def tasks(self, game: str, fold: str, settings: Mapping[str, int] | None = None) -> tuple[str, ...]:
        """A fold's tasks of a game, by name. Raises ValueError for a game or a fold that is none."""
        if game not in GAMES or fold not in FOLDS:
            raise ValueError(f"{game!r}, {fold!r}: games are {', '.join(GAMES)}, folds {', '.join(FOLDS)}")
        given = ",".join(f"{name}={number}" for name, number in sorted((settings or {}).items()))
        place = f"{self.name}/{game}{f'?{given}' if given else ''}/{fold}"
        return tuple(f"{place}/{seed}" for seed in FOLDS[fold])

    def gold(self, task: str) -> tuple[str, ...] | None:
        """The shortest of ten paths of the game's gold agent, up to the end of the episode."""
        game, settings, fold, seed = self.parsed(task)
        paths = self.java.call(lambda: self._gold_paths(game, settings, fold, seed, task), task)
        solved = [path for path in (self.solving(task, path) for path in paths) if path is not None]
        return min(solved, key=lambda path: (len(path), path), default=None)

    def parsed(self, task: str) -> tuple[str, str, str, int]:
        """Game, settings, fold and seed of a task. Raises EpisodeError, UNKNOWN_TASK."""
        parts = self.part(task, _REMEDY).split("/")
        if len(parts) != 3:
            raise self.unknown(task, _REMEDY)
        (game, mark, settings), fold, seed = parts[0].partition("?"), parts[1], whole_number(parts[2])
        if game not in GAMES or fold not in FOLDS or seed is None or seed not in FOLDS[fold]:
            folds = ", ".join(f"{name} {seeds[0]}–{seeds[-1]}" for name, seeds in FOLDS.items())
            raise self.unknown(task, f"{_REMEDY}; games are {', '.join(GAMES)}, seeds {folds}")
        names = [name for name, _, _ in (one.partition("=") for one in settings.split(","))]
        if mark and (not _SETTINGS.fullmatch(settings) or names != sorted(set(names))):
            raise self.unknown(task, f"{_REMEDY}; settings are sorted by name, and each stands once")
        return game, settings, fold, seed

    def begin(self, task: str) -> tuple[Any, str]:
        """A simulator at the start of a task, and the first observation. Raises EpisodeError."""
        game, settings, fold, seed = self.parsed(task)

        def start() -> tuple[Any, str]:
            simulator = self._simulator(game, settings, task)
            seen = json.loads(simulator.generateNewGameJSON(seed, fold, False))["observation"]
            return simulator, f"{simulator.getTaskDescription()}\n\n{seen}"

        return self.java.call(start, task)

    def _simulator(self, game: str, settings: str, task: str) -> Any:
        """A new simulator that makes games of these settings. Loading them takes fifty times as long as making one."""
        simulator = self.java.jvm.textworldexpress.runtime.PythonInterface()
        if (game, settings) in self._generators:
            getattr(simulator, "gameGenerator_$eq")(self._generators[game, settings])
            return simulator
        said = simulator.load(game, settings)
        if said or simulator.gameGenerator() is None:
            raise self.unknown(task, f"the game does not take its settings: {' '.join(said.split())}")
        self._generators[game, settings] = simulator.gameGenerator()
        return simulator

    def _gold_paths(self, game: str, settings: str, fold: str, seed: int, task: str) -> list[list[str]]:
        generator = self._simulator(game, settings, task).gameGenerator()
        agent = getattr(self.java.jvm.textworldexpress.goldagent, f"{GAMES[game]}GoldAgent")
        found: list[list[str]] = []
        for attempt in range(_ATTEMPTS):
            random = self.java.jvm.scala.util.Random(seed_of(task, attempt))
            drawn = agent(generator.mkGame(seed, fold)).mkGoldPath(random)
            if drawn._1():
                found.append(list(drawn._2()))
            if len(found) == GOLD_PATHS:
                break
        return found


class TextWorldExpressEpisode(Episode):
    """An episode: a simulator in the Java process."""

    environment: TextWorldExpress

    def __init__(self, environment: TextWorldExpress) -> None:
        super().__init__(environment)
        self._simulator: Any = None
        self._state = ""

    def state(self) -> str:
        """What can be seen, and what is carried."""
        return self._state

    def close(self) -> None:
        """Let Java drop the simulator."""
        self._simulator, self.task = None, ""

    def _reset(self, task: str) -> str:
        self._simulator, first = self.environment.begin(task)
        self._state = ""
        return first

    def _step(self, action: str) -> tuple[str, float, bool]:
        answer = json.loads(self.environment.java.call(lambda: self._simulator.stepJSON(action), self.task))
        if not isinstance(answer.get("observation"), str) or not isinstance(answer.get("score"), (int, float)):
            raise self.error(EpisodeErrorKind.FAULT, f"the simulator answers {str(answer)[:200]!r}")
        score = float(answer["score"])
        self._state = f"{answer.get('look')}\n{answer.get('inventory')}"
        terminal = bool(answer["tasksuccess"]) or bool(answer["taskfailure"]) or score >= 1
        return answer["observation"], score, terminal

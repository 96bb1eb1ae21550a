"""ScienceWorld (Wang et al. 2022, arXiv 2203.07540) in a Java process: thirty kinds of experiments in a house.

A task is a kind, a variation, and the simplifications where there are any:

    scienceworld/boil/3
    scienceworld/find-plant?easy/120

The variations of a kind are split into train, dev and test by the package. The first observation is the task's description,
an empty line, and the room. The score goes to 100, and to -100 for the act that fails a task (focusing on the wrong thing),
which ends the episode: as a reward that is 0.

A step is the simulator's step, its score and whether it is complete. The package's own `step` also lists all valid actions,
which takes most of its time (trap 42). Chance (bees, genes, wandering animals) is drawn anew at each step from a seed of the
task and the step's number, so that a replay, and another episode between two steps, change nothing.
"""

from __future__ import annotations

from typing import Any

from moat.environments.base import Environment, Episode, share, whole_number
from moat.environments.java import Java
from moat.seeds import seed_of

FOLDS = ("train", "dev", "test")
_REMEDY = "a task is KIND/VARIATION or KIND?simplification,…/VARIATION, such as scienceworld/boil/3"


class ScienceWorld(Environment):
    """The environment. `memory` bounds the heap of its Java process, as in `2g`.

    Raises EpisodeError: MISSING without Java or the package `scienceworld`, FAULT when Java does not start.
    """

    name = "scienceworld"

    def __init__(self, horizon: int = 100, memory: str = "2g") -> None:
        super().__init__(horizon)
        self.java = Java(self.name, "scienceworld", "scienceworld==1.2.3", "scienceworld.jar", memory)
        simulator = self.simulator()

        def ask() -> tuple[dict[str, int], str]:
            kinds = sorted(simulator.getTaskNames())
            return {kind: simulator.getTaskMaxVariations(kind) for kind in kinds}, simulator.getPossibleSimplifications()

        self.kinds, simplifications = self.java.call(ask)  # the number of variations of each kind
        self.simplifications = ("easy", *sorted(name.strip() for name in simplifications.split(",")))
        self._folds: dict[str, dict[str, tuple[int, ...]]] = {}

    def close(self) -> None:
        """End the Java process."""
        self.java.close()

    def episode(self) -> ScienceWorldEpisode:
        """A new episode."""
        return ScienceWorldEpisode(self)

    def scale(self, raw: float) -> float:
        """The score out of 100; below 0 it is 0."""
        return share(raw, 100.0)

    def tasks(self, kind: str, fold: str, simplifications: str = "") -> tuple[str, ...]:
        """A fold's tasks of a kind, by name. Raises ValueError for a kind or a fold that is none."""
        if kind not in self.kinds or fold not in FOLDS:
            raise ValueError(f"{kind!r}, {fold!r}: kinds are {', '.join(self.kinds)}; folds {', '.join(FOLDS)}")
        if kind not in self._folds:
            simulator = self.simulator()

            def split() -> dict[str, tuple[int, ...]]:
                simulator.load(kind, 0, "", False)
                ask = (simulator.getVariationsTrain, simulator.getVariationsDev, simulator.getVariationsTest)
                return {fold: tuple(variations()) for fold, variations in zip(FOLDS, ask, strict=True)}

            self._folds[kind] = self.java.call(split)
        place = f"{self.name}/{kind}{f'?{simplifications}' if simplifications else ''}"
        return tuple(f"{place}/{variation}" for variation in self._folds[kind][fold])

    def refused(self, observation: str) -> bool:
        """Whether the action was not understood."""
        return observation.startswith(("No known action matches", "Unknown action"))

    def gold(self, task: str) -> tuple[str, ...] | None:
        """The package's gold path up to the end of the episode, None if it does not solve the task."""
        kind, simplifications, variation = self.parsed(task)
        simulator = self.simulator()

        def path() -> list[str]:
            self.java.seed(seed_of(task, "gold"))
            simulator.load(kind, variation, simplifications, True)
            return list(simulator.getGoldActionSequence())

        return self.solving(task, self.java.call(path, task))

    def parsed(self, task: str) -> tuple[str, str, int]:
        """Kind, simplifications and variation of a task. Raises EpisodeError, UNKNOWN_TASK."""
        kind, _, variation = self.part(task, _REMEDY).partition("/")
        kind, _, simplifications = kind.partition("?")
        if kind not in self.kinds:
            raise self.unknown(task, f"{_REMEDY}; kinds are {', '.join(self.kinds)}")
        given = simplifications.split(",") if "?" in task else []
        if given != [name for name in self.simplifications if name in given]:
            raise self.unknown(task, f"simplifications are, in this order, {', '.join(self.simplifications)}")
        number = whole_number(variation)
        if number is None or number >= self.kinds[kind]:
            raise self.unknown(task, f"{kind} has the variations 0 to {self.kinds[kind] - 1}")
        return kind, simplifications, number

    def simulator(self) -> Any:
        """A new simulator in the Java process."""
        return self.java.call(lambda: self.java.jvm.scienceworld.runtime.pythonapi.PythonInterface())


class ScienceWorldEpisode(Episode):
    """An episode: a simulator in the Java process."""

    environment: ScienceWorld

    def __init__(self, environment: ScienceWorld) -> None:
        super().__init__(environment)
        self._simulator: Any = environment.simulator()

    def close(self) -> None:
        """Let Java drop the simulator."""
        self._simulator, self.task = None, ""

    def _reset(self, task: str) -> str:
        kind, simplifications, variation = self.environment.parsed(task)
        java, simulator = self.environment.java, self._simulator

        def start() -> str:
            java.seed(seed_of(task, 0))
            simulator.load(kind, variation, simplifications, False)
            return f"{simulator.freeActionTaskDesc()}\n\n{simulator.freeActionLook()}"

        return java.call(start, task)

    def _step(self, action: str) -> tuple[str, float, bool]:
        java, simulator = self.environment.java, self._simulator

        def take() -> tuple[str, float, bool]:
            java.seed(seed_of(self.task, len(self.steps) + 1))
            observation = simulator.step(action)
            return observation, round(100 * simulator.getScore()), simulator.getCompleted()

        observation, score, complete = java.call(take, self.task)
        return observation, score, complete or score < 0

"""How fast the environments are: steps, replays and clones a second on one core, as JSON on standard output.

    python -m benchmarks.environments            # TextCraft; the two in Java where they are installed
    python -m benchmarks.environments textcraft

Steps are gold actions; a replay is a reset and the gold actions so far, half the plan on average. Nothing else should run
beside it. The process's own time stands beside the clock's for TextCraft, which is all in this process.
"""

from __future__ import annotations

import json
import platform
import sys
import time
from collections.abc import Sequence
from typing import Any

from moat.environments.base import Environment, EpisodeError
from moat.environments.scienceworld import ScienceWorld
from moat.environments.textcraft import TextCraft
from moat.environments.textworld_express import GAMES, TextWorldExpress

SECONDS = 3.0  # for each figure


def rates(environment: Environment, tasks: Sequence[str], seconds: float = SECONDS) -> dict[str, float]:
    """Steps a second over gold paths, of the clock and of this process; replays and clones a second in their middle."""
    paths = [(task, gold) for task in tasks if (gold := environment.gold(task))]
    with environment.episode() as episode:
        for task, gold in paths:
            episode.replay(task, gold)  # warm
        count, clock, process, stepping = 0, time.perf_counter(), time.process_time(), 0.0
        while time.perf_counter() - clock < seconds:
            for task, gold in paths:
                episode.reset(task)
                start = time.perf_counter()
                for action in gold:
                    episode.step(action)
                stepping += time.perf_counter() - start
                count += len(gold)
        figures = {
            "steps_per_s": count / stepping,
            "steps_per_s_with_resets": count / (time.perf_counter() - clock),
            "steps_per_cpu_s_with_resets": count / (time.process_time() - process),
        }
        replays, start = 0, time.perf_counter()
        while time.perf_counter() - start < seconds:
            for task, gold in paths:
                episode.replay(task, gold[: len(gold) // 2])
                replays += 1
        figures["replays_per_s"] = replays / (time.perf_counter() - start)
        clones, start = 0, time.perf_counter()
        while time.perf_counter() - start < seconds:
            for _ in range(20):
                episode.clone().close()
                clones += 1
        figures["clones_per_s"] = clones / (time.perf_counter() - start)
    return {name: round(value, 1) for name, value in figures.items()}


def measured(name: str) -> dict[str, Any]:
    """The figures of one environment, or why there are none."""
    try:
        if name == "textcraft":
            with TextCraft() as crafting:
                return rates(crafting, crafting.tasks())
        if name == "textworld_express":
            with TextWorldExpress(horizon=10_000) as games:
                return {game: rates(games, games.tasks(game, "train")[:5], 1.0) for game in GAMES}
        with ScienceWorld(horizon=10_000) as science:
            return {kind: rates(science, science.tasks(kind, "train")[:1], 1.0) for kind in ("boil", "find-plant", "melt")}
    except EpisodeError as error:
        return {"missing": str(error)}


def main() -> None:
    """Measure the environments named on the command line, by default all."""
    names = sys.argv[1:] or ["textcraft", "textworld_express", "scienceworld"]
    host = {"machine": platform.machine(), "python": platform.python_version()}
    print(json.dumps({"host": host, "environments": {name: measured(name) for name in names}}, indent=2))


if __name__ == "__main__":
    main()

"""The main results of the Agent-R paper (arXiv 2501.11425), to stand beside a run's own.

Of Llama-3.1-8B-Instruct, trained on all three environments together. Percent: mean final reward of WebShop and ScienceWorld,
success of TextCraft. Averages are plain means of the three. The paper's figures are its authors'; none was made here.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from moat.agent_r.params import AgentGymWorld, AnyWorld, TextCraftWorld

SOURCE = "arXiv 2501.11425, main results and recovery"
BASE = "Llama-3.1-8B-Instruct"
ENVIRONMENTS = ("WebShop", "ScienceWorld", "TextCraft")


@dataclass(frozen=True, slots=True)
class Result:
    """One row, in percent (None: not known): the mean from the start, that of recovery, and TextCraft's recovery."""

    method: str
    start: float | None
    recovery: float | None
    textcraft: float | None


RESULTS = (
    Result("Agent-R, round 3", 70.71, 46.75, 43.24),
    Result("Direct-Revision", 62.36, 35.67, 29.73),
    Result("the best other method", 65.12, None, None),
)


def is_textcraft(world: AnyWorld) -> bool:
    """Whether an environment is TextCraft, in process or on a server."""
    return isinstance(world, TextCraftWorld) or (isinstance(world, AgentGymWorld) and world.environment == "textcraft")


def own_row(method: str, block: Mapping[str, Any], textcraft: str | None) -> Result:
    """A run's row beside them, from a round's block of metrics.json; `textcraft`: which of its environments that is."""
    crafted = block["recovery"]["environments"].get(textcraft, {})
    values = (block["main"]["reward_avg"], block["recovery"]["reward_avg"], crafted.get("success"))
    return Result(method, *(None if value is None else 100 * value for value in values))

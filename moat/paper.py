"""The main results of the MOAT paper (arXiv 2509.09629), to stand beside a run's own of the same base model.

Percent: accuracy on GSM8K and SVAMP, exact match on StrategyQA and HotpotQA, step success on Mind2Web, mean reward on
WebShop. Averages are plain means of three tasks. The paper's figures are its authors'; none was made here.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

SOURCE = "arXiv 2509.09629, main results"
HELD_IN = ("GSM8K", "Mind2Web", "StrategyQA")
HELD_OUT = ("SVAMP", "WebShop", "HotpotQA")
TASKS = (*HELD_IN, *HELD_OUT)
VARIANTS = {"hf", "chat", "instruct", "base"}  # words of a model's name that make it no other base model


@dataclass(frozen=True, slots=True)
class Result:
    """One row: a method on a base model (empty: a model that is asked as it is), and percent by task, None: not measured."""

    method: str
    base: str
    values: Mapping[str, float | None]

    @property
    def held_in(self) -> float | None:
        """Plain mean over the three held-in tasks; None unless all are measured."""
        return _mean([self.values[task] for task in HELD_IN])

    @property
    def held_out(self) -> float | None:
        """Plain mean over the three held-out tasks; None unless all are measured."""
        return _mean([self.values[task] for task in HELD_OUT])


def _mean(values: list[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if len(known) == len(values) else None


def _row(method: str, base: str, *values: float) -> Result:
    return Result(method, base, dict(zip(TASKS, values, strict=True)))


RESULTS = (  # GSM8K, Mind2Web, StrategyQA; SVAMP, WebShop, HotpotQA
    _row("GPT-4", "", 87.0, 22.6, 71.0, 90.5, 58.6, 52.1),
    _row("GPT-3.5-Turbo", "", 65.0, 21.7, 58.0, 81.0, 62.4, 24.0),
    _row("Llama-2-7B-Chat", "Llama-2-7B", 15.0, 11.9, 5.0, 20.7, 15.8, 3.0),
    _row("Agent Tuning", "Llama-2-7B", 14.0, 10.6, 49.0, 35.3, 59.8, 10.0),
    _row("Agent Tuning", "Llama-2-13B", 22.3, 11.1, 52.0, 56.9, 65.0, 24.0),
    _row("Agent-FLAN", "Llama-2-7B", 28.5, 16.9, 48.0, 39.2, 55.9, 12.0),
    _row("Agent Lumos", "Llama-2-7B", 46.6, 29.9, 46.7, 65.5, 58.3, 25.0),
    _row("MOAT", "Llama-2-7B", 47.4, 33.0, 52.0, 69.2, 60.6, 27.0),
    _row("Agent Lumos", "Mistral-7B-v0.2", 46.4, 33.8, 49.3, 61.9, 58.7, 27.0),
    _row("MOAT", "Mistral-7B-v0.2", 48.2, 34.7, 56.0, 73.7, 59.0, 28.0),
    _row("Agent Lumos", "Qwen2.5-14B", 81.7, 31.8, 49.3, 85.5, 64.7, 27.0),
    _row("MOAT", "Qwen2.5-14B", 82.4, 32.6, 55.3, 87.4, 65.8, 28.0),
)


def rows_for(base_model: str) -> tuple[Result, ...]:
    """The paper's rows of a base model, given by hub id or folder; none for another model.

    `meta-llama/Llama-2-7b-chat-hf` is Llama-2-7B: the last part of the name counts, without regard to case and VARIANTS.
    A name with any other word is another model, as Qwen2.5-Coder-14B.
    """
    words = set(re.split(r"[-_]", base_model.rstrip("/").rsplit("/", 1)[-1].lower())) - VARIANTS
    return tuple(row for row in RESULTS if row.base and set(row.base.lower().split("-")) == words)


def own_row(name: str, base_model: str, scores: Mapping[str, float]) -> Result:
    """A run's row beside them: percent from `scores` (0 to 1) by task source.

    A source counts as a task of the paper's when its name is the task's, without regard to case, `-` and `_`; others, such
    as `webshop_like`, are left out.
    """
    known = {re.sub("[-_]", "", source.lower()): score for source, score in scores.items()}
    values = {task: 100 * known[task.lower()] if task.lower() in known else None for task in TASKS}
    return Result(name, base_model, values)

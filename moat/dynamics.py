"""How a round learned, as plain figures: the training logs of both models, and what the tables of the round say.

A figure has a part (whose it is), a name, an update (0: of the whole round) and a value. What was not measured has no
figure: a planner that was fine-tuned has no margins, a model that was not trained has no log.

Named `X/p10` and the like are quantiles (linear between neighbours; p0 and p100 are the extremes), `X/mean` is the mean.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import polars as pl

QUANTILES = (0, 10, 25, 50, 75, 90, 100)  # in percent
ENDS = 10  # the beginning and the end of a training are a tenth of its updates each
LEFT_OUT = ("/p0", "/p25", "/p75", "/p100")  # of metrics.json, which is for a glance; the table has them


class DynamicsError(ValueError):
    """A model folder that does not say how it was made; the message names the file and the remedy."""


class Figure(NamedTuple):
    """One row of the table."""

    part: str
    name: str
    update: int
    value: float


def spread(part: str, name: str, values: Sequence[float] | pl.Series) -> list[Figure]:
    """Mean and quantiles of `values`; nothing of nothing. Values that are not finite are left out."""
    numbers = np.asarray(values, dtype=np.float64)
    numbers = numbers[np.isfinite(numbers)]
    if not len(numbers):
        return []
    found = [Figure(part, f"{name}/mean", 0, float(numbers.mean()))]
    levels = np.percentile(numbers, QUANTILES)
    return found + [Figure(part, f"{name}/p{q}", 0, float(level)) for q, level in zip(QUANTILES, levels, strict=True)]


def entropy(subgoals: pl.DataFrame) -> float | None:
    """Entropy of the planner in nats per token, estimated from its samples; None when they hold no token.

    A Monte Carlo estimate: −Σ log P(sample) / Σ (tokens, with the end token where the planner ended by itself). The mean of
    −log P over samples of P is P's entropy; it is that of the policy when plans are sampled at temperature 1 and top_p 1
    (`logprob` is at temperature 1, whatever was sampled at). At another temperature or with a nucleus it is the cross
    entropy between what was sampled and the policy, comparable between rounds of one setting only.
    """
    tokens = int(subgoals["n_tokens"].sum()) + int((subgoals["finish_reason"] == "stop").sum())
    return -float(subgoals["logprob"].sum()) / tokens if tokens else None


def read_card(path: Path) -> dict[str, Any]:
    """What a model folder says of how it was made. Raises FileNotFoundError or DynamicsError, naming the file."""
    if not path.is_file():
        raise FileNotFoundError(f"{path} is missing: run the stage that writes the model (`dvc repro`), or `dvc pull`")
    try:
        card = json.loads(path.read_text(encoding="utf-8"))
        if not isinstance(card, dict) or not all(isinstance(entry, dict) for entry in card.get("log", [])):
            raise ValueError("not a list of updates")
    except ValueError as error:
        raise DynamicsError(
            f"{path} holds no training log ({error}): delete the folder, then `dvc checkout` or `dvc repro`"
        ) from error
    return card


def training(part: str, log: Sequence[Mapping[str, float]]) -> list[Figure]:
    """A model's updates: how many, and each value that was logged, by update."""
    found = [Figure(part, "updates", 0, float(len(log)))]
    for entry in log:
        update = int(entry["update"])
        found += [Figure(part, name, update, float(value)) for name, value in entry.items() if name != "update"]
    return found


def samples(subgoals: pl.DataFrame) -> list[Figure]:
    """What the planner sampled: how many plans, how different, how long, how sure it was of them."""
    part, n = "samples", len(subgoals)
    if not n:
        return [Figure(part, "candidates", 0, 0.0)]
    per_task = subgoals.group_by("task_id").agg(pl.col("subgoals").n_unique())["subgoals"]
    found = [
        Figure(part, "candidates", 0, float(n)),
        Figure(part, "usable_share", 0, subgoals["dropped"].null_count() / n),
        Figure(part, "cut_share", 0, int((subgoals["finish_reason"] == "length").sum()) / n),
        Figure(part, "distinct_share", 0, int(per_task.sum()) / n),
    ]
    if (estimate := entropy(subgoals)) is not None:
        found.append(Figure(part, "entropy", 0, estimate))
    return found + spread(part, "distinct", per_task) + spread(part, "tokens", subgoals["n_tokens"])


def scores(scored: pl.DataFrame) -> list[Figure]:
    """NLL and PPL of the gold actions over all scored candidates."""
    return spread("scores", "nll", scored["nll"]) + spread("scores", "ppl", scored["ppl"])


def pairs(table: pl.DataFrame, subgoals: pl.DataFrame) -> list[Figure]:
    """Gaps (rejected minus chosen) of all tasks with two plans to compare, so that a threshold shows what it cuts off.

    Lengths are of the kept pairs, those trained on.
    """
    part = "pairs"
    both = table.filter(pl.col("chosen_k").is_not_null() & pl.col("rejected_k").is_not_null())
    kept = both.filter(pl.col("dropped").is_null())
    found = [
        Figure(part, "tasks", 0, float(len(table))),
        Figure(part, "compared", 0, float(len(both))),
        Figure(part, "kept", 0, float(len(kept))),
    ]
    for unit in ("ppl", "nll"):
        found += spread(part, f"gap_{unit}", both[f"rejected_{unit}"] - both[f"chosen_{unit}"])
    lengths = subgoals.select("task_id", "k", "n_tokens")
    for side in ("chosen", "rejected"):
        joined = kept.select("task_id", k=f"{side}_k").join(lengths, on=["task_id", "k"])
        found += spread(part, f"{side}_tokens", joined["n_tokens"])
    return found


def critiques(table: pl.DataFrame) -> list[Figure]:
    """The share of each verdict that was given."""
    counted = sorted(Counter(table["verdict"].to_list()).items())
    return [Figure("critiques", f"{verdict}_share", 0, n / len(table)) for verdict, n in counted]


def ends(values: Sequence[float]) -> dict[str, float]:
    """Where a logged value began and ended: means over the first and the last tenth of the updates, at least one."""
    n = max(1, len(values) // ENDS)
    return {"first": sum(values[:n]) / n, "last": sum(values[-n:]) / n}


def block(table: pl.DataFrame) -> dict[str, Any]:
    """A round's dynamics for metrics.json: logged values by their ends, and the figures of the whole round, by part.

    Without the outer quantiles, and without the verdicts, which metrics.json has elsewhere.
    """
    found: dict[str, Any] = {}
    rows = table.filter(pl.col("part") != "critiques").sort("part", "name", "update")
    for (part, name), own in rows.group_by("part", "name", maintain_order=True):
        values = own["value"].to_list()
        if not str(name).endswith(LEFT_OUT):
            found.setdefault(str(part), {})[str(name)] = values[0] if own["update"][0] == 0 else ends(values)
    return found


def track(tables: Sequence[pl.DataFrame], part: str, name: str, points: int) -> tuple[list[float], list[float]]:
    """A logged value over the updates of several rounds, as (x, y): updates are counted on from round to round.

    Each round gives at most `points` points, means over equally many updates (the last over what is left).
    """
    x: list[float] = []
    y: list[float] = []
    passed = 0
    for table in tables:
        own = table.filter(pl.col("part") == part)
        values = own.filter(pl.col("name") == name).sort("update")["value"].to_list()
        width = max(1, -(-len(values) // points))
        for start in range(0, len(values), width):
            chunk = values[start : start + width]
            x.append(passed + start + (len(chunk) + 1) / 2)
            y.append(sum(chunk) / len(chunk))
        passed += updates(table, part)
    return x, y


def updates(table: pl.DataFrame, part: str) -> int:
    """How many updates a model had in the round of `table`."""
    counted = table.filter((pl.col("part") == part) & (pl.col("name") == "updates"))["value"].to_list()
    return int(counted[0]) if counted else 0

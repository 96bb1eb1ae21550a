"""A guard against a planner that has collapsed: it says the same over and over, or next to nothing.

Preference tuning can end there, and such a round still makes pairs of a kind, trains, and looks like any other. So what was
sampled is measured before it becomes the round's table, against thresholds of params.yaml (section `limits`), and a
collapsed round ends with an error. Its samples are kept aside for a look, where nothing reads them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from moat import layout
from moat.params import Limits
from moat.rows import ENGINE_FAILED
from moat.schemas.demos import DEMOS
from moat.schemas.subgoals import SUBGOALS
from moat.stage import Stage
from moat.tokens import Renderer, Role

FOLDER = "collapsed"  # of the machine's scratch folder
SHOWN = 3  # task ids that a warning names


class CollapseError(RuntimeError):
    """Samples that are not worth training on; the message holds the figures, the thresholds and where they are kept."""


@dataclass(frozen=True, slots=True)
class Spread:
    """How different and how long a round's sampled plans are."""

    n_candidates: int
    n_tasks: int
    diversity: float | None  # mean over tasks of (distinct - 1) / (candidates - 1); None where no task has two candidates
    mean_tokens: float  # of a plan, without the end token
    few: tuple[str, ...]  # tasks with fewer distinct plans than `min_distinct`


def measure(rows: Sequence[Mapping[str, Any]], min_distinct: int) -> Spread:
    """The figures of some rows of a subgoals table.

    (distinct − 1) / (K − 1) and not distinct / K, because the least value of that, 1/K, is no collapse for a small K and
    complete collapse for a large one; of this it is 0 for any K.
    """
    texts: dict[str, list[str]] = {}
    for row in rows:
        texts.setdefault(row["task_id"], []).append(row["subgoals"])
    shares = [(len(set(own)) - 1) / (len(own) - 1) for own in texts.values() if len(own) > 1]
    return Spread(
        n_candidates=len(rows),
        n_tasks=len(texts),
        diversity=sum(shares) / len(shares) if shares else None,
        mean_tokens=sum(row["n_tokens"] for row in rows) / len(rows) if rows else 0.0,
        few=tuple(sorted(task for task, own in texts.items() if len(set(own)) < min(min_distinct, len(own)))),
    )


def faults(found: Spread, demonstrated: float | None, settings: Limits) -> list[str]:
    """What of `found` is below its threshold, in words; `demonstrated` is the demonstrations' mean length in tokens.

    The yardstick for the length is what the planner was taught, and not the round before: a planner that loses a third of
    its words each round would pass every comparison with the round before.
    """
    said = []
    if found.diversity is not None and found.diversity < settings.min_diversity:
        said.append(
            f"of a task's further candidates {found.diversity:.1%} are new texts "
            f"(limits.min_diversity: {settings.min_diversity:.1%})"
        )
    if demonstrated and found.n_candidates and found.mean_tokens < settings.min_length_ratio * demonstrated:
        said.append(
            f"a plan has {found.mean_tokens:.2f} tokens on average, {found.mean_tokens / demonstrated:.1%} of the "
            f"demonstrations' {demonstrated:.2f} (limits.min_length_ratio: {settings.min_length_ratio:.1%})"
        )
    return said


def demonstrated_tokens(renderer: Renderer) -> float | None:
    """Mean length of the planner's demonstrations in tokens, without the end token; None when there is none."""
    plans = DEMOS.read(layout.demos(Role.PLANNER))["subgoals"].to_list()
    return sum(len(renderer.completion(plan)) - 1 for plan in plans) / len(plans) if plans else None


def guard(stage: Stage, rows: Sequence[Mapping[str, Any]], renderer: Renderer, round_key: str, prev: str) -> None:
    """Warn of tasks with few distinct plans, and refuse a collapsed round before its table is published.

    Raises CollapseError. The rows then lie in the scratch folder as a subgoals table; nothing is written to the round's own
    place, so that neither a later stage nor `dvc commit` can take them for a result.
    """
    settings = stage.params.limits
    found = measure([row for row in rows if row["dropped"] != ENGINE_FAILED], settings.min_distinct)
    if found.few:
        more = len(found.few) - SHOWN
        names = ", ".join(found.few[:SHOWN]) + (f" and {more:,} more" if more > 0 else "")
        stage.warn(
            f"{len(found.few):,} of {found.n_tasks:,} tasks have fewer than {settings.min_distinct} distinct plans "
            f"(limits.min_distinct): {names}"
        )
    said = faults(found, demonstrated_tokens(renderer), settings)
    if not said:
        return
    kept = stage.scratch / FOLDER / f"subgoals-{round_key}.parquet"
    SUBGOALS.write(kept, rows, {"collapsed": said})
    raise CollapseError(
        f"the plans of {layout.model(Role.PLANNER, prev)} for round {round_key} have collapsed: {'; '.join(said)}. They are "
        f"not trained on; {kept} has all {found.n_candidates:,}. Train that planner more gently (learning_rate, epochs, "
        "align.beta, align.nll_weight), or lower the threshold if this is what you want"
    )

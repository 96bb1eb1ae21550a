"""The modes of Agent-R side by side: which of them recover, which succeed from the start, over several seeds.

Every condition and seed is a workspace of its own under science/agent_r/ (see `moat.science`): stages that conditions have
in common, such as the cold start, the recovery set and the first search, are computed once. All conditions train for
`train.updates` updates a round.

    moat ablate --pipeline agent_r --seeds 100 --seeds 101 --conditions agent_r --conditions bc
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
from scipy.stats import ttest_1samp

from moat import layout
from moat.params import PARAMS, ParamsError, load_as
from moat.pipelines import AGENT_R
from moat.publish import publish_text
from moat.science import Condition, dvc, interval, workspace

CONDITIONS = (
    Condition("agent_r", "Agent-R: splices at the first bad step, re-executed"),
    Condition("direct_revision", "splices at the bad path's end, re-executed", change={"mode": "direct_revision"}),
    Condition("bc", "behaviour cloning of the demonstrations", change={"mode": "bc"}),
    Condition("optimal_only", "searched paths of full reward", change={"mode": "optimal_only"}),
    Condition("optimal_plus_good", "searched paths over alpha", change={"mode": "optimal_plus_good"}),
    Condition("agent_r_textual", "Agent-R, the splices as texts", change={"splice.replay": "off"}),
    Condition(
        "direct_revision_textual",
        "splices at the bad path's end, as texts",
        change={"mode": "direct_revision", "splice.replay": "off"},
    ),
    Condition("agent_r_tree", "Agent-R, the search tree as the judge", change={"judge.kind": "tree"}),
    Condition("agent_r_single", "Agent-R on TextCraft alone", change={"train_on": ["textcraft"]}),
)
# What is tabulated: a part of a round's block, a figure in it, what it is, and by what it is multiplied.
FIGURES = (
    ("main", "success", "success from the start, %", 100),
    ("main", "reward", "mean reward from the start, %", 100),
    ("recovery", "success", "recovery, %", 100),
    ("recovery", "reward", "mean reward of recoveries, %", 100),
    ("main", "loop_rate", "loop rate from the start, %", 100),
    ("recovery", "loop_rate", "loop rate of recoveries, %", 100),
    ("main", "reflections", "reflections a play from the start", 1),
    ("recovery", "reflections", "reflections a recovery", 1),
)
Results = dict[str, dict[str, dict[str, Any]]]  # condition, seed, round: its block of metrics.json


def run(root: Path, condition: Condition, seed: int) -> dict[str, Any]:
    """Run one condition and seed; returns the rounds of its metrics.json. Raises RuntimeError naming a log."""
    place = workspace(root, condition, seed, AGENT_R)
    dvc(place, "repro", "--quiet", "summarize")
    rounds: dict[str, Any] = json.loads((place / layout.METRICS).read_text(encoding="utf-8"))["rounds"]
    return rounds


def table(results: Results, environment: str, part: str, figure: str, what: str, times: float) -> str:
    """A Markdown table of a figure: a line per condition's last round, a column per seed, and the cold start's line."""
    seeds = sorted({seed for per_seed in results.values() for seed in per_seed}, key=int)
    lines = [f"| {environment}: {what} | " + " | ".join(seeds) + " | mean ± 95% | against cold start | p |"]
    lines.append("| --- |" + " ---: |" * (len(seeds) + 3))

    def values(condition: str, key: Callable[[dict[str, Any]], str]) -> dict[str, float]:
        found = {}
        for seed, rounds in results[condition].items():
            block = (rounds[key(rounds)][part] or {}).get("environments", {}).get(environment)
            if block and block[figure] is not None:
                found[seed] = times * float(block[figure])
        return found

    cold: dict[str, float] = {}
    for condition in results:
        cold |= values(condition, lambda rounds: "0")
    if cold:
        lines.append(_line("cold start", cold, {}, seeds))
    for one in CONDITIONS:
        if one.name in results and (last := values(one.name, lambda rounds: max(rounds, key=int))):
            lines.append(_line(one.name, last, cold, seeds))
    return "\n".join(lines)


def _line(name: str, values: dict[str, float], cold: dict[str, float], seeds: Sequence[str]) -> str:
    mean, half = interval(list(values.values()))
    shown = " | ".join(f"{values[seed]:.1f}" if seed in values else "" for seed in seeds)
    gains = [values[seed] - cold[seed] for seed in values if seed in cold]
    against = f"{np.mean(gains):+.1f}" if gains else ""
    p = f"{ttest_1samp(gains, 0).pvalue:.3f}" if len(gains) > 1 and np.ptp(gains) else ""
    return f"| {name} | {shown} | {mean:.1f} ± {half:.1f} | {against} | {p} |"


def markdown(results: Results) -> str:
    """All tables of the results."""
    first = next(iter(next(iter(results.values())).values()))
    environments = sorted(first["0"]["main"]["environments"])
    return "\n\n".join(table(results, name, *figure) for name in environments for figure in FIGURES) + "\n"


def ablate(root: Path, seeds: Sequence[int], names: Sequence[str], jobs: int, say: Callable[[str], None]) -> str:
    """Run conditions over seeds, `jobs` at once; writes science/agent_r/results.{json,md} as results come in.

    Returns the tables. Raises ParamsError for a condition that is none, and where params.yaml sets no `train.updates`;
    RuntimeError, naming a log, for a run that fails.
    """
    from moat.agent_r.params import AgentParams

    known = {condition.name: condition for condition in CONDITIONS}
    unknown = [name for name in names if name not in known]
    if unknown:
        raise ParamsError(f"no condition {', '.join(unknown)}: there are {', '.join(known)}")
    folder = root / AGENT_R
    if not load_as(folder / PARAMS, AgentParams).train.updates:
        raise ParamsError(f"{folder / PARAMS}: train.updates: 0; modes are compared at equal numbers of updates: set it")
    path = root / "science" / AGENT_R / "results.json"
    results: Results = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}

    def job(condition: Condition, seed: int) -> None:
        results.setdefault(condition.name, {})[str(seed)] = run(root, condition, seed)
        publish_text(path, json.dumps(results, indent=1, sort_keys=True) + "\n")
        publish_text(path.with_suffix(".md"), markdown(results))
        say(f"{condition.name}, seed {seed}: done")

    with ThreadPoolExecutor(jobs) as pool:
        for future in [pool.submit(job, known[name], seed) for name in names for seed in seeds]:
            future.result()
    return markdown(results)

"""The experiment behind docs/results.md: does joint training help, and is it MOAT that helps?

Every condition and seed is a workspace of its own under science/ (code copied, params changed, one DVC cache shared), run
by `dvc repro` like any other run; stages that conditions have in common are therefore computed once. Settings were fixed
on the draw `dev`; this runs on the draw `test`.

    make science                                  # all conditions, five seeds, two at a time
    python -P -m moat.science --seeds 100 101 --conditions joint independent_x1
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from scipy.stats import t as student
from scipy.stats import ttest_1samp

from moat.launch import find_root, project_of
from moat.params import PARAMS, yaml
from moat.publish import publish_text

SEEDS = (100, 101, 102, 103, 104)
DRAW = "test"


@dataclass(frozen=True)
class Condition:
    """A named change of params.yaml, and the last round it is run for."""

    name: str
    what: str
    last_round: str = "1"
    change: dict[str, Any] = field(default_factory=dict)


EQUAL = {"numbers": 0.5, "operation": 0.2, "vague": 0.3}
CONDITIONS = (
    Condition("joint", "MOAT, two rounds", "2"),
    Condition("independent_x1", "independent training, equal updates", change={"mode": "independent"}),
    Condition("align_only", "MOAT without stage 2", change={"train_grounder.enabled": False}),
    Condition("tune_only", "MOAT without stage 1", change={"align.enabled": False}),
    Condition(
        "accepted_only", "no corrections: what the critic does not accept is left out", change={"critic.on_failure": "drop"}
    ),
    Condition("random_pairs", "random pairs", change={"pairs.select": "random"}),
    Condition("sft_chosen", "SFT on the chosen plans alone", change={"align.loss": "sft_chosen"}),
    Condition("plain_dpo", "plain DPO, without the NLL term", change={"align.nll_weight": 0.0}),
    Condition(
        "equal_pools",
        "control world: both pools have the same styles",
        change={
            "prepare.sources.stories.planner_styles": EQUAL,
            "prepare.sources.stories.grounder_styles": EQUAL,
        },
    ),
    Condition(
        "equal_pools_independent",
        "control world, independent training",
        change={
            "mode": "independent",
            "prepare.sources.stories.planner_styles": EQUAL,
            "prepare.sources.stories.grounder_styles": EQUAL,
        },
    ),
    Condition(
        "equal_pools_align_only",
        "control world, without stage 2",
        change={
            "train_grounder.enabled": False,
            "prepare.sources.stories.planner_styles": EQUAL,
            "prepare.sources.stories.grounder_styles": EQUAL,
        },
    ),
    Condition("independent_x2", "independent, twice the updates", change={"mode": "independent", "independent.factor": 2}),
    Condition("independent_x3", "independent, 3 times the updates", change={"mode": "independent", "independent.factor": 3}),
)


def settings(folder: Path, condition: Condition, seed: int) -> Any:
    """A pipeline's params.yaml with the condition's change, the test draw and the seed."""
    parser = yaml()
    params = parser.load((folder / PARAMS).read_text(encoding="utf-8"))
    changes = {"seed": seed} | condition.change
    drawn = [f"prepare.sources.{name}" for name in params.get("prepare", {}).get("sources", {})]
    drawn += [f"environments.{name}" for name in params.get("environments", {})]
    changes |= {f"{key}.draw": DRAW for key in drawn}
    for key, value in changes.items():
        *parents, leaf = key.split(".")
        place = params
        for parent in parents:
            place = place[parent]
        if leaf not in place:
            raise KeyError(f"{folder / PARAMS} has no key {key}")
        place[leaf] = value
    return params


def workspace(root: Path, condition: Condition, seed: int, pipeline: str = "") -> Path:
    """Make, or bring up to date, the folder in which one condition and seed is run; returns the pipeline's folder in it.

    `pipeline` is the folder of the pipeline in the project; empty: the first one's, the project itself.
    """
    place = root / "science" / pipeline / condition.name / str(seed)
    own = place / pipeline
    own.mkdir(parents=True, exist_ok=True)
    for folder in ("moat", f"{pipeline}/stages" if pipeline else "stages"):
        shutil.copytree(root / folder, place / folder, dirs_exist_ok=True, ignore=shutil.ignore_patterns("__pycache__"))
    for source, target in (
        (root / pipeline / "dvc.yaml", own / "dvc.yaml"),
        (root / "machine.yaml", place / "machine.yaml"),
    ):
        if source.is_file():
            shutil.copyfile(source, target)
    (own / "data" / "sources").mkdir(parents=True, exist_ok=True)
    with (own / PARAMS).open("w", encoding="utf-8") as file:
        yaml().dump(settings(root / pipeline, condition, seed), file)
    if not (place / ".dvc").is_dir():
        dvc(place, "init", "--no-scm", "--quiet")
        dvc(place, "config", "cache.dir", str(root / "science" / ".cache"))
        dvc(place, "config", "core.analytics", "false")
    return own


def dvc(place: Path, *arguments: str) -> None:
    """Run DVC in a workspace, its output appended to run.log there. Raises RuntimeError naming that file."""
    log, library = place / "run.log", str(project_of(place))
    with log.open("a", encoding="utf-8") as file:
        done = subprocess.run(
            [sys.executable, "-P", "-m", "dvc", *arguments],
            cwd=place,
            stdout=file,
            stderr=subprocess.STDOUT,
            check=False,
            env=os.environ | {"PYTHONPATH": library, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"},
        )
    if done.returncode:
        raise RuntimeError(f"dvc {' '.join(arguments)} failed in {place}: see {log}")


def run(root: Path, condition: Condition, seed: int) -> dict[str, Any]:
    """Run one condition and seed; returns the figures of the cold start and of every round run."""
    place = workspace(root, condition, seed)
    keys = [str(number) for number in range(int(condition.last_round) + 1)]
    dvc(place, "repro", "--quiet", *(f"evaluate@{key}" for key in keys))
    command = [sys.executable, "-P", "-m", "moat.science", "--figures", *keys]
    environment = os.environ | {"PYTHONPATH": str(place)}
    told = subprocess.run(command, cwd=place, check=True, capture_output=True, text=True, env=environment).stdout
    found: dict[str, Any] = json.loads(told)
    return found


def figures(keys: Sequence[str]) -> dict[str, Any]:
    """Figures of the rounds `keys` of the workspace that this process stands in."""
    from moat import layout
    from moat.params import load
    from moat.schemas.actions import ACTIONS
    from moat.schemas.critiques import CRITIQUES
    from moat.schemas.evals import EVALS
    from moat.schemas.pairs import PAIRS
    from moat.schemas.scores import SCORES
    from moat.schemas.sft import SFT
    from moat.schemas.subgoals import SUBGOALS
    from moat.schemas.tasks import TASKS
    from moat.summary import evaluation, round_block, tidy

    gap = load(Path(PARAMS)).pairs.min_gap
    tasks = TASKS.read(layout.TRAIN_TASKS)
    found = {}
    for key in keys:
        block = evaluation(EVALS.read(layout.evals(key)))
        if key != "0" and layout.table("sft", key).is_file():
            tables = (SUBGOALS, SCORES, ACTIONS, PAIRS, CRITIQUES, SFT)
            read = {table.name: table.read(layout.table(table.name, key)) for table in tables}
            block |= round_block(tasks, min_gap=gap, **read)
        found[key] = tidy(block)
    return found


def interval(values: Sequence[float]) -> tuple[float, float]:
    """Mean and half width of its 95% interval over seeds (Student's t); infinite for a single value."""
    if len(values) < 2:
        return float(np.mean(values)), float("inf")
    half = student.ppf(0.975, len(values) - 1) * np.std(values, ddof=1) / np.sqrt(len(values))
    return float(np.mean(values)), float(half)


def table(results: dict[str, dict[str, Any]], source: str) -> str:
    """A Markdown table: success on one task source, a line per condition and round, a column per seed, in percent."""
    seeds = sorted({seed for per_seed in results.values() for seed in per_seed}, key=int)
    lines = [f"| {source} | " + " | ".join(seeds) + " | mean ± 95% | against cold start | p |"]
    lines.append("| --- |" + " ---: |" * (len(seeds) + 3))

    def line(name: str, values: dict[str, float], cold: dict[str, float]) -> str:
        mean, half = interval(list(values.values()))
        shown = " | ".join(f"{values[s]:.1f}" if s in values else "" for s in seeds)
        gains = [values[s] - cold[s] for s in values if s in cold]
        against, p = "", ""
        if any(gains):
            against = f"{np.mean(gains):+.1f}"
            p = f"{ttest_1samp(gains, 0).pvalue:.3f}" if len(gains) > 1 else ""
        return f"| {name} | {shown} | {mean:.1f} ± {half:.1f} | {against} | {p} |"

    def success(condition: str, key: str) -> dict[str, float]:
        return {
            seed: 100 * rounds[key]["sources"][source]["success"]
            for seed, rounds in results[condition].items()
            if key in rounds
        }

    for condition in CONDITIONS:
        if condition.name not in results:
            continue
        cold = success(condition.name, "0")
        if condition.name in ("joint", "equal_pools"):
            lines.append(line(f"{condition.name}: cold start", cold, {}))
        for key in map(str, range(1, int(condition.last_round) + 1)):
            lines.append(line(f"{condition.name}: round {key}", success(condition.name, key), cold))
    return "\n".join(lines)


def course(results: dict[str, dict[str, Any]], condition: str) -> str:
    """A Markdown table: what a condition's rounds look like, means over seeds, on all evaluation tasks."""
    columns: dict[str, Callable[[dict[str, Any]], float | None]] = {
        "success %": lambda block: 100 * block["success"],
        "other's plan %": lambda block: 100 * block["control_success"],
        "PPL of gold": lambda block: block["ppl_gold"],
        "plans in numbers %": lambda block: 100 * block["styles"].get("numbers", 0.0),
        "operation %": lambda block: 100 * block["styles"].get("operation", 0.0),
        "vague %": lambda block: 100 * block["styles"].get("vague", 0.0),
        "distinct %": lambda block: 100 * block["distinct_share"] if "distinct_share" in block else None,
        "pairs": lambda block: block.get("pairs_kept"),
        "accepted %": lambda block: 100 * block["verdicts"].get("accept", 0.0) if "verdicts" in block else None,
        "AUC of -PPL": lambda block: block.get("premise_auc"),
    }
    per_seed = results[condition].values()
    lines = [f"| {condition} | " + " | ".join(columns) + " |", "| --- |" + " ---: |" * len(columns)]
    for key in sorted({key for rounds in per_seed for key in rounds}, key=int):
        cells = []
        for read in columns.values():
            values = [value for rounds in per_seed if key in rounds and (value := read(rounds[key])) is not None]
            cells.append(f"{np.mean(values):.3g}" if values else "")
        lines.append(f"| round {key} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def markdown(results: dict[str, dict[str, Any]]) -> str:
    """All tables of the results."""
    first = next(iter(next(iter(results.values())).values()))
    tables = [table(results, source) for source in sorted(first["0"]["sources"])]
    return "\n\n".join([*tables, *(course(results, name) for name in ("joint", "equal_pools") if name in results)]) + "\n"


def main() -> None:
    """Command line; writes science/results.json and science/results.md as results come in."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, nargs="+", default=list(SEEDS))
    parser.add_argument(
        "--conditions", nargs="+", default=[c.name for c in CONDITIONS], choices=[c.name for c in CONDITIONS]
    )
    parser.add_argument("--jobs", type=int, default=2, help="workspaces that run at once, one thread each")
    parser.add_argument("--figures", nargs="+", metavar="ROUND", help="print the figures of the folder stood in, and stop")
    options = parser.parse_args()
    if options.figures:
        print(json.dumps(figures(options.figures)))
        return
    root = find_root(Path.cwd())
    chosen = [c for c in CONDITIONS if c.name in options.conditions]
    results_path = root / "science" / "results.json"
    results: dict[str, dict[str, Any]] = json.loads(results_path.read_text()) if results_path.is_file() else {}

    def job(condition: Condition, seed: int) -> None:
        found = run(root, condition, seed)
        results.setdefault(condition.name, {})[str(seed)] = found
        shown = ", ".join(f"round {key} {100 * block['success']:.1f}%" for key, block in found.items())
        print(f"{condition.name} seed {seed}: {shown}", flush=True)
        publish_text(results_path, json.dumps(results, indent=1, sort_keys=True) + "\n")
        publish_text(root / "science" / "results.md", markdown(results))

    with ThreadPoolExecutor(options.jobs) as pool:
        futures = [pool.submit(job, condition, seed) for condition in chosen for seed in options.seeds]
        for future in futures:
            future.result()
    print((root / "science" / "results.md").read_text())


if __name__ == "__main__":
    main()

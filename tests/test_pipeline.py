"""The whole pipeline through `dvc repro`, small: one round, then a second; what reruns and what does not.

Figures of a run this small mean nothing; the properties of its artifacts are what is tested.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import polars as pl
import pytest

from moat.params import load, yaml
from moat.schemas.actions import ACTIONS
from moat.schemas.critiques import CRITIQUES
from moat.schemas.evals import EVALS
from moat.schemas.pairs import PAIRS
from moat.schemas.scores import SCORES
from moat.schemas.sft import SFT
from moat.schemas.subgoals import SUBGOALS
from moat.schemas.tasks import TASKS

ROOT = Path(__file__).resolve().parent.parent
SECOND_ROUND = '  "2": {prev: "1"}\n'
pytestmark = pytest.mark.slow


def small(path: Path) -> None:
    """Shrink params.yaml to one round over a few dozen tasks."""
    parser = yaml()
    text = path.read_text(encoding="utf-8")
    assert SECOND_ROUND in text
    params = parser.load(text.replace(SECOND_ROUND, ""))
    for source in params["prepare"]["sources"].values():
        source["n_eval"] = 12
    params["prepare"]["sources"]["stories"] |= {"n_train": 24, "n_demos": 320}
    params["base_model"] |= {"pretrain_updates": 30}
    params["sample"]["k"] = 4
    params["evaluate"]["samples"] = 2
    with path.open("w", encoding="utf-8") as file:
        parser.dump(params, file)


class Project:
    """A copy of the project with its own DVC and its own artifacts."""

    def __init__(self, place: Path) -> None:
        self.place = place
        for folder in ("moat", "stages", "profiles"):
            shutil.copytree(ROOT / folder, place / folder, ignore=shutil.ignore_patterns("__pycache__"))
        for name in ("dvc.yaml", "params.yaml", ".gitignore", ".dvcignore"):
            shutil.copyfile(ROOT / name, place / name)
        subprocess.run(["git", "init", "-q"], cwd=place, check=True)
        self.dvc("init", "-q")

    def dvc(self, *arguments: str) -> str:
        done = subprocess.run(
            [sys.executable, "-P", "-m", "dvc", *arguments],
            cwd=self.place,
            capture_output=True,
            text=True,
            check=False,
            env=os.environ | {"PYTHONPATH": str(self.place), "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"},
        )
        assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]
        return done.stdout + done.stderr

    def ran(self, output: str) -> list[str]:
        """Names of the stages that a repro ran."""
        return [line.split("'")[1] for line in output.splitlines() if line.startswith("Running stage")]

    def table(self, schema, path: str) -> pl.DataFrame:
        return schema.read(self.place / path)


@pytest.fixture(scope="module")
def project(tmp_path_factory) -> Project:
    """One small run of one round."""
    made = Project(tmp_path_factory.mktemp("project"))
    small(made.place / "params.yaml")
    output = made.dvc("repro")
    assert "evaluate@1" in made.ran(output)
    return made


def test_every_stage_left_its_artifact(project):
    """One round of everything: tables, models, metrics, report."""
    for name in ("subgoals", "scores", "actions", "pairs", "critiques", "sft", "pool", "dynamics"):
        assert (project.place / f"data/rounds/1/{name}.parquet").is_file()
    for role in ("planner", "grounder"):
        for key in ("0", "1"):
            assert (project.place / f"models/{role}/{key}/model.safetensors").is_file()
    metrics = json.loads((project.place / "metrics.json").read_text())
    assert set(metrics["rounds"]) == {"0", "1"}
    assert metrics["rounds"]["0"]["n"] == 24
    assert "<html" in (project.place / "report.html").read_text()
    assert (project.place / "curves.csv").read_text().startswith("round,success,")


def test_counts_add_up(project):
    """K candidates a task; a score and an act for every usable one; one row a task in pairs; a verdict for every act."""
    params = load(project.place / "params.yaml")
    tasks = project.table(TASKS, "data/tasks/train.parquet")
    subgoals = project.table(SUBGOALS, "data/rounds/1/subgoals.parquet")
    usable = subgoals.filter(pl.col("dropped").is_null()).select("task_id", "k")
    assert len(subgoals) == len(tasks) * params.sample.k
    assert project.table(SCORES, "data/rounds/1/scores.parquet").select("task_id", "k").equals(usable)
    acts = project.table(ACTIONS, "data/rounds/1/actions.parquet")
    assert acts.select("task_id", "k").equals(usable)
    assert project.table(CRITIQUES, "data/rounds/1/critiques.parquet").select("task_id", "k").equals(usable)
    assert project.table(PAIRS, "data/rounds/1/pairs.parquet")["task_id"].to_list() == tasks["task_id"].to_list()
    evals = project.table(EVALS, "data/evals/1.parquet")
    assert evals["success"].to_list() == [outcome == "reached" for outcome in evals["outcome"]]


def test_training_set_is_half_initial(project):
    """1:1 with the initial demonstrations (MOAT, section 4.2)."""
    origins = project.table(SFT, "data/rounds/1/sft.parquet")["origin"].to_list()
    assert origins.count("initial") * 2 == len(origins)


@pytest.mark.trap(57)
def test_models_carry_the_base_tokenizer_and_no_trainer_files(project):
    """A model folder: weights, config, the base model's tokenizer byte for byte, our facts; nothing of the trainer's."""
    base = project.place / "models/base"
    for folder in project.place.glob("models/*er/*"):
        assert not (folder / "training_args.bin").exists()
        assert (folder / "tokenizer.json").read_bytes() == (base / "tokenizer.json").read_bytes()


def test_nothing_reruns_then_only_the_new_round(project):
    """A second repro runs nothing; a new round runs its own stages, the figures and the page, and no older one."""
    assert project.ran(project.dvc("repro")) == []
    path = project.place / "params.yaml"
    text = path.read_text(encoding="utf-8")
    first = '  "1": {prev: "0"}\n'
    path.write_text(text.replace(first, first + SECOND_ROUND), encoding="utf-8")
    ran = project.ran(project.dvc("repro"))
    assert {name for name in ran if "@" not in name} == {"summarize", "report"}
    assert {name.partition("@")[2] for name in ran if "@" in name} == {"2"}


def test_dvc_shows_metrics_and_plots(project):
    """`dvc metrics show` and `dvc plots show` read what summarize wrote."""
    shown = json.loads(project.dvc("metrics", "show", "--json"))
    assert "success" in json.dumps(shown)
    project.dvc("plots", "show", "--out", "plots")
    assert (project.place / "plots/index.html").is_file()

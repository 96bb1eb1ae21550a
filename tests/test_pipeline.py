"""The whole pipeline through `dvc repro`, small: one round, then a second; what reruns and what does not.

Figures of a run this small mean nothing; the properties of its artifacts are what is tested.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import polars as pl
import pytest
from ruamel.yaml import YAML

from moat.checkout import Level
from moat.params import load
from moat.provenance import content_hash
from moat.schemas.actions import ACTIONS
from moat.schemas.critiques import CRITIQUES
from moat.schemas.demos import DEMOS
from moat.schemas.evals import EVALS
from moat.schemas.pairs import PAIRS
from moat.schemas.scores import SCORES
from moat.schemas.sft import SFT
from moat.schemas.subgoals import SUBGOALS
from moat.schemas.tasks import TASKS
from moat.status import artifacts
from moat.tables import metadata
from moat.trace import Tracer, trained_on
from moat.turns import STOP
from moat.verify import verify
from tests.damage import TABLES

SECOND_ROUND = '  "2": {prev: "1"}\n'
# Of the damages of tests/damage.py (all of which tests/test_verify.py does to made-up tables), those done to a real run.
PROPERTIES = {
    "version",
    "key twice",
    "sum of counts",
    "parent",
    "K",
    "seed",
    "PPL",
    "one side",
    "sides",
    "verdict",
    "correction",
    "ratio",
    "decontamination",
    "length",
}
pytestmark = pytest.mark.slow


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


def test_verify_finds_nothing_and_leaves_no_check_out(project):
    """What the stages wrote keeps every invariant, dvc.lock included."""
    report = verify(project.place)
    assert [finding for result in report.results for finding in result.findings] == []
    assert [result.title for result in report.results if not result.ran] == []
    assert report.missing == []


@pytest.mark.parametrize("damage", [one for one in TABLES if one.name in PROPERTIES], ids=lambda damage: damage.name)
def test_verify_names_a_damaged_table(project, tmp_path, monkeypatch, damage):
    """Each property of the real tables, broken in one place."""
    for name in ("data", "models"):
        shutil.copytree(project.place / name, tmp_path / name)
    for name in ("params.yaml", "dvc.yaml", "dvc.lock"):
        shutil.copyfile(project.place / name, tmp_path / name)
    monkeypatch.chdir(tmp_path)
    damage.do()
    found = [(finding.path, finding.what) for finding in verify(tmp_path).found(Level.FAULT)]
    assert any(path == (damage.at or damage.path) and damage.said in what for path, what in found), found


def test_a_trained_row_leads_to_its_task_and_model(project):
    """From a row of the training set back to the question, and on to the grounder that learned it."""
    row = project.table(SFT, "data/rounds/1/sft.parquet").filter(pl.col("origin") != "initial").to_dicts()[0]
    story = Tracer(project.place, load(project.place / "params.yaml")).trace(row["row_id"])
    assert (story["task"]["text"], story["models"][-1]["path"]) == (row["text"], "models/grounder/1")
    assert story["models"][-1]["rows"] == len(project.table(SFT, "data/rounds/1/sft.parquet"))


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


def test_a_run_of_iterative_planning_plays_its_turns(project_in_turns):
    """Turns to train on and be scored, decisions to stop among the demonstrations, played turns in evaluations."""
    place, params = project_in_turns, load(project_in_turns.place / "params.yaml")
    tasks = place.table(TASKS, "data/tasks/train.parquet")
    episodes = tasks.group_by("episode_id").agg(pl.col("turn").sort())["turn"].to_list()
    assert len(episodes) == 10
    assert {tuple(turns) for turns in episodes} == {(0, 1), (0, 1, 2)}  # steps: [2, 3]
    shown = place.table(DEMOS, "data/demos/planner.parquet")
    assert shown.filter(pl.col("subgoals") == STOP)["task_id"].n_unique() == 160
    subgoals = place.table(SUBGOALS, "data/rounds/1/subgoals.parquet")
    assert len(subgoals) == len(tasks) * params.sample.k
    stopped = subgoals["subgoals"].str.strip_chars().str.starts_with("Yes") & (subgoals["finish_reason"] == "stop")
    assert (subgoals["dropped"] == "stop").fill_null(False).to_list() == stopped.to_list()
    usable = subgoals.filter(pl.col("dropped").is_null()).select("task_id", "k")
    assert place.table(SCORES, "data/rounds/1/scores.parquet").select("task_id", "k").equals(usable)
    for key in ("0", "1"):
        evals = place.table(EVALS, f"data/evals/{key}.parquet")
        assert evals["n_turns"].to_list() == evals["turns"].list.len().to_list()
        assert 1 <= evals["n_turns"].max() <= params.evaluate.max_turns
        for row in evals.iter_rows(named=True):
            assert row["actions"] == "; ".join(turn["actions"] for turn in row["turns"])
    assert [finding for result in verify(place.place).results for finding in result.findings] == []


def test_a_run_of_adapters(project_of_adapters, monkeypatch):
    """A round's models are adapters on models/base, which every stage that asks one names and depends on; all is verified.

    moat status and moat trace say so; another rank runs the trainings again.
    """
    made = project_of_adapters
    for role in ("planner", "grounder"):
        for key in ("0", "1"):
            folder = made.place / f"models/{role}/{key}"
            assert {path.name for path in folder.glob("*.safetensors")} == {"adapter_model.safetensors"}
            assert json.loads((folder / "moat.json").read_text())["base"] == content_hash(
                made.place / "models/base", "moat.json"
            )
            assert artifacts(made.place, key)[role] == "adapter"
    lock = YAML(typ="safe").load((made.place / "dvc.lock").read_text())["stages"]
    for path in ("data/rounds/1/subgoals", "data/rounds/1/scores", "data/rounds/1/actions", "data/evals/1"):
        assert "models/base" in metadata(made.place / f"{path}.parquet")["facts"]["inputs"]
    for stage in ("sample@1", "score@1", "ground@1", "evaluate@1", "align_planner@1", "train_grounder@1"):
        assert "models/base" in {dep["path"] for dep in lock[stage]["deps"]}
    report = verify(made.place)
    assert [finding for result in report.results for finding in result.findings] == []
    assert [result.title for result in report.results if not result.ran] == []
    row = made.table(SFT, "data/rounds/1/sft.parquet").filter(pl.col("origin") != "initial")["row_id"][0]
    story = Tracer(made.place, load(made.place / "params.yaml")).trace(row)
    assert (story["models"][-1]["path"], story["models"][-1]["adapter_of"]) == ("models/grounder/1", "models/base")
    assert trained_on(story["models"][-1]).endswith("; an adapter of models/base")
    monkeypatch.chdir(made.place)
    text = Path("params.yaml").read_text(encoding="utf-8")
    Path("params.yaml").write_text(text.replace("rank: 4", "rank: 2"), encoding="utf-8")
    try:
        dry = made.ran(made.dvc("repro", "--dry"))
    finally:
        Path("params.yaml").write_text(text, encoding="utf-8")
    trained = {"cold_start@planner", "cold_start@grounder", "align_planner@1", "train_grounder@1"}
    assert {name for name in dry if name.partition("@")[0] in ("cold_start", "align_planner", "train_grounder")} == trained
    assert "base_model" not in dry


def test_dvc_shows_metrics_and_plots(project):
    """`dvc metrics show` and `dvc plots show` read what summarize wrote."""
    shown = json.loads(project.dvc("metrics", "show", "--json"))
    assert "success" in json.dumps(shown)
    project.dvc("plots", "show", "--out", "plots")
    assert (project.place / "plots/index.html").is_file()

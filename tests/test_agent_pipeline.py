"""Agent-R's whole pipeline through `dvc repro -R agent_r`, small: one round; what reruns and what does not.

Figures of a run this small mean nothing; the properties of its artifacts are what is tested.
"""

import json

import polars as pl
import pytest
from ruamel.yaml import YAML
from typer.testing import CliRunner

from moat.cli import app
from moat.params import yaml
from moat.schemas.cuts import CUTS
from moat.schemas.dialogues import DIALOGUES
from moat.schemas.goals import GOALS
from moat.schemas.judgements import JUDGEMENTS
from moat.schemas.nodes import NODES
from moat.schemas.plays import PLAYS
from moat.schemas.revisions import REVISIONS
from moat.schemas.trained import TRAINED
from moat.schemas.trees import TREES
from moat.verify import verify

pytestmark = pytest.mark.slow
OF_A_ROUND = {"trees": TREES, "nodes": NODES, "judgements": JUDGEMENTS, "revisions": REVISIONS, "sft": TRAINED}


def edit(place, changes):
    """Change dotted keys of params.yaml; returns its text before."""
    path, parser = place / "agent_r/params.yaml", yaml()
    before = path.read_text(encoding="utf-8")
    params = parser.load(before)
    for key, value in changes.items():
        *above, last = key.split(".")
        section = params
        for name in above:
            section = section[name]
        section[last] = value
    with path.open("w", encoding="utf-8") as file:
        parser.dump(params, file)
    return before


def test_every_stage_left_its_artifact_in_its_own_folder(agent_project):
    """Tables, models, figures, page; nothing in the project's own data/ and models/, where MOAT's would be."""
    place = agent_project.place
    for name, schema in OF_A_ROUND.items():
        assert len(agent_project.table(schema, f"agent_r/data/rounds/1/{name}.parquet")), name
    for key in ("0", "1"):
        assert (place / f"agent_r/models/actor/{key}/model.safetensors").is_file()
        assert len(agent_project.table(PLAYS, f"agent_r/data/evals/{key}.parquet")) == 6
    cuts = agent_project.table(CUTS, "agent_r/data/recovery.parquet")
    assert len(agent_project.table(PLAYS, "agent_r/data/recoveries/1.parquet")) == len(cuts) > 0
    metrics = json.loads((place / "agent_r/metrics.json").read_text())
    assert set(metrics["rounds"]) == {"0", "1"}
    assert "<html" in (place / "agent_r/report.html").read_text()
    assert not (place / "models").exists()
    assert not (place / "data/tasks").exists()


def test_what_is_trained_on_comes_from_the_round(agent_project):
    """Every row of the training set is a good path of a tree, or a revision that was kept.

    Of kept revisions that differ in the drawn reflection alone there is one.
    """
    trained = agent_project.table(TRAINED, "agent_r/data/rounds/1/sft.parquet")
    revisions = agent_project.table(REVISIONS, "agent_r/data/rounds/1/revisions.parquet")
    nodes = agent_project.table(NODES, "agent_r/data/rounds/1/nodes.parquet")
    said = {}
    for row in revisions.filter(pl.col("dropped").is_null()).iter_rows(named=True):
        texts = tuple(turn["text"] for number, turn in enumerate(row["turns"]) if number != row["reflection"])
        said[f"revision/{row['task_id']}/{row['bad']}/{row['good']}"] = (row["task_id"], row["reflection"], texts)
    learned = [said[row] for row in trained["row_id"] if row.startswith("revision/")]
    assert len(learned) == len(set(learned))
    assert set(learned) == set(said.values()) != set()
    ends = nodes.filter(pl.col("end") & (pl.col("reward") > 0.5))
    good = {f"good/{row['task_id']}/{row['node']}" for row in ends.iter_rows(named=True)}
    assert {row for row in trained["row_id"] if row.startswith("good/")} <= good
    tokens = trained.group_by("origin").agg((pl.col("weight") * pl.col("n_supervised")).sum())
    assert tokens["weight"].to_list() == pytest.approx([1.0] * len(tokens))


def test_held_out_goals_are_neither_shown_nor_searched(agent_project):
    train = agent_project.table(GOALS, "agent_r/data/tasks/train.parquet")
    tests = set(agent_project.table(GOALS, "agent_r/data/tasks/eval.parquet")["task_id"])
    shown = set(agent_project.table(DIALOGUES, "agent_r/data/demos/actor.parquet")["task_id"])
    assert not tests & (set(train["task_id"]) | shown)
    assert set(agent_project.table(TREES, "agent_r/data/rounds/1/trees.parquet")["task_id"]) <= set(train["task_id"])


def test_the_commands_know_the_run(agent_project, monkeypatch):
    """moat verify finds nothing in it, dvc.lock and its hashes among what is looked at; status, trace and export agree."""
    place = agent_project.place / "agent_r"
    monkeypatch.chdir(place)

    def moat(*arguments):
        return CliRunner().invoke(app, list(arguments), env={"COLUMNS": "100", "NO_COLOR": "1"})

    report = verify(place)
    assert [finding for result in report.results for finding in result.findings] == []
    assert [result.title for result in report.results if not result.ran] == []
    assert report.missing == []
    said = moat("status").stdout
    assert "Nothing to run" in said
    shown = DIALOGUES.read(place / "data/demos/actor.parquet")["task_id"][0]
    story = json.loads(moat("trace", shown, "--json").stdout)
    assert (story["kind"], story["round"], story["models"][0]["path"]) == ("task", "1", "models/actor/0")
    assert story["models"][0]["from_the_start"]["textcraft"]["n"] == 6
    assert moat("export", "actor", "--out", str(agent_project.place / "exported")).exit_code == 0


def test_a_second_repro_runs_nothing_and_the_root_s_leaves_it_alone(agent_project):
    assert agent_project.ran(agent_project.dvc("repro", "-R", "agent_r")) == []
    assert "agent_r" not in agent_project.dvc("repro", "--dry", "prepare")


def test_only_what_reads_a_setting_reruns(agent_project):
    """`splice.replay` is of the revision, and what comes after it; another value and back is the first run's."""
    place = agent_project.place
    lock = (place / "agent_r/dvc.lock").read_text()
    before = edit(place, {"splice.replay": "off"})
    would = agent_project.ran(agent_project.dvc("repro", "--dry", "-R", "agent_r"))
    (place / "agent_r/params.yaml").write_text(before, encoding="utf-8")
    assert would[0].endswith("revise@1")
    assert not {name.rpartition(":")[2] for name in would} & {
        "prepare",
        "base_model",
        "cold_start",
        "search@1",
        "evaluate@0",
    }
    assert (place / "agent_r/dvc.lock").read_text() == lock


def test_machine_settings_are_no_part_of_the_lock(agent_project):
    """The project's machine.yaml serves both pipelines, and neither depends on it."""
    lock = YAML(typ="safe", pure=True).load((agent_project.place / "agent_r/dvc.lock").read_text())
    deps = {dep["path"] for entry in lock["stages"].values() for dep in entry["deps"]}
    assert not [dep for dep in deps if "machine.yaml" in dep]
    assert "../moat/training.py" in deps

"""moat status, profile, export and the others in agent_r/: by the current folder, or by the pipeline's name."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from moat import layout, models, params, profiles
from moat.agent_r.params import AgentParams
from moat.cli import app
from moat.launch import project_of
from moat.params import Params
from moat.pipelines import folder, is_agent_r, settings_of
from moat.provenance import content_hash
from moat.schemas.cuts import CUTS
from moat.schemas.trees import TREES
from moat.status import ABSENT, AGENT_R, MOAT, artifacts

ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture
def project(tmp_path, monkeypatch):
    """A project's folder with both pipelines' settings and profiles, and no library; also the current folder."""
    for pipeline in ("", "agent_r"):
        place = tmp_path / pipeline
        place.mkdir(exist_ok=True)
        (place / "dvc.yaml").write_text("stages: {}\n", encoding="utf-8")
        shutil.copyfile(ROOT / pipeline / "params.yaml", place / "params.yaml")
        shutil.copytree(ROOT / pipeline / "profiles", place / "profiles")
    monkeypatch.chdir(tmp_path)
    for place in (tmp_path, tmp_path / "agent_r"):  # nothing, unless params.yaml is being tuned
        profiles.use(place, "tiny", place / "params.yaml")
    return tmp_path


def moat(*arguments):
    return CliRunner().invoke(app, list(arguments), env={"COLUMNS": "120", "NO_COLOR": "1"})


def tree(task):
    return {
        "task_id": task,
        "environment": "textcraft",
        "rollouts": 1,
        "stopped": "iterations",
        "best": 0.0,
        "worst": 0.0,
        "calls": 1,
        "tokens": 1,
        "steps": 1,
        "replayed": 0,
        "dropped": None,
        "message": "",
    }


# --- which pipeline ---------------------------------------------------------------------------------------------------


def test_the_folder_named_agent_r_is_the_second_pipeline_s(project):
    """Unless it is a project's own, with the library in it: a clone may have any name."""
    inside = project / "agent_r"
    assert (project_of(inside), project_of(project)) == (project, project)
    assert (settings_of(inside), settings_of(project)) == (AgentParams, Params)
    (inside / "moat").mkdir()
    assert not is_agent_r(inside)


def test_a_pipeline_is_found_around_or_by_name(project, monkeypatch):
    (project / "agent_r/data").mkdir()
    (project / "docs").mkdir()
    for start, around in ((project / "docs", project), (project / "agent_r/data", project / "agent_r")):
        assert folder(start) == around
        assert folder(start, "agent_r") == project / "agent_r"
        assert folder(start, "moat") == project
    monkeypatch.chdir(project / "agent_r")
    assert is_agent_r(Path())
    assert project_of(Path()) == project


@pytest.mark.parametrize(
    "command", [["status"], ["verify"], ["profile", "list"], ["trace", "x"], ["export", "actor", "--out", "x"]]
)
def test_an_unknown_pipeline_is_answered_with_those_there_are(project, command):
    done = moat(*command, "--pipeline", "other")
    assert (done.exit_code, "no pipeline 'other': moat or agent_r" in done.stderr) == (1, True)


def test_what_is_moat_s_alone_says_so_inside_of_agent_r(project, monkeypatch):
    monkeypatch.chdir(project / "agent_r")
    done = moat("plan")
    assert done.exit_code == 1
    assert "is Agent-R's pipeline, and this command is of MOAT's alone: run it from the folder above" in done.stderr


# --- status -----------------------------------------------------------------------------------------------------------


def test_a_round_s_artifacts_are_counted_and_absent_ones_marked(project):
    root = project / "agent_r"
    TREES.write(root / layout.table("trees", "1"), [tree("a"), tree("b")], {})
    (root / layout.evals("1")).parent.mkdir(parents=True)
    (root / layout.evals("1")).write_bytes(b"no table")
    (root / layout.model("actor", "1")).mkdir(parents=True)
    (root / layout.model("actor", "1") / "model.safetensors").touch()
    assert artifacts(root, "1", AGENT_R) == {
        "nodes": ABSENT,
        "trees": "2",
        "judgements": ABSENT,
        "revisions": ABSENT,
        "sft": ABSENT,
        "actor": "yes",
        "evals": "unreadable",
        "recoveries": ABSENT,
    }
    assert artifacts(root, "0", AGENT_R)["trees"] == ""
    assert set(artifacts(root, "1")) == set(MOAT.names)


def test_the_real_dvc_is_understood_in_the_pipeline_s_folder(project, monkeypatch):
    """DVC lies above. One stage whose input, in the project's folder, has changed; one that has not run; MOAT's own."""

    def dvc(*arguments):
        subprocess.run([sys.executable, "-m", "dvc", *arguments], check=True, capture_output=True, timeout=120)

    CUTS.write(project / "agent_r" / layout.RECOVERY, [], {})
    stage = "  {0}: {{cmd: cp {1} {2}, deps: [{1}], outs: [{2}]}}\n"
    (project / "dvc.yaml").write_text("stages:\n" + stage.format("moats", "a.txt", "m.txt"), encoding="utf-8")
    first, second = stage.format("first", "../a.txt", "b.txt"), stage.format("second", "b.txt", "c.txt")
    (project / "agent_r/dvc.yaml").write_text("stages:\n" + first, encoding="utf-8")
    (project / "a.txt").write_text("one", encoding="utf-8")
    dvc("init", "--no-scm", "-q")
    dvc("config", "core.analytics", "false")
    dvc("repro", "-q", "-R", "agent_r")
    done = moat("status", "--pipeline", "agent_r")
    assert (done.exit_code, "Nothing to run" in done.stdout) == (0, True)
    assert "recovery set 0" in done.stdout
    assert all(name in done.stdout for name in (*AGENT_R.names, "cold start", "round 3"))
    assert "planner" not in done.stdout
    (project / "a.txt").write_text("two", encoding="utf-8")
    (project / "agent_r/dvc.yaml").write_text("stages:\n" + first + second, encoding="utf-8")
    expected = [["first", "changed: ../a.txt"], ["second", "it has not run yet"]]
    named = moat("status", "--pipeline", "agent_r").stdout
    assert [line.strip().split(maxsplit=1) for line in named.splitlines()[-2:]] == expected
    assert "`dvc repro -R agent_r` would run 2 stage(s)" in named
    monkeypatch.chdir(project / "agent_r")
    inside = moat("status").stdout
    assert [line.strip().split(maxsplit=1) for line in inside.splitlines()[-2:]] == expected
    assert "`dvc repro` would run 2 stage(s)" in inside
    assert "moats" in moat("status", "--pipeline", "moat").stdout


# --- profiles ---------------------------------------------------------------------------------------------------------


def test_profiles_are_the_pipeline_s_own(project, monkeypatch):
    """From the project's folder by name: listed, shown, compared and used, and its own params.yaml alone is written."""
    named = ("--pipeline", "agent_r")
    listed = [line.split()[:2] for line in moat("profile", "list", *named).stdout.splitlines()]
    assert ["*", "tiny"] in listed
    assert ["paper_llama31_8b", "the"] in listed
    text = (ROOT / "agent_r/profiles/paper_llama31_8b.yaml").read_text(encoding="utf-8")
    assert moat("profile", "show", "paper_llama31_8b", *named).stdout == text
    assert moat("profile", "show", *named).stdout == "params.yaml has the values of tiny\n"
    differ = json.loads(moat("profile", "diff", "tiny", "paper_llama31_8b", "--json", *named).stdout)
    tiny = params.load_as(ROOT / "agent_r/profiles/tiny.yaml", AgentParams)
    assert differ["max_length"] == [tiny.max_length, 8196]
    before = (project / "params.yaml").read_bytes()
    used = moat("profile", "use", "paper_llama31_8b", *named)
    assert used.exit_code == 0
    assert used.stdout == (
        "agent_r/params.yaml now has the values of paper_llama31_8b: `dvc repro -R agent_r` runs what they change\n"
    )
    assert params.load_as(project / "agent_r/params.yaml", AgentParams).max_length == 8196
    assert (project / "params.yaml").read_bytes() == before
    monkeypatch.chdir(project / "agent_r")
    assert moat("profile", "use", "tiny").stdout == (
        "params.yaml now has the values of tiny: `dvc repro` runs what they change\n"
    )
    assert profiles.plain(project / "agent_r/params.yaml") == profiles.plain(ROOT / "agent_r/profiles/tiny.yaml")
    assert "there are paper_llama31_8b, tiny" in moat("profile", "use", "paper_llama2_7b").stderr


# --- export -----------------------------------------------------------------------------------------------------------


@pytest.fixture
def actors(project, make_model, tokenizer):
    """The same with a base model and the actors of rounds 1 and 3, the last."""
    tokenizer.save_pretrained(project / "tokenizer")
    for number, path in enumerate((layout.BASE_MODEL, layout.model("actor", "1"), layout.model("actor", "3"))):
        models.save(make_model(number), project / "agent_r" / path, {"stage": "train"}, project / "tokenizer")
    return project


@pytest.mark.parametrize("inside", [True, False])
def test_an_actor_leaves_its_folder_as_it_is(actors, monkeypatch, inside):
    """The last round's without a word; `--out` is from the current folder, wherever the pipeline lies."""
    monkeypatch.chdir(actors / "agent_r" if inside else actors)
    named = () if inside else ("--pipeline", "agent_r")
    done = moat("export", "actor", "--out", "../out" if inside else "out", *named)
    assert done.exit_code == 0, done.stderr
    assert done.stdout == f"models/actor/3 (whole model) → {actors / 'out'}\n"
    assert content_hash(actors / "out", "moat.json") == content_hash(actors / "agent_r/models/actor/3", "moat.json")
    assert moat("export", "actor", "1", "--out", str(actors / "first"), *named).exit_code == 0
    assert json.loads((actors / "first/moat.json").read_text())["model"] == "models/actor/1"


def test_what_cannot_be_exported_is_said(actors):
    """A role of the other pipeline, a round that was not trained, one that there is not, a folder that a run deletes."""
    named = ("--pipeline", "agent_r")
    assert "no role 'planner': actor" in moat("export", "planner", "--out", "x", *named).stderr
    assert "no role 'actor': planner or grounder" in moat("export", "actor", "--out", "x").stderr
    assert "no model in models/actor/2" in moat("export", "actor", "2", "--out", "x", *named).stderr
    assert "no round '9'" in moat("export", "actor", "9", "--out", "x", *named).stderr
    inside = moat("export", "actor", "--out", "agent_r/models/x", *named)
    assert (inside.exit_code, "among DVC's outputs" in inside.stderr) == (1, True)

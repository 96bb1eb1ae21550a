"""`moat trace`: every kind of key leads to its story, and a wrong one to an error that helps."""

import json
import os
import shutil
import subprocess
import sys

import polars as pl
import pytest
from rich.console import Console
from typer.testing import CliRunner

from moat import layout, params
from moat.cli import app
from moat.schemas.tasks import TASKS
from moat.trace import TraceError, Tracer, show
from tests.conftest import ROOT
from tests.damage import rewrite


@pytest.fixture
def place(clean_checkout, tmp_path, monkeypatch):
    """A copy of the clean checkout, which is also the current folder."""
    shutil.copytree(clean_checkout, tmp_path / "project")
    monkeypatch.chdir(tmp_path / "project")
    return tmp_path / "project"


def trace(place, key, round_key=None):
    return Tracer(place, params.load(place / "params.yaml")).trace(key, round_key)


def rows(place, name, key="2"):
    return pl.read_parquet(place / f"data/rounds/{key}/{name}.parquet")


def kept_task(place, key="2"):
    """A task whose pair was trained on."""
    return rows(place, "pairs", key).filter(pl.col("dropped").is_null())["task_id"][0]


def test_a_task_has_all_k_candidates_with_their_marks(place):
    """All six, each with the figures of its own rows; chosen and rejected are those of the pairs table."""
    task = kept_task(place)
    story = trace(place, task)
    pair = rows(place, "pairs").row(by_predicate=pl.col("task_id") == task, named=True)
    assert (story["round"], story["task"]["task_id"]) == ("2", task)
    assert [one["k"] for one in story["candidates"]] == list(range(6))
    assert {one["pair"]: one["k"] for one in story["candidates"] if one["pair"]} == {
        "chosen": pair["chosen_k"],
        "rejected": pair["rejected_k"],
    }
    for name, column in (("subgoals", "subgoals"), ("scores", "ppl"), ("actions", "outcome"), ("critiques", "verdict")):
        found = rows(place, name).filter(task_id=task)
        expected = dict(zip(found["k"], found[column], strict=True))
        assert [one[column] for one in story["candidates"]] == [expected.get(k) for k in range(6)]


def test_a_row_leads_to_its_candidate_and_to_the_models_that_it_trained(place):
    """A corrected row: the correction is what was trained on, by the grounder of its round."""
    row = rows(place, "sft", "1").filter(pl.col("origin") == "corrected").to_dicts()[0]
    story = trace(place, row["row_id"])
    assert (story["round"], story["k"], story["task"]["task_id"]) == ("1", row["k"], row["task_id"])
    own = story["candidates"][row["k"]]
    assert (own["verdict"], own["corrected_actions"], own["rows"]) == ("correct", row["actions"], [row["row_id"]])
    assert [one["row_id"] for one in story["training_rows"]] == [row["row_id"]]
    card = json.loads((place / "models/grounder/1/moat.json").read_text())
    last = story["models"][-1]
    assert (last["path"], last["rows"], last["updates"]) == ("models/grounder/1", card["rows"], card["updates"])


def test_a_pair_trained_the_planner_and_a_bystander_did_not(place):
    """The chosen candidate leads to models/planner/2; one that is neither chosen nor rejected does not."""
    task = kept_task(place)
    pair = rows(place, "pairs").row(by_predicate=pl.col("task_id") == task, named=True)
    sides = {pair["chosen_k"], pair["rejected_k"]}
    other = next(k for k in range(6) if k not in sides)
    planner = "models/planner/2"
    assert planner in [model["path"] for model in trace(place, f"{task}/{pair['chosen_k']}")["models"]]
    assert planner not in [model["path"] for model in trace(place, f"{task}/{other}")["models"]]


def test_a_dropped_pair_trained_no_planner(place):
    task = rows(place, "pairs").filter(pl.col("dropped") == "gap below min_gap")["task_id"][0]
    assert "models/planner/2" not in [model["path"] for model in trace(place, task)["models"]]


def test_a_candidate_equal_to_another_names_the_one_that_was_trained_on(place):
    """mix.dedup keeps the lower k of equal plans and actions."""
    sets, critiques = rows(place, "sft"), rows(place, "critiques")
    kept = sets.filter(pl.col("origin") != "initial").select("task_id", "k")
    left = critiques.filter(pl.col("verdict").is_in(["accept", "correct"])).join(kept, on=["task_id", "k"], how="anti")
    task, k = left.select("task_id", "k").row(0)
    candidates = trace(place, f"{task}/{k}")["candidates"]
    twin = candidates[candidates[k]["same_as"]]
    assert twin["k"] < k
    assert twin["rows"]
    assert (twin["subgoals"], twin["corrected_actions"] or twin["actions"]) == (
        candidates[k]["subgoals"],
        candidates[k]["corrected_actions"] or candidates[k]["actions"],
    )


def test_the_round_can_be_chosen(place):
    task = kept_task(place)
    assert trace(place, task)["round"] == "2"
    story = trace(place, task, "1")
    assert (story["round"], story["rounds"]) == ("1", ["1", "2"])
    assert story["candidates"][0]["seed"] == rows(place, "subgoals", "1").filter(task_id=task, k=0)["seed"][0]


def test_a_demonstration_leads_to_the_cold_start_and_the_rounds_that_drew_it(place):
    row = rows(place, "sft", "1").filter(pl.col("origin") == "initial").to_dicts()[0]
    by_row, by_demo = trace(place, row["row_id"]), trace(place, row["demo_id"])
    assert by_row["demonstration"]["subgoals"] == row["subgoals"]
    assert [model["path"] for model in by_row["models"]] == ["models/grounder/0", "models/grounder/1"]
    assert {one["row_id"] for one in by_row["training_rows"]} == {row["row_id"]}
    assert row["row_id"] in {one["row_id"] for one in by_demo["training_rows"]}
    assert by_demo["role"] == "grounder"


def test_the_planners_demonstration_trained_the_planner(place):
    demo = pl.read_parquet(place / "data/demos/planner.parquet")["demo_id"][0]
    assert [model["path"] for model in trace(place, demo)["models"]] == ["models/planner/0"]


def test_under_all_rounds_data_a_row_trained_later_grounders_too(make_checkout, tmp_path):
    make_checkout(tmp_path, {"data_window": "all"})
    row = rows(tmp_path, "sft", "1").filter(pl.col("origin") != "initial")["row_id"][0]
    paths = [model["path"] for model in trace(tmp_path, row)["models"]]
    assert paths[-2:] == ["models/grounder/1", "models/grounder/2"]


def test_under_independent_training_the_sets_trained_nothing(make_checkout, tmp_path, monkeypatch):
    """Each role goes on with its own demonstrations: no pair and no row of sft.parquet leads to a model, and it is said."""
    make_checkout(tmp_path, {"mode": "independent"})
    monkeypatch.chdir(tmp_path)
    candidate = rows(tmp_path, "sft", "1").filter(pl.col("origin") != "initial")["row_id"][0]
    story = trace(tmp_path, candidate)
    assert (story["trains"], story["models"]) == (False, [])
    assert [row["row_id"] for row in story["training_rows"]] == [candidate]
    assert trace(tmp_path, kept_task(tmp_path))["models"] == []
    said = " ".join(moat("trace", kept_task(tmp_path)).stdout.split())
    assert "under mode: independent they trained nothing" in said
    assert "trained nothing (mode: independent)" in said
    assert "none was trained on it" in said


def test_under_independent_training_a_demonstration_trained_its_role_in_every_round(make_checkout, tmp_path):
    """Whether a round's training set drew it or not."""
    make_checkout(tmp_path, {"mode": "independent"})
    for role in ("planner", "grounder"):
        demo = pl.read_parquet(tmp_path / f"data/demos/{role}.parquet")["demo_id"][0]
        paths = [model["path"] for model in trace(tmp_path, demo)["models"]]
        assert paths == [f"models/{role}/{key}" for key in "012"]


# --- what is not known ------------------------------------------------------------------------------------------------


def test_an_unknown_key_gets_near_ones(place):
    task = kept_task(place)
    with pytest.raises(TraceError, match=f"nothing is known of .*a key is a task_id.*Did you mean {task}"):
        trace(place, task[:-1] + "z")
    row = rows(place, "sft")["row_id"][0]
    with pytest.raises(TraceError, match=f"Did you mean {row}"):
        trace(place, row + "7")


@pytest.mark.parametrize("key", ["", "nonsense", "a/b/c/d", "accepted/1/x/y", "initial/1/x/0", "0/0", "///"])
def test_nonsense_gets_the_form_of_a_key_and_examples(place, key):
    with pytest.raises(TraceError, match=r"a key is a task_id, task_id/k, a demo_id, or a row_id.*For example|Did you mean"):
        trace(place, key)


def test_an_evaluation_task_is_said_to_be_one(place):
    task = pl.read_parquet(place / "data/tasks/eval.parquet")["task_id"][0]
    with pytest.raises(TraceError, match="is an evaluation task: nothing was trained on it"):
        trace(place, task)


def test_a_candidate_or_round_that_there_is_not_is_refused_with_what_there_is(place):
    task = kept_task(place)
    with pytest.raises(TraceError, match="has no candidate 6 in round 2: it has 0 to 5"):
        trace(place, f"{task}/6")
    with pytest.raises(TraceError, match=r"no round '9': params\.yaml has 1, 2"):
        trace(place, task, "9")
    row = rows(place, "sft", "1")["row_id"][0]
    with pytest.raises(TraceError, match="is a row of round 1"):
        trace(place, row, "2")


def test_half_a_run_has_half_a_story(place):
    """Nothing but tasks and plans: no score, no verdict, no pair, no model, and no error."""
    for name in ("scores", "actions", "critiques", "pairs", "sft"):
        (place / f"data/rounds/2/{name}.parquet").unlink()
    shutil.rmtree(place / "models")
    task = kept_task(place, "1")
    story = trace(place, task, "2")
    assert [one["ppl"] for one in story["candidates"]] == [None] * 6
    assert (story["pair"], story["models"]) == (None, [])
    done = moat("trace", task, "--round", "2")
    assert done.exit_code == 0, done.stderr
    assert "not acted on yet" in done.stdout


# --- the command ------------------------------------------------------------------------------------------------------


def moat(*arguments):
    return CliRunner().invoke(app, list(arguments), env={"COLUMNS": "80", "NO_COLOR": "1"})


def test_the_screen_tells_the_story_in_order(place):
    task = kept_task(place)
    done = moat("trace", task)
    assert done.exit_code == 0
    heads = ["Task", "Candidates", "Pair", "Actions and verdicts", "Training rows", "Models"]
    at = [next(i for i, line in enumerate(done.stdout.splitlines()) if line.startswith(head)) for head in heads]
    assert at == sorted(at)
    assert all(len(line) <= 80 for line in done.stdout.splitlines())


def test_json_is_the_same_story(place):
    """What is no number in JSON is null."""
    task = kept_task(place)
    rewrite(place / "data/rounds/2/scores.parquet", lambda f: f.with_columns(ppl=pl.lit(float("nan"))))
    story = json.loads(moat("trace", task, "--json").stdout)
    assert set(story) == set(trace(place, task))
    assert [one["ppl"] for one in story["candidates"]] == [None] * 6


def test_markup_in_a_plan_is_shown_as_it_is(place):
    path = place / "data/rounds/2/subgoals.parquet"
    rewrite(path, lambda f: f.with_columns(subgoals=pl.lit("[bold]x[/bold] [/red]")))
    assert "[bold]x[/bold]" in moat("trace", kept_task(place)).stdout


def test_faults_are_one_line_with_the_remedy(place):
    done = moat("trace", "nonsense")
    assert done.exit_code == 1
    assert "a key is a task_id" in done.stderr
    (place / "data/rounds/2/scores.parquet").write_bytes(b"torn")
    done = moat("trace", kept_task(place))
    assert done.exit_code == 1
    assert "dvc checkout" in done.stderr


def test_without_data_or_params_the_remedy_is_said(place):
    shutil.rmtree(place / "data")
    done = moat("trace", "0123456789abcdef")
    assert done.exit_code == 1
    assert "data/tasks/train.parquet is missing" in done.stderr
    (place / "params.yaml").unlink()
    done = moat("trace", "0123456789abcdef")
    assert done.exit_code == 1
    assert "run from inside the project" in done.stderr


def test_no_torch_is_imported(place):
    code = (
        "import sys; from pathlib import Path; from moat import params; from moat.trace import Tracer;"
        f"Tracer(Path('.'), params.load(Path('params.yaml'))).trace('{kept_task(place)}');"
        "assert not {'torch', 'transformers', 'dvc'} & set(sys.modules)"
    )
    subprocess.run(
        [sys.executable, "-c", code], check=True, cwd=place, timeout=120, env=os.environ | {"PYTHONPATH": str(ROOT)}
    )


def test_a_turn_is_told_with_the_turns_before_it(make_checkout, tmp_path, capsys):
    """Under iterative planning: R2 means nothing without the turn that gave R1, its actions and its result."""
    make_checkout(tmp_path, {"planning": "iterative"})
    tasks = TASKS.read(tmp_path / layout.TRAIN_TASKS)
    task = tasks.filter(tasks["turn"] == 1).row(0, named=True)
    story = Tracer(tmp_path, params.load(tmp_path / "params.yaml")).trace(task["task_id"], None)
    console = Console(width=300, highlight=False)
    with console.capture() as said:
        show(story, console)
    first = task["turns"][0]
    assert f"turn 1    {first['subgoal']}: {first['actions']} → {first['result']}" in said.get()
    assert "turn 2" not in said.get()

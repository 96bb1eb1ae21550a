"""moat/sides.py: what a side means, in a repository of git and DVC whose tables only the cache or a remote has."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import polars as pl
import pytest
from typer.testing import CliRunner

from moat import layout
from moat.cli import app
from moat.schemas.evals import EVALS
from moat.schemas.nodes import NODES
from moat.schemas.pairs import PAIRS
from moat.schemas.scores import SCORES
from moat.sides import Kind, SideError, Sides, kind_of, of_round

SCORED = {"task_id": "a", "k": 0, "nll": 0.5, "ppl": 1.6487, "n_action_tokens": 3}


def run(place, *command):
    name = {"GIT_AUTHOR_NAME": "t", "GIT_AUTHOR_EMAIL": "t@t", "GIT_COMMITTER_NAME": "t", "GIT_COMMITTER_EMAIL": "t@t"}
    done = subprocess.run(command, cwd=place, capture_output=True, text=True, check=False, env=os.environ | name)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def dvc(place, *arguments):
    return run(place, sys.executable, "-P", "-m", "dvc", *arguments)


def blank(schema, **values):
    """A row of a table: blank but for some values."""
    zero = {"string": "", "int32": 0, "int64": 0, "double": 0.0, "bool": False}
    row = {column.name: None if column.nullable else zero.get(str(column.type), []) for column in schema.columns}
    return row | values


def write(place, nll, reward, *, rounds=("1",)):
    for key in rounds:
        SCORES.write(place / layout.table("scores", key), [SCORED | {"nll": nll}], {})
        PAIRS.write(place / layout.table("pairs", key), [blank(PAIRS, task_id="a")], {})
    EVALS.write(place / layout.evals("0"), [blank(EVALS, task_id="a", text="same")], {})
    NODES.write(place / "agent_r" / layout.table("nodes", "1"), [blank(NODES, task_id="a", reward=reward)], {})


def stages(paths):
    lines = [f"  s{n}:\n    cmd: 'true'\n    outs: [{path}]\n" for n, path in enumerate(paths)]
    return "stages:\n" + "".join(lines)


def commit(place, message, rounds=("1",)):
    paths = [layout.table(name, key) for key in rounds for name in ("scores", "pairs")]
    (place / "dvc.yaml").write_text(stages([*paths, layout.evals("0")]))
    (place / "agent_r/dvc.yaml").write_text(stages([layout.table("nodes", "1")]))
    dvc(place, "commit", "-q", "-f")
    dvc(place, "commit", "-q", "-f", "agent_r/dvc.yaml")
    run(place, "git", "add", "-A")
    run(place, "git", "commit", "-qm", message)


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """Two commits, then an experiment `trial`; pushed to a remote; nothing is left in the workspace."""
    place = tmp_path_factory.mktemp("sides") / "project"
    (place / "agent_r").mkdir(parents=True)
    for folder in (place, place / "agent_r"):
        (folder / "params.yaml").write_text("seed: 0\n")
    (place / ".gitignore").write_text("/data/\n/agent_r/data/\n")
    run(place, "git", "init", "-q", "-b", "main")
    dvc(place, "init", "-q")
    dvc(place, "remote", "add", "-q", "-d", "store", str(place.parent / "store"))
    write(place, 0.5, 0.0)
    commit(place, "first")
    write(place, 0.25, 1.0, rounds=("1", "2"))
    commit(place, "second", rounds=("1", "2"))
    write(place, 0.125, 1.0, rounds=("1", "2"))
    dvc(place, "commit", "-q", "-f")
    dvc(place, "exp", "save", "-q", "-n", "trial")
    run(place, "git", "checkout", "-q", ".")
    dvc(place, "push", "-q", "--all-commits")
    for folder in ("data", "agent_r/data"):
        shutil.rmtree(place / folder)
    assert run(place, "git", "status", "--short") == ""
    return place


@pytest.fixture
def place(made, monkeypatch):
    """The repository, which is the current folder. Shared: nothing in it may be changed."""
    monkeypatch.chdir(made)
    return made


@pytest.fixture
def copied(made, tmp_path, monkeypatch):
    """A copy of it to be changed, whose remote is that of the first."""
    shutil.copytree(made, tmp_path / "project")
    monkeypatch.chdir(tmp_path / "project")
    return tmp_path / "project"


def find(place, text, root=None):
    with Sides(root or place, Path.cwd()) as sides:
        side = sides.find(text)
        return side.kind, {name: pl.read_parquet(source.fetch()) for name, source in side.tables.items()}


def refused(place, text):
    with Sides(place, Path.cwd()) as sides, pytest.raises(SideError) as error:
        for source in sides.find(text).tables.values():
            source.fetch()
    return str(error.value)


def moat(*arguments):
    return CliRunner().invoke(app, ["diff", *arguments], env={"COLUMNS": "200", "NO_COLOR": "1"})


@pytest.mark.parametrize(
    ("text", "nll"),
    [("1@main~1", 0.5), ("1@main", 0.25), ("1", 0.25), ("2@HEAD", 0.25), ("1@trial", 0.125), ("2@trial", 0.125)],
)
def test_a_round_is_read_at_a_revision_or_an_experiment_from_the_cache(place, text, nll):
    """Without a revision it is the workspace's, as dvc.lock has it where the files are not there."""
    kind, tables = find(place, text)
    assert (kind, set(tables)) == (Kind.ROUND, {"scores", "pairs"})
    assert tables["scores"]["nll"].to_list() == [nll]
    assert not (place / "data").exists()


def test_evaluations_belong_to_their_round(place):
    assert set(find(place, "0@main")[1]) == {"evals"}


def test_a_revision_has_all_tables_that_it_knows(place):
    kind, tables = find(place, "main~1")
    assert (kind, set(tables)) == (
        Kind.ALL,
        {"data/rounds/1/scores.parquet", "data/rounds/1/pairs.parquet", "data/evals/0.parquet"},
    )
    assert len(find(place, "main")[1]) == len(find(place, "workspace")[1]) == 5


def test_a_commit_and_a_full_ref_are_revisions(place):
    commit = run(place, "git", "rev-parse", "main~1").strip()
    for text in (commit, commit[:12], f"1@{commit}"):
        if not text.isdigit():
            found = find(place, text)[1]
            assert next(frame for name, frame in found.items() if "scores" in name)["nll"].to_list() == [0.5]


def test_the_second_pipeline_has_its_own_tables(place):
    assert set(find(place, "main~1", place / "agent_r")[1]) == {"data/rounds/1/nodes.parquet"}
    assert find(place, "1", place / "agent_r")[1]["nodes"]["reward"].to_list() == [1.0]


@pytest.mark.parametrize(
    ("text", "nll"),
    [
        ("dvc://data/rounds/1/scores.parquet", 0.25),
        ("dvc://data/rounds/1/scores.parquet@main~1", 0.5),
        ("dvc://data/rounds/1/scores.parquet@trial", 0.125),
        ("data/rounds/1/scores.parquet", 0.25),
    ],
)
def test_an_address_is_a_file_that_dvc_tracks(place, text, nll):
    kind, tables = find(place, text)
    assert (kind, tables[text]["nll"].to_list()) == (Kind.FILE, [nll])


def test_an_address_may_be_of_another_repository(place, tmp_path, monkeypatch):
    """Here and elsewhere are different folders."""
    monkeypatch.chdir(tmp_path)
    text = f"dvc://data/rounds/1/scores.parquet@main~1::{place}"
    assert find(tmp_path, text)[1][text]["nll"].to_list() == [0.5]


def test_the_workspace_is_read_before_the_cache(copied):
    write(copied, 0.75, 0.5)
    assert find(copied, "1")[1]["scores"]["nll"].to_list() == [0.75]
    assert find(copied, "2")[1]["scores"]["nll"].to_list() == [0.25]
    assert find(copied, "workspace")[1]["data/rounds/1/scores.parquet"]["nll"].to_list() == [0.75]


def test_publishers_files_are_no_tables(copied):
    write(copied, 0.75, 0.5)
    (copied / layout.SOURCES).mkdir()
    pl.DataFrame({"x": [1]}).write_parquet(copied / layout.SOURCES / "gsm8k.parquet")
    assert not [name for name in find(copied, "workspace")[1] if "gsm8k" in name]


def test_what_is_not_in_the_cache_comes_from_the_remote_and_leaves_nothing(copied, tmp_path, monkeypatch):
    monkeypatch.setenv("TMPDIR", str(tmp_path / "tmp"))
    monkeypatch.setattr("tempfile.tempdir", None)
    (tmp_path / "tmp").mkdir()
    shutil.rmtree(copied / ".dvc/cache")
    assert find(copied, "1@main~1")[1]["scores"]["nll"].to_list() == [0.5]
    assert find(copied, "1")[1]["scores"]["nll"].to_list() == [0.25]
    assert not list((tmp_path / "tmp").glob("moat-diff-*"))
    assert not (copied / "data").exists()


def test_neither_in_the_cache_nor_in_a_remote_says_what_to_do(copied):
    shutil.rmtree(copied / ".dvc/cache")
    dvc(copied, "remote", "remove", "store")
    said = refused(copied, "1@main~1")
    assert "data/rounds/1/" in said
    assert "at main~1 is neither in DVC's cache nor in a remote" in said
    assert "`dvc fetch --all-commits`" in said
    assert "`dvc pull`" in refused(copied, "1")
    done = moat("1@main~1", "1@main")
    assert (done.exit_code, "neither in DVC's cache" in done.stderr) == (2, True)


def test_what_is_nothing_is_an_error_that_says_what_there_is(place):
    said = refused(place, "nothing")
    assert all(word in said for word in ("'nothing' is no round", "rounds here: 0, 1, 2", "git log", "dvc exp list"))
    assert "round 7 has no table here; rounds with tables: 0, 1, 2" in refused(place, "7")
    assert "round 2 has no table at main~1; rounds with tables: 0, 1;" in refused(place, "2@main~1")
    assert "'nowhere' is no git revision and no experiment" in refused(place, "1@nowhere")
    assert "no such file there; it has data/evals/0.parquet" in refused(place, "dvc://data/none.parquet@main")
    assert "no such revision" in refused(place, "dvc://data/evals/0.parquet@nowhere")
    assert "is no address" in refused(place, "dvc://@main")
    assert "DVC cannot open" in refused(place, f"dvc://a.parquet::{place.parent / 'none'}")


def test_a_revision_without_tables_is_told(copied):
    run(copied, "git", "checkout", "-q", "--orphan", "bare")
    for path in ("dvc.lock", "agent_r/dvc.lock"):
        (copied / path).unlink()
    run(copied, "git", "add", "-A")
    run(copied, "git", "commit", "-qm", "never run")
    assert "bare knows no table" in refused(copied, "bare")


def test_without_git_a_revision_is_no_side(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write(tmp_path, 0.5, 0.0)
    dvc(tmp_path, "init", "-q", "--no-scm")
    assert find(tmp_path, "1")[1]["scores"]["nll"].to_list() == [0.5]
    assert "is not under git" in refused(tmp_path, "1@main")
    assert "is not under git" in refused(tmp_path, "main")


def test_a_broken_pipeline_of_a_revision_is_told(copied):
    (copied / "dvc.lock").write_text("schema: '2.0'\nstages: [1]\n")
    run(copied, "git", "commit", "-qam", "broken")
    assert "dvc.lock" in refused(copied, "1@HEAD")


def test_two_revisions_are_told_table_by_table(place):
    """Those with equal hashes are not read; those that one side lacks are named."""
    done = moat("main~1", "main", "--json")
    assert done.exit_code == 1
    found = {table["name"]: table for table in json.loads(done.stdout)["tables"]}
    assert {name: table["status"] for name, table in found.items()} == {
        "data/evals/0.parquet": "equal",
        "data/rounds/1/pairs.parquet": "equal",
        "data/rounds/1/scores.parquet": "differs",
        "data/rounds/2/pairs.parquet": "only in the second",
        "data/rounds/2/scores.parquet": "only in the second",
    }
    assert found["data/rounds/1/scores.parquet"]["comparison"]["columns"]["nll"] == 1
    assert moat("main", "main").exit_code == 0


def test_equal_hashes_need_no_data(copied):
    shutil.rmtree(copied / ".dvc/cache")
    dvc(copied, "remote", "remove", "store")
    assert moat("main~1", "main", "--table", "pairs", "--json").exit_code == 1  # round 2 has them in the second only
    assert moat("main~1", "main", "--table", "data/rounds/1/pairs.parquet").exit_code == 0


def test_the_pipeline_is_chosen_as_elsewhere(place, monkeypatch):
    (table,) = json.loads(moat("main~1", "main", "--pipeline", "agent_r", "--json").stdout)["tables"]
    assert (table["name"], table["comparison"]["columns"]["reward"]) == ("data/rounds/1/nodes.parquet", 1)
    monkeypatch.chdir(place / "agent_r")
    (table,) = json.loads(moat("1@main~1", "1", "--json").stdout)["tables"]
    assert table["name"] == "nodes"


def test_a_round_and_a_whole_revision_are_not_alike(place):
    done = moat("1", "main")
    assert (done.exit_code, "name its round, as 1@main" in done.stderr) == (2, True)


def test_kinds_of_tables_are_told_by_their_paths():
    assert of_round(Path("data/rounds/3/pairs.parquet")) == ("3", "pairs")
    assert of_round(Path("data/evals/3.parquet")) == ("3", "evals")
    assert of_round(Path("data/recoveries/3.parquet")) == ("3", "recoveries")
    assert of_round(Path("data/tasks/train.parquet")) is None
    assert kind_of(Path("data/tasks/train.parquet")) == "train"

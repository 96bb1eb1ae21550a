"""A DVC cache that links its outputs read-only, and a stage that runs again over them."""

import contextlib
import math
import os
import shutil
import sys
from pathlib import Path

import pytest

from moat import layout, params
from moat.machine import Machine
from moat.schemas.actions import ACTIONS
from moat.schemas.pairs import PAIRS
from moat.schemas.scores import SCORES
from moat.schemas.subgoals import SUBGOALS
from moat.schemas.tasks import TASKS
from moat.stage import Stage
from tests.rows import task

ROOT = Path(__file__).resolve().parent.parent
TARGET = layout.table("pairs", "1")
PIPELINE = f"""
stages:
  pairs:
    cmd: python -m moat.launch stages/pairs.py --round 1
    params: [pairs]
    outs: [{TARGET}]
"""


def write_tables():
    """One task with two plans, whose PPLs 1 and 2 differ by 1."""
    TASKS.write(layout.TRAIN_TASKS, [task("a")], {})
    keys = [{"task_id": "a", "k": k} for k in (0, 1)]
    plan = {"finish_reason": "stop", "n_tokens": 2, "logprob": -1.0, "seed": 0, "dropped": None}
    act = {"actions": "", "finish_reason": "stop", "outcome": "syntax", "answer": None, "message": ""}
    score = [{"nll": math.log(ppl), "ppl": float(ppl), "n_action_tokens": 3} for ppl in (1, 2)]
    SUBGOALS.write(layout.table("subgoals", "1"), [key | plan | {"subgoals": f"plan {key['k']}"} for key in keys], {})
    SCORES.write(layout.table("scores", "1"), [key | own for key, own in zip(keys, score, strict=True)], {})
    ACTIONS.write(layout.table("actions", "1"), [key | act for key in keys], {})


@pytest.fixture
def linked(tmp_path, monkeypatch):
    """A project whose pairs table DVC has cached as a hard link; the repro of it is given."""
    pytest.importorskip("dvc")
    from dvc.repo import Repo

    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    for folder in ("moat", "stages"):
        shutil.copytree(ROOT / folder, tmp_path / folder, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copyfile(ROOT / "params.yaml", tmp_path / "params.yaml")
    (tmp_path / "dvc.yaml").write_text(PIPELINE)
    write_tables()
    with contextlib.closing(Repo.init(str(tmp_path), no_scm=True)) as repo, repo.config.edit() as config:
        config["cache"]["type"] = ["hardlink"]

    def repro():
        with contextlib.closing(Repo(str(tmp_path))) as again:
            return [stage.addressing for stage in again.reproduce()]

    assert repro() == ["pairs"]
    return repro


def cached():
    """The cache's files: the name of each is the hash of its bytes."""
    return {path: path.read_bytes() for path in Path(".dvc/cache/files").rglob("*") if path.is_file()}


def kept():
    return PAIRS.read(TARGET)["dropped"].null_count()


@pytest.mark.trap(53)
def test_a_stage_replaces_its_linked_output(linked, stage_module):
    """By hand, over the read-only link: the new table stands there, and the cache's file has the bytes that it had."""
    before = cached()
    assert (TARGET.stat().st_nlink, TARGET.stat().st_mode & 0o222, kept()) == (2, 0, 1)
    settings = params.load(Path("params.yaml"))
    wider = settings.model_copy(update={"pairs": settings.pairs.model_copy(update={"min_gap": 2.0})})
    stage_module("pairs").run(Stage("pairs", wider, Machine(), Path.cwd()), round="1")
    assert (TARGET.stat().st_nlink, kept()) == (1, 0)
    assert cached() == before


@pytest.mark.trap(53)
def test_dvc_runs_a_stage_again_over_its_linked_output(linked):
    """Through DVC after a change of params, and back: both tables are in the cache, the first one unharmed."""
    before = cached()
    text = Path("params.yaml").read_text(encoding="utf-8")
    assert "  min_gap: 0.1 " in text
    Path("params.yaml").write_text(text.replace("  min_gap: 0.1 ", "  min_gap: 2.0 "), encoding="utf-8")
    assert (linked(), kept()) == (["pairs"], 0)
    Path("params.yaml").write_text(text, encoding="utf-8")
    assert (linked(), kept()) == (["pairs"], 1)
    assert before.items() < cached().items()
    assert TARGET.read_bytes() in before.values()

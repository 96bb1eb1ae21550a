"""Stages whose engines are in processes of their own, really run: the same tables as with one engine in the stage."""

import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import psutil
import pytest

from moat.schemas.evals import EVALS

pytestmark = pytest.mark.slow
TABLES = {
    "sample@1": "data/rounds/1/subgoals.parquet",
    "score@1": "data/rounds/1/scores.parquet",
    "evaluate@1": "data/evals/1.parquet",
}


@pytest.fixture
def two(project):
    """The small project on a machine with two copies; as it was afterwards."""
    path = project.place / "machine.yaml"
    before = path.read_text(encoding="utf-8")
    path.write_text(before + "copies: 2\n", encoding="utf-8")
    yield project
    path.write_text(before, encoding="utf-8")


def forget(project, target):
    """Empty the journal of a stage."""
    shutil.rmtree(project.place / ".scratch" / "journal" / target.replace("@", "-"))


@pytest.mark.parametrize("target", TABLES)
def test_two_copies_write_the_same_bytes(two, target):
    """Two processes a role, which finish batches in any order. Afterwards none is left."""
    table = two.place / TABLES[target]
    before = table.read_bytes()
    forget(two, target)
    two.dvc("repro", "--force", "--single-item", target)
    assert table.read_bytes() == before
    logs = {path.name for path in (two.place / ".scratch" / "logs").rglob("*.log")}
    roles = {"sample@1": ["planner"], "score@1": ["grounder"], "evaluate@1": ["planner", "grounder"]}[target]
    assert logs >= {f"{target.replace('@', '-')}-{role}-{copy}.log" for role in roles for copy in (0, 1)}
    assert not [one for one in psutil.process_iter() if _engine_of(one, two.place)]


def test_an_engine_that_is_killed_midway_loses_nothing(two):
    """`kill -9` of one of four engines while evaluate is at work: the stage ends well, with every row.

    A batch that is asked again in halves has another shape, so log-probabilities are equal to 1e-4.
    """
    table, journal = two.place / TABLES["evaluate@1"], two.place / ".scratch" / "journal" / "evaluate-1"
    before = EVALS.read(table)
    forget(two, "evaluate@1")
    dvc = subprocess.Popen(
        [sys.executable, "-P", "-m", "dvc", "repro", "--force", "--single-item", "evaluate@1"],
        cwd=two.place,
        env=os.environ | {"PYTHONPATH": str(two.place), "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    killed = 0
    while not killed and dvc.poll() is None:
        if any(path.stat().st_size for path in journal.glob("*.jsonl")):
            for one in psutil.process_iter():
                if not killed and _engine_of(one, two.place):
                    os.kill(one.pid, signal.SIGKILL)
                    killed = one.pid
        time.sleep(0.005)
    output = dvc.communicate(timeout=300)[0]
    assert dvc.returncode == 0, output
    assert killed, "the stage ended before its engine was killed"
    found = EVALS.read(table)
    numbers = ["nll", "samples_nll", "control_nll"]
    assert found.drop(numbers).equals(before.drop(numbers))
    for name in numbers:
        np.testing.assert_allclose(found[name].explode(), before[name].explode(), atol=1e-4)


def _engine_of(process, place):
    """Whether a process is an engine of the project in `place`."""
    try:
        return "moat.engines.child" in process.cmdline() and Path(process.cwd()) == place.resolve()
    except psutil.Error:
        return False

"""A run that is killed at every stage ends with the same bytes as one that was left alone, and asks nothing twice.

The second project is the first one's twin in another folder. Each of its long stages is ended by SIGKILL when a part of its
rows (or updates) is finished, then `dvc repro` is called again.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from ruamel.yaml import YAML

from moat.seeds import content_id
from tests.conftest import Project

pytestmark = pytest.mark.slow
ROW_WORK = {
    "sample@1": "data/rounds/1/subgoals.parquet",
    "score@1": "data/rounds/1/scores.parquet",
    "ground@1": "data/rounds/1/actions.parquet",
    "evaluate@1": "data/evals/1.parquet",
}
TRAINING = {
    "cold_start@planner": "models/planner/0",
    "align_planner@1": "models/planner/1",
    "train_grounder@1": "models/grounder/1",
}


@pytest.fixture(scope="module")
def twin(project, tmp_path_factory):
    """A project like the first in another folder, of which nothing has run."""
    made = Project(tmp_path_factory.mktemp("twin"))
    for name in ("params.yaml", "dvc.yaml", "machine.yaml"):
        (made.place / name).write_bytes((project.place / name).read_bytes())
    return made


def start(twin, target, *options):
    """`dvc repro TARGET`, and the process id of its stage as soon as that holds the lock."""
    locks, command = twin.place / ".scratch" / "locks", f"stages/{target.partition('@')[0]}.py"
    before = {path.read_text() for path in locks.glob("*")}
    environment = os.environ | {"PYTHONPATH": str(twin.place)}
    environment.pop("SHELL", None)  # as under cron: dvc then takes /bin/sh, which may not make way for the command
    environment["PATH"] = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    dvc = subprocess.Popen(
        [sys.executable, "-P", "-m", "dvc", "repro", *options, target],
        cwd=twin.place,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    while dvc.poll() is None:
        for path in locks.glob("*"):
            text = path.read_text()
            if command in text and text not in before and text.endswith("}"):
                return dvc, json.loads(text)["pid"]
        time.sleep(0.01)
    pytest.fail(f"dvc ended before the stage began: {dvc.stdout.read()}")


def finished(twin, label):
    """Whether a stage has a whole checkpoint, or (row work) a batch in its journal."""
    folder = twin.place / ".scratch"
    if label.replace("-", "@") in TRAINING:
        return any((folder / "checkpoints").glob(f"{label}-*/checkpoint-*/complete"))
    return any(b"\n" in path.read_bytes() for path in (folder / "journal" / label).glob("*.jsonl"))


def alive(pid):
    """Whether a process runs (a zombie does not)."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def kill_midway(twin, target, whom="stage"):
    """Start, wait for some finished work, kill before the stage has reached its end.

    On a busy machine a short stage may end before its killer gets the processor: it is then run again from nothing.
    """
    label, options = target.replace("@", "-"), []
    for _ in range(10):
        dvc, pid = start(twin, target, *options)
        while not finished(twin, label) and dvc.poll() is None:
            time.sleep(0.002)
        if dvc.poll() is None:
            os.kill(pid if whom == "stage" else dvc.pid, signal.SIGKILL)
        output = dvc.communicate(timeout=60)[0]
        for _ in range(200):
            if not alive(pid):
                break
            time.sleep(0.05)
        assert not alive(pid)  # no second writer (of a killed dvc)
        if "✓" not in output.rpartition("▸")[2]:
            return
        shutil.rmtree(twin.place / ".scratch" / "journal" / label, ignore_errors=True)
        options = ["--force", "--single-item"]
    pytest.fail(f"{target} always ended before it was killed: {output}")


def asked(project, label):
    """Requests that the engine was asked in the last run of a stage."""
    notes = project.place / ".scratch" / "runs" / content_id(project.place.resolve())
    note = json.loads((notes / f"{label}.json").read_text())
    return sum(tally["asked"] for tally in note["requests"])


def rows_known(twin, label):
    """Requests of the journal's sound lines."""
    known = set()
    for path in (twin.place / ".scratch" / "journal" / label).glob("*.jsonl"):
        for line in path.read_bytes().splitlines(keepends=True):
            if line.endswith(b"\n"):
                known |= json.loads(line.partition(b" ")[2]).keys()
    return len(known)


def same(project, twin, path):
    """Whether a file or folder has the same bytes in both projects."""
    one, other = project.place / path, twin.place / path
    if one.is_file():
        return one.read_bytes() == other.read_bytes()
    names = {file.name for file in one.iterdir()}
    return names == {f.name for f in other.iterdir()} and all(
        (one / n).read_bytes() == (other / n).read_bytes() for n in names
    )


@pytest.mark.trap(56)
@pytest.mark.parametrize("target", ["cold_start@planner"])
def test_a_killed_cold_start_ends_with_the_same_weights(project, twin, target):
    """Killed after a checkpoint; a torn newer checkpoint lies beside it and is not resumed from."""
    kill_midway(twin, target)
    (folder,) = (twin.place / ".scratch" / "checkpoints").glob("cold_start-planner-*")
    (folder / "checkpoint-9999").mkdir()
    (folder / "checkpoint-9999" / "model.safetensors").write_bytes(b"torn")
    output = twin.dvc("repro", target)
    assert "going on from update" in output
    assert "9999" not in output
    assert same(project, twin, TRAINING[target])
    assert not folder.exists()  # nothing is left of a finished training


@pytest.mark.parametrize("target", ["sample@1", "score@1", "ground@1"])
def test_killed_row_work_ends_with_the_same_bytes(project, twin, target):
    """The table equals the undisturbed run's, and the engine is asked for no row that was finished."""
    label = target.replace("@", "-")
    twin.dvc("repro", "cold_start@grounder", *([] if target == "sample@1" else ["sample@1"]))
    kill_midway(twin, target)
    known = rows_known(twin, label)
    assert 0 < known < asked(project, label)
    twin.dvc("repro", target)
    assert same(project, twin, ROW_WORK[target])
    assert asked(twin, label) == asked(project, label) - known


@pytest.mark.trap(47)
@pytest.mark.parametrize("target", ["align_planner@1", "train_grounder@1"])
def test_killed_training_ends_with_the_same_weights(project, twin, target):
    """Checkpoints lie outside the outputs, so DVC's removal of these before a stage costs nothing."""
    twin.dvc("repro", "pairs@1", "mix@1")
    kill_midway(twin, target)
    assert not (twin.place / TRAINING[target]).exists()
    assert "going on from update" in twin.dvc("repro", target)
    assert same(project, twin, TRAINING[target])


@pytest.mark.trap(52)
def test_a_killed_dvc_takes_its_stage_along(project, twin):
    """`kill -9` of dvc during evaluate: the stage ends, and the next repro ends with the same bytes."""
    kill_midway(twin, "evaluate@1", whom="dvc")
    known = rows_known(twin, "evaluate-1")
    assert known
    twin.dvc("repro", "evaluate@1")
    assert same(project, twin, ROW_WORK["evaluate@1"])
    assert asked(twin, "evaluate-1") == asked(project, "evaluate-1") - known


def test_a_killed_judge_ends_with_the_same_verdicts(twin, tokenizer):
    """critique with a judge model: killed, it goes on, asks nothing twice, and ends as a run that was left alone.

    The judge is untrained, so no verdict can be read; what is asked and stored is a real judge's.
    """
    from moat.base_models import scratch_model

    twin.dvc("repro", "critique@1")
    path = twin.place / "params.yaml"
    text = path.read_text(encoding="utf-8")
    judge = twin.place / "judge"
    scratch_model(len(tokenizer), 16, 1, 2, 16_384, 0).save_pretrained(judge)
    tokenizer.save_pretrained(judge)
    changed = YAML()
    settings = changed.load(text)
    settings["critic"] |= {"kind": "llm", "judge": "judge", "revision": "0", "prompt": "plain", "max_new_tokens": 4}
    settings["limits"]["max_unparsed"] = 1.0
    try:
        with path.open("w", encoding="utf-8") as file:
            changed.dump(settings, file)
        kill_midway(twin, "critique@1")
        known = rows_known(twin, "critique-1")
        assert known
        twin.dvc("repro", "critique@1")
        table, rest = (twin.place / "data/rounds/1/critiques.parquet").read_bytes(), asked(twin, "critique-1")
        assert rest
        shutil.rmtree(twin.place / ".scratch" / "journal" / "critique-1")
        twin.dvc("repro", "--force", "--single-item", "critique@1")
        assert asked(twin, "critique-1") == known + rest
        assert (twin.place / "data/rounds/1/critiques.parquet").read_bytes() == table
    finally:
        path.write_text(text, encoding="utf-8")
        twin.dvc("repro", "critique@1")


def test_two_folders_make_the_same_bytes(project, twin):
    """Every stage's outputs have the hashes of the undisturbed run in the other folder (the page apart)."""
    twin.dvc("repro")
    found = []
    for one in (project, twin):
        lock = YAML(typ="safe").load((one.place / "dvc.lock").read_text())
        outs = {(name, out["path"]): out["md5"] for name, stage in lock["stages"].items() for out in stage["outs"]}
        found.append({key: md5 for key, md5 in outs.items() if key[0] != "report"})
    assert {name for name, _ in found[1]} >= {"prepare", "base_model", "cold_start@grounder", "critique@1", "evaluate@0"}
    assert {key: md5 for key, md5 in found[0].items() if key in found[1]} == found[1]


def test_a_second_run_at_once_is_told_who_works(project, twin):
    """A stage started by hand while another is at work in the checkout: exit 1, the process named, nothing written."""
    stage = sample_again(twin)
    try:
        done = subprocess.run(
            [sys.executable, "-P", "-m", "moat.launch", "stages/pairs.py", "--round", "1"],
            cwd=twin.place,
            env=os.environ | {"PYTHONPATH": str(twin.place)},
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 1
        assert f"process {stage.pid} (stages/sample.py --round 1 --prev 0) is at work in this checkout" in done.stderr
    finally:
        stage.kill()
        stage.wait()


def sample_again(twin):
    """The sample stage by hand, from an empty journal, halted when its first batch is finished."""
    (twin.place / "data/rounds/1/subgoals.parquet").unlink()
    for path in (twin.place / ".scratch" / "journal" / "sample-1").glob("*"):
        path.unlink()
    stage = subprocess.Popen(
        [sys.executable, "-P", "-m", "moat.launch", "stages/sample.py", "--round", "1", "--prev", "0"],
        cwd=twin.place,
        env=os.environ | {"PYTHONPATH": str(twin.place)},
        stdout=subprocess.DEVNULL,
    )
    journal = twin.place / ".scratch" / "journal" / "sample-1"
    while not any(journal.glob("*.jsonl")):
        assert stage.poll() is None
        time.sleep(0.01)
    stage.send_signal(signal.SIGSTOP)
    return stage


def test_ten_tasks_more_ask_for_these_ten(project):
    """n_train 24 → 34 (all demonstrated already): round 1 samples and scores the new tasks' candidates, and no other."""
    before, known = asked(project, "sample-1"), rows_known(project, "score-1")
    path = project.place / "params.yaml"
    text = path.read_text(encoding="utf-8")
    try:
        path.write_text(text.replace("n_train: 24", "n_train: 34"), encoding="utf-8")
        ran = project.ran(project.dvc("repro", "score@1"))
        assert {"sample@1", "score@1"} <= set(ran)
        assert "cold_start@planner" not in ran
        assert (asked(project, "sample-1"), before) == (10 * 4, 24 * 4)
        # each at most twice, with others and alone; whatever was asked was not known
        assert 0 < asked(project, "score-1") <= 2 * 10 * 4
        assert asked(project, "score-1") == rows_known(project, "score-1") - known
        path.write_text(text.replace("n_train: 24", "n_train: 34").replace("min_gap: 0.1", "min_gap: 0.2"), encoding="utf-8")
        assert project.ran(project.dvc("repro", "pairs@1")) == ["ground@1", "pairs@1"]
    finally:
        path.write_text(text, encoding="utf-8")
        project.dvc("repro")

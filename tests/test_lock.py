"""One stage at a time in a checkout: moat/lock.py."""

import json
import os
import signal
import subprocess
import sys
import time

import pytest

from moat.lock import BusyError, first_free, hold

HOLD = (
    "import sys, time; from pathlib import Path; from moat.lock import hold\n"
    "with hold(Path(sys.argv[1]), 'stages/sample.py --round 1'):\n    print('held', flush=True); time.sleep(120)"
)


@pytest.fixture
def path(tmp_path):
    return tmp_path / "locks" / "here"


@pytest.fixture
def holder(path):
    """A process that holds the lock."""
    process = subprocess.Popen([sys.executable, "-c", HOLD, str(path)], stdout=subprocess.PIPE, text=True)
    assert process.stdout.readline() == "held\n"
    yield process
    process.kill()
    process.wait()


def test_the_second_is_told_who_holds_it(path, holder):
    """Process, stage, since when, and what to do; and nothing runs."""
    with pytest.raises(BusyError) as told, hold(path, "another"):
        pytest.fail("two stages at once")
    said = str(told.value)
    assert f"process {holder.pid} (stages/sample.py --round 1) is at work in this checkout since 2" in said
    assert said.endswith("wait until it ends, then run again")


def test_death_releases_it(path, holder):
    """SIGKILL leaves no lock behind."""
    holder.send_signal(signal.SIGKILL)
    holder.wait()
    with hold(path, "mine"):
        assert json.loads(path.read_text())["pid"] == os.getpid()


def test_the_end_releases_it(path):
    """Twice in a row, and after an error, by one process."""
    for _ in range(2):
        with pytest.raises(KeyError), hold(path, "mine"):
            raise KeyError


@pytest.mark.trap(52)
def test_a_child_of_a_killed_parent_is_named_as_left_behind(path):
    """The parent was killed and its child works on: the error says which process to end."""
    command = [sys.executable, "-c", HOLD, str(path)]
    code = "import subprocess, sys; child = subprocess.Popen(sys.argv[1:]); print(child.pid, flush=True); child.wait()"
    parent = subprocess.Popen([sys.executable, "-c", code, *command], stdout=subprocess.PIPE, text=True)
    told = {parent.stdout.readline().strip(), parent.stdout.readline().strip()}
    child = int((told - {"held"}).pop())
    try:
        parent.kill()
        parent.wait()
        time.sleep(0.2)  # the child is adopted
        with (
            pytest.raises(BusyError, match=rf"left behind by a dvc that was killed: end it \(`kill {child}`\)"),
            hold(path, "x"),
        ):
            pytest.fail("two stages at once")
    finally:
        os.kill(child, signal.SIGKILL)


def test_the_first_name_that_nobody_claims(tmp_path):
    """A second claim gets another name while the first is open, and the same one afterwards."""
    paths = [tmp_path / "x", tmp_path / "x-1"]
    first, one = first_free(paths)
    second, other = first_free(paths)
    one.close()
    third, again = first_free(paths)
    other.close()
    again.close()
    assert (first, second, third) == (*paths, paths[0])

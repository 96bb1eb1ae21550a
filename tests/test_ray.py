"""Engines in actors of Ray Data: moat/engines/ray.py, with a real Ray on this computer."""

from __future__ import annotations

import json
import os
import pickle
import platform
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import psutil
import pytest
from ruamel.yaml import YAML

from moat import models, runners
from moat.engines.base import Decoding, EngineError
from moat.engines.ray import TRIES, Actors, Attendant, Job, _refuse
from moat.engines.spec import Spec
from moat.machine import Machine, RayActors
from moat.params import ParamsError
from moat.provenance import content_hash
from moat.workers import Here, Retry, Work
from tests.ray_engine import Fake

pytest.importorskip("ray.data", reason="Ray Data is not installed (`pip install -e '.[ray]' -c constraints.txt`)")
pytestmark = pytest.mark.slow

ROOT = Path(__file__).resolve().parent.parent
GREEDY = Decoding(0.0, 1.0, 8)
LONG = 300  # seconds within which whatever happens here happens, on a busy computer too


def works(kinds, rows=1):
    """A batch for every kind."""
    return [Work([[kind, number]] * rows, [0] * rows, GREEDY) for number, kind in enumerate(kinds)]


@pytest.fixture(scope="module")
def scratch(tmp_path_factory):
    return tmp_path_factory.mktemp("scratch")


@pytest.fixture
def actors(scratch, monkeypatch):
    """Makes workers on this computer's Ray, which is started once."""
    monkeypatch.chdir(ROOT)  # from where actors import tests.ray_engine
    return lambda engine, copies=2, **settings: Actors(
        Job(engine, Retry(2, pause=0.0), ROOT), RayActors(**settings), copies, scratch
    )


def answers(found):
    """The generations' ids by batch, without the process."""
    return {number: [one.ids[1:] for one in reply.answers] for number, reply in found}


# --- answers ----------------------------------------------------------------------------------------------------------


def test_two_actors_answer_as_this_process_does(actors, model, tokenizer, tmp_path):
    """Generations and log-probabilities, to the last bit."""
    folder = tmp_path / "model"
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    spec = Spec("hf", folder, folder, Machine(device="cpu", dtype="float32"))
    random = np.random.default_rng(3)
    texts = [random.integers(3, len(tokenizer), (4, n)).tolist() for n in random.integers(5, 30, 12)]
    asked = [Work(rows, range(4), Decoding(1.0, 0.9, 12)) for rows in texts]
    asked += [Work([row[:-3] for row in rows], completions=[row[-3:] for row in rows]) for rows in texts]
    own, found = (dict(one.run(asked)) for one in (Here(spec.open, Retry(1)), actors(spec.open)))
    assert sorted(found) == sorted(own) == list(range(24))
    for number, reply in own.items():
        assert pickle.dumps(found[number]) == pickle.dumps(reply)


def test_the_work_is_shared_out(actors, tmp_path):
    """Two actors, each in a process of its own, none of them this one."""
    found = list(actors(Fake(tmp_path)).run(works([5] * 12)))
    assert sorted(number for number, _ in found) == list(range(12))
    processes = {reply.answers[0].ids[0] for _, reply in found}
    assert len(processes) == 2
    assert os.getpid() not in processes


def test_nothing_to_do_starts_nothing(actors):
    assert list(actors(Fake()).run([])) == []


def test_replies_come_as_they_are_finished(actors, tmp_path):
    """The first is here while most are not done: a kill loses what is under way and no more."""
    own = actors(Fake(tmp_path), copies=1)
    began = time.monotonic()
    times = [time.monotonic() - began for _ in own.run(works([5] * 20))]
    assert times[-1] - times[0] > 10 * 0.2  # of 19 batches of 0.2 seconds that came after the first


# --- failures ---------------------------------------------------------------------------------------------------------


def test_a_batch_that_fails_is_halved_where_the_engine_is(actors):
    """As in this process: 4 rows fail together (1 call, 2 of 2, 4 of 1), and each alone is answered."""
    ((_, reply),) = actors(Fake(), copies=1).run(works([3], rows=4))
    assert [one.ids[1:] for one in reply.answers] == [[3, 0]] * 4
    assert (reply.calls, reply.failure) == (7, "too large a batch")


def test_a_bug_comes_back_with_its_traceback(actors):
    with pytest.raises(KeyError, match="a bug") as raised:
        list(actors(Fake(), copies=1).run(works([1])))
    assert "ray_engine.py" in raised.value.__notes__[0]


def test_an_error_in_files_comes_back_as_what_it_is(actors):
    """A stage says it in one line, without a traceback."""
    with pytest.raises(FileNotFoundError, match="no such file: make it"):
        list(actors(Fake(), copies=1).run(works([2])))


def test_a_killed_actor_loses_nothing(actors, tmp_path):
    """SIGKILL to an actor that has answered some and is at work on another: every batch is answered."""
    found, killed = {}, None
    for number, reply in actors(Fake(tmp_path)).run(works([5] * 30)):
        found[number] = [one.ids[1:] for one in reply.answers]
        if killed is None:
            killed = reply.answers[0].ids[0]
            os.kill(killed, signal.SIGKILL)
    assert found == {number: [[5, number]] for number in range(30)}
    assert len(list(tmp_path.iterdir())) == 3  # two actors, and one that took the dead one's place


def test_a_batch_that_ends_every_actor_ends_the_stage(actors, tmp_path):
    """Not for ever: three actors, then one line that names the logs. What was answered stays answered."""
    found = []
    with pytest.raises(EngineError, match=r"Ray has given up.*logs are in .*ray; what was answered is kept"):
        for number, _ in actors(Fake(tmp_path), copies=1).run(works([0, 4])):
            found.append(number)
    assert found == [0]
    assert (tmp_path / "deaths").read_text() == "x" * TRIES


# --- room -------------------------------------------------------------------------------------------------------------


@pytest.mark.trap(55)
def test_actors_that_hold_every_cpu_starve_nobody(actors):
    """Two actors book all of Ray's CPUs: this process puts the batches in itself, so no reader waits for a CPU."""
    import ray

    own = actors(Fake())
    every = ray.cluster_resources()["CPU"]
    own.settings = RayActors(cpus=int(every / 2) if every > 2 else every / 2)
    assert answers(own.run(works([0] * 6))) == {number: [[0, number]] for number in range(6)}


def node(cpus, gpus=0, alive=True):
    return {"Alive": alive, "Resources": {"CPU": cpus} | ({"GPU": gpus} if gpus else {})}


@pytest.mark.trap(55)
@pytest.mark.parametrize(
    ("nodes", "copies", "cpus", "gpus", "room"),
    [
        ([node(2)], 3, 1, 0, 2),
        ([node(1), node(1)], 1, 2, 0, 0),  # two halves are no whole
        ([node(8, 4), node(8, 4)], 9, 1, 1, 8),
        ([node(8, 4), node(8, 4, alive=False)], 8, 1, 1, 4),
        ([node(64), node(2, 8)], 8, 0.5, 1, 4),  # CPUs without GPUs help no one
        ([node(8, 3), node(8, 3)], 3, 1, 2, 2),
    ],
)
def test_more_actors_than_there_is_room_for_are_refused(nodes, copies, cpus, gpus, room):
    """Ray Data would wait for room without a word. An actor is on one node."""
    with pytest.raises(ParamsError, match=rf"machine\.yaml: copies: {copies} actors .* {room} would: set copies"):
        _refuse(nodes, RayActors(cpus=cpus, gpus=gpus), copies)


@pytest.mark.parametrize(
    ("nodes", "copies", "cpus", "gpus"),
    [([node(2)], 4, 0.5, 0), ([node(1)], 10, 0.1, 0), ([node(8, 4), node(8, 4)], 8, 0.5, 1), ([node(8, 1)], 2, 1, 0.5)],
)
def test_as_many_as_there_is_room_for_are_not(nodes, copies, cpus, gpus):
    _refuse(nodes, RayActors(cpus=cpus, gpus=gpus), copies)


def test_gpus_that_are_not_there_are_refused_at_the_start(actors):
    with pytest.raises(ParamsError, match=r"1 actors of 0\.5 CPUs and 64 GPUs do not fit"):
        actors(Fake(), copies=1, gpus=64)


# --- settings ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("address", ["localhost", "http://h:1", "ray://h", "ray://", "h:x", "10.0.0.1:6379/x"])
def test_an_address_that_is_none_is_refused(address):
    with pytest.raises(ValueError, match="address"):
        RayActors(address=address)


@pytest.mark.parametrize("address", ["", "auto", "head:6379", "ray://10.0.0.1:10001", "ray://[::1]:10001"])
def test_addresses(address):
    assert RayActors(address=address).address == address


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"device": "cuda", "ray": {}}, r"ray\.gpus: 0, with device: cuda"),
        ({"device": "cpu", "ray": {"gpus": 1}}, r"ray\.gpus: 1, with device: cpu"),
        ({"ray": {"gpus": 1.5}}, "gpus: a part of one, or a whole number"),
        ({"ray": {"cpus": 0}}, "greater than 0"),
    ],
)
def test_settings_that_contradict_each_other_are_refused(changes, said):
    with pytest.raises(ValueError, match=said):
        Machine.model_validate(changes)


def test_the_device_is_that_of_the_actors():
    """Not that of this computer, which may be a cluster's head without a GPU: with ray.gpus a GPU, without it none."""
    facts = [models.engine_facts(m, "hf", runners.actors_gpu(m)) for m in (Machine(ray={"gpus": 1}), Machine(ray={}))]
    assert [(one["device"], one["dtype"]) for one in facts] == [("cuda", "bfloat16"), ("cpu", "float32")]


def test_without_ray_data_the_stage_says_what_to_install(actors, monkeypatch):
    monkeypatch.setitem(sys.modules, "ray.data", None)
    with pytest.raises(ParamsError, match=r"ray: Ray Data is not installed .*pip install -e '\.\[ray\]'"):
        actors(Fake())


@pytest.mark.parametrize("form", ["127.0.0.1:{}", "ray://127.0.0.1:{}", "auto"])
def test_a_cluster_that_is_not_there_is_said_soon(actors, monkeypatch, form):
    """Ray itself goes on trying for minutes."""
    with socket.socket() as held:  # bound, and nobody listens
        held.bind(("127.0.0.1", 0))
        monkeypatch.setenv("RAY_ADDRESS", f"127.0.0.1:{held.getsockname()[1]}")
        address = form.format(held.getsockname()[1])
        with pytest.raises(ParamsError, match=rf"ray\.address: no cluster at '{address}' \(ConnectionRefused"):
            actors(Fake(), address=address)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"contents": {ROOT / "stages": "0"}}, r"the model in .*stages is another than here"),
        ({"contents": {ROOT / "none": "0"}}, r"there is no .*none: share the project's folder"),
        ({"wanted": {"dtype": "bfloat16"}}, r"there is {}, and here {'dtype': 'bfloat16'}: share one \.venv"),
        ({"root": Path("/none")}, r"the project is at .*, not at /none"),
    ],
)
def test_a_node_that_is_not_as_this_computer_is_found_out(changes, said, monkeypatch):
    """Other weights, versions or folders there: an error before the engine is opened, which names the computer."""
    monkeypatch.chdir(ROOT)  # an actor goes there
    actor = Attendant(replace(Job(Fake(), Retry(1), ROOT), **changes))
    with pytest.raises(OSError, match=f"on the computer {platform.node()} {said}"):
        actor.engine()


# --- a stage ----------------------------------------------------------------------------------------------------------


def family(process):
    """A process and all that it has started, now."""
    try:
        return [psutil.Process(process.pid), *psutil.Process(process.pid).children(recursive=True)]
    except psutil.NoSuchProcess:
        return []


def lives(process):
    """Whether it runs; one that is dead and that nobody has asked after does not."""
    try:
        return process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def gone(processes):
    """Whether none of them is left, within a while."""
    until = time.monotonic() + LONG
    while any(map(lives, processes)) and time.monotonic() < until:
        time.sleep(0.05)
    return not any(map(lives, processes))


class Sampling:
    """`sample` of a small checkout, started as DVC does."""

    def __init__(self, place):
        self.place = place
        self.table = place / "data/rounds/1/subgoals.parquet"
        self.journal = place / ".scratch/journal/sample-1"

    def start(self):
        return subprocess.Popen(
            [sys.executable, "-P", "-m", "moat.launch", "stages/sample.py", "--round", "1", "--prev", "0"],
            cwd=self.place,
            env=os.environ | {"PYTHONPATH": str(self.place)},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )

    def lines(self):
        return sorted(line for path in self.journal.glob("*.jsonl") for line in path.read_bytes().splitlines())

    def stop(self, how):
        """End it with a signal when it has finished some batches; returns its exit status when nothing is left of it."""
        stage, before = self.start(), len(self.lines())
        while len(self.lines()) < before + 2:
            assert stage.poll() is None, stage.communicate()[0]
            time.sleep(0.002)
        processes = family(stage)
        assert any("raylet" in process.name() for process in processes)
        how(stage.pid)
        stage.communicate(timeout=LONG)
        assert gone(processes)
        assert not [
            link for link in Path(tempfile.gettempdir()).glob("moat-*/ray") if link.resolve().is_relative_to(self.place)
        ]
        return stage.returncode

    def finish(self):
        stage = self.start()
        output = stage.communicate(timeout=LONG)[0]
        assert stage.returncode == 0, output
        return output


def test_a_stage_on_two_actors_ends_with_the_same_bytes(make_checkout, tmp_path):
    """Killed with SIGKILL, then by Ctrl-C, it leaves no process behind, and goes on where it stopped. It prints no more."""
    small = {"sample.k": 16, "sample.max_new_tokens": 30, "limits.min_distinct": 0}
    make_checkout(tmp_path, small | {"limits.min_diversity": 0.0, "limits.min_length_ratio": 0.0})
    for folder in ("moat", "stages"):
        shutil.copytree(ROOT / folder, tmp_path / folder, ignore=shutil.ignore_patterns("__pycache__"))
    own = Sampling(tmp_path)
    machine = {"generate_batch": 4, "device": "cpu"}
    YAML().dump(machine, tmp_path / "machine.yaml")
    said = own.finish()
    table, lines = own.table.read_bytes(), own.lines()
    shutil.rmtree(own.journal)
    own.table.unlink()
    YAML().dump(machine | {"copies": 2, "ray": {}}, tmp_path / "machine.yaml")
    assert own.stop(lambda pid: os.kill(pid, signal.SIGKILL)) == -signal.SIGKILL
    assert own.stop(lambda pid: os.killpg(pid, signal.SIGINT)) == 130  # the terminal's: to all of them
    known = len(own.lines())
    assert 4 <= known < len(lines)
    output = own.finish()
    assert own.table.read_bytes() == table
    requests = [json.loads(line.partition(b" ")[2]) for line in own.lines()]
    assert {key: one for batch in requests for key, one in batch.items()} == {
        key: one for line in lines for key, one in json.loads(line.partition(b" ")[2]).items()
    }
    assert f"{len(lines) * 4 - known * 4:,} asked, {known * 4:,} known already" in output
    told = [line for line in output.splitlines() if "known already" not in line]
    assert len(told) == len(said.splitlines())  # no word of Ray's
    assert list((tmp_path / ".scratch" / "ray").glob("session_*/logs"))


# --- a cluster --------------------------------------------------------------------------------------------------------

ASK = """
import pickle, sys
from pathlib import Path
from moat.engines.ray import Actors
from moat.machine import RayActors
job, works = pickle.loads(Path(sys.argv[2]).read_bytes())
found = dict(Actors(job, RayActors(address=sys.argv[1]), 2, Path(sys.argv[2]).parent).run(works))
Path(sys.argv[3]).write_bytes(pickle.dumps(found))
"""


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    """A running Ray: its address, and that for clients."""
    with socket.socket() as one, socket.socket() as other:
        one.bind(("127.0.0.1", 0))
        other.bind(("127.0.0.1", 0))
        port, client = one.getsockname()[1], other.getsockname()[1]
    folder = Path("/tmp") / f"moat-test-{os.getpid()}"  # its sockets' paths have to be short
    command = [Path(sys.executable).parent / "ray", "start", "--head", "--block", "--num-cpus=2", "--disable-usage-stats"]
    command += [
        "--node-ip-address=127.0.0.1",
        f"--port={port}",
        f"--ray-client-server-port={client}",
        f"--temp-dir={folder}",
    ]
    environ = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
    log = tmp_path_factory.mktemp("cluster") / "log"
    with log.open("wb") as file:
        head = subprocess.Popen(
            [*command, "--include-dashboard=false", f"--object-store-memory={128 << 20}"],
            env=environ | {"RAY_AUTH_MODE": "disabled", "RAY_CLIENT_SERVER_CHECK_CHANNEL_TIMEOUT_S": str(LONG)},
            stdout=file,
            stderr=file,
            start_new_session=True,
        )
    until = time.monotonic() + LONG
    while "Ray runtime started" not in log.read_text():
        assert head.poll() is None, log.read_text()
        assert time.monotonic() < until, log.read_text()
        time.sleep(0.1)
    yield f"127.0.0.1:{port}", f"ray://127.0.0.1:{client}"
    processes = family(head)
    for process in filter(lives, processes):
        process.kill()
    head.wait(LONG)
    assert gone(processes)
    shutil.rmtree(folder, ignore_errors=True)


@pytest.mark.parametrize("client", [False, True], ids=["node", "client"])
def test_a_running_cluster_answers(cluster, client, tmp_path):
    """From a node of it and from outside, through Ray's client; with what is looked at there: a folder, the versions."""
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "config.json").write_text("{}")
    facts = partial(models.engine_facts, Machine(device="cpu"), "hf")
    job = Job(Fake(), Retry(1), ROOT, {folder: content_hash(folder)}, facts, facts())
    batches = works([0] * 6)
    given, taken = tmp_path / "job", tmp_path / "found"
    given.write_bytes(pickle.dumps((job, batches)))
    done = subprocess.run(
        [sys.executable, "-c", ASK, cluster[client], str(given), str(taken)],
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": str(ROOT), "RAY_AUTH_MODE": "disabled"},
        capture_output=True,
        text=True,
        timeout=LONG,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout + done.stderr == ""
    found = pickle.loads(taken.read_bytes())
    assert answers(found.items()) == {number: [[0, number]] for number in range(6)}

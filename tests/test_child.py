"""Engines in child processes: moat/engines/child.py."""

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import psutil
import pytest

from moat.engines.base import Decoding, EngineError
from moat.engines.child import Children
from moat.engines.spec import Spec as HFSpec
from moat.machine import Machine
from moat.workers import Here, Retry, Work, attend
from tests.child_engines import BUG, DIES, ENDS, FAILS, HELD, ODD, TOGETHER, OddError, Spec, answer

ROOT = Path(__file__).resolve().parent.parent
HOW = Decoding(1.0, 1.0, 8)


def works(*batches):
    """Batches of prompts, a seed a row."""
    return [Work(rows, [7 * i for i in range(len(rows))], HOW) for rows in batches]


def expected(work):
    return [answer(prompt, seed) for prompt, seed in zip(work.prompts, work.seeds, strict=True)]


@pytest.fixture
def children(tmp_path):
    """Makes children of an engine without a model; they are ended after the test, and none is left."""
    made = []

    def make(gpus=((),), attempts=3, **own):
        made.append(Children(Spec(tmp_path / "notes", **own), Retry(attempts, 0.0), tmp_path / "logs" / "engine", gpus))
        return made[-1]

    yield make
    for one in made:
        one.close()
    assert not [child for child in psutil.Process().children() if "moat.engines.child" in child.cmdline()]


def notes(tmp_path):
    """What every call was asked: process, rows, GPUs."""
    return [line.split() for line in (tmp_path / "notes").read_text().splitlines()]


# --- answers ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("copies", [1, 2, 3])
def test_every_batch_is_answered_once_and_in_order_of_its_rows(children, tmp_path, copies):
    """As in this process, whoever answers; each copy is one process."""
    batches = works(*([[TOGETHER, i, row] for row in range(1 + i % 3)] for i in range(8)))
    found = dict(children([()] * copies, together=copies).run(batches))
    assert sorted(found) == list(range(8))
    assert [found[i].answers for i in range(8)] == [expected(work) for work in batches]
    assert [found[i].calls for i in range(8)] == [1] * 8
    assert len({pid for pid, _, _ in notes(tmp_path)}) == copies


def test_scores_come_back_as_they_were_made(children):
    work = Work([[1, 2], [3]], completions=[[4], [5, 6]])
    ((number, reply),) = children().run([work])
    assert number == 0
    assert [row.dtype for row in reply.answers] == [np.float32] * 2
    assert [row.tolist() for row in reply.answers] == [[-2.0], [-1.0, -1.0]]


def test_the_same_processes_answer_the_next_call_until_they_are_let_go(children, tmp_path):
    own = children()
    for _ in range(2):
        list(own.run(works([[1]])))
    own.close()
    list(own.run(works([[1]])))
    pids = [pid for pid, _, _ in notes(tmp_path)]
    assert pids[0] == pids[1] != pids[2]
    assert not psutil.pid_exists(int(pids[0]))


def test_each_copy_sees_its_own_gpus(children, tmp_path):
    list(children([("0", "1"), ("2", "3")]).run(works(*[[[TOGETHER]]] * 4)))
    assert {gpus for _, _, gpus in notes(tmp_path)} == {"0,1", "2,3"}


def test_no_more_copies_are_started_than_there_are_batches(children, tmp_path):
    own = children([()] * 4)
    list(own.run(works([[1]])))
    assert len(own._children) == 1


def test_nothing_of_what_a_child_prints_gets_to_the_stage(children, tmp_path, capfd):
    """It is in the log, of which a run begins a new one."""
    for _ in range(2):
        own = children()
        list(own.run(works([[1]])))
        own.close()
    assert capfd.readouterr() == ("", "")
    assert (tmp_path / "logs" / "engine-0.log").read_text() == "opening\n"


# --- failures ---------------------------------------------------------------------------------------------------------


def test_a_batch_that_the_engine_fails_on_is_halved_as_in_this_process(children):
    (work,) = works([[1], [2], [FAILS], [4]])
    ((_, found),) = children(attempts=2).run([work])
    here = attend(Here(Spec(Path("/dev/null")).open, Retry(2, 0.0)).engine, work, Retry(2, 0.0))
    assert found == here
    assert found.answers[2] is None


def test_a_child_that_is_killed_loses_nothing(children, tmp_path):
    """`kill -9` in the middle of a batch of eight: it is started again, the batch asked again in halves."""
    batches = works([[100 + i] for i in range(6)] + [[DIES], [9]], [[20], [21]])
    found = dict(children(deaths=2).run(batches))
    assert [found[i].answers for i in (0, 1)] == [expected(work) for work in batches]
    assert [int(rows) for _, rows, _ in notes(tmp_path)] == [8, 4, 4, 2, 2, 2]
    assert (found[0].calls, found[1].calls) == (5, 1)


def test_a_request_that_kills_every_child_fails_alone_and_says_how(children, tmp_path):
    (work,) = works([[1], [DIES], [2]])
    ((_, found),) = children(attempts=2).run([work])
    assert [one and one.ids for one in found.answers] == [
        one.ids if i != 1 else None for i, one in enumerate(expected(work))
    ]
    said = r"the engine's process was ended by SIGKILL, as the kernel does when memory runs out; its log "
    assert re.fullmatch(said + re.escape(f"{tmp_path}/logs/engine-0.log ends: ") + r".*opening about to die", found.failure)


def test_a_child_that_ends_by_itself_says_its_status_and_last_words(children):
    ((_, found),) = children(attempts=1).run(works([[ENDS]]))
    assert found.answers == [None]
    assert re.search(r"ended with exit status 1; its log .*engine-0\.log ends: .*no more$", found.failure)


def test_children_that_do_nothing_but_die_are_given_up(children, tmp_path):
    """Not a restart for each of a thousand rows: an engine that cannot work at all stops the stage."""
    with pytest.raises(EngineError, match=r"SIGKILL.*; 7 times without an answer: model"):
        list(children(attempts=1).run(works(*[[[DIES]]] * 1000)))
    assert len(notes(tmp_path)) == 7


def test_a_process_that_dies_before_its_model_is_open_is_given_up(children):
    with pytest.raises(EngineError, match=r"SIGKILL.*ends: opening opening; 2 times before its model was open: model"):
        list(children(early=True, opens="dies", attempts=2).run(works([[1]])))


def test_an_engine_that_cannot_be_opened_is_said_with_its_log(children, tmp_path):
    """Before any row is asked, and not tried again for each: the library's own words are in the log."""
    with pytest.raises(EngineError, match=rf"^vllm cannot open model: no room \(log: {tmp_path}/logs/engine-0\.log\)$"):
        list(children(early=True, opens="fails").run(works([[1]])))
    assert "EngineError: vllm cannot open model" in (tmp_path / "logs" / "engine-0.log").read_text()


def test_a_fault_of_the_model_s_folder_is_raised_as_it_is_in_this_process(children):
    with pytest.raises(OSError, match="the model in model") as caught:
        list(children(opens="refuses").run(works([[1]])))
    assert str(caught.value) == "the model in model cannot be loaded"


def test_a_bug_is_raised_with_the_child_s_traceback(children):
    """And the children, of which one may be at work, are let go: a later call gets its own answers."""
    own = children([(), ()])
    with pytest.raises(KeyError, match="a bug") as caught:
        list(own.run(works([[TOGETHER]], [[BUG]])))
    assert 'raise KeyError("a bug")' in caught.value.__notes__[0]
    (work,) = works([[5]])
    assert [reply.answers for _, reply in own.run([work])] == [expected(work)]


def test_a_bug_that_cannot_be_pickled_is_told_in_words(children):
    with pytest.raises((RuntimeError, OddError), match="OddError: it is odd"):
        list(children().run(works([[ODD]])))


def test_whoever_stops_listening_gets_no_old_answers_later(children, tmp_path):
    """A call that was broken off while one was at work, as by Ctrl-C: its batches are nobody's."""
    own = children([(), ()])
    list(own.run(works([[TOGETHER]], [[TOGETHER]])))  # both are open now
    for _ in own.run(works([[1]], [[HELD]])):
        break
    (tmp_path / "notes.go").touch()
    later = works([[5, 5]], [[6, 6]])
    found = dict(own.run(later))
    assert [found[i].answers for i in (0, 1)] == [expected(work) for work in later]


# --- the end of the stage ---------------------------------------------------------------------------------------------

STAGE = """
import sys
from pathlib import Path
from moat.engines.child import Children
from moat.engines.spec import Spec as HFSpec
from moat.machine import Machine
from moat.workers import Retry
from tests.child_engines import TOGETHER, Spec
from tests.test_child import works
place = Path(sys.argv[1])
own = Children(Spec(place / "notes"), Retry(), place / "engine", [(), ()])
for _ in own.run(works(*[[[TOGETHER]]] * 400)):
    print("answered", flush=True)
"""


@pytest.mark.trap(52)
@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGINT, signal.SIGTERM])
def test_children_end_with_the_stage_however_it_ends(tmp_path, how):
    """Killed, interrupted or ended while both are at work."""
    stage = subprocess.Popen(
        [sys.executable, "-P", "-c", STAGE, str(tmp_path)],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        text=True,
    )
    assert [stage.stdout.readline() for _ in range(3)] == ["answered\n"] * 3
    own = psutil.Process(stage.pid).children()
    assert len(own) == 2
    stage.send_signal(how)
    stage.wait(30)
    stage.stdout.close()
    _, left = psutil.wait_procs(own, timeout=30)
    assert not [one for one in left if one.status() != psutil.STATUS_ZOMBIE]


def test_children_nobody_has_any_more_are_ended(tmp_path):
    own = Children(Spec(tmp_path / "notes"), Retry(), tmp_path / "engine")
    own.start()
    (child,) = (one for one in psutil.Process().children() if "moat.engines.child" in one.cmdline())
    del own
    for _ in range(100):
        if not child.is_running():
            break
        time.sleep(0.1)
    assert not child.is_running()


# --- a real model -----------------------------------------------------------------------------------------------------


def test_hf_answers_with_the_same_bits_in_any_number_of_processes(model, tokenizer, tmp_path):
    """Texts and log-probabilities of ragged batches, greedy, drawn and scored."""
    folder = tmp_path / "model"
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    spec = HFSpec("hf", folder, folder, Machine(device="cpu", dtype="float32"))
    draw = np.random.default_rng(3)
    rows = [[1, *draw.integers(4, len(tokenizer), n).tolist()] for n in draw.integers(2, 30, 24)]
    ends = [[*draw.integers(4, len(tokenizer), n).tolist(), 2] for n in draw.integers(1, 9, 24)]
    parts = [slice(i, i + 5) for i in range(0, 24, 5)]
    asked = [Work(rows[own], list(range(24))[own], how) for own in parts for how in (HOW, Decoding(0.0, 1.0, 8))]
    scored = [Work(rows[own], completions=ends[own]) for own in parts]
    here = Here(spec.open, Retry())
    two = Children(spec, Retry(), tmp_path / "engine", [(), ()])
    try:
        found, known = dict(two.run(asked)), dict(here.run(asked))
        assert [found[i] for i in range(len(asked))] == [known[i] for i in range(len(asked))]
        found, known = dict(two.run(scored)), dict(here.run(scored))
        for number in range(len(scored)):
            for one, other in zip(found[number].answers, known[number].answers, strict=True):
                assert one.tobytes() == other.tobytes()
    finally:
        two.close()

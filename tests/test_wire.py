"""What crosses between processes as JSON: moat/wire.py."""

import json
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from moat import wire
from moat.engines.base import Decoding, EngineError, FinishReason, Generation
from moat.publish import DiskFullError
from moat.workers import Reply, Work

IDS = st.lists(st.integers(0, 2**31), max_size=5)
ROWS = st.lists(IDS, max_size=4)
GENERATIONS = st.builds(Generation, IDS, st.sampled_from(FinishReason), st.floats(allow_nan=False))


@given(ROWS, st.integers(0, 2**64 - 1), st.builds(Decoding, st.floats(0, 2), st.floats(0.1, 1), st.integers(1, 99)))
def test_a_batch_comes_back_as_it_was(prompts, seed, decoding):
    for work in (Work(prompts, [seed] * len(prompts), decoding, []), Work(prompts, [], None, prompts)):
        assert wire.unpack_work(wire.pack_work(work)) == work


@given(st.lists(st.none() | GENERATIONS, max_size=4), st.integers(0, 9), st.text())
def test_generations_come_back_as_they_were(answers, calls, failure):
    reply = Reply(answers, calls, failure)
    assert wire.unpack_reply(wire.pack_reply(reply)) == reply


def test_log_probabilities_come_back_bit_for_bit():
    """float32 values without a short decimal form, infinite ones and NaN."""
    values = np.array([-1 / 3, -np.inf, np.nan, -1e-30], dtype=np.float32)
    found = wire.unpack_reply(wire.pack_reply(Reply([values, None], 1)))
    assert found.answers[0].dtype == np.float32
    assert found.answers[0].tobytes() == values.tobytes()
    assert found.answers[1] is None


def test_a_generation_without_a_log_probability_comes_back_so():
    (made,) = wire.unpack_reply(wire.pack_reply(Reply([Generation([1], FinishReason.STOP, math.nan)]))).answers
    assert math.isnan(made.logprob)


@pytest.mark.parametrize(
    "error",
    [
        EngineError("out of memory"),
        KeyError("a bug"),
        FileNotFoundError(2, "No such file or directory", "models/base"),
        DiskFullError(28, "disk full while writing x"),
        FloatingPointError("loss is nan"),
    ],
)
def test_an_exception_is_raised_again_as_what_it_was(error):
    def fail():
        raise error

    try:
        fail()
    except Exception as raised:  # noqa: BLE001 -- each of them
        sent = wire.pack_raised(raised)
    with pytest.raises(type(error)) as caught:
        wire.unpack_reply(sent)
    assert type(caught.value) is type(error)
    assert str(caught.value) == str(error)
    assert "in fail" in caught.value.__notes__[0]


@pytest.mark.parametrize(
    "kind",
    [
        "os.system",
        "subprocess.Popen",
        "builtins.eval",
        "builtins.exec",
        "builtins.open",
        "moat.publish.publish_text",
        "moat.no_such.Error",
        "moat.publish.shutil.rmtree",
        "builtins.KeyboardInterrupt",
        "",
    ],
)
def test_nothing_but_exceptions_is_made_of_a_name(kind, tmp_path):
    """What is told names a class; whoever tells it cannot have anything else called."""
    target = tmp_path / "file"
    told = {"kind": kind, "args": [str(target), "w"], "said": "Odd: it is", "trace": ""}
    with pytest.raises(RuntimeError, match="Odd: it is"):
        wire.unpack_reply(json.dumps({"raised": told}).encode())
    assert not target.exists()

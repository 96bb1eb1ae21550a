"""Scores of another engine that are taken when they are hf's: moat/engines/compared.py."""

import itertools
import math
import re

import numpy as np
import pytest

from moat.engines.base import Decoding, EngineError
from moat.engines.compared import SAMPLE, Compared
from moat.workers import Reply, Work


class Workers:
    """Gives each token -1 plus `off`; says in `log` what was done, which several may share."""

    def __init__(self, name, log, off=0.0, failure=""):
        self.name, self.log, self.off, self.failure = name, log, off, failure

    def start(self):
        self.log.append((self.name, "start"))

    def close(self):
        self.log.append((self.name, "close"))

    def run(self, works):
        for number, work in enumerate(works):
            self.log.append((self.name, len(work)))
            answers = [None if self.failure else np.full(len(own), -1 + self.off, np.float32) for own in work.completions]
            yield number, Reply(answers or [None] * len(work), 1, self.failure)


def scores(batches=4, rows=10):
    """Batches of rows, longer ones later, as a stage plans them."""
    return [Work([[7] * (1 + b * rows + i) for i in range(rows)], completions=[[5, 6]] * rows) for b in range(batches)]


def compared(off, tolerance=0.01, failure=""):
    log, said = [], []
    return Compared(Workers("vllm", log, off), Workers("hf", log, 0.0, failure), tolerance, said.append), log, said


def test_scores_that_are_hfs_are_taken():
    """Compared once, hf's first and gone before vllm's begin; said with the figures."""
    own, log, said = compared(1e-6)
    own.start()
    for _ in range(2):
        assert [number for number, _ in own.run(scores())] == [0, 1, 2, 3]
    assert log[:6] == [
        ("hf", "start"),
        ("vllm", "close"),
        ("hf", SAMPLE),
        ("hf", "close"),
        ("vllm", SAMPLE),
        ("hf", "close"),
    ]
    assert [done for done in log if done[0] == "vllm"][2:] == [("vllm", 10)] * 8
    assert len(said) == 1
    assert re.search(r"within (1e-06|9.*e-07) nats in a row's mean, (1e-06|9.*e-07) in a token \(16 rows\)", said[0])


@pytest.mark.parametrize("off", [0.011, -0.011, math.nan, math.inf])
def test_scores_that_are_not_are_refused_with_the_figures(off):
    """Before any is given; what is no number is as wrong as one that is off."""
    own, log, said = compared(off)
    with pytest.raises(
        EngineError, match=r"differ from hf's by up to .* nats in a row's mean.*over vllm.tolerance 0.01: set"
    ):
        next(own.run(scores()))
    assert ("vllm", 10) not in log
    assert said == []


def test_a_tolerance_is_a_rows_mean():
    own, _, said = compared(0.05, tolerance=0.06)
    assert len(list(own.run(scores()))) == 4
    assert said


def test_rows_of_every_length_are_compared():
    seen = []
    own, _, _ = compared(0.0)
    own.reference.run = lambda works: seen.extend(works) or iter([(0, Reply([np.zeros(2, np.float32)] * len(works[0])))])
    own.tolerance = 9.0
    list(own.run(scores(8, 20)))
    lengths = [len(prompt) for prompt in seen[0].prompts]
    assert (len(lengths), lengths[0], lengths[-1]) == (SAMPLE, 1, 160)
    assert {b - a for a, b in itertools.pairwise(lengths)} <= {10, 11}


def test_no_scores_are_no_comparison():
    own, _, _ = compared(0.0, failure="out of memory")
    with pytest.raises(EngineError, match="16 of 16 rows have none: out of memory"):
        next(own.run(scores()))


def test_texts_need_no_comparison():
    own, log, _ = compared(1.0)
    own.start()
    list(own.run([Work([[5]], [0], Decoding(1.0, 1.0, 4))]))
    assert log == [("hf", "start"), ("hf", "close"), ("vllm", 1)]


@pytest.mark.parametrize("place", [0, 3, SAMPLE - 1])
def test_a_score_that_is_no_number_is_refused_wherever_it_stands(place):
    class Some(Workers):
        def run(self, works):
            for number, reply in super().run(works):
                reply.answers[place] = np.full(2, np.nan, np.float32)
                yield number, reply

    log = []
    own = Compared(Some("vllm", log), Workers("hf", log), 0.01, lambda said: None)
    with pytest.raises(EngineError, match=r"differ from hf's by up to nan"):
        list(own.run(scores()))


def test_a_row_without_a_score_is_refused():
    """One of sixteen: what cannot be compared is not taken."""

    class Some(Workers):
        def run(self, works):
            for number, reply in super().run(works):
                reply.answers[5], reply.failure = None, "out of memory"
                yield number, reply

    log = []
    own = Compared(Some("vllm", log), Workers("hf", log), 0.01, lambda said: None)
    with pytest.raises(EngineError, match=r"1 of 16 rows have none: out of memory"):
        list(own.run(scores()))

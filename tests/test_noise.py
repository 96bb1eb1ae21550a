"""Scores again, one by one: moat/noise.py; and the pairs that depend on it."""

import math

import numpy as np
import pytest

from moat.engines.base import EngineError
from moat.journal import Journal
from moat.noise import SAMPLE, Noise, measure
from moat.pairs import near_gap
from moat.rows import Runner
from moat.tokens import Example
from moat.workers import Here, Retry

ALONE = {1: [-1.0, -2.0, -9.0], 2: [-0.5, -9.0], 3: [-4.0, -9.0]}  # log-probabilities; the last is the end token's
EXAMPLES = [Example([name], list(range(len(values)))) for name, values in ALONE.items()]


class Engine:
    """Gives ALONE by the prompt, in a batch of several a little more; remembers its batches."""

    def __init__(self, fails=()):
        self.batches, self.fails = [], fails

    def score(self, prompts, completions):
        self.batches.append(len(prompts))
        if set(self.fails) & {prompt[0] for prompt in prompts}:
            raise EngineError("out of memory")
        more = np.float32(0.25 * (len(prompts) > 1))
        return [np.array(ALONE[prompt[0]], dtype=np.float32) + more for prompt in prompts]


def alone(examples):
    """Every example by itself."""
    return [np.array(ALONE[example.prompt[0]], dtype=np.float32) for example in examples]


def batched(changes):
    """What a batch gave: ALONE, with `changes` to the first log-probabilities."""
    return [np.array([values[0] + changes.get(name, 0.0), *values[1:]]) for name, values in ALONE.items()]


@pytest.mark.trap(6)
def test_noise_is_the_largest_difference_from_a_score_alone():
    """Row 1 moved by 0.25 over two tokens: NLL 1.375 against 1.5. Row 2 by 0.0625 over one: 0.4375 against 0.5.

    PPL: e^1.5 - e^1.375 is larger than the other's difference.
    """
    found = measure(alone, EXAMPLES, batched({1: 0.25, 2: 0.0625}), False, 0)
    assert (found.n, found.nll) == (3, pytest.approx(0.125))
    assert found.ppl == pytest.approx(math.exp(1.5) - math.exp(1.375))


@pytest.mark.trap(6)
def test_the_end_token_counts_when_the_score_counts_it():
    """The same change over three tokens instead of two."""
    assert measure(alone, EXAMPLES[:1], batched({1: 0.75})[:1], True, 0).nll == pytest.approx(0.25)


def test_equal_scores_have_no_noise():
    assert measure(alone, EXAMPLES, batched({}), False, 0) == Noise(3, 0.0, 0.0)


def test_a_seeded_sample_of_at_most_64():
    """Many examples: 64 of them, the same for the same seed, others for another."""
    many, scores = EXAMPLES * 50, batched({}) * 50

    def asked(seed):
        seen = []

        def score(examples):
            seen.extend(example.prompt[0] for example in examples)
            return alone(examples)

        assert measure(score, many, scores, False, seed).n == SAMPLE == 64
        return seen

    assert asked(1) == asked(1) != asked(2)


def test_what_cannot_be_compared_is_left_out_and_said():
    """An example that the engine fails on; one whose PPL is not finite in its batch; nothing at all."""
    unanswered = measure(lambda some: [*alone(some)[:1], None, *alone(some)[2:]], EXAMPLES, batched({2: 0.1}), False, 0)
    assert unanswered == Noise(2, 0.0, 0.0)
    assert measure(alone, EXAMPLES, batched({3: -math.inf}), False, 0) == Noise(2, 0.0, 0.0)
    assert measure(alone, EXAMPLES, batched({3: -800.0}), False, 0) == Noise(2, 0.0, 0.0)
    assert measure(alone, [], [], False, 0) == Noise(0, None, None)


def test_a_score_that_is_finite_in_its_batch_alone_differs_infinitely():
    found = measure(lambda _: [np.array([math.nan, 0.0])], EXAMPLES[1:2], batched({})[1:2], False, 0)
    assert found == Noise(1, math.inf, math.inf)


def test_scores_of_other_examples_are_refused():
    with pytest.raises(ValueError, match="3 examples, but scores of 2"):
        measure(alone, EXAMPLES, batched({})[:2], False, 0)


def runner(engine, folder, max_failed=0.0):
    return Runner(Here(lambda: engine, Retry(1, 0.0)), {}, Journal(folder), 8, 8, max_failed)


@pytest.mark.trap(6)
def test_a_runner_scores_again_one_by_one_and_not_from_its_journal(tmp_path):
    """Known from a batch of three, where everything is 0.25 higher: asked again alone, once; the next run asks nothing."""
    engine = Engine()

    def noise():
        own = runner(engine, tmp_path)
        known = own.score(EXAMPLES, ["t"] * 3, lambda _: None)
        return measure(lambda some: own.score_alone(some, lambda _: None), EXAMPLES, known, False, 0)

    first = noise()
    assert (first.n, first.nll, engine.batches) == (3, pytest.approx(0.25), [3, 1, 1, 1])
    assert (noise(), len(engine.batches)) == (first, 4)


def test_what_a_runner_cannot_score_alone_has_no_answer(tmp_path):
    own = runner(Engine(fails=(2,)), tmp_path, max_failed=0.5)
    assert [answer is None for answer in own.score_alone(EXAMPLES, lambda _: None)] == [False, True, False]


@pytest.mark.trap(6)
def test_pairs_within_noise_of_the_gap_are_counted_on_both_sides():
    """min_gap 0.5, noise 0.125: 0.5 and 0.625 were kept, 0.375 and 0.4375 dropped; 0.25 and 0.75 are clear."""
    assert near_gap([0.25, 0.375, 0.4375, 0.5, 0.625, 0.75], 0.5, 0.125) == (2, 2)
    assert near_gap([0.25, 0.375, 0.5, 0.75], 0.5, 0.0) == (1, 0)
    assert near_gap([], 0.5, 0.125) == (0, 0)

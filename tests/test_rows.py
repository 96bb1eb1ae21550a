"""Row work in planned batches: moat/rows.py."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from moat.engines.hf import Decoding, FinishReason, Generation
from moat.rows import generate, plan_batches, score
from moat.tokens import Example

ROWS = st.lists(st.tuples(st.integers(1, 50), st.integers(0, 5)), max_size=40)
PROMPTS = st.lists(st.lists(st.integers(1, 3), min_size=1, max_size=3), max_size=20)


class FakeEngine:
    """Answers from the request alone, and remembers every batch that it was asked."""

    def __init__(self):
        self.batches = []

    def generate(self, prompts, seeds, decoding):
        self.batches.append([(tuple(p), s) for p, s in zip(prompts, seeds, strict=True)])
        return [answer(p, s) for p, s in zip(prompts, seeds, strict=True)]

    def score(self, prompts, completions):
        self.batches.append([(tuple(p), tuple(c)) for p, c in zip(prompts, completions, strict=True)])
        return [logprobs(p, c) for p, c in zip(prompts, completions, strict=True)]

    @property
    def asked(self):
        return [request for batch in self.batches for request in batch]


def answer(prompt, seed):
    return Generation([sum(prompt), len(prompt), seed], FinishReason.STOP, -1.0)


def logprobs(prompt, completion):
    return np.array([-float(sum(prompt) + token) for token in completion], dtype=np.float32)


# --- the plan ---------------------------------------------------------------------------------------------------------


@given(ROWS, st.integers(1, 12))
def test_every_row_is_in_one_batch_of_bounded_size(rows, size):
    """The batches are a permutation of the rows: none lost, none twice, none larger than asked."""
    batches = plan_batches([length for length, _ in rows], [group for _, group in rows], size)
    assert sorted(index for batch in batches for index in batch) == list(range(len(rows)))
    assert all(1 <= len(batch) <= size for batch in batches)


@pytest.mark.trap(6)
@given(ROWS, st.integers(1, 12))
def test_a_group_that_fits_is_not_split(rows, size):
    """One task's candidates are compared with each other, so they meet one batch shape; a larger group is cut full."""
    groups = [group for _, group in rows]
    batches = plan_batches([length for length, _ in rows], groups, size)
    for group in set(groups):
        pieces = [n for batch in batches if (n := sum(groups[i] == group for i in batch))]
        assert len(pieces) == -(-groups.count(group) // size)


@pytest.mark.trap(9)
def test_the_remainder_is_a_batch_too():
    """7 rows in batches of 3: two full ones and one of a single row."""
    assert [len(batch) for batch in plan_batches([1] * 7, range(7), 3)] == [3, 3, 1]


def test_rows_of_like_length_share_a_batch():
    """Lengths 9, 1, 8, 2 in batches of 2: the short with the short, so that little is padding."""
    assert plan_batches([9, 1, 8, 2], range(4), 2) == [[1, 3], [2, 0]]


def test_a_group_goes_by_its_longest_row():
    """Group a (1, 9) pads to 9, group b (5, 5) to 5: b comes first."""
    assert plan_batches([1, 9, 5, 5], "aabb", 2) == [[2, 3], [0, 1]]


@given(ROWS, st.integers(1, 12))
def test_the_same_rows_make_the_same_batches(rows, size):
    """A row's batch depends on the whole list alone, so a repeated run meets the same shapes."""
    lengths, groups = [length for length, _ in rows], [group for _, group in rows]
    assert plan_batches(lengths, groups, size) == plan_batches(list(lengths), [str(g) for g in groups], size)


def test_no_rows_make_no_batch():
    """Nothing to do is not an error."""
    assert plan_batches([], [], 4) == []


# --- generating -------------------------------------------------------------------------------------------------------


@given(PROMPTS, st.integers(1, 6), st.sampled_from([0.0, 1.0]))
def test_results_come_in_the_order_of_the_requests(prompts, size, temperature):
    """Each request gets its own answer although equal ones are asked once, and the progress reaches all of them."""
    engine, seeds, advanced = FakeEngine(), [index % 3 for index in range(len(prompts))], []
    found = generate(engine, prompts, seeds, Decoding(temperature, 1.0, 8), size, advanced.append)
    if temperature:
        assert found == [answer(p, s) for p, s in zip(prompts, seeds, strict=True)]
    else:
        assert [g.ids[:2] for g in found] == [answer(p, 0).ids[:2] for p in prompts]
    assert len(engine.asked) == len(set(engine.asked))
    assert sum(advanced) == len(prompts)


def test_greedy_requests_of_one_prompt_are_asked_once():
    """Without randomness the seed is no part of the request: 5 requests, 2 prompts, 2 questions."""
    engine = FakeEngine()
    found = generate(engine, [[1], [2], [1], [1], [2]], range(5), Decoding(0.0, 1.0, 8), 4, lambda n: None)
    assert len(engine.asked) == 2
    assert [g.ids[0] for g in found] == [1, 2, 1, 1, 2]


@pytest.mark.trap(21)
def test_sampled_requests_of_one_prompt_are_asked_one_by_one():
    """K requests of one prompt with K seeds are K questions; only a repeated seed is not asked again."""
    engine = FakeEngine()
    found = generate(engine, [[1]] * 5, [7, 8, 9, 10, 7], Decoding(1.0, 1.0, 8), 2, lambda n: None)
    assert sorted(seed for _, seed in engine.asked) == [7, 8, 9, 10]
    assert [g.ids[2] for g in found] == [7, 8, 9, 10, 7]


def test_as_many_seeds_as_prompts_are_needed():
    """A missing seed is an error, and no request is dropped for it."""
    with pytest.raises(ValueError, match="zip"):
        generate(FakeEngine(), [[1], [2]], [0], Decoding(1.0, 1.0, 8), 2, lambda n: None)


# --- scoring ----------------------------------------------------------------------------------------------------------


@given(st.lists(st.tuples(PROMPTS.filter(bool).map(lambda p: p[0]), st.integers(1, 3)), max_size=20), st.integers(1, 6))
def test_scores_come_in_the_order_of_the_examples(requests, size):
    """Equal examples are asked once, also when they are of different tasks; everyone gets the numbers."""
    examples, tasks = [Example(prompt, [5, 2]) for prompt, _ in requests], [task for _, task in requests]
    engine, advanced = FakeEngine(), []
    found = score(engine, examples, tasks, size, advanced.append)
    assert [f.tolist() for f in found] == [logprobs(e.prompt, e.completion).tolist() for e in examples]
    assert len(engine.asked) == len(set(engine.asked)) == len({tuple(e.prompt) for e in examples})
    assert sum(advanced) == len(examples)


@pytest.mark.trap(3)
def test_where_a_prompt_ends_is_part_of_the_request():
    """(1)(2 3) and (1 2)(3) have the same ids but are two questions."""
    engine = FakeEngine()
    score(engine, [Example([1], [2, 3]), Example([1, 2], [3])], ["a", "a"], 4, lambda n: None)
    assert len(engine.asked) == 2


@pytest.mark.trap(6)
def test_one_tasks_candidates_are_scored_together():
    """8 tasks of 3 candidates, shuffled, in batches of 7: no task is spread over two."""
    order = np.random.default_rng(0).permutation(24)
    examples = [Example([1 + int(i)] * (1 + int(i) % 5), [2]) for i in order]
    tasks = [int(i) // 3 for i in order]
    engine = FakeEngine()
    score(engine, examples, tasks, 7, lambda n: None)
    for batch in engine.batches:
        there = {(prompt[0] - 1) // 3 for prompt, _ in batch}
        assert len(batch) == 3 * len(there)

"""Row work in planned batches: moat/rows.py."""

import gc
import weakref
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from moat.engines.base import Decoding, EngineError, FinishReason, Generation
from moat.journal import Journal
from moat.rows import Runner, answered, plan_batches
from moat.tokens import Example
from moat.workers import Here, Retry

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


def runner(engine, folder, size=4, identity="model", max_failed=0.0, attempts=2):
    """A runner over the journal in `folder`."""
    here = Here(lambda: engine, Retry(attempts, pause=0.0))
    return Runner(here, {"model": identity}, Journal(Path(folder)), size, size, max_failed)


def generate(engine, prompts, seeds, decoding, size, advance):
    """One run with an empty journal."""
    with TemporaryDirectory() as folder:
        return runner(engine, folder, size).generate(prompts, seeds, decoding, advance)


def score(engine, examples, tasks, size, advance):
    """One run with an empty journal."""
    with TemporaryDirectory() as folder:
        return runner(engine, folder, size).score(examples, tasks, advance)


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


# --- the journal ------------------------------------------------------------------------------------------------------

SAMPLED = Decoding(1.0, 1.0, 8)
TEN = [[1 + index % 4, 7 + index] for index in range(10)]


def test_what_was_answered_is_not_asked_again(tmp_path):
    """A second run over the same requests asks nothing, opens no engine, and says the same."""
    first, second = FakeEngine(), FakeEngine()
    told = runner(first, tmp_path).generate(TEN, range(10), SAMPLED, lambda n: None)
    again = runner(second, tmp_path)
    again.workers.load = lambda: pytest.fail("the engine was opened")
    assert again.generate(TEN, range(10), SAMPLED, lambda n: None) == told
    assert (again.tally.requests, again.tally.asked) == (10, 0)


def test_scores_come_back_bit_for_bit(tmp_path):
    """float32 values that have no short decimal form, and an infinity, survive the journal."""
    values = np.array([-1 / 3, -np.inf, -1e-30, -0.1], dtype=np.float32)
    engine = FakeEngine()
    engine.score = lambda prompts, completions: [values] * len(prompts)
    example = [Example([1], [2, 3, 4, 5])]
    runner(engine, tmp_path).score(example, ["a"], lambda n: None)
    (found,) = runner(FakeEngine(), tmp_path).score(example, ["a"], lambda n: None)
    assert found.dtype == np.float32
    assert found.tobytes() == values.tobytes()


@given(st.integers(0, 9), st.integers(1, 5))
def test_new_requests_alone_are_asked(old, size):
    """After `old` of ten requests were answered, ten requests ask the other 10 - old; equal answers for all."""
    engine = FakeEngine()
    with TemporaryDirectory() as folder:
        runner(FakeEngine(), folder, size).generate(TEN[:old], range(old), SAMPLED, lambda n: None)
        found = runner(engine, folder, size).generate(TEN, range(10), SAMPLED, lambda n: None)
    assert sorted(seed for _, seed in engine.asked) == list(range(old, 10))
    assert found == [answer(p, s) for p, s in zip(TEN, range(10), strict=True)]


def test_a_run_that_was_cut_off_meets_the_same_batches(tmp_path):
    """An error in batch 3 of 5: the second run asks batches 3, 4 and 5, each whole and as an undisturbed run would."""

    class Breaks(FakeEngine):
        def generate(self, prompts, seeds, decoding):
            if len(self.batches) == 2:
                raise KeyboardInterrupt
            return super().generate(prompts, seeds, decoding)

    whole, broken, rest = FakeEngine(), Breaks(), FakeEngine()
    generate(whole, TEN, range(10), SAMPLED, 2, lambda n: None)
    with pytest.raises(KeyboardInterrupt):
        runner(broken, tmp_path, 2).generate(TEN, range(10), SAMPLED, lambda n: None)
    runner(rest, tmp_path, 2).generate(TEN, range(10), SAMPLED, lambda n: None)
    assert broken.batches + rest.batches == whole.batches


@pytest.mark.trap(17)
@pytest.mark.parametrize(
    "change",
    [{"identity": "another"}, {"prompt": [9, 9]}, {"decoding": Decoding(0.5, 1.0, 8)}, {"seed": 5}],
    ids=["the model", "the prompt", "the decoding", "the seed"],
)
def test_what_determines_an_answer_is_in_its_key(tmp_path, change):
    """Another model, prompt, decoding or seed is another request."""
    engine = FakeEngine()
    runner(FakeEngine(), tmp_path).generate([[1, 2]], [0], SAMPLED, lambda n: None)
    other = runner(engine, tmp_path, identity=change.get("identity", "model"))
    other.generate([change.get("prompt", [1, 2])], [change.get("seed", 0)], change.get("decoding", SAMPLED), lambda n: None)
    assert len(engine.asked) == 1


@pytest.mark.trap(23)
def test_a_dropped_engine_is_gone_and_opened_again_when_needed(tmp_path):
    """Nothing holds it after the call, its answers are known, and a new question opens another one."""
    opened = []

    def load():
        engine = FakeEngine()
        opened.append(weakref.ref(engine))
        return engine

    run = runner(None, tmp_path)
    run.workers.load = load
    gc.disable()
    try:
        told = run.generate(TEN[:5], range(5), SAMPLED, lambda n: None)
        assert opened[0]() is not None
        run.drop_engine()
        assert opened[0]() is None
    finally:
        gc.enable()
    assert run.generate(TEN[:5], range(5), SAMPLED, lambda n: None) == told
    assert len(opened) == 1
    run.generate(TEN[5:], range(5, 10), SAMPLED, lambda n: None)
    assert len(opened) == 2


# --- an engine that fails ---------------------------------------------------------------------------------------------


class Fragile(FakeEngine):
    """Fails on batches of more than `most` rows, and whenever the seed `bad` is among them, as often as `times`."""

    def __init__(self, most=99, bad=None, times=99):
        super().__init__()
        self.most, self.bad, self.times = most, bad, times

    def generate(self, prompts, seeds, decoding):
        if len(prompts) > self.most or (self.bad in seeds and self.times > 0):
            self.times -= self.bad in seeds
            raise EngineError("out of memory")
        return super().generate(prompts, seeds, decoding)


def test_a_batch_that_is_too_large_is_halved(tmp_path):
    """8 rows on an engine that takes 3: 2 + 2 + 2 + 2, and no row is lost."""
    engine = Fragile(most=3)
    found = runner(engine, tmp_path, size=8).generate(TEN[:8], range(8), SAMPLED, lambda n: None)
    assert [len(batch) for batch in engine.batches] == [2, 2, 2, 2]
    assert None not in found


def test_a_request_is_tried_again(tmp_path):
    """One that fails alone at first and then works is answered."""
    found = runner(Fragile(bad=0, times=1), tmp_path).generate([[1]], [0], SAMPLED, lambda n: None)
    assert found == [answer([1], 0)]


def test_a_request_that_always_fails_is_left_out(tmp_path):
    """1 of 10 under a limit of 10%: None in its place, everyone else answered; the next run asks it alone again."""
    run = runner(Fragile(bad=6), tmp_path, max_failed=0.1)
    found = run.generate(TEN, range(10), SAMPLED, lambda n: None)
    assert [index for index, made in enumerate(found) if made is None] == [6]
    assert answered(TEN, found) == [*TEN[:6], *TEN[7:]]
    assert (run.tally.failed, run.tally.last_failure) == (1, "out of memory")
    mended = FakeEngine()
    assert runner(mended, tmp_path).generate(TEN, range(10), SAMPLED, lambda n: None)[6] == answer(TEN[6], 6)
    assert mended.asked == [(tuple(TEN[6]), 6)]


def test_too_many_failures_are_an_error(tmp_path):
    """1 of 10 over a limit of 9%: the error has the counts, the cause and what to do, and the answers are kept."""
    with pytest.raises(EngineError, match=r"1 of 10 requests, over max_failed 0\.09; the last: out of memory.* run again"):
        runner(Fragile(bad=9), tmp_path, max_failed=0.09).generate(TEN, range(10), SAMPLED, lambda n: None)
    mended = FakeEngine()
    runner(mended, tmp_path).generate(TEN, range(10), SAMPLED, lambda n: None)
    assert mended.asked == [(tuple(TEN[9]), 9)]


def test_an_engine_that_always_fails_is_not_asked_to_the_end(tmp_path):
    """5 batches of 2, every one of them lost, half of all allowed: the third decides, and two are never asked."""
    engine = Fragile(most=0)
    asked = []
    engine.generate = lambda prompts, seeds, decoding: (
        asked.extend(seeds),
        Fragile.generate(engine, prompts, seeds, decoding),
    )
    with pytest.raises(EngineError, match=r"6 of 10 requests, over max_failed 0\.5"):
        runner(engine, tmp_path, size=2, max_failed=0.5).generate(TEN, range(10), SAMPLED, lambda n: None)
    assert set(asked) == set(range(6))


def test_a_fault_of_the_program_is_not_retried(tmp_path):
    """Only EngineError is tried again; a ValueError passes at once."""

    class Wrong(FakeEngine):
        def generate(self, prompts, seeds, decoding):
            self.batches.append([])
            raise ValueError("a bug")

    engine = Wrong()
    with pytest.raises(ValueError, match="a bug"):
        runner(engine, tmp_path).generate(TEN, range(10), SAMPLED, lambda n: None)
    assert len(engine.batches) == 1

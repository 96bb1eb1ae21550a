"""Which rows make up which update, and that losses do not depend on how they are shared out: moat/batches.py."""

import math
from itertools import pairwise

import pytest
import torch
from accelerate.data_loader import SeedableRandomSampler
from hypothesis import given, settings
from hypothesis import strategies as st

from moat import training
from moat.batches import FILLER, LARGEST, PARTS, Plan, grouped, order
from moat.machine import Machine
from moat.params import Align, Sft
from moat.tokens import Renderer
from tests.reference import dpo_loss, float64_weights, sft_loss, summed

BETA, BATCH, ROWS = 0.2, 16, 21  # an epoch is a full batch and one of 5, which no micro-batch or process divides
TRAIN = {"epochs": 2, "learning_rate": 1e-2, "batch_size": BATCH, "schedule": "cosine", "warmup_ratio": 0.1}
TRAIN |= {"weight_decay": 0.01, "max_grad_norm": 1.0, "group_by_length": False}


# --- the plan ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("rows", "seed"), [(1, 0), (7, 3), (42, 2**32 - 1)])
def test_an_epochs_order_is_the_trainers_own(rows, seed):
    """The sampler that accelerate puts into the Trainer's loader, in one process, epoch after epoch."""
    sampler = SeedableRandomSampler(range(rows), data_seed=seed)
    for epoch in range(3):
        sampler.set_epoch(epoch)
        assert order(rows, seed, epoch) == list(sampler)


@settings(max_examples=200)
@given(st.lists(st.integers(2, 400), min_size=1, max_size=300), st.integers(1, 16), st.integers(0, 2**32 - 1))
def test_grouped_by_length_every_row_comes_once_an_epoch(lengths, batch, seed):
    """Any lengths and batch: each epoch has every row once, in the same order each time, and another epoch another one."""
    first, again, second = (grouped(lengths, batch, seed, epoch) for epoch in (0, 0, 1))
    assert first == again
    assert sorted(first) == sorted(second) == list(range(len(lengths)))
    if len(lengths) > 30:
        assert first != second


def test_grouped_by_length_little_of_a_batch_is_padding():
    """3,000 rows of 2 to 400 tokens in batches of 16: a batch is padded by at most 10% in the mean, against over 50%.

    Batches come in no order of length; of an epoch's batches at most a hundredth comes again in the next one.
    """
    drawn = torch.randint(2, 401, (3000,), generator=torch.Generator().manual_seed(1)).tolist()

    def cut(rows):
        return [rows[at : at + 16] for at in range(0, len(rows), 16)]

    def padded(batches):
        return sum(len(one) * max(drawn[row] for row in one) for one in batches) / sum(drawn)

    epochs = [cut(grouped(drawn, 16, 5, epoch)) for epoch in (0, 1)]
    assert all(padded(batches) <= 1.1 for batches in epochs)
    assert padded(cut(order(3000, 5, 0))) > 1.5
    longest = [max(drawn[row] for row in batch) for batch in epochs[0]]
    rises = sum(one < other for one, other in pairwise(longest))
    assert 0.4 < rises / len(longest) < 0.6
    first, second = ({frozenset(batch) for batch in batches} for batches in epochs)
    assert len(first & second) <= len(first) / 100


def test_grouped_by_length_the_parts_are_bounded():
    """A part has at most 50 batches, so that a long epoch still mixes: rows of one batch are near each other before it."""
    n, batch = 4 * LARGEST * PARTS * 2, 4
    place = {row: at for at, row in enumerate(order(n, 3, 0))}
    rows = grouped(list(range(n)), batch, 3, 0)
    for at in range(0, n, batch):
        parts = {place[row] // (LARGEST * batch) for row in rows[at : at + batch]}
        assert len(parts) == 1


def test_grouped_by_length_a_short_batch_is_the_last():
    """10 rows in batches of 4: the third has two rows, and each update is of a neighbourhood of lengths."""
    lengths = [9, 1, 8, 2, 7, 3, 6, 4, 5, 10]
    plan = Plan(10, 4, 6, 3, lengths=lengths)
    for epoch in (0, 1):
        made = [plan.whole(3 * epoch + number) for number in range(3)]
        assert [len(one) for one in made] == [4, 4, 2]
        assert sorted(row for one in made for row in one) == list(range(10))


SHAPES = st.tuples(st.integers(1, 60), st.integers(1, 4), st.integers(1, 4), st.integers(1, 5), st.integers(1, 9))


@pytest.mark.trap(9)
@settings(max_examples=200)
@given(SHAPES)
def test_no_row_is_lost_or_seen_twice_and_the_processes_stay_in_step(shape):
    """Any rows, processes, accumulation and micro-batch: each epoch has every row once.

    At every step all processes have equally many places, at most a micro-batch's. An update's parts differ by at most a row.
    """
    rows, processes, accumulation, micro_batch, updates = shape
    batch = processes * accumulation * micro_batch
    plan = Plan(rows, batch, updates, 5, processes, accumulation)
    per_epoch = math.ceil(rows / batch)
    seen: dict[int, list[int]] = {}
    for update in range(updates):
        steps = plan.micro_batches(update)
        assert [len(step) for step in steps] == [processes] * accumulation
        (places,) = {len(share) for step in steps for share in step}
        assert 1 <= places <= micro_batch
        sizes = [sum(row != FILLER for row in share) for step in steps for share in step]
        assert max(sizes) - min(sizes) <= 1
        assert (places, sum(sizes)) == (max(sizes), len(plan.whole(update)))
        seen.setdefault(update // per_epoch, []).extend(r for step in steps for share in step for r in share if r != FILLER)
    for epoch, found in seen.items():
        if (epoch + 1) * per_epoch <= updates:
            assert sorted(found) == list(range(rows))
    for process in range(processes):
        own = list(plan.of(process))
        assert len(own) == updates * accumulation
        assert own == [step[process] for update in range(updates) for step in plan.micro_batches(update)]


def test_in_one_process_a_batch_is_the_next_rows_in_order():
    """10 rows in batches of 4, whole and in micro-batches of 2: no filler, and the order of the epoch as it is."""
    for accumulation in (1, 2):
        plan = Plan(10, 4, 6, 3, 1, accumulation)
        for epoch in (0, 1):
            steps = [step for update in range(3 * epoch, 3 * epoch + 3) for step in plan.micro_batches(update)]
            assert [row for step in steps for row in step[0]] == order(10, 3, epoch)


def test_a_short_batch_is_shared_out_evenly():
    """5 rows over 2 processes of 2 steps: 2, 1, 1, 1, filled up to 2; 1 row over 4: three fillers."""
    (five,), (one,) = ([Plan(n, 16, 1, 0, 2, 2).micro_batches(0)] for n in (5, 1))
    row = order(5, 0, 0)
    assert five == [[row[:2], [row[2], FILLER]], [[row[3], FILLER], [row[4], FILLER]]]
    assert one == [[[0], [FILLER]], [[FILLER], [FILLER]]]


# --- what is learned --------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def machine(tmp_path_factory):
    return Machine(device="cpu", scratch=str(tmp_path_factory.mktemp("scratch")))


@pytest.fixture(scope="module")
def pair(tokenizer):
    """Pairs of plans from 3 to about 25 tokens."""
    renderer = Renderer(tokenizer, "lumos")
    plans = ["; ".join(f"Subgoal {k + 1}: Add {n} to {k}" for k in range(1 + n % 3)) for n in range(ROWS + 1)]
    chosen = [renderer.planner_example(f"Ada has {n} apples.", plans[n]) for n in range(ROWS)]
    rejected = [renderer.planner_example(f"Ada has {n} apples.", plans[n + 1]) for n in range(ROWS)]
    return chosen, rejected


def learn(kind, model, tokenizer, pair, reference, machine, nll_weight=0.0, group=False):
    """Two epochs: four updates, of which the second and the last are short. Returns the log."""
    own = {"enabled": True, "loss": "dpo", "beta": BETA, "nll_weight": nll_weight}
    how = Sft(**TRAIN) if kind == "sft" else Align(**TRAIN | own)
    made = training.arguments(how, training.updates_for(how, ROWS), 3, machine) | {"output_dir": machine.scratch}
    if kind == "sft":
        return training.sft(model, tokenizer, pair[0], made, lambda n: None, group_by_length=group)
    return training.dpo(model, reference, tokenizer, *pair, made, BETA, nll_weight, lambda n: None, group_by_length=group)


@pytest.fixture(scope="module")
def reference(make_model, pair):
    return summed(make_model(2), *pair)


@pytest.mark.trap(14)
@pytest.mark.parametrize("group", [False, True], ids=["shuffled", "grouped"])
@pytest.mark.parametrize(("kind", "nll_weight"), [("sft", 0.0), ("dpo", 0.0), ("dpo", 0.7)])
def test_nothing_depends_on_the_micro_batch(make_model, tokenizer, pair, reference, machine, kind, nll_weight, group):
    """16 x 1, 4 x 4 and 1 x 16 over short batches, too: losses to 1e-6 and gradients' norms to 2e-6 (relative).

    Entropy, accuracies of tokens and log-probabilities agree to 1e-5, the final weights to 1e-6.
    """
    whole = make_model(1)
    log = learn(kind, whole, tokenizer, pair, reference, machine, nll_weight, group)
    for micro_batch in (4, 1):
        parts = make_model(1)
        own_machine = machine.model_copy(update={"micro_batch": micro_batch})
        own = learn(kind, parts, tokenizer, pair, reference, own_machine, nll_weight, group)
        assert [entry["loss"] for entry in own] == pytest.approx([entry["loss"] for entry in log], rel=1e-6)
        assert [entry["grad_norm"] for entry in own] == pytest.approx([entry["grad_norm"] for entry in log], rel=2e-6)
        for name in {"entropy", "mean_token_accuracy", "logps/chosen", "logps/rejected", "rewards/margins"} & log[0].keys():
            assert [entry[name] for entry in own] == pytest.approx([entry[name] for entry in log], rel=1e-5, abs=1e-5)
        for one, other in zip(parts.parameters(), whole.parameters(), strict=True):
            torch.testing.assert_close(one, other, atol=1e-6, rtol=0)


@pytest.mark.trap(14)
@pytest.mark.parametrize("kind", ["sft", "dpo"])
def test_grouped_by_length_an_update_learns_from_its_rows(make_model, tokenizer, pair, reference, machine, kind):
    """At a learning rate of 0 each update's loss is that of the rows that the plan with the rows' lengths names, by hand."""
    sides_of = [max(len(one), len(other) if kind == "dpo" else 0) for one, other in zip(*pair, strict=True)]
    size, updates = 2, 11  # few rows an update: of fewer than 8 batches nothing can be grouped
    plan, other_plan = (Plan(ROWS, size, updates, 3, lengths=lengths) for lengths in (sides_of, None))
    assert {frozenset(plan.whole(n)) for n in range(updates)} != {frozenset(other_plan.whole(n)) for n in range(updates)}
    start, other = float64_weights(make_model(1)), float64_weights(make_model(2))
    own = {"enabled": True, "loss": "dpo", "beta": BETA, "nll_weight": 0, "schedule": "constant", "warmup_ratio": 0}
    still = Align(**TRAIN | own | {"learning_rate": 1e-12, "weight_decay": 0, "batch_size": size})
    made = training.arguments(still, updates, 3, machine) | {"output_dir": machine.scratch}
    model, config = make_model(1), make_model().config
    if kind == "sft":
        log = training.sft(model, tokenizer, pair[0], made, lambda n: None, group_by_length=True)
    else:
        log = training.dpo(model, reference, tokenizer, *pair, made, BETA, 0.0, lambda n: None, group_by_length=True)
    for update, entry in enumerate(log):
        sides = [[side[row] for row in plan.whole(update)] for side in pair]
        expected = sft_loss(start, config, sides[0]) if kind == "sft" else dpo_loss(start, other, config, sides, BETA)
        assert entry["loss"] == pytest.approx(expected.item(), rel=2e-6)


@pytest.mark.trap(14)
@pytest.mark.parametrize("micro_batch", [16, 4, 1])
@pytest.mark.parametrize("kind", ["sft", "dpo"])
def test_a_short_batch_is_averaged_over_what_it_has(make_model, tokenizer, pair, reference, machine, kind, micro_batch):
    """The loss of update 1 and, at a learning rate of 0, of update 2, whose 5 rows are known: in float64, by hand."""
    plan = Plan(ROWS, BATCH, 2, 3)
    start, other = float64_weights(make_model(1)), float64_weights(make_model(2))
    config = make_model().config
    own = {"enabled": True, "loss": "dpo", "beta": BETA, "nll_weight": 0, "schedule": "constant", "warmup_ratio": 0}
    still = Align(**TRAIN | own | {"learning_rate": 1e-12, "weight_decay": 0})
    made = training.arguments(still, 2, 3, machine.model_copy(update={"micro_batch": micro_batch}))
    made |= {"output_dir": machine.scratch}
    model = make_model(1)
    if kind == "sft":
        log = training.sft(model, tokenizer, pair[0], made, lambda n: None)
    else:
        log = training.dpo(model, reference, tokenizer, *pair, made, BETA, 0.0, lambda n: None)
    for update, entry in enumerate(log):
        sides = [[side[row] for row in plan.whole(update)] for side in pair]
        expected = sft_loss(start, config, sides[0]) if kind == "sft" else dpo_loss(start, other, config, sides, BETA)
        assert entry["loss"] == pytest.approx(expected.item(), rel=2e-6)


@pytest.mark.trap(19)
def test_a_filler_is_no_row_of_an_error(make_model, tokenizer, pair, machine):
    """A loss that is no number in the short update: its 5 rows are named, and no other."""
    model = make_model(1)
    plan = Plan(ROWS, BATCH, 2, 3)
    bad = [*pair[0]]
    poisoned = len(tokenizer) - 1
    number = plan.whole(1)[0]
    bad[number] = type(bad[0])([*bad[number].prompt, poisoned], bad[number].completion)
    with torch.no_grad():
        model.model.embed_tokens.weight[poisoned] = math.nan
    model.lm_head.weight = torch.nn.Parameter(model.model.embed_tokens.weight.detach().nan_to_num().clone())
    made = training.arguments(Sft(**TRAIN), 2, 3, machine.model_copy(update={"micro_batch": 4}))
    with pytest.raises(FloatingPointError, match="loss is nan at update 2 of 2") as told:
        training.sft(model, tokenizer, bad, made | {"output_dir": machine.scratch}, lambda n: None)
    named = str(told.value).partition("over the rows ")[2].partition(": ")[0]
    assert named.split(", ") == [str(row) for row in plan.whole(1)]

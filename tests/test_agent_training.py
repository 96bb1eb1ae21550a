"""What an Agent-R actor learns from, and how much each token counts: moat/agent_r/{examples,mixing}.py, moat/training.py."""

import math

import polars as pl
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from trl import SFTTrainer

from moat import training
from moat.agent_r.examples import conversations, rendered
from moat.agent_r.general import told
from moat.agent_r.mixing import good_row, lessons, revision_row, shown_row, tokens_by_origin, weights
from moat.agent_r.play import Turn
from moat.agent_r.turns import ACKNOWLEDGED, NOT_READ, REFLECTIONS, reflection
from moat.machine import Machine
from moat.params import Sft
from moat.tokens import Renderer

GOAL = {"task_id": "textcraft/stick", "environment": "textcraft", "instruction": "Craft.\n", "first": "Goal: stick."}
SFT_SETTINGS = Sft(
    epochs=1,
    learning_rate=1e-2,
    batch_size=4,
    schedule="constant",
    warmup_ratio=0,
    weight_decay=0,
    max_grad_norm=1e9,
    group_by_length=False,
)


def turn(text, seen, kind="action", reward=0.0):
    action = text.removeprefix("Action: ") if kind == "action" else ""
    return Turn(text, kind, action, seen, reward, reward, reward == 1, False, False)


SAID = reflection("test", 1)
BAD = [turn("Action: get 3 logs", "Got 3 logs"), turn("Action: craft 1 stick using 1 logs", "Could not find")]
GOOD = [
    turn("mumble", NOT_READ, "unreadable"),
    turn("Action: craft 4 planks", "Crafted"),
    turn("Action: win", "Won", reward=1.0),
]
REVISED = [*BAD, turn(SAID, ACKNOWLEDGED, "reflection"), *GOOD]


@pytest.fixture(scope="module")
def renderer(tokenizer):
    return Renderer(tokenizer, "lumos")


@pytest.fixture(scope="module")
def machine(tmp_path_factory):
    return Machine(device="cpu", scratch=str(tmp_path_factory.mktemp("scratch")))


def revised():
    turns = [one.row() for one in REVISED]
    return revision_row(GOAL, {"turns": turns, "reflection": 2, "reward": 1.0, "bad": 3, "good": 9})


def learned(renderer, row):
    """The supervised stretches of a row, as text."""
    one = rendered(renderer, row["texts"], row["supervised"])
    return [renderer.tokenizer.decode(ids) for ids, own in zip(one.turns, one.supervised, strict=True) if own]


# --- what is learned from ---------------------------------------------------------------------------------------------


@pytest.mark.trap(39)
def test_of_a_revision_the_reflection_and_the_good_actions_are_learned(renderer):
    """Bad actions, observations, the acknowledgement and what nobody could read are context alone."""
    assert learned(renderer, revised()) == [f"{SAID}</s>", "Action: craft 4 planks</s>", "Action: win</s>"]


def test_of_a_good_trajectory_the_actions_are_learned(renderer):
    row = good_row(GOAL, 7, GOOD)
    assert learned(renderer, row) == ["Action: craft 4 planks</s>", "Action: win</s>"]
    assert row["row_id"] == "good/textcraft/stick/7"
    assert row["texts"][0] == "Craft.\nGoal: stick."


@pytest.mark.trap(11)
def test_the_model_is_handed_these_labels_and_no_others(monkeypatch, make_model, tokenizer, renderer, machine):
    """Decoded from what TRL hands to the model: the supervised stretches, each with its end token."""
    batches = []

    def record(self, model, inputs, *args, **kwargs):
        batches.append({name: inputs[name].tolist() for name in ("input_ids", "labels")})
        return original(self, model, inputs, *args, **kwargs)

    original = SFTTrainer.compute_loss
    monkeypatch.setattr(SFTTrainer, "compute_loss", record)
    row = revised()
    own = training.arguments(SFT_SETTINGS, 1, 3, machine) | {"output_dir": machine.scratch}
    one = rendered(renderer, row["texts"], row["supervised"])
    training.sft(make_model(), tokenizer, [one], own, lambda n: None, weights=[1.0])
    ((ids,), (labels,)) = (batches[0][name] for name in ("input_ids", "labels"))
    assert ids == one.ids
    stretches, place = [], 0
    while place < len(labels):
        end = place
        while end < len(labels) and labels[end] != -100:
            end += 1
        if end > place:
            stretches.append(tokenizer.decode(labels[place:end]))
        place = end + 1
    assert stretches == learned(renderer, row)
    assert all(label in (-100, token) for label, token in zip(labels, ids, strict=True))


def test_general_conversations_of_both_formats_are_read_and_broken_ones_counted():
    share = {"conversations": [{"from": "human", "value": "Hi"}, {"from": "gpt", "value": "Hello"}]}
    chat = {"messages": [{"role": "system", "content": "Be kind."}, {"role": "user", "content": "a"},
                         {"role": "assistant", "content": "b"}, {"role": "user", "content": "left over"}]}  # fmt: skip
    wrong = {"conversations": [{"from": "gpt", "value": "first"}]}
    blank = {"conversations": [{"from": "human", "value": " "}]}
    rows, dropped = told(enumerate([share, chat, wrong, blank, 7], 1))
    assert [(row["texts"], row["supervised"]) for row in rows] == [
        (["Hi", "Hello"], [False, True]),
        (["Be kind.\n\na", "b"], [False, True]),
    ]
    assert dropped.total() == 3
    assert shown_row(rows[0])["reward"] is None


def test_conversations_over_the_length_are_dropped_and_counted(renderer):
    table = pl.DataFrame([revised()])
    rows, names, counts = conversations(renderer, table, 1000)
    assert (len(rows), names, counts.dropped) == (1, ["revision/textcraft/stick/3/9"], {})
    assert conversations(renderer, table, len(rows[0]) - 1)[2].dropped == {"longer than max_length": 1}


# --- weights ----------------------------------------------------------------------------------------------------------


@settings(deadline=None)
@given(st.fixed_dictionaries({name: st.integers(0, 1000) for name in ("good", "revision", "general")}), st.floats(0.01, 1))
def test_each_set_counts_its_share(tokens, eta):
    """Over all its tokens a set's weights sum to eta, the general one's to 1 - eta; to 1 each without general data."""
    found = weights(tokens, eta)
    for origin, n in tokens.items():
        share = (1 - eta if origin == "general" else eta) if tokens["general"] else 1.0
        assert (origin in found) is (n > 0)
        if n:
            assert found[origin] * n == pytest.approx(share)


def batch(renderer):
    """Four ragged rows of three origins with eta = 0.2, and what each token of them counts."""
    chat = told([(1, {"conversations": [{"from": "human", "value": "Hi"}, {"from": "gpt", "value": "12"}]})])[0][0]
    rows = [good_row(GOAL, 1, GOOD), good_row(GOAL, 2, [*BAD, *GOOD]), revised(), shown_row(chat)]
    examples = [rendered(renderer, row["texts"], row["supervised"]) for row in rows]
    for row, one in zip(rows, examples, strict=True):
        row["n_supervised"] = sum(one.mask)
    counted = weights(tokens_by_origin(rows), 0.2)
    return examples, [counted[row["origin"]] for row in rows]


def loss_by_hand(model, examples, counted):
    """sum over rows of weight times the sum of NLL over what is supervised, row by row without a batch."""
    total = 0
    for one, weight in zip(examples, counted, strict=True):
        logits = model(torch.tensor([one.ids])).logits[0, :-1]
        nll = -torch.log_softmax(logits, -1)[range(len(one) - 1), one.ids[1:]]
        total = total + weight * nll[torch.tensor(one.mask[1:])].sum()
    return total


@pytest.mark.trap(14)
@pytest.mark.parametrize("micro_batch", [None, 1, 2])
def test_the_loss_is_that_of_the_whole_set_whatever_the_micro_batch(
    monkeypatch, make_model, tokenizer, renderer, machine, micro_batch
):
    """L = eta (L_good + L_revision) + (1 - eta) L_general, and its gradient, as autograd has them at once."""
    examples, counted = batch(renderer)
    trained, found = make_model(), {}

    class Recorder(torch.optim.AdamW):
        def step(self, *args, **kwargs):
            found.update({name: parameter.grad.clone() for name, parameter in trained.named_parameters()})
            return super().step(*args, **kwargs)

    monkeypatch.setattr("torch.optim.AdamW", Recorder)
    here = machine.model_copy(update={"micro_batch": micro_batch})
    own = training.arguments(SFT_SETTINGS, 1, 3, here) | {"output_dir": machine.scratch}
    log = training.sft(trained, tokenizer, examples, own, lambda n: None, weights=counted)
    model = make_model()
    loss = loss_by_hand(model, examples, counted)
    loss.backward()
    assert log[0]["loss"] == pytest.approx(loss.item(), abs=1e-5)
    for name, parameter in model.named_parameters():
        torch.testing.assert_close(found[name], parameter.grad, atol=1e-5, rtol=1e-4, msg=name)


def test_an_epochs_losses_sum_to_the_whole_sets(make_model, tokenizer, renderer, machine):
    """Four rows in batches of 3: two updates, of 3 rows and of 1. Each loss times 3 / 4 is its rows' part of L."""
    examples, counted = batch(renderer)
    how = SFT_SETTINGS.model_copy(update={"batch_size": 3, "learning_rate": 1e-30})  # the weights stay
    own = training.arguments(how, 2, 3, machine) | {"output_dir": machine.scratch}
    log = training.sft(make_model(), tokenizer, examples, own, lambda n: None, weights=counted)
    whole = loss_by_hand(make_model(), examples, counted).item()
    assert math.fsum(entry["loss"] for entry in log) * 3 / 4 == pytest.approx(whole, abs=1e-5)


def test_reflections_are_ten_different_sentences():
    assert len(set(REFLECTIONS)) == 10
    assert {reflection("draw", number) for number in range(200)} == {f"Thought: {sentence}" for sentence in REFLECTIONS}


def test_revisions_that_differ_in_their_reflection_alone_are_one():
    """Bad paths that part after their turning point would teach one thing several times over."""
    turns = [one.row() for one in REVISED]
    other = [*turns[:2], turns[2] | {"text": reflection("test", 2)}, *turns[3:]]
    longer = [*turns[:2], turns[2], turns[4], turns[5]]
    revisions = [
        {"task_id": GOAL["task_id"], "turns": own, "reflection": 2, "reward": 1.0, "bad": bad, "good": 9}
        for bad, own in ((3, turns), (5, other), (7, longer))
    ]
    rows = lessons({GOAL["task_id"]: GOAL}, revisions)
    assert [row["row_id"] for row in rows] == [f"revision/textcraft/stick/{bad}/9" for bad in (3, 7)]

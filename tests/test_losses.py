"""SFT and DPO as TRL runs them for moat/training.py, against tests/reference.py in float64 and over four tokenizers.

Whole models (adapters: tests/test_adapters.py); the reference's log-probabilities are handed to DPO.
"""

import copy
import json
import math

import pytest
import torch
from trl import DPOTrainer, SFTTrainer

from moat import models, params, training
from moat.base_models import scratch_model
from moat.machine import Machine
from moat.params import Align, Sft
from moat.stage import Stage
from moat.tokens import Renderer
from tests.reference import dpo_loss, first_adamw_step, float64_weights, gradients, margins, sft_loss, summed, sums
from tests.vocabularies import KINDS

BETA, RATE, CLIP = 0.2, 1e-2, 1.0
TOOLS = "Calculator(expression)"
TASKS = ("Ada Ash has 4 apples.", "Ben Bell has 90 coins. Ben Bell buys 7. Ben Bell loses 12 of them.", "x", "How many now?")
PLANS = ("Subgoal 1: Add 5 to 4", "no", "Subgoal 1: Add what comes in; Subgoal 2: Divide what there is", "Subgoal 1: Add")
ACTIONS = ("R1 = Calculator(4 + 5)", "R1 = R2", "R1 = 1", "R1 = Calculator(12 * 3); R2 = Calculator(R1 - 7); R3 = R2")
TRAIN = {"epochs": 1, "learning_rate": RATE, "batch_size": 4, "schedule": "constant", "warmup_ratio": 0}
TRAIN |= {"weight_decay": 0, "group_by_length": False}


def nothing(n):
    """No progress is shown."""


@pytest.fixture(scope="module")
def machine(tmp_path_factory):
    return Machine(device="cpu", scratch=str(tmp_path_factory.mktemp("scratch")))


def rows_of(renderer):
    """Four rows of different lengths."""
    return [renderer.grounder_example(*row) for row in zip(TASKS, [TOOLS] * 4, PLANS, ACTIONS, strict=True)]


def pair_of(renderer):
    """Four pairs of different lengths: (chosen, rejected); the two of a pair share their prompt."""
    chosen = [renderer.planner_example(task, plan) for task, plan in zip(TASKS, PLANS, strict=True)]
    rejected = [renderer.planner_example(task, plan) for task, plan in zip(TASKS, PLANS[1:] + PLANS[:1], strict=True)]
    return chosen, rejected


@pytest.fixture(scope="module")
def rows(tokenizer):
    return rows_of(Renderer(tokenizer, "lumos"))


@pytest.fixture(scope="module")
def pair(tokenizer):
    return pair_of(Renderer(tokenizer, "lumos"))


def run_sft(model, tokenizer, rows, machine, updates=1, advance=nothing, **changes):
    own = training.arguments(Sft(**TRAIN | {"max_grad_norm": CLIP} | changes), updates, 3, machine) | {
        "output_dir": machine.scratch
    }
    return training.sft(model, tokenizer, rows, own, advance)


def align(**changes):
    own = {"max_grad_norm": CLIP, "enabled": True, "loss": "dpo", "beta": BETA, "nll_weight": 0}
    return Align(**TRAIN | own | changes)


def run_dpo(model, reference, tokenizer, pair, machine, updates=1, **changes):
    own = training.arguments(align(**changes), updates, 3, machine) | {"output_dir": machine.scratch}
    return training.dpo(model, summed(reference, *pair), tokenizer, *pair, own, BETA, 0.0, nothing)


def micro(machine, size):
    return machine.model_copy(update={"micro_batch": size})


@pytest.fixture
def batches(monkeypatch):
    """What the trainers compute their losses from, as (trainer, ids), in order."""
    seen = []

    def watch(trainer_class):
        original = trainer_class.compute_loss

        def record(self, model, inputs, *args, **kwargs):
            seen.append((self, inputs["input_ids"].clone()))
            return original(self, model, inputs, *args, **kwargs)

        monkeypatch.setattr(trainer_class, "compute_loss", record)

    watch(SFTTrainer)
    watch(DPOTrainer)
    return seen


class HandedError(Exception):
    """Ends a training at its first batch, which it holds."""


@pytest.fixture
def first_batch(monkeypatch):
    """What the first loss of `run` would be computed from; no loss is."""

    def stop(self, model, inputs, *args, **kwargs):
        raise HandedError(inputs)

    def take(run):
        with pytest.raises(HandedError) as handed:
            run()
        return handed.value.args[0]

    monkeypatch.setattr(SFTTrainer, "compute_loss", stop)
    monkeypatch.setattr(DPOTrainer, "compute_loss", stop)
    return take


@pytest.fixture
def steps(monkeypatch):
    """The gradients that every optimiser step is given, in order, each by the parameter's identity (see `of`)."""
    seen = []

    class Recorder(torch.optim.AdamW):
        def step(self, *args, **kwargs):
            by_id = {id(p): p.grad.clone() for group in self.param_groups for p in group["params"]}
            seen.append(by_id)
            return super().step(*args, **kwargs)

    monkeypatch.setattr("torch.optim.AdamW", Recorder)
    return seen


def of(model, step):
    """A recorded step's gradients by the parameter's name."""
    return {name: step[id(parameter)] for name, parameter in model.named_parameters()}


def assert_equal_gradients(found, expected):
    assert found.keys() == expected.keys()
    for name, gradient in found.items():
        torch.testing.assert_close(gradient.double(), expected[name].double(), atol=1e-5, rtol=1e-4, msg=name)


# --- what the losses are ----------------------------------------------------------------------------------------------


@pytest.mark.trap(10, 16)
def test_dpo_before_and_after_one_step(make_model, tokenizer, pair, machine):
    """L = -mean log sigma(margin), margin = beta [(log pi - log ref)(chosen) - (log pi - log ref)(rejected)].

    Update 1: pi = ref, so L = ln 2 and every margin is 0. Update 2: pi is one step of AdamW away, in float64 by hand.
    The logged log-probabilities of both sides are the means over the pairs, of the policy before each update.
    """
    log = run_dpo(make_model(), make_model(), tokenizer, pair, machine, updates=2)
    config, reference = make_model().config, float64_weights(make_model())
    start = float64_weights(make_model())
    moved = first_adamw_step(start, gradients(dpo_loss(start, reference, config, pair, BETA), start), RATE, CLIP)
    assert log[0]["loss"] == pytest.approx(math.log(2), abs=1e-6)
    assert log[0]["rewards/margins"] == pytest.approx(0, abs=1e-6)
    expected = margins(moved, reference, config, pair, BETA)
    assert expected.mean() > 0.1
    assert log[1]["loss"] == pytest.approx(dpo_loss(moved, reference, config, pair, BETA).item(), abs=1e-4)
    assert log[1]["rewards/margins"] == pytest.approx(expected.mean().item(), abs=5e-4)
    assert log[1]["rewards/accuracies"] == (expected > 0).double().mean().item()
    for entry, weights in zip(log, (start, moved), strict=True):
        said = [sums(weights, config, side).mean().item() for side in pair]
        assert [entry["logps/chosen"], entry["logps/rejected"]] == pytest.approx(said, abs=5e-3)


def test_sft_before_and_after_one_step(make_model, tokenizer, rows, machine):
    """L = -(1/N) sum of log P over all N supervised tokens of the batch, before and after one step of AdamW by hand."""
    log = run_sft(make_model(), tokenizer, rows, machine, updates=2)
    config, start = make_model().config, float64_weights(make_model())
    loss = sft_loss(start, config, rows)
    moved = first_adamw_step(start, gradients(loss, start), RATE, CLIP)
    expected = [loss.item(), sft_loss(moved, config, rows).item()]
    assert expected[0] - expected[1] > 0.1
    assert [entry["loss"] for entry in log] == pytest.approx(expected, abs=1e-4)


@pytest.mark.trap(14)
@pytest.mark.parametrize("size", [1, 2, 4])
def test_dpo_gradients_do_not_depend_on_the_micro_batch(make_model, tokenizer, pair, machine, steps, size):
    """(4 x 1), (2 x 2), (1 x 4) of ragged pairs: d/dw of the mean over the four pairs, by autograd in float64.

    Reference != policy, so that the pairs weigh differently (by sigma(-margin)).
    """
    model = make_model(1)
    run_dpo(model, make_model(2), tokenizer, pair, micro(machine, size), max_grad_norm=1e9)
    start, reference = float64_weights(make_model(1)), float64_weights(make_model(2))
    (step,) = steps
    assert_equal_gradients(of(model, step), gradients(dpo_loss(start, reference, model.config, pair, BETA), start))


@pytest.mark.trap(14)
@pytest.mark.parametrize("size", [1, 2, 4])
def test_sft_gradients_do_not_depend_on_the_micro_batch(make_model, tokenizer, rows, machine, steps, size):
    """(4 x 1), (2 x 2), (1 x 4) of ragged rows: d/dw of the token mean over all four rows, by autograd in float64."""
    model = make_model()
    run_sft(model, tokenizer, rows, micro(machine, size), max_grad_norm=1e9)
    start = float64_weights(make_model())
    (step,) = steps
    assert_equal_gradients(of(model, step), gradients(sft_loss(start, model.config, rows), start))


@pytest.mark.trap(14)
@pytest.mark.parametrize("kind", ["sft", "dpo"])
def test_a_smaller_last_batch_is_averaged_over_its_own_rows(make_model, tokenizer, rows, pair, machine, steps, kind):
    """3 rows in batches of 2: the second update has one row, and its gradient is that row's, not half of it.

    In micro-batches of 1 (the last accumulation is cut short) as in one of 2: the same gradients in both updates.
    """
    models_run = []
    for size in (1, 2):
        model = make_model(1)
        models_run.append(model)
        if kind == "sft":
            run_sft(model, tokenizer, rows[:3], micro(machine, size), updates=2, batch_size=2, max_grad_norm=1e9)
        else:
            three = [side[:3] for side in pair]
            run_dpo(model, make_model(2), tokenizer, three, micro(machine, size), updates=2, batch_size=2, max_grad_norm=1e9)
    apart, together = steps[:2], steps[2:]
    assert len(together) == 2
    for one, other in zip(apart, together, strict=True):
        assert_equal_gradients(of(models_run[0], one), of(models_run[1], other))


# --- what is handed to the trainers -----------------------------------------------------------------------------------


@pytest.fixture(params=KINDS, ids="-".join)
def kind(request, vocabulary):
    """(tokenizer, its renderer, makes a model for it, the special tokens of every prompt).

    The trainers set a missing padding token: each gets a copy. Special tokens of a prompt: in plain text the BOS of those
    tokenizers that put one, in a chat what transformers finds in the model's own template.
    """
    name, format = request.param
    tokenizer = copy.deepcopy(vocabulary(name))
    frame = [tokenizer.bos_token_id] if name in ("embedded", "llama") else []
    if format == "chat":
        said = [{"role": "user", "content": "x"}]
        own = tokenizer.apply_chat_template(said, tokenize=True, add_generation_prompt=True).input_ids
        frame = [token for token in own if token in tokenizer.all_special_ids]
    return tokenizer, Renderer(vocabulary(name), format), lambda: scratch_model(len(tokenizer), 16, 1, 2, 1024, 0), frame


def shown(inputs, mask):
    """(ids, supervised ids) of every row of a batch, without the padding; `mask` [rows, tokens] is what is supervised."""
    for ids, kept, counted in zip(inputs["input_ids"], inputs["attention_mask"].bool(), mask, strict=True):
        assert not counted[~kept].any()  # padding is never supervised
        yield ids[kept].tolist(), ids[counted].tolist()


def assert_whole(tokenizer, ids, supervised, prompt_specials):
    """The completion's end token is supervised, once, last; before the completion stand the prompt's special tokens."""
    end = tokenizer.eos_token_id
    assert (supervised.count(end), supervised[-1]) == (1, end)
    assert ids[-len(supervised) :] == supervised
    specials = [token for token in ids[: -len(supervised)] if token in tokenizer.all_special_ids]
    assert specials == prompt_specials


@pytest.mark.trap(11, 12, 13)
def test_a_batch_of_sft_decoded(kind, machine, first_batch):
    """Every row: at most one BOS, where the tokenizer puts it; one end token in the completion, supervised; nothing cut.

    Also where padding is the end token (smollm2) and where there is no padding token at all (llama).
    """
    tokenizer, renderer, make, frame = kind
    rows = rows_of(renderer)
    inputs = first_batch(lambda: run_sft(make(), tokenizer, rows, machine))
    made = list(shown(inputs, inputs["labels"] != -100))
    for ids, supervised in made:
        assert_whole(tokenizer, ids, supervised, frame)
    assert sorted(renderer.decode(supervised) for _, supervised in made) == sorted(ACTIONS)
    assert sorted(ids for ids, _ in made) == sorted(row.prompt + row.completion for row in rows)
    assert (inputs["labels"] == inputs["input_ids"])[inputs["labels"] != -100].all()


@pytest.mark.trap(11, 12, 13)
def test_a_batch_of_dpo_decoded(kind, machine, first_batch):
    """Every row of both sides: as for SFT; the two of a pair start with the same prompt, the chosen ones first."""
    tokenizer, renderer, make, frame = kind
    pair = pair_of(renderer)
    inputs = first_batch(lambda: run_dpo(make(), make(), tokenizer, pair, machine))
    made = list(shown(inputs, inputs["completion_mask"].bool()))
    for ids, supervised in made:
        assert_whole(tokenizer, ids, supervised, frame)
    found = {(tuple(c), tuple(r)) for (c, _), (r, _) in zip(made[: len(made) // 2], made[len(made) // 2 :], strict=True)}
    assert found == {(tuple(c.prompt + c.completion), tuple(r.prompt + r.completion)) for c, r in zip(*pair, strict=True)}


@pytest.mark.trap(15, 18)
def test_rows_stay_apart_in_float32(make_model, tokenizer, rows, pair, machine, batches):
    """No packing, no padding-free batches, no bf16, no checkpointing: in the arguments that the trainers really hold.

    A batch of four rows (pairs) is four (eight) sequences, each with its own padding.
    """
    model = make_model()
    run_sft(model, tokenizer, rows, machine)
    run_dpo(model, make_model(), tokenizer, pair, machine)
    for (trainer, ids), sequences in zip(batches, (4, 8), strict=True):
        own = trainer.args
        assert (getattr(own, "packing", False), own.padding_free) == (False, False)
        assert (own.bf16, own.fp16, own.gradient_checkpointing, own.use_cpu) == (False, False, False, True)
        assert (own.max_length, own.dataloader_drop_last, own.tf32) == (None, False, None)
        assert not trainer.model.is_gradient_checkpointing
        assert len(ids) == sequences
        assert {p.dtype for p in trainer.model.parameters()} == {torch.float32}


# --- losses that are no numbers ---------------------------------------------------------------------------------------


@pytest.mark.trap(19)
@pytest.mark.parametrize(("kind", "bad"), [("sft", math.nan), ("sft", math.inf), ("dpo", math.nan), ("dpo", -math.inf)])
def test_a_loss_that_is_no_number_names_its_update(monkeypatch, make_model, tokenizer, rows, pair, machine, kind, bad):
    """The first update is well, the second is not: the error says which one of how many, and what the loss was."""
    calls = []
    trainer = SFTTrainer if kind == "sft" else DPOTrainer
    original = trainer.compute_loss

    def spoil(self, *args, **kwargs):
        calls.append(1)
        made = original(self, *args, **kwargs)
        return made if len(calls) == 1 else made + bad

    monkeypatch.setattr(trainer, "compute_loss", spoil)
    with pytest.raises(FloatingPointError, match=rf"loss is {bad} at update 2 of 3"):
        if kind == "sft":
            run_sft(make_model(), tokenizer, rows, machine, updates=3)
        else:
            run_dpo(make_model(), make_model(), tokenizer, pair, machine, updates=3)
    assert len(calls) == 2


# --- what is kept -----------------------------------------------------------------------------------------------------


@pytest.mark.trap(16, 57)
def test_an_aligned_models_folder_tells_both_sides(root, tmp_path, monkeypatch, make_model, tokenizer, pair, machine):
    """moat.json's log has every update's chosen and rejected log-probabilities, as summed by hand.

    No training_args.bin, and the base model's tokenizer byte for byte.
    """
    monkeypatch.chdir(tmp_path)
    tokenizer.save_pretrained(tmp_path / "tokenizer")
    written = tmp_path / "tokenizer" / "tokenizer.json"
    written.write_text(json.dumps(json.loads(written.read_text())))  # as no tokenizer of today writes it
    base, target = tmp_path / "models" / "base", tmp_path / "models" / "planner" / "1"
    models.save(make_model(1), base, {"made_by": "test"}, tmp_path / "tokenizer")
    stage = Stage("align_planner", params.load(root / "params.yaml"), machine, tmp_path)
    training.train_dpo(
        stage,
        start=base,
        reference=base,
        target=target,
        chosen=pair[0],
        rejected=pair[1],
        names=list("abcd"),
        settings=align(epochs=2),
        seed=0,
        facts={},
    )
    log = json.loads((target / models.CARD).read_text())["log"]
    start, config = float64_weights(make_model(1)), make_model().config
    reference = float64_weights(make_model(1))
    moved = first_adamw_step(start, gradients(dpo_loss(start, reference, config, pair, BETA), start), RATE, CLIP)
    assert [entry["update"] for entry in log] == [1, 2]
    for entry, weights in zip(log, (start, moved), strict=True):
        said = [sums(weights, config, side).mean().item() for side in pair]
        assert [entry["logps/chosen"], entry["logps/rejected"]] == pytest.approx(said, abs=5e-3)
    assert not (target / "training_args.bin").exists()
    assert (target / "tokenizer.json").read_bytes() == written.read_bytes()

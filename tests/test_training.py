"""Training through TRL, really run on a tiny model: moat/training.py, moat/models.py, moat/examples.py."""

import gc
import hashlib
import json
import math
import re
import shutil
import weakref

import numpy as np
import polars as pl
import pytest
import torch
from trl import DPOConfig, DPOTrainer, SFTConfig, SFTTrainer

from moat import models, params, training
from moat.examples import demo_examples, fit, planner_pairs
from moat.machine import Machine
from moat.params import Align, Sft
from moat.stage import Stage
from moat.tokens import Example, Renderer, Role
from moat.tools.docs import documentation
from tests.killing import KilledError, killed_after
from tests.reference import summed
from tests.rows import demo

END, BETA = 2, 0.2
PLANS = (  # ragged on purpose: from 6 to about 40 tokens
    ("Ada Ash has 4 apples.", "Subgoal 1: Add 5 to 4", "R1 = Calculator(4 + 5)"),
    ("Ben Bell has 90 coins. Ben Bell buys 7. Ben Bell loses 12 of them.", "Subgoal 1: Find the last amount", "R1 = R2"),
    ("x", "Subgoal 1: Add what comes in; Subgoal 2: Divide what there is; Subgoal 3: odd words", "R1 = Calculator(1)"),
    ("How many hats are there now?", "no", "R1 = Calculator(12 * 3); R2 = Calculator(R1 - 7); R3 = Calculator(R2 / 29)"),
)


def settings(**changes):
    base = {"epochs": 1, "learning_rate": 1e-2, "batch_size": 4, "schedule": "constant", "warmup_ratio": 0}
    return Sft(**base | {"weight_decay": 0, "max_grad_norm": 1, "group_by_length": False} | changes)


def align(**changes):
    own = {"enabled": True, "loss": "dpo", "beta": BETA, "nll_weight": 0}
    return Align(**settings().model_dump() | own | changes)


@pytest.fixture(scope="module")
def machine(tmp_path_factory):
    return Machine(device="cpu", scratch=str(tmp_path_factory.mktemp("scratch")))


@pytest.fixture(scope="module")
def rows(tokenizer):
    renderer = Renderer(tokenizer, "lumos")
    return [renderer.grounder_example(text, documentation("arithmetic"), plan, actions) for text, plan, actions in PLANS]


@pytest.fixture(scope="module")
def pair(tokenizer):
    """Four pairs of plans of different lengths; the two of a pair share their prompt."""
    renderer, plans = Renderer(tokenizer, "lumos"), [plan for _, plan, _ in PLANS]
    chosen = [renderer.planner_example(text, plan) for text, plan, _ in PLANS]
    rejected = [renderer.planner_example(PLANS[i][0], plans[(i + 1) % 4]) for i in range(4)]
    return chosen, rejected


@pytest.fixture
def folder(tmp_path, make_model, tokenizer, monkeypatch):
    """A project's folder with models/base, and the current folder."""
    monkeypatch.chdir(tmp_path)
    tokenizer.save_pretrained(tmp_path / "tokenizer")
    models.save(make_model(), tmp_path / "models" / "base", {"stage": "test"}, tmp_path / "tokenizer")
    return tmp_path


@pytest.fixture
def stage(root, folder, machine):
    return Stage("cold_start", params.load(root / "params.yaml"), machine, folder)


def weights(model):
    return torch.cat([p.detach().flatten() for p in model.parameters()])


def run_sft(model, tokenizer, rows, machine, updates=1, seed=3, **changes):
    own = training.arguments(settings(**changes), updates, seed, machine) | {"output_dir": machine.scratch}
    return training.sft(model, tokenizer, rows, own, lambda n: None)


def run_dpo(model, reference, tokenizer, pair, machine, nll_weight=0.0, updates=1):
    own = training.arguments(align(), updates, 3, machine) | {"output_dir": machine.scratch}
    return training.dpo(model, summed(reference, *pair), tokenizer, *pair, own, BETA, nll_weight, lambda n: None)


# --- SFT --------------------------------------------------------------------------------------------------------------


@pytest.mark.trap(11)
def test_sft_supervises_the_completion_and_its_one_end_token(monkeypatch, make_model, tokenizer, rows, machine):
    """What the model is handed: labels are the completion, the end token included, and nothing of prompt or padding."""
    batches = []

    def record(self, model, inputs, *args, **kwargs):
        batches.append({name: inputs[name].tolist() for name in ("input_ids", "labels", "attention_mask")})
        return original(self, model, inputs, *args, **kwargs)

    original = SFTTrainer.compute_loss
    monkeypatch.setattr(SFTTrainer, "compute_loss", record)
    run_sft(make_model(), tokenizer, rows, machine)
    (batch,) = batches
    found = []
    for ids, labels, mask in zip(batch["input_ids"], batch["labels"], batch["attention_mask"], strict=True):
        ids, labels = ids[: sum(mask)], labels[: sum(mask)]
        supervised = [label for label in labels if label != -100]
        assert set(labels[: -len(supervised)]) == {-100}  # one stretch at the end, nothing before it
        assert ids[-len(supervised) :] == supervised
        assert (ids.count(1), ids.count(END), supervised.count(END), supervised[-1]) == (1, 1, 1, END)
        found.append((ids[: -len(supervised)], supervised))
    assert all(label == -100 for labels, mask in zip(batch["labels"], batch["attention_mask"], strict=True)
               for label, kept in zip(labels, mask, strict=True) if not kept)  # fmt: skip
    assert sorted(found) == sorted((row.prompt, row.completion) for row in rows)


def test_sft_loss_is_the_mean_nll_of_the_supervised_tokens(make_model, tokenizer, rows, machine, completion_logprobs):
    """L = -(1/N) sum over rows and completion tokens of log P, N all supervised tokens: by a numpy Llama in float64."""
    model = make_model()
    logprobs = np.concatenate([completion_logprobs(model, row.prompt, row.completion) for row in rows])
    log = run_sft(model, tokenizer, rows, machine)
    assert log[0]["loss"] == pytest.approx(-logprobs.mean(), abs=1e-5)


@pytest.mark.trap(14)
@pytest.mark.parametrize("micro_batch", [1, 2])
def test_accumulated_sft_makes_the_same_step(make_model, tokenizer, rows, machine, micro_batch):
    """(batch 4, accumulate 1) and (batch 1, accumulate 4): the gradient is that of the token mean over all four rows.

    A mean of four row means would weigh a short row's tokens more. AdamW divides the gradient by its size, so the
    gradients are compared by their clipped norm as well as by the weights after the step.
    """
    whole, parts = make_model(), make_model()
    one = run_sft(whole, tokenizer, rows, machine)
    other = run_sft(parts, tokenizer, rows, machine.model_copy(update={"micro_batch": micro_batch}))
    assert other[0]["loss"] == pytest.approx(one[0]["loss"], abs=1e-5)
    assert other[0]["grad_norm"] == pytest.approx(one[0]["grad_norm"], rel=1e-4)
    assert torch.linalg.vector_norm(weights(whole) - weights(parts), ord=2) < 1e-2 * torch.linalg.vector_norm(
        weights(whole) - weights(make_model())
    )


@pytest.mark.trap(14)
def test_accumulated_sft_has_the_gradient_of_the_token_mean(monkeypatch, make_model, tokenizer, rows, machine):
    """Before the optimiser: four accumulated rows give d/dw of -(1/N) sum log P, to 1e-5, as autograd does at once."""
    trained, found = make_model(), {}

    class Recorder(torch.optim.AdamW):
        def step(self, *args, **kwargs):
            found.update({name: parameter.grad.clone() for name, parameter in trained.named_parameters()})
            return super().step(*args, **kwargs)

    monkeypatch.setattr("torch.optim.AdamW", Recorder)
    run_sft(trained, tokenizer, rows, machine.model_copy(update={"micro_batch": 1}), max_grad_norm=1e9)
    model, total = make_model(), 0
    for row in rows:
        logits = model(torch.tensor([row.prompt + row.completion])).logits[0, len(row.prompt) - 1 : -1]
        total = total - torch.log_softmax(logits, -1)[range(len(row.completion)), row.completion].sum()
    (total / sum(len(row.completion) for row in rows)).backward()
    expected = dict(model.named_parameters())
    assert found.keys() == expected.keys()
    for name, gradient in found.items():
        torch.testing.assert_close(gradient, expected[name].grad, atol=1e-5, rtol=1e-4, msg=name)


def test_the_last_batch_may_be_smaller(make_model, tokenizer, rows, machine):
    """3 rows in batches of 2 are 2 updates an epoch: no row is left out, and none is made up."""
    assert training.updates_for(settings(batch_size=2, epochs=2), 3) == 4
    assert len(run_sft(make_model(), tokenizer, rows[:3], machine, updates=4, batch_size=2)) == 4


@pytest.mark.parametrize(
    ("rows_in", "batch", "epochs", "updates"), [(600, 16, 1, 38), (32, 16, 2, 4), (1, 16, 1, 1), (33, 16, 0.5, 2)]
)
def test_updates_cover_every_row(rows_in, batch, epochs, updates):
    """ceil(ceil(rows / batch) x epochs): 600 / 16 = 37.5, so 38; 33 rows are 3 batches, half an epoch of them 2."""
    assert training.updates_for(settings(batch_size=batch, epochs=epochs), rows_in) == updates


def test_the_same_seed_makes_the_same_weights(make_model, tokenizer, rows, machine):
    """Two runs are equal bit for bit; another seed shuffles the rows differently, and so ends elsewhere."""
    made = []
    for seed in (3, 3, 4):
        made.append(make_model())
        run_sft(made[-1], tokenizer, rows, machine, updates=4, seed=seed, batch_size=1)
    assert torch.equal(weights(made[0]), weights(made[1]))
    assert not torch.equal(weights(made[0]), weights(made[2]))


def test_training_learns(make_model, tokenizer, rows, machine):
    """30 updates on four rows halve the loss."""
    log = run_sft(make_model(), tokenizer, rows, machine, updates=30)
    assert [entry["update"] for entry in log] == list(range(1, 31))
    assert log[-1]["loss"] < log[0]["loss"] / 2


@pytest.mark.trap(19)
def test_a_loss_that_is_no_number_stops_the_run(make_model, tokenizer, rows, machine):
    """Weights of NaN make the loss NaN: an error that names the update, not a model of NaN."""
    model = make_model()
    with torch.no_grad():
        model.model.norm.weight.fill_(math.nan)
    with pytest.raises(FloatingPointError, match=r"^loss is nan at update 1 of 2"):
        run_sft(model, tokenizer, rows, machine, updates=2)


@pytest.mark.trap(19)
@pytest.mark.parametrize("micro_batch", [None, 1])
def test_a_loss_that_is_no_number_names_the_rows_of_its_update(make_model, tokenizer, rows, machine, micro_batch):
    """Two rows an update, one of which makes the loss NaN (its embedding is): these two are named, no other."""
    model, poisoned = make_model(), len(tokenizer) - 1
    with torch.no_grad():
        model.model.embed_tokens.weight[poisoned] = math.nan
    model.lm_head.weight = torch.nn.Parameter(model.model.embed_tokens.weight.detach().nan_to_num().clone())
    bad = Example([*rows[3].prompt, poisoned], rows[3].completion)
    own = training.arguments(settings(batch_size=2), 2, 3, machine.model_copy(update={"micro_batch": micro_batch}))
    own |= {"output_dir": machine.scratch}
    with pytest.raises(FloatingPointError) as told:
        training.sft(model, tokenizer, [*rows[:3], bad], own, lambda n: None, ["one", "two", "three", "bad"])
    said = re.search(r"over the rows (.*): training cannot go on", str(told.value))
    named = said[1].split(", ")
    assert "bad" in named
    assert len(named) == 2


# --- DPO --------------------------------------------------------------------------------------------------------------


def by_hand(model, reference, pair, logprobs):
    """(sigmoid loss, NLL per chosen token, margin) in float64; see `training.dpo`."""
    sums = {}
    for name, own in (("policy", model), ("reference", reference)):
        for side, rows in zip(("chosen", "rejected"), pair, strict=True):
            sums[name, side] = np.array([logprobs(own, r.prompt, r.completion).sum() for r in rows])
    margin = BETA * (
        (sums["policy", "chosen"] - sums["reference", "chosen"])
        - (sums["policy", "rejected"] - sums["reference", "rejected"])
    )
    tokens = sum(len(r.completion) for r in pair[0])
    return np.log1p(np.exp(-margin)).mean(), -sums["policy", "chosen"].sum() / tokens, margin.mean()


@pytest.mark.trap(10)
def test_dpo_starts_at_ln_2(make_model, tokenizer, pair, machine):
    """Policy = reference: the margin is 0 for every pair, and -log sigma(0) = ln 2."""
    log = run_dpo(make_model(), make_model(), tokenizer, pair, machine)
    assert log[0]["loss"] == pytest.approx(math.log(2), abs=1e-6)
    assert log[0]["rewards/margins"] == pytest.approx(0, abs=1e-6)


@pytest.mark.trap(10, 16)
def test_the_nll_term_is_per_token_and_added(make_model, tokenizer, pair, machine, completion_logprobs):
    """Step 0 with nll_weight w: L = ln 2 + w x (-(1/N) sum log pi(chosen)), N the chosen tokens; here w = 0.5."""
    model = make_model()
    _, nll, _ = by_hand(model, model, pair, completion_logprobs)
    log = run_dpo(model, make_model(), tokenizer, pair, machine, nll_weight=0.5)
    assert log[0]["loss"] == pytest.approx(math.log(2) + 0.5 * nll, abs=1e-4)


@pytest.mark.parametrize("nll_weight", [0.0, 1.0])
def test_dpo_loss_is_equation_7(make_model, tokenizer, pair, machine, completion_logprobs, nll_weight):
    """L = mean of -log sigma(beta [(log pi - log ref)(chosen) - (log pi - log ref)(rejected)]) + w x NLL(chosen).

    log-probabilities are sums over the completion, end token included. Reference != policy; numpy, float64.
    """
    model, reference = make_model(1), make_model(2)
    loss, nll, margin = by_hand(model, reference, pair, completion_logprobs)
    log = run_dpo(model, reference, tokenizer, pair, machine, nll_weight)
    assert abs(margin) > 0.01
    assert log[0]["loss"] == pytest.approx(loss + nll_weight * nll, rel=1e-4)
    assert log[0]["rewards/margins"] == pytest.approx(margin, rel=1e-3, abs=1e-4)


@pytest.mark.trap(16)
def test_dpo_logs_the_sums_of_both_sides(make_model, tokenizer, pair, machine, completion_logprobs):
    """logps/chosen and logps/rejected are the means over pairs of the summed completion log-probabilities."""
    model = make_model(1)
    expected = [np.mean([completion_logprobs(model, r.prompt, r.completion).sum() for r in side]) for side in pair]
    log = run_dpo(model, make_model(2), tokenizer, pair, machine)
    assert [log[0]["logps/chosen"], log[0]["logps/rejected"]] == pytest.approx(expected, rel=1e-5)


def test_dpo_raises_the_margin(make_model, tokenizer, pair, machine):
    """20 updates move the policy towards the chosen plans."""
    log = run_dpo(make_model(), make_model(), tokenizer, pair, machine, updates=20)
    assert log[-1]["rewards/margins"] > 0.5


# --- DPO's reference --------------------------------------------------------------------------------------------------


@pytest.mark.trap(17)
def test_reference_log_probabilities_are_those_of_the_weights(root, folder, machine, make_model, pair):
    """Asked once per weights and row: a folder of the same name with other weights is asked anew, its card alone is not.

    Expected sums by tests/reference.py, in float64.
    """
    base = folder / "models" / "base"

    def told():
        stage = Stage("align_planner", params.load(root / "params.yaml"), machine, folder, {"round": "1", "prev": "0"})
        found = training.reference_logprobs(stage, base, *pair, list("abcd"))
        return found, stage.notes["requests"][0]["asked"]

    (first, asked), (again, asked_again) = told(), told()
    assert (asked, asked_again, again) == (8, 0, first)
    models.save(make_model(), base, {"stage": "other"}, folder / "tokenizer")
    assert told() == (first, 0)
    models.save(make_model(7), base, {"stage": "other"}, folder / "tokenizer")
    other, asked = told()
    assert asked == 8
    for found, seed in ((first, 0), (other, 7)):
        for side, expected in zip(found, summed(make_model(seed), *pair), strict=True):
            assert side == pytest.approx(expected, abs=1e-3)


@pytest.mark.trap(23)
def test_the_reference_is_gone_before_the_policy_is_loaded(stage, folder, pair, monkeypatch):
    """Two models are loaded, the second when nothing holds the first any more."""
    load, weights_of, alive = models.load_whole, [], []

    def watch(path, machine):
        alive.append([weights() is not None for weights in weights_of])
        model = load(path, machine)
        weights_of.append(weakref.ref(next(model.parameters())))
        return model

    monkeypatch.setattr(models, "load_whole", watch)
    base, target = folder / "models" / "base", folder / "models" / "planner" / "1"
    own = {"names": list("abcd"), "settings": align(), "seed": 0, "facts": {}}
    gc.disable()
    try:
        training.train_dpo(stage, start=base, reference=base, target=target, chosen=pair[0], rejected=pair[1], **own)
    finally:
        gc.enable()
    assert alive == [[], [False]]


# --- a training that is killed ----------------------------------------------------------------------------------------


@pytest.fixture
def train(root, folder, machine, rows, capsys):
    """Trains models/NAME for six updates with a checkpoint after each; `kill=n` ends it in update n + 1.

    Returns what was said.
    """

    def run(name, kill=None, rows=rows, seed=5, **changes):
        often = machine.model_copy(update={"checkpoint": 0, "scratch": str(folder / "scratch")})
        stage = Stage("cold_start", params.load(root / "params.yaml"), often, folder, {"role": "planner"})

        killed_after(stage, None if kill is None else kill + 1)
        own = {"names": list("abcd"), "settings": settings(**{"batch_size": 2, "epochs": 3} | changes), "seed": seed}
        base, target = folder / "models" / "base", folder / "models" / name
        training.train_sft(stage, start=base, target=target, rows=rows, facts={}, **own)
        return capsys.readouterr().out

    return run


def checkpoints(folder):
    return sorted(path.name for path in folder.glob("scratch/checkpoints/*/checkpoint-*"))


@pytest.mark.trap(47, 56)
def test_a_killed_training_goes_on_from_its_last_whole_checkpoint(train, folder):
    """To the weights of an undisturbed run, bit for bit; a newer checkpoint without the marker is torn, and deleted.

    What DVC would delete before the stage runs again, its outputs, holds nothing of it.
    """
    assert "going on" not in train("whole")
    with pytest.raises(KilledError):
        train("parts", kill=3)
    assert checkpoints(folder) == ["checkpoint-3"]
    assert sorted(path.name for path in (folder / "models").iterdir()) == ["base", "whole"]
    (whole,) = folder.glob("scratch/checkpoints/*/checkpoint-3")
    (whole.parent / "checkpoint-4").mkdir()
    (whole.parent / "checkpoint-4" / "model.safetensors").write_bytes(b"torn")
    assert "going on from update 3 of a run that was interrupted" in train("parts")
    assert digests(folder / "models" / "parts") == digests(folder / "models" / "whole")
    assert checkpoints(folder) == []


@pytest.mark.trap(17, 47)
@pytest.mark.parametrize("change", ["learning rate", "rows", "seed", "start"])
def test_another_training_does_not_go_on_from_it(train, folder, rows, make_model, change):
    """Other settings, other rows, another seed, or other weights in the folder of the same name: it starts anew."""
    with pytest.raises(KilledError):
        train("parts", kill=2)
    if change == "start":
        models.save(make_model(7), folder / "models" / "base", {"stage": "test"}, folder / "tokenizer")
    own = {"learning rate": {"learning_rate": 1e-3}, "rows": {"rows": rows[::-1]}, "seed": {"seed": 6}}
    assert "going on" not in train("parts", **own.get(change, {}))


# --- rows that cannot be learned from ---------------------------------------------------------------------------------


@pytest.mark.trap(12)
def test_an_over_length_row_is_refused_by_name():
    """Nothing is truncated: 3 + 2 tokens under a limit of 5 pass, one more does not."""
    rows = [Example([1, 5, 6], [7, END]), Example([1, 5, 6], [7, 8, END])]
    training.check_rows(rows[:1], ["first"], 5)
    with pytest.raises(training.RowError, match=r"row second has 6 tokens, over max_length 5"):
        training.check_rows(rows, ["first", "second"], 5)


@pytest.mark.trap(13)
def test_a_row_without_a_supervised_token_is_refused_by_name():
    """It would train on nothing and say nothing."""
    with pytest.raises(training.RowError, match=r"row second has no supervised token"):
        training.check_rows([Example([1], [END]), Example([1], [])], ["first", "second"], 5)


def test_no_rows_at_all_are_refused():
    """Every row was dropped before: the error points at the reasons."""
    with pytest.raises(training.RowError, match="no rows"):
        training.check_rows([], [], 5)


@pytest.mark.trap(12, 13)
@pytest.mark.parametrize("bad", [Example([1] * 300, [END]), Example([1, 5], [])])
def test_no_model_is_written_from_a_bad_row(stage, folder, bad):
    """train_sft and train_dpo refuse before they load a model, and leave no folder behind."""
    good, target = Example([1, 5], [6, END]), folder / "models" / "planner" / "1"
    with pytest.raises(training.RowError, match="row bad"):
        training.train_sft(
            stage,
            start=folder / "none",
            target=target,
            rows=[good, bad],
            names=["good", "bad"],
            settings=settings(),
            seed=0,
            facts={},
        )
    with pytest.raises(training.RowError, match="row bad"):
        training.train_dpo(
            stage,
            start=folder / "none",
            reference=folder / "none",
            target=target,
            chosen=[good, good],
            rejected=[good, bad],
            names=["good", "bad"],
            settings=align(),
            seed=0,
            facts={},
        )
    assert not target.parent.exists()


@pytest.mark.trap(12)
def test_rows_that_do_not_fit_are_dropped_and_counted():
    """Lengths 4, 5, 6 under 5: two kept, one counted, none cut."""
    rows = [(str(n), Example([1] * (n - 1), [END])) for n in (4, 5, 6)]
    kept, names, counts = fit(rows, 5)
    assert ([len(row) for row in kept], names) == ([4, 5], ["4", "5"])
    assert (counts.rows_in, counts.kept, list(counts.dropped.values())) == (3, 2, [1])


@pytest.mark.trap(12)
def test_a_pair_fits_when_both_plans_do(tokenizer):
    """The rejected plan's length counts as the chosen one's does; both sides stay aligned, with a shared prompt."""
    renderer, long = Renderer(tokenizer, "lumos"), "z" * 200
    rows = [
        {"task_id": name, "text": "t", "turn": None, "chosen": chosen, "rejected": rejected}
        for name, chosen, rejected in (("a", "c", long), ("b", "c", "r"), ("c", long, "r"))
    ]
    chosen, rejected, names, counts = planner_pairs(renderer, rows, 100)
    assert (names, counts.dropped) == (["b"], {"longer than max_length": 2})
    assert [row.prompt for row in chosen] == [row.prompt for row in rejected] == [renderer.planner_prompt("t")]


def test_each_role_learns_its_own_side_of_a_demonstration(tokenizer):
    """Planner: question to plan. Grounder: question, tools and plan to actions."""
    renderer = Renderer(tokenizer, "lumos")
    shown = pl.DataFrame([demo("d", text="q", subgoals="plan")], infer_schema_length=None)
    made = {role: demo_examples(renderer, shown, role, 1000)[0][0] for role in Role}
    text = {role: (renderer.decode(row.prompt), renderer.decode(row.completion)) for role, row in made.items()}
    assert text[Role.PLANNER][1] == "plan"
    assert "plan" not in text[Role.PLANNER][0].replace("Write a plan of", "")
    assert text[Role.GROUNDER][1] == "R1 = Calculator(1)"
    assert "grounded: plan" in text[Role.GROUNDER][0]
    assert documentation("arithmetic") in text[Role.GROUNDER][0]


# --- settings ---------------------------------------------------------------------------------------------------------


@pytest.mark.trap(15, 18)
@pytest.mark.parametrize("config", [SFTConfig, DPOConfig])
def test_no_default_of_a_library_decides_on_a_cpu(machine, config):
    """float32, no gradient checkpointing, no packing, no truncation, nothing reported, nothing dropped or saved."""
    made = config(**training.arguments(settings(), 1, 2**40, machine), output_dir=machine.scratch)
    assert (made.bf16, made.fp16, made.gradient_checkpointing, made.use_cpu) == (False, False, False, True)
    assert (made.max_length, made.report_to, str(made.save_strategy.value)) == (None, [], "no")
    assert (made.dataloader_drop_last, getattr(made, "packing", False), made.padding_free) == (False, False, False)


def test_a_micro_batch_must_divide_the_effective_batch(machine):
    """4 rows in micro-batches of 3 leave a remainder: an error that names both numbers."""
    with pytest.raises(training.BatchError, match=r"effective batch 4 .* micro_batch 3"):
        training.arguments(settings(), 1, 0, machine.model_copy(update={"micro_batch": 3}))


def test_warm_up_is_a_share_of_the_updates(machine):
    """3% of 101 updates are 3.03, rounded up to 4."""
    assert training.arguments(settings(warmup_ratio=0.03), 101, 0, machine)["warmup_steps"] == 4


# --- model folders ----------------------------------------------------------------------------------------------------


def digests(folder):
    return {p.name: hashlib.sha256(p.read_bytes()).hexdigest() for p in folder.iterdir()}


@pytest.mark.trap(57)
def test_equal_trainings_are_equal_folders(stage, folder, rows):
    """Two runs publish the same files of the same bytes; no training_args.bin, and the base model's own tokenizer."""
    made = []
    for name in ("one", "two"):
        target, start = folder / "models" / name, folder / "models" / "base"
        training.train_sft(
            stage,
            start=start,
            target=target,
            rows=rows,
            names=list("abcd"),
            settings=settings(),
            seed=5,
            facts={},
            updates=2,
        )
        made.append(digests(target))
    assert made[0] == made[1]
    assert "training_args.bin" not in made[0]
    base = digests(folder / "models" / "base")
    assert {n: d for n, d in made[0].items() if "token" in n} == {n: d for n, d in base.items() if "token" in n} != {}
    assert made[0]["model.safetensors"] != base["model.safetensors"]


@pytest.mark.trap(53)
def test_a_linked_model_is_replaced_and_the_cache_keeps_its_copy(folder, make_model):
    """A published folder's files are read-only hard links into the cache; saving again leaves every cached file alone."""
    target, cache = folder / "models" / "base", folder / "cache"
    cache.mkdir()
    for file in target.iterdir():
        file.chmod(0o444)
        (cache / file.name).hardlink_to(file)
    before = digests(cache)
    assert {"model.safetensors", "moat.json", "tokenizer.json"} < before.keys()
    models.save(make_model(9), target, {"stage": "other"}, folder / "tokenizer")
    assert digests(cache) == before
    after = digests(target)
    assert after.keys() == before.keys()
    assert all(after[name] != before[name] for name in ("model.safetensors", "moat.json"))


def test_a_saved_model_is_loaded_again(folder, machine, make_model):
    """Weights and tokenizer come back as they were."""
    model = models.load(folder / "models" / "base", machine)
    assert torch.equal(weights(model), weights(make_model()))
    assert models.load_tokenizer(folder / "models" / "base")("a 12").input_ids[0] == 1


def test_a_model_that_stays_is_copied_whole(folder):
    """The copy has the same files of the same bytes, shares none with the original, and says itself what it is."""
    base, copy = folder / "models" / "base", folder / "models" / "planner" / "1"
    models.copy(base, copy, {"stage": "align_planner"})
    card = json.loads((copy / "moat.json").read_text())
    assert card == {"stage": "align_planner", "copy_of": (folder / "models" / "base").as_posix()}
    before, after = digests(base), digests(copy)
    assert before.pop("moat.json") != after.pop("moat.json")
    assert before == after
    link = (folder / "models" / "planner" / "1" / "model.safetensors").stat().st_nlink
    assert link == 1


@pytest.mark.parametrize("call", [models.load, lambda path, machine: models.load_tokenizer(path)])
def test_a_missing_model_is_named(tmp_path, machine, call):
    """The error says which folder, and how to get it."""
    with pytest.raises(FileNotFoundError, match=r"nowhere: .*dvc repro"):
        call(tmp_path / "nowhere", machine)


@pytest.mark.trap(56)
def test_torn_weights_are_named(folder, machine):
    """A weights file cut in half: an error with the folder and the remedy."""
    target = folder / "models" / "torn"
    shutil.copytree(folder / "models" / "base", target)
    data = (target / "model.safetensors").read_bytes()
    (target / "model.safetensors").write_bytes(data[: len(data) // 2])
    with pytest.raises(OSError, match=r"torn cannot be loaded.*dvc checkout"):
        models.load(target, machine)


@pytest.mark.parametrize(
    ("name", "text"),
    [("tokenizer.json", ""), ("tokenizer.json", '{"a": 1}'), ("tokenizer_config.json", "")],
)
def test_a_damaged_tokenizer_is_named(folder, name, text):
    """Whatever the library stumbles over (a KeyError, say): the folder and the remedy."""
    target = folder / "models" / "damaged"
    shutil.copytree(folder / "models" / "base", target)
    (target / name).write_text(text)
    with pytest.raises(OSError, match=r"(?s)the tokenizer in .*damaged cannot be loaded.*dvc checkout"):
        models.load_tokenizer(target)


@pytest.mark.trap(56)
def test_a_missing_shard_is_named(folder, machine, make_model):
    """A model in several files of which one is gone: an error with the folder, the file and the remedy."""
    target = folder / "models" / "sharded"
    make_model().save_pretrained(target, max_shard_size="10KB")
    shards = sorted(target.glob("model-*.safetensors"))
    assert len(shards) > 2
    shards[1].unlink()
    with pytest.raises(OSError, match=rf"sharded cannot be loaded.*{shards[1].name}.*dvc checkout"):
        models.load(target, machine)


@pytest.mark.trap(18)
def test_the_automatic_dtype_of_a_cpu_is_float32():
    """bfloat16 on a CPU only when it is asked for by name."""
    assert models.device_and_dtype(Machine(device="cpu")) == ("cpu", "float32")
    assert models.device_and_dtype(Machine(device="cpu", dtype="bfloat16")) == ("cpu", "bfloat16")


def test_dpo_trainer_is_handed_the_rows_as_they_are(monkeypatch, make_model, tokenizer, pair, machine):
    """The batch holds each prompt with its chosen and its rejected completion, one BOS and one end token in each."""
    batches = []
    original = DPOTrainer.compute_loss

    def record(self, model, inputs, *args, **kwargs):
        batches.append({k: v.tolist() for k, v in inputs.items() if hasattr(v, "tolist")})
        return original(self, model, inputs, *args, **kwargs)

    monkeypatch.setattr(DPOTrainer, "compute_loss", record)
    run_dpo(make_model(), make_model(), tokenizer, pair, machine)
    (batch,) = batches
    kept = [
        [i for i, m in zip(ids, mask, strict=True) if m]
        for ids, mask in zip(batch["input_ids"], batch["attention_mask"], strict=True)
    ]
    assert sorted(kept) == sorted(row.prompt + row.completion for side in pair for row in side)
    assert all((ids.count(1), ids.count(END), ids[-1]) == (1, 1, END) for ids in kept)


def test_two_runs_of_one_training_have_checkpoints_apart(stage, folder):
    """A checkout and its experiments share the scratch folder; one must not write into, or clear, another's."""
    arguments = (stage, folder / "models" / "base", {"learning_rate": 1.0}, [[[1], [2]]])
    with training._checkpoints(*arguments) as first, training._checkpoints(*arguments) as second:
        assert first.folder != second.folder
    with training._checkpoints(*arguments) as third:
        assert third.folder == first.folder

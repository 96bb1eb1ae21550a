"""moat/adapters.py: adapters trained, written, read again and merged, and what is refused.

Everything runs as it does in a stage: on a folder with models/base, through train_sft and train_dpo.
"""

import hashlib
import json
import math
import shutil

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoTokenizer
from trl import DPOTrainer, SFTTrainer

from moat import adapters, layout, models, params, runners, training
from moat.adapters import AdapterError, Kind
from moat.base_models import scratch_model
from moat.engines.base import Decoding
from moat.engines.spec import Spec
from moat.machine import Machine
from moat.params import Align, Lora, Sft
from moat.provenance import content_hash
from moat.stage import Stage
from moat.tokens import Renderer
from tests.killing import KilledError, killed_after
from tests.reference import float64_weights, sft_loss, sums
from tests.vocabularies import KINDS

LORA = Lora(rank=4, alpha=8, dropout=0.0)
TOOLS = "Calculator(expression)"
TASKS = ("Ada Ash has 4 apples.", "Ben Bell has 90 coins. Ben Bell buys 7. Ben Bell loses 12 of them.", "x", "How many now?")
PLANS = ("Subgoal 1: Add 5 to 4", "no", "Subgoal 1: Add what comes in; Subgoal 2: Divide what there is", "Subgoal 1: Add")
ACTIONS = ("R1 = Calculator(4 + 5)", "R1 = R2", "R1 = 1", "R1 = Calculator(12 * 3); R2 = Calculator(R1 - 7); R3 = R2")
TRAIN = {"epochs": 3, "learning_rate": 1e-2, "batch_size": 4, "schedule": "constant", "warmup_ratio": 0}
TRAIN |= {"weight_decay": 0, "group_by_length": True}
BASE, ZERO, ONE = layout.BASE_MODEL, layout.model("planner", "0"), layout.model("planner", "1")
FILES = {"adapter_config.json", "adapter_model.safetensors", "moat.json", "tokenizer.json", "tokenizer_config.json"}


@pytest.fixture(scope="module")
def rows(tokenizer):
    renderer = Renderer(tokenizer, "lumos")
    return [renderer.grounder_example(*row) for row in zip(TASKS, [TOOLS] * 4, PLANS, ACTIONS, strict=True)]


@pytest.fixture(scope="module")
def pair(tokenizer):
    renderer = Renderer(tokenizer, "lumos")
    chosen = [renderer.planner_example(task, plan) for task, plan in zip(TASKS, PLANS, strict=True)]
    rejected = [renderer.planner_example(task, plan) for task, plan in zip(TASKS, PLANS[1:] + PLANS[:1], strict=True)]
    return chosen, rejected


@pytest.fixture
def place(tmp_path, make_model, tokenizer, monkeypatch):
    """A project's folder with models/base, and the current folder."""
    monkeypatch.chdir(tmp_path)
    tokenizer.save_pretrained("tokenizer")
    models.save(make_model(), BASE, {"stage": "base_model"}, tmp_path / "tokenizer")
    return tmp_path


@pytest.fixture
def train(root, place, rows, pair):
    """Trains as a stage does: `train(ZERO)` by SFT from the base, `train(ONE, ZERO, "dpo", kill=2)`."""

    def run(target, start=BASE, kind="sft", reference=None, lora=LORA, kill=None, **changes):
        settings = params.load(root / "params.yaml").model_copy(update={"lora": lora})
        machine = Machine(device="cpu", scratch=str(place / "scratch"), checkpoint=0)
        stage = Stage("cold_start", settings, machine, place, {"role": "planner"})

        killed_after(stage, None if kill is None else kill + 1)
        own = {"start": start, "target": target, "names": list("abcd"), "seed": 3, "facts": {"stage": "cold_start"}}
        how = TRAIN | {"max_grad_norm": 1.0} | changes
        if kind == "sft":
            training.train_sft(stage, rows=rows, settings=Sft(**how), **own)
        else:
            align = Align(**how, enabled=True, loss="dpo", beta=0.2, nll_weight=0)
            training.train_dpo(stage, reference=reference or start, chosen=pair[0], rejected=pair[1], settings=align, **own)
        return json.loads((target / "moat.json").read_text())

    return run


@pytest.fixture
def at_first_loss(monkeypatch):
    """`at_first_loss(look)`: a list to which `look(model)` is added before the first loss of every training.

    Looked at there and not afterwards: TRL's forward is the trained model's even in a copy.
    """

    def watch(look):
        seen, trainers = [], []

        def record(self, model, inputs, *args, **kwargs):
            if self not in trainers:
                trainers.append(self)
                seen.append(look(model))
            return originals[type(self).__mro__[2]](self, model, inputs, *args, **kwargs)

        originals = {trainer: trainer.compute_loss for trainer in (SFTTrainer, DPOTrainer)}
        for trainer in originals:
            monkeypatch.setattr(trainer, "compute_loss", record)
        return seen

    return watch


def machine(dtype="float32"):
    return Machine(device="cpu", dtype=dtype)


def factors(model):
    """The adapters' weights by name."""
    return {name: weight for name, weight in model.named_parameters() if "lora_" in name}


def digests(folder):
    return {p.name: hashlib.sha256(p.read_bytes()).hexdigest() for p in folder.iterdir()}


def logits(model, row):
    with torch.no_grad():
        return model(torch.tensor([row.prompt + row.completion])).logits[0]


def summed(model, rows):
    """log P of every row's completion, in the model's own dtype, a row at a time."""
    found = []
    for row in rows:
        said = torch.log_softmax(logits(model, row).float(), -1)[len(row.prompt) - 1 : -1]
        found.append(float(said.gather(-1, torch.tensor(row.completion)[:, None]).sum()))
    return found


def said_without(model, pair):
    """What a model with an adapter says of both sides when that is off."""
    with model.disable_adapter():
        return [summed(model, side) for side in pair]


# --- what is trained --------------------------------------------------------------------------------------------------


def test_a_fresh_adapter_is_the_base(make_model, rows):
    """Its second factor is zero."""
    model = adapters.fresh(make_model(), LORA, 3)
    assert torch.equal(logits(model, rows[0]), logits(make_model(), rows[0]))


def test_rank_0_trains_all_weights(make_model):
    model = make_model()
    assert adapters.fresh(model, Lora(rank=0, alpha=8, dropout=0.0), 3) is model
    assert adapters.merged(model) is model


def test_equal_seeds_start_equal_adapters(make_model):
    """The first factor is random; the run's seed decides it."""
    one, same, other = (factors(adapters.fresh(make_model(), LORA, seed)) for seed in (3, 3, 4))
    assert all(torch.equal(weight, same[name]) for name, weight in one.items())
    assert not all(torch.equal(weight, other[name]) for name, weight in one.items())


@pytest.mark.parametrize("kind", ["sft", "dpo"])
def test_the_adapters_alone_are_trained_and_merging_adds_them(train, make_model, kind):
    """Loaded for inference, every adapted layer is W + (alpha / rank) B A of the base's W; all else is the base's."""
    train(ONE, kind=kind)
    base, stored = make_model().state_dict(), load_file(ONE / adapters.WEIGHTS)
    whole = models.load(ONE, machine())
    assert type(whole) is type(make_model())
    assert not factors(whole)
    for name, weight in whole.state_dict().items():
        a, b = (stored.get(f"base_model.model.{name.removesuffix('.weight')}.lora_{side}.weight") for side in "AB")
        assert (a is not None) is ("_proj" in name)
        expected = base[name] if a is None else base[name] + 2.0 * (b @ a)
        assert torch.allclose(weight, expected, atol=1e-6)
        assert a is None or not torch.equal(weight, base[name])


def test_a_round_goes_on_from_the_adapter_of_the_one_before(train, rows, make_model):
    """Its first loss is that of the base with round 0's adapter added, in float64; the first of round 0 is the base's.

    The new adapter is another one, and the old one stays as it was.
    """
    first = train(ZERO)["log"][0]["loss"]
    before = digests(ZERO)
    started, config = models.load(ZERO, machine()), make_model().config
    second = train(ONE, ZERO)["log"][0]["loss"]
    expected = [sft_loss(float64_weights(model), config, rows).item() for model in (make_model(), started)]
    assert [first, second] == pytest.approx(expected, abs=1e-4)
    assert expected[0] - expected[1] > 0.5
    assert digests(ZERO) == before
    assert digests(ONE)[adapters.WEIGHTS] != before[adapters.WEIGHTS]


@pytest.mark.trap(10)
def test_the_first_dpo_loss_of_a_fresh_adapter_is_ln_2(train, pair, make_model, at_first_loss):
    """Reference: the base, asked by the engine, which is the policy with its adapter off. Margins 0 to 1e-5.

    What the policy says without its adapter (PEFT's disable_adapter) is what the reference was found to say, to 1e-4 nats.
    """
    seen = at_first_loss(lambda model: (sorted(factors(model)), said_without(model, pair)))
    log = train(ONE, kind="dpo")["log"]
    assert log[0]["loss"] == pytest.approx(math.log(2), abs=1e-5)
    assert log[0]["rewards/margins"] == pytest.approx(0, abs=1e-5)
    ((adapted, off),) = seen
    assert adapted
    reference = [sums(float64_weights(make_model()), make_model().config, side).tolist() for side in pair]
    for found, expected in zip(off, reference, strict=True):
        assert found == pytest.approx(expected, abs=1e-4)


@pytest.mark.trap(10)
def test_the_first_dpo_loss_of_a_continued_adapter_is_ln_2(train, pair, make_model, at_first_loss):
    """Reference: round 0's adapter, asked merged; the policy has it unmerged. Loss ln 2 and margins 0 to 1e-5.

    With its adapter off the policy is the base, and far from the reference: that would be the wrong one.
    """
    train(ZERO)
    seen = at_first_loss(lambda model: ([summed(model, side) for side in pair], said_without(model, pair)))
    log = train(ONE, ZERO, "dpo")["log"]
    assert log[0]["loss"] == pytest.approx(math.log(2), abs=1e-5)
    assert log[0]["rewards/margins"] == pytest.approx(0, abs=1e-5)
    reference = models.load(ZERO, machine())
    ((on_both, off_both),) = seen
    for side, on, off in zip(pair, on_both, off_both, strict=True):
        expected = sums(float64_weights(reference), reference.config, side).tolist()
        assert on == pytest.approx(expected, abs=1e-4)
        assert off == pytest.approx(summed(make_model(), side), abs=1e-5)
        assert max(abs(a - b) for a, b in zip(off, expected, strict=True)) > 0.3


@pytest.mark.trap(10)
def test_the_reference_may_be_the_cold_start(train, pair):
    """`reference: cold_start` in round 2: the margins are those of round 1's adapter against round 0's."""
    train(ZERO)
    train(ONE, ZERO, "dpo")
    log = train(layout.model("planner", "2"), ONE, "dpo", reference=ZERO)["log"]
    policy, reference = models.load(ONE, machine()), models.load(ZERO, machine())
    chosen, rejected = (np.subtract(summed(policy, side), summed(reference, side)) for side in pair)
    assert log[0]["rewards/margins"] == pytest.approx(0.2 * (chosen - rejected).mean(), abs=1e-4)
    assert log[0]["rewards/margins"] > 0.1


@pytest.mark.trap(10)
def test_dpo_keeps_one_adapter(train, at_first_loss):
    """TRL copies an adapter that it is handed, for its reference: the copy is gone before the first update."""
    seen = at_first_loss(
        lambda model: (
            list(model.peft_config),
            {n for n, w in model.named_parameters() if w.requires_grad} ^ set(factors(model)),
        )
    )
    train(ONE, kind="dpo")
    assert seen == [(["default"], set())]


# --- merged or not ----------------------------------------------------------------------------------------------------


def test_merging_changes_float32_by_rounding_alone(train, rows):
    """The logits of the merged model and of the base beside its adapter, which are up to 10, differ by less than 1e-4."""
    train(ONE, learning_rate=3e-2)
    apart = adapters.load(models.load(BASE, machine()), ONE)
    whole = models.load(ONE, machine())
    assert adapters.is_adapted(apart)
    assert not adapters.is_adapted(whole)
    for row in rows:
        assert torch.allclose(logits(apart, row), logits(whole, row), atol=1e-4, rtol=0)


def test_an_adapter_stays_beside_coarse_weights(train, pair):
    """bfloat16's step near 1 is 2^-8, so merging would swallow small updates: generation and scores come from both."""
    train(ONE)
    engine, exact = (models.open_hf(Spec("hf", ONE, BASE, machine(dtype))) for dtype in ("bfloat16", "float32"))
    assert {weight.dtype for weight in factors(engine.model).values()} == {torch.float32}
    chosen = pair[0]
    prompts, completions = [row.prompt for row in chosen], [row.completion for row in chosen]
    found, expected = (one.score(prompts, completions) for one in (engine, exact))
    assert max(abs(a - b).max() for a, b in zip(found, expected, strict=True)) < 0.3
    made = engine.generate(prompts, [1] * 4, Decoding(0.0, 1.0, 5))
    assert all(len(one.ids) == 5 or one.finish_reason == "stop" for one in made)


# --- a training that is killed ----------------------------------------------------------------------------------------


@pytest.mark.trap(47, 56)
@pytest.mark.parametrize("kind", ["sft", "dpo"])
def test_a_killed_training_of_an_adapter_ends_with_the_same_bytes(train, place, capsys, kind):
    """Of an adapter that goes on from round 0's, killed in its second update of three.

    A checkpoint with DPO's copy of the adapter in it would be read into that copy, and the policy begin anew.
    """
    train(ZERO)
    train(place / "models" / "whole", ZERO, kind)
    with pytest.raises(KilledError):
        train(place / "models" / "parts", ZERO, kind, kill=1)
    (kept,) = place.glob("scratch/checkpoints/*/checkpoint-*")
    assert {"adapter_model.safetensors", "complete"} <= {path.name for path in kept.iterdir()}
    assert not [path for path in kept.iterdir() if path.is_dir()]
    capsys.readouterr()
    train(place / "models" / "parts", ZERO, kind)
    assert "going on from update 1" in capsys.readouterr().out
    assert digests(place / "models" / "parts") == digests(place / "models" / "whole")


# --- what is written --------------------------------------------------------------------------------------------------


@pytest.mark.trap(57)
def test_a_folder_is_the_adapter_alone(train, place):
    """No weights of the base, nothing of the trainer's, no path; the tokenizer byte for byte, the base by its hash.

    Layers are listed in order: PEFT has them as a set, whose order differs between processes.
    """
    card = train(ZERO)
    assert {path.name for path in ZERO.iterdir()} == FILES
    assert (ZERO / "tokenizer.json").read_bytes() == (BASE / "tokenizer.json").read_bytes()
    assert card["base"] == content_hash(BASE, "moat.json")
    text = (ZERO / "adapter_config.json").read_text()
    assert str(place) not in text + (ZERO / "moat.json").read_text()
    config = json.loads(text)
    assert (config["base_model_name_or_path"], config["r"], config["lora_alpha"]) == ("models/base", 4, 8)
    assert config["target_modules"] == sorted(config["target_modules"])
    assert len(config["target_modules"]) == 2 * 7  # two layers of q, k, v, o, gate, up, down


def test_a_copied_adapter_stays_on_its_base(train):
    """`align.enabled: false`: the next round's folder is the same adapter, and its card names the base too."""
    train(ZERO)
    models.copy(ZERO, ONE, {"stage": "align_planner"})
    assert adapters.identity(ONE, content_hash) == adapters.identity(ZERO, content_hash)
    assert json.loads((ONE / "moat.json").read_text())["copy_of"] == "models/planner/0"


@pytest.mark.parametrize("name", sorted({name for name, _ in KINDS}))
def test_an_adapters_tokenizer_is_its_bases(place, vocabulary, name):
    """transformers looks at the model's configuration too when it chooses the tokenizer's class: it is the base's."""
    tokenizer = vocabulary(name)
    tokenizer.save_pretrained("own")
    models.save(scratch_model(len(tokenizer), 16, 1, 2, 64, 0), BASE, {}, place / "own")
    models.save(adapters.fresh(models.load(BASE, machine()), LORA, 0), ZERO, {"base": content_hash(BASE, "moat.json")})
    own, base = models.load_tokenizer(ZERO), AutoTokenizer.from_pretrained(BASE)
    assert type(own) is type(base)
    for text in (*PLANS, *ACTIONS, "Zoë's 3½ kites\n\n", "<s></s>"):
        assert own(text).input_ids == base(text).input_ids
        assert own.decode(own(text).input_ids) == base.decode(base(text).input_ids)


# --- what a folder holds ----------------------------------------------------------------------------------------------


def test_a_folder_is_a_whole_model_or_an_adapter(train):
    train(ZERO)
    assert (adapters.kind_of(BASE), adapters.kind_of(ZERO)) == (Kind.WHOLE, Kind.ADAPTER)
    assert adapters.parts(BASE) == [BASE]
    assert adapters.parts(ZERO) == [ZERO, BASE]
    assert adapters.parts(BASE, ZERO, ZERO) == [BASE, ZERO, ZERO, BASE]


def test_a_folder_with_neither_or_both_is_refused(train):
    """Neither: as a missing one. Both: nothing says which is meant."""
    train(ZERO)
    shutil.copyfile(BASE / "config.json", ZERO / "config.json")
    with pytest.raises(AdapterError, match=r"models/planner/0 holds a whole model and an adapter.*dvc checkout"):
        models.load(ZERO, machine())
    for name in ("config.json", "adapter_config.json"):
        (ZERO / name).unlink()
    with pytest.raises(FileNotFoundError, match=r"no model in models/planner/0.*dvc repro.*dvc pull"):
        models.load(ZERO, machine())


@pytest.mark.trap(17)
def test_identity_is_adapter_and_base_and_nothing_else(train, make_model):
    """What a journal keys answers by: another adapter or another base is another model; another card is not."""
    train(ZERO)
    first = adapters.identity(ZERO, content_hash)
    for card in (ZERO / "moat.json", BASE / "moat.json"):
        card.write_text(json.dumps(json.loads(card.read_text()) | {"more": 1}))
    assert adapters.identity(ZERO, content_hash) == first
    train(ZERO, learning_rate=2e-2)
    second = adapters.identity(ZERO, content_hash)
    (BASE / "generation_config.json").write_text("{}")
    recorded(ZERO, content_hash(BASE, "moat.json"))
    assert len({first, second, adapters.identity(ZERO, content_hash), content_hash(ZERO, "moat.json")}) == 4


def recorded(path, base):
    card = path / "moat.json"
    card.write_text(json.dumps(json.loads(card.read_text()) | {"base": base}))


# --- what is refused --------------------------------------------------------------------------------------------------


def test_an_adapter_of_another_base_is_refused_at_the_start(train, root, place, make_model):
    """By whoever asks it, trains it further, or takes it for a reference; nothing is loaded, nothing written."""
    train(ZERO)
    models.save(make_model(7), BASE, {"stage": "base_model"}, place / "tokenizer")
    said = r"models/planner/0 is an adapter of another base: .* models/base is [0-9a-f]{12}.*dvc checkout models/base"
    stage = Stage("sample", params.load(root / "params.yaml"), Machine(scratch=str(place / "s")), place)
    with pytest.raises(AdapterError, match=said):
        runners.runner(stage, ZERO, 0.0, "planner")
    for kind in ("sft", "dpo"):
        with pytest.raises(AdapterError, match=said):
            train(ONE, ZERO, kind)
    assert not ONE.exists()
    shutil.rmtree(BASE)
    with pytest.raises(
        FileNotFoundError, match=r"models/planner/0 is an adapter, and its base is not in models/base: .*pull"
    ):
        runners.runner(stage, ZERO, 0.0, "planner")


@pytest.mark.parametrize(
    ("lora", "start", "said"),
    [
        (Lora(rank=8, alpha=8, dropout=0.0), ZERO, r"the adapter in models/planner/0 has rank 4, and lora.rank is 8"),
        (Lora(rank=4, alpha=9, dropout=0.0), ZERO, r"the adapter in models/planner/0 has alpha 8, and lora.alpha is 9"),
        (Lora(rank=0, alpha=8, dropout=0.0), ZERO, r"models/planner/0 is an adapter, and lora.rank is 0"),
        (LORA, layout.model("grounder", "0"), r"models/grounder/0 is a whole model, and lora.rank is 4.*models/base alone"),
    ],
)
def test_a_start_of_other_settings_is_refused(train, make_model, lora, start, said):
    """With what to do; before the reference is asked anything."""
    train(ZERO)
    models.save(make_model(1), layout.model("grounder", "0"), {})
    for kind in ("sft", "dpo"):
        with pytest.raises(AdapterError, match=said + ".*dvc repro"):
            train(ONE, start, kind, lora=lora)
    assert not ONE.exists()


def test_dropout_may_be_another(train, at_first_loss):
    """It is no part of an adapter: the training's own counts."""
    train(ZERO)
    seen = at_first_loss(lambda model: {m.p for m in model.modules() if isinstance(m, torch.nn.Dropout)})
    train(ONE, ZERO, lora=Lora(rank=4, alpha=8, dropout=0.25))
    assert seen == [{0.25}]


def damaged(change):
    def do(path):
        weights = load_file(path / adapters.WEIGHTS)
        change(weights)
        save_file(weights, path / adapters.WEIGHTS)

    return do


def cut(path):
    data = (path / adapters.WEIGHTS).read_bytes()
    (path / adapters.WEIGHTS).write_bytes(data[: len(data) // 2])


A_FACTOR = "base_model.model.model.layers.1.mlp.up_proj.lora_A.weight"


@pytest.mark.trap(56)
@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (cut, r"the adapter in models/planner/0 cannot be loaded.*dvc checkout models/planner/0"),
        (lambda path: (path / adapters.WEIGHTS).unlink(), r"the adapter in models/planner/0 cannot be loaded"),
        (lambda path: (path / adapters.CONFIG).write_text("{"), r"adapter_config.json cannot be read"),
        (lambda path: (path / adapters.CONFIG).write_text("{}"), r"adapter_config.json describes no LoRA adapter"),
        (damaged(lambda w: w.pop(A_FACTOR)), r"of other layers.*it lacks base_model.*up_proj.lora_A.weight, of 1 tensors"),
        (damaged(lambda w: w.update(z=torch.zeros(1))), r"of other layers.*it has z, of 1 tensors"),
        (
            damaged(lambda w: w.update({A_FACTOR: torch.zeros(5, 16)})),
            r"another shape.*lora_A.weight is \[5, 16\], not \[4, 16\]",
        ),
    ],
)
def test_a_torn_adapter_is_named(train, damage, said):
    """Nothing of it is used: PEFT would warn of a missing factor and go on with a random one."""
    train(ZERO)
    damage(ZERO)
    with pytest.raises(AdapterError, match=said):
        models.load(ZERO, machine())
    with pytest.raises(AdapterError, match=said):
        train(ONE, ZERO)

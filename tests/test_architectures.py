"""What models are made of: moat/architectures.py."""

import json

import pytest

from moat.architectures import KNOWN, ArchitectureError, by_name, of_config, of_folder

# As the models' pages on the hub give them.
PARAMETERS = {
    "meta-llama/Llama-2-7b-hf": 6_738_415_616,
    "mistral-community/Mistral-7B-v0.2": 7_241_732_096,
    "Qwen/Qwen2.5-7B-Instruct": 7_615_616_512,
    "Qwen/Qwen2.5-14B": 14_770_033_664,
    "deepseek-ai/DeepSeek-R1-Distill-Qwen-32B": 32_763_876_352,
    "SmolLM2-135M-Instruct.Q4_1.gguf": 134_515_008,
}


@pytest.mark.parametrize("name", PARAMETERS)
def test_the_known_models_have_their_published_number_of_parameters(name):
    assert by_name(name).parameters == PARAMETERS[name]


def test_there_is_no_other_known_model():
    """Each entry is held to a published number above."""
    assert {by_name(name) for name in PARAMETERS} == {of_config(config, "") for config in KNOWN.values()}


def meta(config):
    """The model of a configuration without its numbers."""
    from accelerate import init_empty_weights
    from transformers import AutoConfig, AutoModelForCausalLM

    with init_empty_weights():
        model = AutoModelForCausalLM.from_config(AutoConfig.for_model(**config))
    model.tie_weights()
    return model


@pytest.mark.parametrize("name", KNOWN)
def test_parameters_are_those_of_transformers_model(name):
    """Of the whole model and of one layer."""
    model, counted = meta(KNOWN[name]), of_config(KNOWN[name], name)
    assert counted.parameters == sum(weight.numel() for weight in model.parameters())
    assert counted.layer == sum(weight.numel() for weight in model.model.layers[0].parameters())


@pytest.mark.parametrize("name", ["SmolLM2-135M", "Qwen2.5-7B"])
def test_adapters_are_those_of_peft(name):
    """On every linear map but the output layer's; two factors of the rank's width each."""
    from peft import LoraConfig, get_peft_model

    small = KNOWN[name] | {"num_hidden_layers": 2}
    adapted = get_peft_model(meta(small), LoraConfig(r=8, target_modules="all-linear", task_type="CAUSAL_LM"))
    assert of_config(small, name).adapters(8) == sum(w.numel() for w in adapted.parameters() if w.requires_grad)


def test_a_folder_is_read(tmp_path, model):
    """The tiny model's own; none where there is no configuration."""
    assert of_folder(tmp_path) is None
    model.save_pretrained(tmp_path)
    assert of_folder(tmp_path).parameters == sum(weight.numel() for weight in model.parameters())


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (
            json.dumps({"model_type": "gpt2"}),
            r"is a model of type 'gpt2'; `moat plan` counts those of llama, mistral, qwen2",
        ),
        ("{", r"config\.json is no model's configuration"),
        (json.dumps({"model_type": "llama"}), r"config\.json is no model's configuration \('num_attention_heads'\)"),
    ],
)
def test_a_model_that_cannot_be_counted_is_named(tmp_path, text, said):
    (tmp_path / "config.json").write_text(text, encoding="utf-8")
    with pytest.raises(ArchitectureError, match=said):
        of_folder(tmp_path)


def test_an_unknown_name_is_no_model():
    assert by_name("someone/else") is None

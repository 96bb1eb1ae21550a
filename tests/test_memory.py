"""The memory of training and engines, against what torch really allocates: moat/memory.py."""

from dataclasses import replace

import pytest

from moat.architectures import Architecture
from moat.memory import (
    GIB,
    Asking,
    Training,
    activations,
    generating,
    rows_at_once,
    scoring,
    served,
    states,
    training,
)

ARCH = Architecture(64, 2, 4, 2, 16, 128, 300, 512, tied=False)
HOW = Training(rows=8, length=128, rank=0, dtype="float32", device="cpu")
SEVEN = Architecture(4096, 32, 32, 32, 128, 11008, 32000, 4096, tied=False)  # Llama-2-7B


def llama(arch, attention="sdpa"):
    """A Llama of these sizes with random weights."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=arch.vocabulary,
        hidden_size=arch.hidden,
        intermediate_size=arch.intermediate,
        num_hidden_layers=arch.layers,
        num_attention_heads=arch.heads,
        num_key_value_heads=arch.kv_heads,
        tie_word_embeddings=arch.tied,
        max_position_embeddings=arch.positions,
        attn_implementation=attention,
        bos_token_id=1,
        eos_token_id=2,
        pad_token_id=0,
    )
    return LlamaForCausalLM(config)


@pytest.fixture
def train(tokenizer, tmp_path):
    """Trains a model of `arch` for two updates; gives it, and the most bytes that torch held beyond its weights."""

    def run(arch, how, loss="sft", attention="sdpa"):
        import torch

        from moat import adapters, params, training
        from moat.machine import Machine
        from moat.tokens import Example

        model = llama(arch, attention)
        model = adapters.fresh(model, params.Lora(rank=how.rank, alpha=8, dropout=0.0), 0)
        settings = params.Sft(
            epochs=1,
            learning_rate=1e-4,
            batch_size=how.rows // (2 if loss == "dpo" else 1),
            schedule="constant",
            warmup_ratio=0.0,
            weight_decay=0.0,
            max_grad_norm=1.0,
            group_by_length=False,
        )
        own = training.arguments(settings, 2, 0, Machine(device="cpu")) | {"output_dir": str(tmp_path)}
        own |= {"bf16": how.dtype == "bfloat16", "gradient_checkpointing": how.checkpointing}
        draw = torch.Generator().manual_seed(1)

        def ids(n):
            return torch.randint(3, arch.vocabulary, (n,), generator=draw).tolist()

        answer = how.length // 4
        rows = [Example(ids(how.length - answer), ids(answer)) for _ in range(2 * settings.batch_size)]
        others = [Example(row.prompt, ids(answer)) for row in rows]
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True) as profiler:
            if loss == "dpo":
                zeros = [0.0] * len(rows)
                training.dpo(model, (zeros, zeros), tokenizer, rows, others, own, 0.2, 0.0, lambda n: None)
            else:
                training.sft(model, tokenizer, rows, own, lambda n: None)
        held = most = 0
        for event in profiler.profiler.kineto_results.events():
            if event.name() == "[memory]":
                held += event.nbytes()
                most = max(most, held)
        return model, most

    return run


@pytest.mark.parametrize("rank", [0, 4])
def test_weights_gradients_and_optimiser_are_counted_to_the_byte(rank):
    """After a step of AdamW: every tensor of the model, of its gradients and of the optimiser's moments, added up."""
    import torch

    from moat import adapters, params

    model = adapters.fresh(llama(ARCH), params.Lora(rank=rank, alpha=8, dropout=0.0), 0)
    optimiser = torch.optim.AdamW([weight for weight in model.parameters() if weight.requires_grad], lr=1e-3)
    model(input_ids=torch.ones((1, 4), dtype=torch.long)).logits.sum().backward()
    optimiser.step()

    def size(tensors):
        return sum(tensor.numel() * tensor.element_size() for tensor in tensors)

    moments = [state[name] for state in optimiser.state.values() for name in ("exp_avg", "exp_avg_sq")]
    gradients = [weight.grad for weight in model.parameters() if weight.grad is not None]
    parts, host = states(ARCH, replace(HOW, rank=rank))
    assert parts == {"weights": size(model.parameters()), "gradients": size(gradients), "optimiser": size(moments)}
    assert host == 0


CASES = {
    "layers": (Architecture(128, 8, 4, 2, 32, 256, 300, 512, tied=False), HOW, "sft", "sdpa"),
    "wide": (Architecture(64, 4, 4, 4, 16, 512, 300, 512, tied=False), HOW, "sft", "sdpa"),
    "vocabulary": (Architecture(64, 1, 4, 4, 16, 128, 8000, 512, tied=False), HOW, "sft", "sdpa"),
    "bfloat16": (Architecture(128, 8, 4, 2, 32, 256, 300, 512, tied=False), replace(HOW, dtype="bfloat16"), "sft", "sdpa"),
    "checkpointing": (Architecture(128, 8, 4, 2, 32, 256, 300, 512, False), replace(HOW, checkpointing=True), "sft", "sdpa"),
    "adapters": (Architecture(128, 8, 4, 2, 32, 256, 300, 512, tied=False), replace(HOW, rank=4), "sft", "sdpa"),
    "eager": (Architecture(128, 8, 4, 2, 32, 256, 300, 512, tied=False), replace(HOW, eager=True), "sft", "eager"),
    "pairs": (Architecture(128, 8, 4, 2, 32, 256, 300, 512, tied=False), HOW, "dpo", "sdpa"),
}


@pytest.mark.parametrize("case", CASES)
def test_the_most_that_a_training_holds_is_foreseen(case, train):
    """By the trainers that are used here, counted by torch's profiler: at least two thirds of it, and at most 5% more."""
    arch, how, loss, attention = CASES[case]
    model, most = train(arch, how, loss, attention)
    weights = sum(weight.numel() * weight.element_size() for weight in model.parameters())
    foreseen = training(arch, how)
    assert foreseen.parts["weights"] == weights
    assert 2 / 3 <= most / (foreseen.total - weights) <= 1.05, foreseen.parts


def test_checkpointing_keeps_less_and_eager_attention_more():
    most = {
        name: activations(SEVEN, replace(HOW, dtype="bfloat16", device="cuda", length=1024, **own))
        for name, own in {"plain": {}, "checkpointing": {"checkpointing": True}, "eager": {"eager": True}}.items()
    }
    assert most["checkpointing"] < most["plain"] / 3
    assert most["eager"] > 1.5 * most["plain"]


@pytest.mark.parametrize(
    ("strategy", "dtype", "expected"),
    [
        # bytes a parameter on one of 8 devices: weights, gradients, optimiser
        ("plain", "float32", (4, 4, 8)),
        ("plain", "bfloat16", (4, 4, 8)),  # bfloat16 computes, float32 is kept
        ("ddp", "bfloat16", (4, 4, 8)),
        ("zero2", "bfloat16", (2, 2 / 8, 12 / 8)),
        ("zero3", "bfloat16", (2 / 8, 2 / 8, 12 / 8)),
        ("fsdp", "bfloat16", (4 / 8, 4 / 8, 8 / 8)),
    ],
)
def test_what_each_strategy_keeps_on_a_device(strategy, dtype, expected):
    """ZeRO's paper (Rajbhandari et al. 2020, figure 1): 2 + 2 + 12 bytes a parameter in mixed precision, shared by stage."""
    parts, _ = states(SEVEN, replace(HOW, strategy=strategy, dtype=dtype, processes=8))
    found = [parts[name] / SEVEN.parameters for name in ("weights", "gradients", "optimiser")]
    assert found == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize(("strategy", "left"), [("zero2", 2.0), ("zero3", 0.0), ("fsdp", 0.0)])
def test_offloading_moves_the_rest_into_the_computers_memory(strategy, left):
    """All processes' parts together; ZeRO-2's weights stay."""
    how = replace(HOW, strategy=strategy, dtype="bfloat16", processes=4, device="cuda")
    parts, host = states(SEVEN, replace(how, offload=True))
    before, none = states(SEVEN, how)
    assert none == 0
    assert sum(parts.values()) / SEVEN.parameters == left
    moved = sum(before.values()) - sum(parts.values())
    assert host == 4 * moved


def test_the_hf_engine_holds_its_cache():
    """Keys and values of every layer and token: of a real cache of the same sizes, one layer of it twice while it grows."""
    import torch
    from transformers import DynamicCache

    model = llama(ARCH).eval()
    how = Asking(rows=3, prompt=10, answer=6, dtype="float32")
    cache = DynamicCache(config=model.config)
    with torch.inference_mode():
        model(input_ids=torch.ones((3, 16), dtype=torch.long), past_key_values=cache, use_cache=True)
    held = sum(t.numel() * t.element_size() for layer in cache.layers for t in (layer.keys, layer.values))
    assert generating(ARCH, how).parts["cache"] == held + held // ARCH.layers


def test_scoring_is_dominated_by_the_logits_of_a_large_vocabulary():
    """256 answers of 100 tokens over 152,064 tokens, in bfloat16 and twice in float32: 39 GB."""
    qwen = Architecture(5120, 48, 40, 8, 128, 13824, 152064, 131072, tied=False, biased=True)
    own = scoring(qwen, Asking(256, 300, 100, "bfloat16"))
    assert own.parts["logits"] == 256 * 101 * 152064 * 10
    assert own.total > 60 * GIB


def test_vllm_has_no_room_where_the_weights_take_its_share():
    """Llama-2-7B, 13.5 GB, in 0.9 of 16 GiB: no row fits; in 0.9 of 80 GiB as many as its scheduler takes."""
    small, large = (served(SEVEN, "bfloat16", 0.9, 1, size * GIB) for size in (16, 80))
    assert rows_at_once(SEVEN, small, "bfloat16", 1, 1536) == 0
    cache = int(0.9 * 80 * GIB) - 2 * SEVEN.parameters - 3 * GIB
    assert large.parts["cache"] == cache
    assert rows_at_once(SEVEN, large, "bfloat16", 1, 1536) == cache // (2 * 32 * 4096 * 2 * 1536) < 256
    assert rows_at_once(SEVEN, large, "bfloat16", 1, 10) == 256

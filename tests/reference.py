"""What training does, written out in float64 from the weights alone: a Llama, the two losses, a step of AdamW.

One sequence at a time: no padding, no mask but the causal one, no cache, no batch, and nothing of transformers or TRL.
Weights are a dict of float64 tensors by the model's parameter names.
"""

import torch


def float64_weights(model):
    """A copy of the model's parameters, ready for gradients."""
    return {name: p.detach().double().clone().requires_grad_() for name, p in model.named_parameters()}


def _normalise(x, weight, epsilon):
    return weight * x / (x.pow(2).mean(-1, keepdim=True) + epsilon).sqrt()


def _rotate(x, angles):
    """Rotary positions; x is [heads, tokens, width], angles [tokens, width / 2]."""
    first, second = x.chunk(2, -1)
    return torch.cat([first * angles.cos() - second * angles.sin(), second * angles.cos() + first * angles.sin()], -1)


def logprobs(weights, config, row):
    """log P of every completion token of `row` given the tokens before it."""
    ids = torch.tensor([*row.prompt, *row.completion])
    tokens, heads = len(ids), config.num_attention_heads
    width = config.hidden_size // heads
    theta = config.rope_parameters["rope_theta"] ** (-torch.arange(0, width, 2).double() / width)
    angles = torch.outer(torch.arange(tokens).double(), theta)
    future = torch.ones(tokens, tokens).triu(1).bool()
    x = weights["model.embed_tokens.weight"][ids]
    for layer in range(config.num_hidden_layers):
        own = {name.split(f".{layer}.")[1]: w for name, w in weights.items() if f"layers.{layer}." in name}
        h = _normalise(x, own["input_layernorm.weight"], config.rms_norm_eps)
        query, key, value = (
            (h @ own[f"self_attn.{n}_proj.weight"].T).reshape(tokens, heads, width).transpose(0, 1) for n in "qkv"
        )
        scores = _rotate(query, angles) @ _rotate(key, angles).transpose(1, 2) / width**0.5
        mixed = scores.masked_fill(future, -torch.inf).softmax(-1) @ value
        x = x + mixed.transpose(0, 1).reshape(tokens, -1) @ own["self_attn.o_proj.weight"].T
        h = _normalise(x, own["post_attention_layernorm.weight"], config.rms_norm_eps)
        gate, up = h @ own["mlp.gate_proj.weight"].T, h @ own["mlp.up_proj.weight"].T
        x = x + (gate * gate.sigmoid() * up) @ own["mlp.down_proj.weight"].T
    last = _normalise(x, weights["model.norm.weight"], config.rms_norm_eps)[len(row.prompt) - 1 : -1]
    said = (last @ weights["model.embed_tokens.weight"].T).log_softmax(-1)
    return said[torch.arange(len(row.completion)), row.completion]


def sft_loss(weights, config, rows):
    """-(1/N) sum over rows and completion tokens of log P; N is the completion tokens of all rows."""
    total = torch.stack([logprobs(weights, config, row).sum() for row in rows]).sum()
    return -total / sum(len(row.completion) for row in rows)


def sums(weights, config, rows):
    """Summed completion log-probability of every row."""
    return torch.stack([logprobs(weights, config, row).sum() for row in rows])


def margins(policy, reference, config, pair, beta):
    """beta [(log pi - log ref)(chosen) - (log pi - log ref)(rejected)] of every pair."""
    chosen, rejected = (sums(policy, config, side) - sums(reference, config, side).detach() for side in pair)
    return beta * (chosen - rejected)


def dpo_loss(policy, reference, config, pair, beta):
    """-mean of log sigma(margin) (Rafailov et al. 2023, eq. 7)."""
    return torch.nn.functional.softplus(-margins(policy, reference, config, pair, beta)).mean()


def gradients(loss, weights):
    """d loss / d weight, by the weight's name."""
    return dict(zip(weights, torch.autograd.grad(loss, list(weights.values())), strict=True))


def first_adamw_step(weights, found, learning_rate, max_norm):
    """The weights after AdamW's first step without weight decay, on gradients clipped to `max_norm` all together.

    First step: both moments are the gradient's own after bias correction, so w - lr g / (|g| + 1e-8).
    """
    norm = torch.stack([g.pow(2).sum() for g in found.values()]).sum().sqrt()
    scale = min(1.0, max_norm / float(norm))
    moved = {}
    for name, weight in weights.items():
        g = scale * found[name]
        moved[name] = (weight.detach() - learning_rate * g / (g.abs() + 1e-8)).requires_grad_()
    return moved


def summed(model, *sides):
    """log P of every row's completion as floats, for each side: what DPO takes as its reference."""
    with torch.no_grad():
        return tuple([float(x) for x in sums(float64_weights(model), model.config, rows)] for rows in sides)

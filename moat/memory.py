"""How much memory training and engines take, in bytes on one device, worked out from a model's sizes (docs/scale.md).

What is counted is what the trainers and engines here really allocate: the dtype of the weights as they are loaded, TRL's
output layer, which makes its logits in tiles, the loop of the `hf` engine. Not counted: CUDA's own (a few hundred MiB) and
what the allocator loses to holes, for which `USABLE` leaves room.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from moat.architectures import Architecture

GIB = 2**30
USABLE = 0.92  # share of a device's memory that a plan may use
TILE = (4096, 32768)  # tokens and vocabulary of one tile of logits in TRL's output layer
TILE_COPIES = 8  # float32 tiles that it holds at once where it has no Triton, that is on a CPU
BUCKET = 500_000_000  # numbers that DeepSpeed gathers before it sends them (reduce_bucket_size)
LIVE = 1_000_000_000  # parameters that ZeRO-3 may hold gathered (stage3_max_live_parameters)
VLLM_OWN = 3 * GIB  # vLLM's activations, sampler and CUDA graphs; an assumption
SEQUENCES = 256  # vLLM's max_num_seqs

Dtype = Literal["float32", "bfloat16"]
Strategy = Literal["plain", "ddp", "fsdp", "zero2", "zero3"]


@dataclass(frozen=True, slots=True)
class Memory:
    """Bytes on one device by what holds them, and bytes in the computer's memory for all processes together."""

    parts: dict[str, int] = field(default_factory=dict)
    host: int = 0

    @property
    def total(self) -> int:
        """Bytes on one device."""
        return sum(self.parts.values())


@dataclass(frozen=True, slots=True)
class Training:
    """What decides the memory of a training. `rows` sequences of at most `length` tokens pass through the model at once
    (of a DPO pair both); `rank` 0 trains all weights.
    """

    rows: int
    length: int
    rank: int
    dtype: Dtype
    device: Literal["cpu", "cuda"]
    strategy: Strategy = "plain"
    processes: int = 1
    offload: bool = False
    checkpointing: bool = False
    eager: bool = False


def size_of(dtype: Dtype) -> int:
    """Bytes of a number."""
    return 4 if dtype == "float32" else 2


def states(arch: Architecture, how: Training) -> tuple[dict[str, int], int]:
    """Bytes of weights, gradients and optimiser on one device, and in the computer's memory by `offload`.

    P parameters, T of them trained, N processes. AdamW keeps two float32 numbers a trained parameter; DeepSpeed another, its
    own float32 copy of the weight. Under `plain`, `ddp` and `fsdp` bfloat16 is for computing alone: what is trained stays
    in float32.
    """
    whole, size, n = arch.parameters, size_of(how.dtype), how.processes
    trained = arch.adapters(how.rank) if how.rank else whole
    frozen = whole if how.rank else 0
    if how.strategy in ("zero2", "zero3"):
        weights, gradients, optimiser = size * (frozen + trained), size * trained, 12 * trained
    else:
        weights, gradients, optimiser = size * frozen + 4 * trained, 4 * trained, 8 * trained
    shared = {"ddp": (1, 1, 1), "zero2": (1, n, n), "zero3": (n, n, n), "fsdp": (n, n, n)}.get(how.strategy, (1, 1, 1))
    parts = {
        name: total // share
        for name, total, share in zip(
            ("weights", "gradients", "optimiser"), (weights, gradients, optimiser), shared, strict=True
        )
    }
    host = 0
    if how.offload:
        for name in ("gradients", "optimiser") if how.strategy == "zero2" else tuple(parts):
            host += n * parts[name]
            parts[name] = 0
    return parts, host


def gathered(arch: Architecture, how: Training) -> int:
    """Bytes that passing numbers between processes takes on one device: buckets, and parameters gathered for a layer."""
    size = size_of(how.dtype)
    trained = arch.adapters(how.rank) if how.rank else arch.parameters
    if how.strategy == "ddp":
        return 4 * trained  # gradients are reduced in buckets beside them
    if how.strategy == "zero2":
        return size * min(trained, BUCKET)
    if how.strategy == "zero3":
        return size * (min(arch.parameters, LIVE) + min(trained, BUCKET))
    if how.strategy == "fsdp":
        return size * (arch.embeddings + 2 * arch.layer) + 4 * (0 if how.rank else arch.layer)
    return 0


def activations(arch: Architecture, how: Training) -> int:
    """Bytes that are kept from the forward pass for the backward one, without the output layer.

    A layer keeps, for each token: of both norms their input in float32, the normed input, and what the linear maps read;
    query, keys and values as the attention reads them, and its result; of the feed-forward part four times its width. Eager
    attention also keeps its weights, for each pair of tokens. Checkpointing keeps the layers' inputs alone and one layer.
    """
    size = size_of(how.dtype)
    mixed = how.dtype == "bfloat16" and how.strategy in ("plain", "ddp") and not how.rank
    stream = 4 if mixed else size  # what runs through the layers is as precise as the embeddings
    norms = 2 * arch.hidden * (4 + stream + size)
    attention = size * (2 * arch.query + 2 * arch.kv)
    if how.eager:
        attention += arch.heads * how.length * (4 + 2 * size)
    # their input once more, as autocast turns it from and to float32
    adapters = size * sum(rows for rows, _ in arch.matrices()) if how.rank and size < 4 else 0
    token = norms + attention + size * 4 * arch.intermediate + adapters
    layers = arch.layers * stream * arch.hidden + token if how.checkpointing else arch.layers * token
    return how.rows * how.length * layers


def output_layer(arch: Architecture, how: Training) -> int:
    """Bytes of TRL's output layer: a tile of logits, its work on a CPU, and its own gradient in float32."""
    tokens = min(how.rows * how.length, TILE[0])
    tile = size_of(how.dtype) * tokens * TILE[1]
    if how.device == "cpu":
        tile += TILE_COPIES * 4 * tokens * min(arch.vocabulary, TILE[1])
    gradient = 0 if how.rank else 4 * arch.vocabulary * arch.hidden
    return tile + gradient + 4 * how.rows * how.length * arch.hidden


def training(arch: Architecture, how: Training) -> Memory:
    """The most that a training holds at a time.

    That is states and what is gathered, with the larger of two: activations, output layer and (bfloat16 over float32
    weights) the weights' bfloat16 copies, at the end of a forward pass; or the optimiser's intermediate numbers.
    """
    own, host = states(arch, how)
    trained = arch.adapters(how.rank) if how.rank else arch.parameters
    kept = {"activations": activations(arch, how), "logits": output_layer(arch, how)}
    if how.dtype == "bfloat16" and how.strategy in ("plain", "ddp") and not how.rank:
        kept["activations"] += 2 * arch.parameters
    share = how.processes if how.strategy in ("fsdp", "zero2", "zero3") else 1
    step = 0 if how.offload else 4 * trained // share
    if step > sum(kept.values()):
        kept = {"optimiser's step": step}
    parts = own | {"gathered": gathered(arch, how)} | kept
    return Memory({name: value for name, value in parts.items() if value}, host)


@dataclass(frozen=True, slots=True)
class Asking:
    """What decides the memory of an engine: rows at once, their prompts' and answers' lengths in tokens."""

    rows: int
    prompt: int
    answer: int
    dtype: Dtype
    nucleus: bool = False


def _pass(arch: Architecture, tokens: int, size: int) -> int:
    """Bytes of a forward pass that keeps nothing: the widest place is in the feed-forward part."""
    return tokens * (size * (3 * arch.intermediate + 2 * arch.hidden) + 8 * arch.hidden)


def generating(arch: Architecture, how: Asking) -> Memory:
    """The `hf` engine while it generates: weights, key-value cache, the prompts' pass, and what drawing a token takes."""
    size = size_of(how.dtype)
    cache = how.rows * (how.prompt + how.answer) * arch.cache(size)
    drawing = how.rows * arch.vocabulary * (48 if how.nucleus else 24)
    return Memory(
        {
            "weights": size * arch.parameters,
            "cache": cache + cache // arch.layers,  # a layer's is written anew when it grows
            "activations": _pass(arch, how.rows * how.prompt, size),
            "logits": drawing,
        }
    )


def scoring(arch: Architecture, how: Asking) -> Memory:
    """The `hf` engine while it scores: logits of the answers, in the model's dtype, in float32 and as log-probabilities."""
    size = size_of(how.dtype)
    logits = how.rows * (how.answer + 1) * arch.vocabulary * (8 if size == 4 else size + 8)
    return Memory(
        {
            "weights": size * arch.parameters,
            "activations": _pass(arch, how.rows * (how.prompt + how.answer), size),
            "logits": logits,
        }
    )


def served(arch: Architecture, dtype: Dtype, share: float, tensor_parallel: int, device: int) -> Memory:
    """vLLM on one of its devices: it takes `share` of the memory; what weights and its own work leave is cache.

    The cache is negative where the weights do not fit.
    """
    weights = size_of(dtype) * arch.parameters // tensor_parallel
    taken = int(share * device)
    return Memory({"weights": weights, "vLLM": VLLM_OWN, "cache": taken - weights - VLLM_OWN})


def rows_at_once(arch: Architecture, memory: Memory, dtype: Dtype, tensor_parallel: int, length: int) -> int:
    """Sequences of `length` tokens that vLLM's cache holds; its scheduler takes no more than SEQUENCES."""
    token = arch.cache(size_of(dtype)) // tensor_parallel
    return max(0, min(SEQUENCES, memory.parts["cache"] // (token * length)))

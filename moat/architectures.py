"""What a model is made of, for counting without loading it: a config.json's numbers, of a folder or known by name.

Decoders of Llama's kind: embeddings, layers of attention (grouped or not) and a gated feed-forward part, RMS norms, an
output layer that may share the embeddings. Llama, Mistral and Qwen2 are such (Qwen2 with a bias on query, key and value).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

TYPES = ("llama", "mistral", "qwen2")


class ArchitectureError(ValueError):
    """A model that cannot be counted; the message says which, and what would do."""


@dataclass(frozen=True, slots=True)
class Architecture:
    """A decoder's sizes; `biased`: query, key and value have a bias."""

    hidden: int
    layers: int
    heads: int
    kv_heads: int
    head_size: int
    intermediate: int
    vocabulary: int
    positions: int
    tied: bool
    biased: bool = False

    @property
    def query(self) -> int:
        """Width of all query heads together."""
        return self.heads * self.head_size

    @property
    def kv(self) -> int:
        """Width of all key heads together; the value heads have the same."""
        return self.kv_heads * self.head_size

    def matrices(self) -> list[tuple[int, int]]:
        """Inputs and outputs of a layer's linear maps: query, key, value, output, gate, up, down."""
        wide, narrow = self.intermediate, self.hidden
        attention = [(narrow, self.query), (narrow, self.kv), (narrow, self.kv), (self.query, narrow)]
        return [*attention, (narrow, wide), (narrow, wide), (wide, narrow)]

    @property
    def layer(self) -> int:
        """Parameters of one layer."""
        bias = self.query + 2 * self.kv if self.biased else 0
        return sum(rows * columns for rows, columns in self.matrices()) + bias + 2 * self.hidden

    @property
    def embeddings(self) -> int:
        """Parameters of the embeddings, and of the output layer where it has its own."""
        return self.vocabulary * self.hidden * (1 if self.tied else 2)

    @property
    def parameters(self) -> int:
        """All parameters; what two parts share counts once."""
        return self.embeddings + self.layers * self.layer + self.hidden

    def adapters(self, rank: int) -> int:
        """Parameters of low-rank adapters on every linear map but the output layer's."""
        return self.layers * sum(rank * (rows + columns) for rows, columns in self.matrices())

    def cache(self, size: int) -> int:
        """Bytes that one token takes in a key-value cache of numbers of `size` bytes."""
        return 2 * self.layers * self.kv * size


def of_config(config: Mapping[str, Any], name: str) -> Architecture:
    """The sizes in a config.json. Raises ArchitectureError for a kind of model that is not counted here."""
    kind = config.get("model_type")
    if kind not in TYPES:
        raise ArchitectureError(f"{name} is a model of type {kind!r}; `moat plan` counts those of {', '.join(TYPES)}")
    heads = config["num_attention_heads"]
    return Architecture(
        hidden=config["hidden_size"],
        layers=config["num_hidden_layers"],
        heads=heads,
        kv_heads=config.get("num_key_value_heads") or heads,
        head_size=config.get("head_dim") or config["hidden_size"] // heads,
        intermediate=config["intermediate_size"],
        vocabulary=config["vocab_size"],
        positions=config["max_position_embeddings"],
        tied=config.get("tie_word_embeddings", False),
        biased=kind == "qwen2",
    )


def of_folder(folder: Path) -> Architecture | None:
    """The sizes of the model in a folder; None when there is no config.json. Raises ArchitectureError."""
    path = folder / "config.json"
    if not path.is_file():
        return None
    try:
        return of_config(json.loads(path.read_text(encoding="utf-8")), str(folder))
    except (ValueError, KeyError, TypeError) as error:
        if isinstance(error, ArchitectureError):
            raise
        raise ArchitectureError(f"{path} is no model's configuration ({error})") from error


def _config(kind: str, sizes: tuple[int, int, int, int, int], vocabulary: int, positions: int, tied: bool) -> dict[str, Any]:
    hidden, layers, heads, kv_heads, intermediate = sizes
    return {
        "model_type": kind,
        "hidden_size": hidden,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "intermediate_size": intermediate,
        "vocab_size": vocabulary,
        "max_position_embeddings": positions,
        "tie_word_embeddings": tied,
    }


# From the models' public config.json files, by a part of their names: hidden, layers, heads, key-value heads, intermediate;
# vocabulary, positions, whether the output layer shares the embeddings.
KNOWN = {
    "Llama-2-7b": _config("llama", (4096, 32, 32, 32, 11008), 32000, 4096, False),
    "Mistral-7B": _config("mistral", (4096, 32, 32, 8, 14336), 32000, 32768, False),
    "Qwen2.5-7B": _config("qwen2", (3584, 28, 28, 4, 18944), 152064, 32768, False),
    "Qwen2.5-14B": _config("qwen2", (5120, 48, 40, 8, 13824), 152064, 131072, False),
    "DeepSeek-R1-Distill-Qwen-32B": _config("qwen2", (5120, 64, 40, 8, 27648), 152064, 131072, False),
    "SmolLM2-135M": _config("llama", (576, 30, 9, 3, 1536), 49152, 8192, True),
}


def by_name(name: str) -> Architecture | None:
    """The sizes of a model that is known by its hub id or file name; None for another."""
    for part, config in KNOWN.items():
        if part.lower() in name.lower():
            return of_config(config, part)
    return None

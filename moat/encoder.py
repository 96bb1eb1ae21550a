"""A sentence encoder: any model of transformers' AutoModel, mean pooling over its tokens. Loads torch."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from transformers import AutoModel, AutoTokenizer

from moat.corpus import CorpusError, Encoder

BATCH = 32  # texts encoded at once: part of the last bits of a vector, so fixed here and no machine setting


def open_encoder(folder: Path, longest: int = 512) -> Encoder:
    """The encoder in a model folder; float32 on the CPU. A text counts with its first `longest` tokens.

    The vector of a text is the mean of the last layer's over its tokens, special ones included, at length 1.
    Raises CorpusError when the folder holds no such model.
    """
    try:
        tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True)
        model = AutoModel.from_pretrained(folder, dtype=torch.float32, local_files_only=True).eval()
    except (OSError, ValueError, KeyError) as error:
        raise CorpusError(f"no sentence encoder in {folder} ({error}): name a model folder as tools.qa.encoder") from error
    bound = min(longest, getattr(model.config, "max_position_embeddings", longest))
    if tokenizer.pad_token is None:
        tokenizer.pad_token = tokenizer.eos_token

    def encode(texts: Sequence[str]) -> np.ndarray:
        made = []
        for start in range(0, len(texts), BATCH):
            batch = tokenizer(
                list(texts[start : start + BATCH]),
                padding=True,
                truncation=True,
                max_length=bound,
                split_special_tokens=True,
                return_tensors="pt",
                return_token_type_ids=False,
            )
            with torch.no_grad():
                hidden = model(**batch).last_hidden_state
            mask = batch["attention_mask"].unsqueeze(-1)
            mean = (hidden * mask).sum(1) / mask.sum(1).clamp(min=1)
            made.append(torch.nn.functional.normalize(mean, dim=-1).numpy())
        vectors: np.ndarray = np.concatenate(made).astype(np.float32)
        return vectors

    return encode

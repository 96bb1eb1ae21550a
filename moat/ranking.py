"""How well each element of a page fits a query, by its words or by a cross-encoder.

A ranker is a function (query, elements) -> one score per element, higher is better, -inf for an element that does not fit
at all. It knows nothing of the operation, and its scores are compared within one page only.
"""

from __future__ import annotations

import math
import re
import unicodedata
from collections import Counter
from collections.abc import Callable, Sequence

from moat.page import Element

Ranker = Callable[[str, Sequence[Element]], list[float]]
"""(query, elements) -> one score per element; -inf: does not fit at all."""

K1, B = 1.2, 0.75  # BM25's usual constants: how soon repeats saturate, how much length counts

_WORD = re.compile(r"[^\W_]+")


def words(text: str) -> list[str]:
    """The words of a text for matching: compatibility-composed, casefolded runs of letters and digits."""
    return _WORD.findall(unicodedata.normalize("NFKC", text).casefold())


def bm25(query: str, texts: Sequence[str]) -> list[float]:
    """BM25 of each text for the query's distinct words, the texts being the collection; -inf where none is shared.

    Robertson and Zaragoza 2009, with the inverse document frequency kept positive, log(1 + (N - n + 0.5) / (n + 0.5)).
    """
    counts = [Counter(words(text)) for text in texts]
    lengths = [count.total() for count in counts]
    mean = sum(lengths) / len(lengths) if any(lengths) else 1.0
    rarity = _rarity(query, counts)
    scores = []
    for count, length in zip(counts, lengths, strict=True):
        norm = K1 * (1 - B + B * length / mean)
        parts = [weight * count[word] * (K1 + 1) / (count[word] + norm) for word, weight in rarity if word in count]
        scores.append(math.fsum(parts) if parts else -math.inf)
    return scores


def coverage(query: str, texts: Sequence[str]) -> list[float]:
    """How much of the query each text covers: the sum of the rarities of the words shared; -inf where none is.

    Unlike BM25 it asks only whether a word is there: no text beats one that holds every word of the query.
    """
    counts = [Counter(words(text)) for text in texts]
    rarity = _rarity(query, counts)
    shared = [[weight for word, weight in rarity if word in count] for count in counts]
    return [math.fsum(parts) if parts else -math.inf for parts in shared]


def lexical(query: str, elements: Sequence[Element]) -> list[float]:
    """The default ranker: BM25 over all that the elements say. Needs no download; equal on every machine up to rounding."""
    return bm25(query, [element.words() for element in elements])


def cross_encoder(
    name: str, *, revision: str | None = None, batch_size: int = 32, max_tokens: int = 256, device: str = "cpu"
) -> Ranker:
    """A ranker that reads query and element together with a transformers sequence classifier of one or two labels.

    `name` is a local folder or a hub id; weights are safetensors only, computed in float32, and no code of the model's own
    is run. The score is the only label's logit, or that of label 1 less that of label 0. Element texts over `max_tokens`
    (query and element together) are cut. Raises OSError when the model is not there, ValueError for more labels.
    """
    import torch
    from transformers import AutoModelForSequenceClassification, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(name, revision=revision)
    model = AutoModelForSequenceClassification.from_pretrained(
        name, revision=revision, dtype=torch.float32, use_safetensors=True
    ).to(device)
    model.eval()
    labels = model.config.num_labels
    if labels not in (1, 2):
        raise ValueError(f"{name} has {labels} labels; a ranker has one (the score) or two (no, yes)")

    @torch.inference_mode()
    def rank(query: str, elements: Sequence[Element]) -> list[float]:
        scores: list[float] = []
        for start in range(0, len(elements), batch_size):
            texts = [element.words() for element in elements[start : start + batch_size]]
            batch = tokenizer(
                [query] * len(texts), texts, truncation=True, max_length=max_tokens, padding=True, return_tensors="pt"
            ).to(device)
            logits = model(**batch).logits
            scores += (logits[:, 0] if labels == 1 else logits[:, 1] - logits[:, 0]).tolist()
        return scores

    return rank


def _rarity(query: str, counts: Sequence[Counter[str]]) -> list[tuple[str, float]]:
    """Inverse document frequency of each distinct word of the query, in the query's order."""
    total = len(counts)
    found = {word: sum(word in count for count in counts) for word in words(query)}
    return [(word, math.log(1 + (total - n + 0.5) / (n + 0.5))) for word, n in found.items()]

"""The `hf` engine: batched sampling and scoring with transformers; the reference for every other engine.

Sampling is a plain decode loop over a key-value cache. It differs from `model.generate` in two points: each request draws
from its own random numbers, so a row's text does not depend on which rows share its batch (up to float rounding); and
equal prompts of a batch (the samples of one task, the turns drawn at one node of a tree, the labels of a judged step) are
read once; so it is in scoring.
Greedy decoding equals `model.generate` token for token (tested).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import numpy as np
import torch
from transformers import DynamicCache, PreTrainedModel

from moat.engines.base import Decoding, EngineError, FinishReason, Generation


def _left_pad(rows: Sequence[Sequence[int]], pad: int, device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    """Ids and attention mask, each [rows, longest], aligned at the right edge."""
    width = max(map(len, rows))
    ids = torch.full((len(rows), width), pad, dtype=torch.long)
    mask = torch.zeros((len(rows), width), dtype=torch.long)
    for index, row in enumerate(rows):
        ids[index, width - len(row) :] = torch.tensor(row, dtype=torch.long)
        mask[index, width - len(row) :] = 1
    return ids.to(device), mask.to(device)


def _positions(mask: torch.Tensor) -> torch.Tensor:
    return (mask.cumsum(-1) - 1).clamp(min=0)


def _chosen(logits: torch.Tensor, targets: torch.Tensor) -> np.ndarray:
    """Log-probabilities (nats, float32) of the targets [rows, tokens], from logits [rows, tokens, vocabulary]."""
    found: np.ndarray = torch.log_softmax(logits.float(), dim=-1).gather(-1, targets[..., None])[..., 0].cpu().numpy()
    return found


def choose(logits: torch.Tensor, uniform: torch.Tensor, decoding: Decoding) -> torch.Tensor:
    """Next token of each row by the inverse of the cumulative distribution.

    `logits` [rows, vocabulary], `uniform` [rows] in [0, 1). Nucleus: the smallest set of tokens, most probable first, whose
    probability reaches `top_p`.
    """
    if decoding.temperature == 0:
        return logits.argmax(-1)
    probabilities = torch.softmax(logits.float() / decoding.temperature, dim=-1)
    if decoding.top_p < 1:
        ordered, order = probabilities.sort(dim=-1, descending=True, stable=True)
        outside = ordered.cumsum(-1) - ordered >= decoding.top_p
        probabilities = probabilities.masked_fill(outside.gather(-1, order.argsort(-1)), 0.0)
    cumulative = probabilities.double().cumsum(-1)
    target = uniform.double() * cumulative[:, -1]
    return torch.searchsorted(cumulative, target[:, None], right=True)[:, 0].clamp(max=logits.shape[-1] - 1)


@contextmanager
def _memory() -> Iterator[None]:
    """Out of GPU memory is an EngineError: a smaller batch may fit."""
    try:
        yield
    except torch.OutOfMemoryError as error:
        torch.cuda.empty_cache()
        raise EngineError(f"out of GPU memory: {error}") from error


class HFEngine:
    """One model, ready to generate and to score. Rows are the caller's batches: a call is one batch."""

    def __init__(self, model: PreTrainedModel, pad: int, end: int) -> None:
        self.model = model
        self.pad = pad
        self.end = end
        self.device = next(model.parameters()).device

    @_memory()
    @torch.inference_mode()
    def generate(self, prompts: Sequence[Sequence[int]], seeds: Sequence[int], decoding: Decoding) -> list[Generation]:
        """Continue each prompt until its end token or `max_new_tokens`; one seed a row. Results in the prompts' order."""
        place: dict[tuple[int, ...], int] = {}
        rows = [place.setdefault(tuple(prompt), len(place)) for prompt in prompts]
        ids, mask = _left_pad(list(place), self.pad, self.device)
        limit = decoding.max_new_tokens
        if decoding.temperature:
            draws = np.stack([np.random.Generator(np.random.PCG64(seed)).random(limit) for seed in seeds])
            uniform = torch.from_numpy(draws).to(self.device)
        else:
            uniform = torch.zeros((len(prompts), limit), device=self.device)
        cache = DynamicCache(config=self.model.config)
        produced: list[list[int]] = [[] for _ in prompts]
        reasons = [FinishReason.LENGTH] * len(prompts)
        logprobs = [0.0] * len(prompts)
        alive = list(range(len(prompts)))  # the prompts' indices of the rows still in the batch
        done = [False] * len(prompts)
        positions = _positions(mask)
        for step in range(limit):
            logits = self.model(
                input_ids=ids,
                attention_mask=mask,
                position_ids=positions,
                past_key_values=cache,
                use_cache=True,
                logits_to_keep=1,
            ).logits[:, -1]
            if step == 0 and len(place) < len(prompts):  # each prompt was read once: from here on a row for each request
                repeated = torch.tensor(rows, device=self.device)
                cache.batch_select_indices(repeated)
                logits, mask, positions = logits[repeated], mask[repeated], positions[repeated]
            tokens = choose(logits, uniform[:, step], decoding)
            said = torch.log_softmax(logits.float(), dim=-1).gather(-1, tokens[:, None])[:, 0]
            for index, token, logprob in zip(alive, tokens.tolist(), said.tolist(), strict=True):
                if done[index]:
                    continue
                logprobs[index] += logprob
                if token == self.end:
                    done[index] = True
                    reasons[index] = FinishReason.STOP
                else:
                    produced[index].append(token)
            keep = [row for row, index in enumerate(alive) if not done[index]]
            if not keep:
                break
            if len(keep) <= len(alive) // 2:  # leave finished rows behind once they are half of the batch
                kept = torch.tensor(keep, device=self.device)
                cache.batch_select_indices(kept)
                alive = [alive[row] for row in keep]
                tokens, mask, uniform, positions = tokens[kept], mask[kept], uniform[kept], positions[kept]
            ids = tokens[:, None]
            mask = torch.cat([mask, mask.new_ones((len(alive), 1))], dim=1)
            positions = positions[:, -1:] + 1
        return [Generation(*made) for made in zip(produced, reasons, logprobs, strict=True)]

    @_memory()
    @torch.inference_mode()
    def score(self, prompts: Sequence[Sequence[int]], completions: Sequence[Sequence[int]]) -> list[np.ndarray]:
        """Log-probability (nats, float32) of every completion token given its prompt and the tokens before it.

        Raises ValueError when a prompt or a completion is empty.
        """
        if not all(prompts) or not all(completions):
            raise ValueError("scoring needs at least one prompt token and one completion token in every row")
        place: dict[tuple[int, ...], int] = {}
        rows = [place.setdefault(tuple(prompt), len(place)) for prompt in prompts]
        if len(place) < len(prompts):
            return self._score_shared(list(place), rows, completions)
        ids, mask = _left_pad([[*p, *c] for p, c in zip(prompts, completions, strict=True)], self.pad, self.device)
        longest = max(map(len, completions))
        logits = self.model(
            input_ids=ids,
            attention_mask=mask,
            position_ids=_positions(mask),
            use_cache=False,
            logits_to_keep=longest + 1,
        ).logits[:, :-1]
        chosen = _chosen(logits, ids[:, -longest:])
        return [chosen[row, longest - len(completion) :] for row, completion in enumerate(completions)]

    def _score_shared(
        self, prompts: Sequence[Sequence[int]], rows: Sequence[int], completions: Sequence[Sequence[int]]
    ) -> list[np.ndarray]:
        """As `score`, where `rows` gives the number of each completion's prompt: a prompt is read once."""
        ids, mask = _left_pad(prompts, self.pad, self.device)
        cache = DynamicCache(config=self.model.config)
        own = torch.tensor(rows, device=self.device)
        logits = self.model(
            input_ids=ids,
            attention_mask=mask,
            position_ids=_positions(mask),
            past_key_values=cache,
            use_cache=True,
            logits_to_keep=1,
        ).logits[own]
        longest = max(map(len, completions))
        said, there = torch.full((2, len(rows), longest), self.pad, dtype=torch.long)
        for row, completion in enumerate(completions):
            said[row, : len(completion)] = torch.tensor(completion, dtype=torch.long)
            there[row] = torch.arange(longest) < len(completion)
        said = said.to(self.device)
        if longest > 1:
            cache.batch_select_indices(own)
            mask = torch.cat([mask[own], there[:, :-1].to(mask)], dim=1)
            more = self.model(
                input_ids=said[:, :-1],
                attention_mask=mask,
                position_ids=_positions(mask)[:, 1 - longest :],
                past_key_values=cache,
                use_cache=True,
            ).logits
            logits = torch.cat([logits, more], dim=1)
        chosen = _chosen(logits, said)
        return [chosen[row, : len(completion)] for row, completion in enumerate(completions)]

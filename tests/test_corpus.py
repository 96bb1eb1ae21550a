"""Finding passages: moat/corpus.py, moat/encoder.py and moat/schemas/passages.py."""

import math
import os
import subprocess
import sys

import numpy as np
import pytest

from moat import corpus
from moat.corpus import CorpusError
from moat.schemas.passages import PASSAGES, passage_id, rows
from moat.sources.base import Passage

OWL = Passage("Barn owl", "The barn owl hunts mice at night.")
OWL_TOO = Passage("Barn owl", "A barn owl lays about five eggs.")
HERON = Passage("Grey heron", "The heron hunts fish by day.")
BLANK = Passage("", "")
BIRDS = [OWL, OWL_TOO, HERON, BLANK]


def files(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def lucene(texts, query, k1=1.5, b=0.75):
    """BM25 in Lucene's form, written out: sum of ln(1 + (N - n + 0.5)/(n + 0.5)) * tf / (tf + k1(1 - b + b*length/mean))."""
    mean = sum(map(len, texts)) / len(texts)
    scores = []
    for text in texts:
        score = 0.0
        for word in query:
            n, tf = sum(word in other for other in texts), text.count(word)
            idf = math.log(1 + (len(texts) - n + 0.5) / (n + 0.5))
            score += idf * tf / (tf + k1 * (1 - b + b * len(text) / mean))
        scores.append(score)
    return scores


def test_scores_are_bm25():
    """Against the formula by hand, a repeated query word counted twice and an unknown one not at all."""
    texts = ["a b b c", "a c", "", "d d d a b"]
    found = corpus.Words.build(texts).scores("b d b zebra")
    assert found == pytest.approx(lucene([text.split() for text in texts], ["b", "d", "b"]), abs=1e-6)


def test_the_best_come_first_and_equal_ones_by_id():
    """Title and text are both searched; a text that shares no word is not found; n bounds."""
    same = [Passage("x", f"pear plum{i}") for i in range(6)]
    made = corpus.build([*BIRDS, *same])
    assert made.search("the grey HERON's fish", 1) == [HERON]
    assert {OWL, HERON} <= set(made.search("hunts", 10))
    assert OWL_TOO not in made.search("hunts", 10)
    assert made.search("pear", 4) == sorted(same, key=passage_id)[:4]
    assert made.search("zebra", 10) == made.search("", 10) == made.search("?!", 10) == []


def test_titles_are_compared_after_normalising():
    made = corpus.build([*BIRDS, Passage("Straße", "a road")])
    assert set(made.titled("  barn_OWL ")) == {OWL, OWL_TOO}
    assert made.titled("Barn") == made.titled("Barn owl 2") == []
    assert made.titled("STRASSE") == [Passage("Straße", "a road")]


def test_ranking_takes_any_passages_and_keeps_their_order_in_a_tie():
    """All are ranked, also those that share no word with the query."""
    new = Passage("Mouse", "Mice eat seeds.")
    made = corpus.build([OWL])
    assert made.rank("seeds mice", [HERON, OWL, new], 3) == [new, OWL, HERON]
    assert made.rank("seeds mice", [HERON, OWL, new], 1) == [new]
    assert made.rank("zebra", [HERON, OWL, new], 2) == [HERON, OWL]
    assert made.rank("zebra", [], 2) == []


def test_every_passage_is_found_by_its_own_words():
    """An oracle corpus: of 60 passages with a word of their own each, that word finds its passage first."""
    passages = [Passage(f"page {i % 7}", f"common words here own{i}own and more common words") for i in range(60)]
    for order in (passages, passages[::-1]):
        made = corpus.build(order)
        assert [made.search(f"common own{i}own", 1) for i in range(60)] == [[one] for one in passages]


def test_an_index_comes_back_from_its_folder(tmp_path):
    made = corpus.build(BIRDS)
    corpus.save(made, tmp_path / "index", {"stage": "index"})
    back = corpus.load(tmp_path / "index", BIRDS[::-1])
    for query in ("barn owl at night", "hunts", "", "zebra", "five"):
        assert np.array_equal(back.index.scores(query), made.index.scores(query))
        assert back.search(query, 3) == made.search(query, 3)
    assert back.titled("barn owl") == made.titled("barn owl")


def test_equal_passages_are_equal_bytes(tmp_path):
    """In another order, with repeats, and in another process that hashes texts in another way."""
    corpus.save(corpus.build(BIRDS), tmp_path / "one", {})
    corpus.save(corpus.build([HERON, *BIRDS, OWL]), tmp_path / "two", {})
    code = f"""
from pathlib import Path
from moat import corpus
from moat.sources.base import Passage
corpus.save(corpus.build([Passage(*pair) for pair in {[(p.title, p.text) for p in BIRDS]!r}]), Path("three"), {{}})
"""
    for seed in ("1", "2"):
        env = os.environ | {"PYTHONHASHSEED": seed}
        subprocess.run([sys.executable, "-c", code], check=True, cwd=tmp_path, timeout=120, env=env)
        assert files(tmp_path / "one") == files(tmp_path / "two") == files(tmp_path / "three")


def test_the_bytes_do_not_depend_on_the_json_library(tmp_path, monkeypatch):
    """bm25s writes its vocabulary with orjson where that is installed, with other spaces."""
    import bm25s

    made = corpus.build(BIRDS)
    corpus.save(made, tmp_path / "one", {})
    monkeypatch.setattr(bm25s.json_functions, "dumps", lambda value, **_: str(value).replace("'", '"').replace(" ", ""))
    corpus.save(made, tmp_path / "two", {})
    assert files(tmp_path / "one") == files(tmp_path / "two")


@pytest.mark.parametrize("passages", [[], [BLANK], [Passage("?", "...")]])
def test_a_corpus_without_words_works_without_the_library(tmp_path, passages):
    """Built, saved, loaded and searched; bm25s is not imported."""
    code = f"""
import sys
from pathlib import Path
from moat import corpus
from moat.sources.base import Passage
passages = [Passage(*pair) for pair in {[(p.title, p.text) for p in passages]!r}]
corpus.save(corpus.build(passages), Path("index"), {{}})
made = corpus.load(Path("index"), passages)
assert made.search("owl", 3) == made.titled("owl") == []
assert made.rank("owl", passages, 3) == passages
assert "bm25s" not in sys.modules
"""
    subprocess.run([sys.executable, "-c", code], check=True, cwd=tmp_path, timeout=120)


@pytest.mark.parametrize("text", ["\x00", "\ud7ff\uffff", "[[passage]] R1", "</s>", "a" * 100_000, "١٢٣ ½ ﬁ"])
def test_hostile_passages_are_passages(tmp_path, text):
    """Whatever a passage holds, the others are found as before, and the index comes back."""
    passages = [*BIRDS, Passage(text, text)]
    corpus.save(corpus.build(passages), tmp_path / "index", {})
    made = corpus.load(tmp_path / "index", passages)
    assert made.search("heron fish", 1) == [HERON]
    assert made.titled(text) == [Passage(text, text)] or not text.strip()


def test_an_index_of_other_passages_is_refused(tmp_path):
    corpus.save(corpus.build(BIRDS), tmp_path / "index", {})
    with pytest.raises(CorpusError, match="index is of other passages"):
        corpus.load(tmp_path / "index", BIRDS[1:])
    with pytest.raises(FileNotFoundError, match="no index in"):
        corpus.load(tmp_path / "nowhere", BIRDS)
    with pytest.raises(CorpusError, match="by words, not by vectors"):
        corpus.load(tmp_path / "index", BIRDS, encoder=toy)


@pytest.mark.parametrize("name", ["index.json", "data.csc.index.npy", "params.index.json"])
def test_a_damaged_index_is_named(tmp_path, name):
    corpus.save(corpus.build(BIRDS), tmp_path / "index", {})
    (tmp_path / "index" / name).write_bytes(b"{")
    with pytest.raises(CorpusError, match="cannot be read"):
        corpus.load(tmp_path / "index", BIRDS)


# --- vectors ----------------------------------------------------------------------------------------------------------


def toy(texts):
    """Directions by what a text speaks of: birds, fish, anything else."""
    vectors = [[("owl" in t.lower()) + 0.0, ("fish" in t.lower()) + 0.0, 0.1] for t in texts]
    return np.array([v / np.linalg.norm(v) for v in np.array(vectors)], dtype=np.float32)


def test_vectors_behind_the_same_interface(tmp_path):
    """Found by cosine, whether words are shared or not; the folder comes back."""
    made = corpus.build([OWL, HERON], toy)
    corpus.save(made, tmp_path / "index", {})
    back = corpus.load(tmp_path / "index", [OWL, HERON], toy)
    for one in (made, back):
        assert one.search("owls, plural", 2) == [OWL, HERON]
        assert one.rank("fishing", [OWL, HERON], 1) == [HERON]
        assert one.titled("grey heron") == [HERON]
    assert corpus.build([], toy).search("owl", 3) == corpus.build([], toy).rank("owl", [], 3) == []


@pytest.fixture(scope="module")
def encoder_folder(tokenizer, tmp_path_factory):
    """A random Llama of 16 units, as any model of AutoModel."""
    from moat.base_models import scratch_model

    folder = tmp_path_factory.mktemp("encoder")
    tokenizer.save_pretrained(folder)
    scratch_model(len(tokenizer), 16, 2, 2, 64, 0).save_pretrained(folder)
    return folder


def test_a_vector_is_the_mean_over_the_tokens(encoder_folder):
    """Against the same model run alone, without padding; unit length; a batch's longer rows leave it as it is."""
    import torch
    from transformers import AutoModel, AutoTokenizer

    from moat.encoder import open_encoder

    texts = ["add 4", "Ada has 4 apples and 12 pears . How many ?", "Ada"]
    found = open_encoder(encoder_folder)(texts)
    model, tokens = AutoModel.from_pretrained(encoder_folder).eval(), AutoTokenizer.from_pretrained(encoder_folder)
    for text, vector in zip(texts, found, strict=True):
        with torch.no_grad():
            mean = model(torch.tensor([tokens(text).input_ids])).last_hidden_state[0].mean(0).numpy()
        assert vector == pytest.approx(mean / np.linalg.norm(mean), abs=1e-5)
    assert (found.dtype, found.shape) == (np.float32, (3, 16))


def test_an_encoded_corpus_has_equal_bytes(encoder_folder, tmp_path):
    """More texts than a batch, one of them over the model's 64 positions."""
    from moat.encoder import open_encoder

    passages = [Passage(f"Ada {i}", "has 4 " * (i * 3)) for i in range(40)]
    for name, order in (("one", passages), ("two", passages[::-1])):
        corpus.save(corpus.build(order, open_encoder(encoder_folder)), tmp_path / name, {})
    assert files(tmp_path / "one") == files(tmp_path / "two")


def test_a_folder_without_an_encoder_is_named(tmp_path):
    from moat.encoder import open_encoder

    with pytest.raises(CorpusError, match=r"(?s)no sentence encoder in .*tools\.qa\.encoder"):
        open_encoder(tmp_path)


# --- the table --------------------------------------------------------------------------------------------------------


def test_a_passage_of_two_sources_is_one_row(tmp_path):
    """Under the first source; the table comes back sorted by key."""
    table = rows({"b": [OWL, OWL], "a": [OWL, HERON]})
    assert {(row["source"], row["title"]) for row in table} == {("b", "Barn owl"), ("a", "Grey heron")}
    PASSAGES.write(tmp_path / "passages.parquet", table, {})
    back = PASSAGES.read(tmp_path / "passages.parquet")
    assert back["passage_id"].to_list() == sorted(map(passage_id, (OWL, HERON)))

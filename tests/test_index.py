"""stages/index.py and what params say of the tools (moat/params.py)."""

import json
from types import SimpleNamespace

import pytest
from pydantic import ValidationError

from moat import corpus, layout
from moat.hub import ModelError
from moat.machine import Machine
from moat.params import QaTools
from moat.schemas.passages import PASSAGES, rows
from moat.sources.base import Passage
from moat.stage import Stage
from moat.tables import TableError

DEFAULTS = {
    "retriever": "bm25",
    "encoder": "",
    "encoder_revision": "",
    "found": 10,
    "passages": 3,
    "wikipedia": False,
    "reader": "",
    "reader_revision": "",
    "prompt": "chat",
    "temperature": 0.0,
    "top_p": 1.0,
    "max_new_tokens": 64,
}
BIRDS = [Passage("Barn owl", "It hunts mice."), Passage("Grey heron", "It hunts fish.")]


def run(stage_module, folder, **changes):
    params = SimpleNamespace(tools=SimpleNamespace(qa=QaTools(**(DEFAULTS | changes))))
    stage_module("index").run(Stage("index", params, Machine(device="cpu"), folder))
    return {path.name: path.read_bytes() for path in layout.CORPUS_INDEX.iterdir()}


@pytest.fixture
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    PASSAGES.write(layout.PASSAGES, rows({"birds": BIRDS}), {})
    return tmp_path


def test_the_stage_makes_an_index_that_finds(here, stage_module):
    """The same bytes twice; what made them is in the folder."""
    first = run(stage_module, here)
    assert corpus.load(layout.CORPUS_INDEX, BIRDS).search("fish", 1) == [BIRDS[1]]
    assert run(stage_module, here) == first
    facts = json.loads(first["index.json"])["facts"]
    assert facts["counts"] == {"rows_in": 2, "kept": 2, "dropped": {}}
    assert facts["params"] == {"tools.qa.retriever": "bm25", "tools.qa.encoder": "", "tools.qa.encoder_revision": ""}


def test_settings_that_it_does_not_read_leave_the_bytes(here, stage_module):
    first = run(stage_module, here)
    assert run(stage_module, here, passages=5, found=2, temperature=0.5, reader="a/b", reader_revision="0a") == first


def test_no_passages_are_an_index_too(here, stage_module):
    """The default profile has none."""
    PASSAGES.write(layout.PASSAGES, [], {})
    assert set(run(stage_module, here)) == {"index.json"}
    assert corpus.load(layout.CORPUS_INDEX, []).search("fish", 1) == []


def test_an_encoder_makes_vectors(here, stage_module, tokenizer, tmp_path):
    from moat.base_models import scratch_model

    tokenizer.save_pretrained("model")
    scratch_model(len(tokenizer), 16, 2, 2, 64, 0).save_pretrained("model")
    settings = QaTools(**(DEFAULTS | {"retriever": "dense", "encoder": "model", "encoder_revision": "seed 0"}))
    assert "vectors.npy" in run(stage_module, here, **settings.model_dump())
    made = corpus.load(layout.CORPUS_INDEX, BIRDS, corpus.open_encoder(settings))
    assert made.search("Barn owl\nIt hunts mice.", 1) == [BIRDS[0]]


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"retriever": "dense"}, "set encoder to a model folder"),
        ({"retriever": "dense", "encoder": "a/b"}, "encoder_revision"),
        ({"reader": "a/b"}, "reader_revision"),
        ({"passages": 0}, "greater than 0"),
        ({"retriever": "tfidf"}, "retriever"),
    ],
)
def test_settings_are_checked(changes, words):
    with pytest.raises(ValidationError, match=words):
        QaTools(**(DEFAULTS | changes))


def test_what_is_missing_is_named(here, stage_module):
    """An encoder that is no folder with its tokenizer; a table that is not there, or not ours."""
    (here / "empty").mkdir()
    with pytest.raises(ModelError, match=r"tools\.qa\.encoder empty is no model folder.*config\.json is missing"):
        run(stage_module, here, retriever="dense", encoder="empty", encoder_revision="0")
    layout.PASSAGES.write_bytes(b"")
    with pytest.raises(TableError, match=r"passages\.parquet"):
        run(stage_module, here)
    layout.PASSAGES.unlink()
    with pytest.raises(FileNotFoundError, match=r"passages\.parquet"):
        run(stage_module, here)

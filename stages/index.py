"""index: makes the passages of the task sources searchable for the tools of `qa`.

Reads    data/corpus/passages.parquet; params.yaml: tools.qa.retriever, encoder, encoder_revision
Writes   data/corpus/index (a folder; moat/corpus.py)
Paper    MOAT does not say what its tools search; Lumos searches the live Wikipedia and ranks with a DPR reader
Differs  a local corpus, ranked by BM25 or by a sentence encoder, so that the same action gives the same result

    python -m moat.launch stages/index.py
"""

from __future__ import annotations

from moat import corpus, layout
from moat.schemas.passages import PASSAGES
from moat.sources.base import Passage
from moat.stage import Counts, Stage, main, versions


def run(stage: Stage) -> None:
    """All input and output of the stage."""
    settings = stage.params.tools.qa
    stage.header("an index of the passages", [layout.PASSAGES], [layout.CORPUS_INDEX])
    table = PASSAGES.read(layout.PASSAGES)
    passages = [Passage(row["title"], row["text"]) for row in table.iter_rows(named=True)]
    made = corpus.build(passages, corpus.open_encoder(settings))
    read = [f"tools.qa.{key}" for key in ("retriever", "encoder", "encoder_revision")]
    packages = ("bm25s", "numpy") if settings.retriever == "bm25" else ("torch", "transformers", "tokenizers")
    counts = Counts(len(table), len(made.passages))
    corpus.save(made, layout.CORPUS_INDEX, stage.facts(*read, counts=counts, versions=versions(*packages)))
    stage.close(counts)


if __name__ == "__main__":
    main(__file__, run)

"""A corpus of passages that can be searched: by title, by words (BM25), or by the vectors of a sentence encoder.

An index is built once, as a folder, and holds no passage: it is loaded beside the table that it was built from, and
refuses any other. Equal passages give equal bytes under one version of bm25s: passages are sorted by id, the vocabulary
by its words, and no file holds a time.

Passages that score the same come in the order of their ids. By words, a passage that shares no word with the query is
never found. By vectors every passage has a score, so whatever a corpus holds, something is found in it.

Not covered: words are compared as written, case and Unicode's compatibility forms aside; there is no stemming.
"""

from __future__ import annotations

import hashlib
import json
import re
import unicodedata
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from moat.params import QaTools
from moat.publish import publish
from moat.schemas.passages import passage_id
from moat.sources.base import Passage

CARD = "index.json"
VOCABULARY = "vocab.index.json"  # bm25s writes it as whichever JSON library is installed does; it is written again
VECTORS = "vectors.npy"

Encoder = Callable[[Sequence[str]], np.ndarray]
"""Texts -> unit vectors, float32 [texts, width]."""


class CorpusError(ValueError):
    """An index that cannot be used; the message names its folder and what to do."""


class Index(Protocol):
    """Scores of texts for a query; what ranks them is behind this."""

    def scores(self, query: str) -> np.ndarray:
        """How well each text fits, float32 [texts]; not above `floor`: not at all."""
        ...

    @property
    def floor(self) -> float:
        """The score of a text that has nothing to do with the query."""
        ...

    def save(self, folder: Path) -> None:
        """Write it into an existing folder."""
        ...


def _bm25s() -> Any:
    """The library, imported when it is first needed: most runs index nothing."""
    import bm25s

    return bm25s


def words(text: str) -> list[str]:
    """The words of a text as BM25 compares them, in order, repeats kept."""
    return re.findall(r"\w+", unicodedata.normalize("NFKC", text).casefold())


def normal_title(title: str) -> str:
    """A title as titles are compared: case, white space and underscores aside."""
    return " ".join(unicodedata.normalize("NFKC", title).casefold().replace("_", " ").split())


class Words:
    """BM25 (Lucene's form, k1 1.5, b 0.75) over texts, by the library bm25s, imported only where there are words."""

    floor = 0.0

    def __init__(self, retriever: Any, size: int) -> None:
        self._retriever = retriever  # bm25s.BM25, or None when no text has a word
        self._size = size

    @classmethod
    def build(cls, texts: Sequence[str]) -> Words:
        """Index texts."""
        split = [words(text) for text in texts]
        vocabulary = {word: number for number, word in enumerate(sorted({word for text in split for word in text}))}
        if not vocabulary:
            return cls(None, len(texts))
        retriever = _bm25s().BM25(method="lucene", k1=1.5, b=0.75)
        # Ids and not words: from words bm25s makes its vocabulary through a set, in an order that differs by process.
        ids = [[vocabulary[word] for word in text] for text in split]
        retriever.index((ids, vocabulary), create_empty_token=False, show_progress=False)
        return cls(retriever, len(texts))

    @classmethod
    def load(cls, folder: Path, size: int) -> Words:
        """Read what `save` wrote for `size` texts."""
        if not (folder / VOCABULARY).is_file():
            return cls(None, size)
        return cls(_bm25s().BM25.load(folder, show_progress=False), size)

    def scores(self, query: str) -> np.ndarray:
        """BM25 of each text, float32 [texts]."""
        ids = [] if self._retriever is None else self._retriever.get_tokens_ids(words(query))
        if not ids:
            return np.zeros(self._size, dtype=np.float32)
        return np.asarray(self._retriever.get_scores_from_ids(ids), dtype=np.float32)

    def save(self, folder: Path) -> None:
        """Write it into an existing folder."""
        if self._retriever is not None:
            self._retriever.save(folder, show_progress=False)
            text = json.dumps(self._retriever.vocab_dict, ensure_ascii=False, sort_keys=True)
            (folder / VOCABULARY).write_text(text, encoding="utf-8")


class Vectors:
    """Cosine of sentence vectors."""

    floor = -np.inf

    def __init__(self, vectors: np.ndarray, encoder: Encoder) -> None:
        self._vectors = vectors
        self._encoder = encoder

    @classmethod
    def build(cls, texts: Sequence[str], encoder: Encoder) -> Vectors:
        """Index texts."""
        return cls(encoder(texts) if texts else np.zeros((0, 0), dtype=np.float32), encoder)

    @classmethod
    def load(cls, folder: Path, encoder: Encoder) -> Vectors:
        """Read what `save` wrote."""
        return cls(np.load(folder / VECTORS, allow_pickle=False), encoder)

    def scores(self, query: str) -> np.ndarray:
        """Cosine with each text, float32 [texts]."""
        if not len(self._vectors):
            return np.zeros(0, dtype=np.float32)
        return np.asarray(self._vectors @ self._encoder([query])[0], dtype=np.float32)

    def save(self, folder: Path) -> None:
        """Write it into an existing folder."""
        np.save(folder / VECTORS, self._vectors, allow_pickle=False)


@dataclass(frozen=True)
class Corpus:
    """Passages sorted by id, their index, and what makes an index of other texts (to rank a few)."""

    passages: tuple[Passage, ...]
    index: Index
    of: Callable[[Sequence[str]], Index]
    _titles: dict[str, list[Passage]] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        titles: dict[str, list[Passage]] = {}
        for one in self.passages:
            titles.setdefault(normal_title(one.title), []).append(one)
        object.__setattr__(self, "_titles", titles)

    def titled(self, title: str) -> list[Passage]:
        """The passages of that very title, after normalising, by id."""
        return list(self._titles.get(normal_title(title), ()))

    def search(self, query: str, n: int) -> list[Passage]:
        """The `n` best passages that have anything to do with the query, best first, equal ones by id."""
        scores = self.index.scores(query)
        return [self.passages[i] for i in _order(scores) if scores[i] > self.index.floor][:n]

    def rank(self, query: str, passages: Sequence[Passage], n: int) -> list[Passage]:
        """The `n` best of the given passages, whether the corpus holds them or not, best first, equal ones as given.

        Scored among themselves: how rare a word is in the corpus does not count.
        """
        scores = self.of([_indexed(one) for one in passages]).scores(query)
        return [passages[i] for i in _order(scores)[:n]]


def build(passages: Sequence[Passage], encoder: Encoder | None = None) -> Corpus:
    """Index passages, repeats once: by words, or with an encoder by its vectors."""
    ordered = tuple(one for _, one in sorted({passage_id(one): one for one in passages}.items()))
    of = _maker(encoder)
    return Corpus(ordered, of([_indexed(one) for one in ordered]), of)


def save(corpus: Corpus, folder: Path, facts: Mapping[str, Any]) -> None:
    """Publish the index as a folder, with `facts` on what made it. Raises DiskFullError."""
    card = {
        "index": type(corpus.index).__name__.lower(),
        "passages": len(corpus.passages),
        "content": _content(corpus.passages),
        "facts": dict(facts),
    }
    with publish(folder) as temporary:
        temporary.mkdir()
        corpus.index.save(temporary)
        (temporary / CARD).write_text(json.dumps(card, indent=1, sort_keys=True) + "\n", encoding="utf-8")


def load(folder: Path, passages: Sequence[Passage], encoder: Encoder | None = None) -> Corpus:
    """The index in `folder` over the passages that it was built from.

    Raises FileNotFoundError when there is none, and CorpusError when it is damaged, of other passages or of another kind.
    """
    if not (folder / CARD).is_file():
        raise FileNotFoundError(f"no index in {folder}: run the stage that writes it (`dvc repro index`), or `dvc pull`")
    ordered = tuple(one for _, one in sorted({passage_id(one): one for one in passages}.items()))
    wanted = (Words if encoder is None else Vectors).__name__.lower()
    try:
        card = json.loads((folder / CARD).read_text(encoding="utf-8"))
        if card["content"] != _content(ordered):
            raise CorpusError(f"the index in {folder} is of other passages: build it again (`dvc repro index`)")
        if card["index"] != wanted:
            raise CorpusError(f"the index in {folder} is by {card['index']}, not by {wanted}: build it (`dvc repro index`)")
        index: Index = Words.load(folder, len(ordered)) if encoder is None else Vectors.load(folder, encoder)
    except CorpusError:
        raise
    except (OSError, ValueError, LookupError, TypeError) as error:
        raise CorpusError(
            f"the index in {folder} cannot be read ({type(error).__name__}: {error}): delete it, then `dvc checkout`"
        ) from error
    return Corpus(ordered, index, _maker(encoder))


def _maker(encoder: Encoder | None) -> Callable[[Sequence[str]], Index]:
    if encoder is None:
        return Words.build
    return lambda texts: Vectors.build(texts, encoder)


def _indexed(passage: Passage) -> str:
    """What of a passage is searched."""
    return f"{passage.title}\n{passage.text}"


def _order(scores: np.ndarray) -> list[int]:
    """Indices by falling score, equal scores as they stand."""
    return [int(i) for i in np.argsort(-scores, kind="stable")]


def _content(passages: Sequence[Passage]) -> str:
    return hashlib.sha256("".join(passage_id(one) for one in passages).encode()).hexdigest()


def open_encoder(settings: QaTools) -> Encoder | None:
    """The sentence encoder that params name, or None under bm25. Raises ModelError or CorpusError with the remedy."""
    if settings.retriever == "bm25":
        return None
    from moat import encoder  # torch: only where there is a model
    from moat.hub import folder_of

    return encoder.open_encoder(folder_of(settings.encoder, settings.encoder_revision, "tools.qa.encoder"))

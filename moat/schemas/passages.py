"""`data/corpus/passages.parquet`: the texts that the tools of `qa` may find. Written by `prepare`, indexed by `index`."""

from collections.abc import Iterable, Mapping

import pyarrow as pa

from moat.seeds import content_id
from moat.sources.base import Passage
from moat.tables import Column, Table

PASSAGES = Table(
    name="passages",
    version=1,
    key=("passage_id",),
    columns=(
        Column("passage_id", pa.string(), "Content-derived id of title and text."),
        Column("source", pa.string(), "Name of the task source in params.yaml that brought it, the first of several."),
        Column("title", pa.string(), "What the passage is about: a page's title, a question's term."),
        Column("text", pa.string(), "The passage itself, without its title."),
    ),
)


def passage_id(passage: Passage) -> str:
    """The key of a passage: equal titles and texts are one passage, whatever source brings them."""
    return content_id("passage", passage.title, passage.text)


def rows(by_source: Mapping[str, Iterable[Passage]]) -> list[dict[str, str]]:
    """The rows of all sources' passages, each passage once, under the first source that has it."""
    found: dict[str, dict[str, str]] = {}
    for source, passages in by_source.items():
        for one in passages:
            key = passage_id(one)
            found.setdefault(key, {"passage_id": key, "source": source, "title": one.title, "text": one.text})
    return list(found.values())

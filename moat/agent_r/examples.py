"""Tables of conversations to training rows: those that fit, their names, and the count of those that do not."""

from __future__ import annotations

from collections.abc import Sequence

import polars as pl

from moat.examples import OVER_LENGTH
from moat.stage import Counts
from moat.tokens import Conversation, Renderer


def rendered(renderer: Renderer, texts: Sequence[str], supervised: Sequence[bool]) -> Conversation:
    """A conversation as token ids."""
    return Conversation(renderer.conversation(texts), list(supervised))


def conversations(renderer: Renderer, rows: pl.DataFrame, max_length: int) -> tuple[list[Conversation], list[str], Counts]:
    """The rows (row_id, texts, supervised) of at most `max_length` tokens; nothing is ever truncated."""
    named = [(row["row_id"], rendered(renderer, row["texts"], row["supervised"])) for row in rows.iter_rows(named=True)]
    kept = [(name, one) for name, one in named if len(one) <= max_length]
    counts = Counts(len(named), len(kept), {OVER_LENGTH: len(named) - len(kept)})
    return [one for _, one in kept], [name for name, _ in kept], counts

"""General conversations, which keep an actor from forgetting how to talk: ShareGPT's format, or chat messages."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

from moat.agent_r.params import AgentParams
from moat.layout import SOURCES
from moat.sources.base import SourceError
from moat.sources.chat import ASSISTANT, OTHER, ROLES, USER
from moat.sources.fields import Unusable, items, mapping, text
from moat.sources.files import Rows, hub_rows, open_rows
from moat.stage import Stage

NOT_IN_TURNS = "not in turns of a user and an assistant, the user first"
Row = dict[str, Any]


def read(stage: Stage[AgentParams]) -> tuple[list[Row], Counter[str]]:
    """The conversations that params.yaml names, as rows of DIALOGUES, and how many were left out, by reason.

    Raises SourceError for a file or a data set that cannot be read, or that holds none.
    """
    settings = stage.params.mix.general
    if settings.file:
        found = told(open_rows(SOURCES / settings.file))
    elif settings.hub:
        rows = hub_rows(settings.hub, None, settings.split, settings.revision, data_file=settings.data_file or None)
        found = told(rows)
    else:
        return [], Counter()
    if not found[0]:
        reasons = ", ".join(f"{n:,} {reason}" for reason, n in found[1].most_common()) or "it has no rows"
        raise SourceError(
            f"mix.general: no conversation in {settings.file or settings.hub} ({reasons}): a row has `conversations` of "
            "from and value, or `messages` of role and content"
        )
    return found


def told(rows: Rows | Iterable[tuple[int, Any]]) -> tuple[list[Row], Counter[str]]:
    """Rows of DIALOGUES, every assistant's turn supervised; what cannot be one is counted by reason."""
    kept, dropped = [], Counter[str]()
    for number, row in rows:
        try:
            texts = _texts(mapping(row))
        except Unusable as error:
            dropped[error.reason] += 1
            continue
        kept.append(
            {
                "row_id": f"general/{number}",
                "origin": "general",
                "task_id": None,
                "environment": "general",
                "texts": texts,
                "supervised": [bool(place % 2) for place in range(len(texts))],
            }
        )
    return kept, dropped


def _texts(row: Mapping[str, Any]) -> list[str]:
    """The texts in turns, up to the last of the assistant's; a system's message stands before the user's first."""
    role, said = ("role", "content") if "messages" in row else ("from", "value")
    lead, texts = "", list[str]()
    for message in items(row, "messages" if "messages" in row else "conversations"):
        message = mapping(message, "a message")
        sender, words = ROLES.get(text(message, role).casefold()), text(message, said)
        if sender == OTHER and not texts:
            lead += f"{words}\n\n"
        elif sender != (ASSISTANT if len(texts) % 2 else USER):
            raise Unusable(NOT_IN_TURNS, "")
        else:
            texts.append(words if texts else lead + words)
    texts = texts[: len(texts) // 2 * 2]
    if not texts:
        raise Unusable(NOT_IN_TURNS, "")
    return texts

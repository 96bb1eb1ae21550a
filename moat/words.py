"""Two texts compared word by word."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from enum import StrEnum

ALIGNED = 400  # words between the first and the last difference that are aligned; more are one change
KEPT = 60  # characters of equal text that stand on each side of a change
LONGEST = 600  # characters of one change that are shown


class Edit(StrEnum):
    """What became of a part: both texts have it, or one does."""

    SAME = "same"
    REMOVED = "removed"
    ADDED = "added"


@dataclass(frozen=True, slots=True)
class Part:
    """A piece of text, and which of the two texts has it."""

    edit: Edit
    text: str


def parts(before: str, after: str) -> list[Part]:
    """The two texts as parts in order: without the added ones they are `before`, without the removed ones `after`."""
    one, other = _words(before), _words(after)
    head = _common(one, other)
    tail = _common(one[head:][::-1], other[head:][::-1])
    found = [Part(Edit.SAME, "".join(one[:head]))]
    found += _aligned(one[head : len(one) - tail], other[head : len(other) - tail])
    found.append(Part(Edit.SAME, "".join(one[len(one) - tail :])))
    return [part for part in found if part.text]


def changed(found: Iterable[Part]) -> int:
    """How many words of the two texts the other one lacks."""
    return sum(len(part.text.split()) for part in found if part.edit is not Edit.SAME)


def shortened(found: Sequence[Part]) -> list[Part]:
    """The same with long parts cut, an ellipsis where: what is equal keeps the ends that stand at a change."""
    last = len(found) - 1
    return [Part(part.edit, _short(part, number > 0, number < last)) for number, part in enumerate(found)]


def _short(part: Part, after_change: bool, before_change: bool) -> str:
    text = part.text
    if part.edit is not Edit.SAME:
        return text if len(text) <= LONGEST else text[:LONGEST] + "…"
    if len(text) <= 2 * KEPT:
        return text
    head = text[:KEPT] if after_change or not before_change else ""
    return f"{head}…{text[-KEPT:] if before_change else ''}"


def _words(text: str) -> list[str]:
    return re.findall(r"\w+|\s+|[^\w\s]", text)


def _common(one: Sequence[str], other: Sequence[str]) -> int:
    pairs = zip(one, other, strict=False)
    return next((n for n, (a, b) in enumerate(pairs) if a != b), min(len(one), len(other)))


def _aligned(one: Sequence[str], other: Sequence[str]) -> list[Part]:
    if max(len(one), len(other)) > ALIGNED:
        return [Part(Edit.REMOVED, "".join(one)), Part(Edit.ADDED, "".join(other))]
    found = []
    for kind, i, j, k, m in SequenceMatcher(None, one, other, autojunk=False).get_opcodes():
        if kind == "equal":
            found.append(Part(Edit.SAME, "".join(one[i:j])))
        else:
            found += [Part(Edit.REMOVED, "".join(one[i:j])), Part(Edit.ADDED, "".join(other[k:m]))]
    return found

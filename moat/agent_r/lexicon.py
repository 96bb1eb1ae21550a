"""The embedded actor's words: what tasks and demonstrations say, every word and every item as one token."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence

import numpy as np

from moat.agent_r.judges import PHRASES
from moat.agent_r.turns import ACKNOWLEDGED, NOT_READ, REFLECTIONS

# Of what a game of TextWorldExpress says at every place, as one token each.
TURNS_OF_PHRASE = (
    " In one part of the room you see a",
    " In another part of the room you see a",
    " There is also a",
    " There is also an",
    " You also see a",
    " You also see an",
    "You are in the",
    " that is closed.",
    " that is open.",
    ", that has nothing on it.",
    " It's empty inside.",
)
SAID = 6  # lines or sentences of a text for pretraining
COUNTS = range(65)  # numbers that are one token with the blank before them
_ITEM = re.compile(r"\b[0-9]+ ([a-z][a-z' -]*[a-z])")  # in a recipe: a count and an item
_WORD = re.compile(r" ?[A-Za-z_:'-]+")
_VERB = re.compile(r"Action: [a-z]+")


def items(text: str) -> set[str]:
    """The items that a text of TextCraft counts, as they are written there."""
    return {name for part in re.split(r" using |, |\n", text) for name in _ITEM.findall(part)}


def phrases(instructions: Iterable[str], firsts: Sequence[str], texts: Sequence[str]) -> list[str]:
    """Phrases for instructions (whole), first observations, and the texts of demonstrations, in a fixed order."""
    known = {name for first in firsts if first.startswith("Crafting commands:") for name in items(first)}
    named = {f" {name}" for name in known} | {f"minecraft:{name.replace(' ', '_')}" for name in known}
    words = {word for text in (*firsts, *texts) for word in _WORD.findall(text)}
    words |= {verb for text in texts for verb in _VERB.findall(text)}
    opened = Counter(first.partition("\n\n")[0] + "\n\n" for first in firsts)
    described = [text for text, times in opened.items() if times > 1]  # what every task of a game begins with
    fixed = [*instructions, *described, *TURNS_OF_PHRASE, ACKNOWLEDGED, NOT_READ, *REFLECTIONS, *PHRASES]
    fixed += ["Thought: ", "Action: ", *(f" {count}" for count in COUNTS), *(str(count) for count in COUNTS if count > 9)]
    return list(dict.fromkeys([*fixed, *sorted(named | words)]))


def sentences(firsts: Sequence[str], rng: np.random.Generator) -> list[str]:
    """Some lines or sentences in a row of a first observation: a text for pretraining."""
    said = re.split(r"(?<=\n)|(?<=\. )", firsts[int(rng.integers(len(firsts)))])
    start = int(rng.integers(max(1, len(said) - SAID + 1)))
    return said[start : start + SAID]

"""The embedded actor's words: what tasks and demonstrations say, every word as one token."""

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
    "Unknown action: I'm not sure what you mean.",
    "Gather all following ingredients and follow the directions to prepare this tasty meal.\n\nIngredients:\n ",
    "\n\nDirections:\n ",
    "\n  prepare meal\n\n",
)
# And of TextCraft; an item after "minecraft" begins with its colon.
FRAMES = (
    "Crafting commands:\n",
    "\n\nGoal: craft",
    " minecraft",
    "Could not execute",
    "Could not find enough items to craft minecraft",
    "Could not find a valid recipe for ItemTagWithCount(item_tag=ItemTag(tag=None, item_id='minecraft",
    "'), count=",
    "Could not find",
    "Wrong item format:",
    "Crafted",
)
SAID = 3  # lines or sentences of a text for pretraining
COUNTS = range(65)  # numbers that are one token with the blank before them
_WORD = re.compile(r"[ _:]?[A-Za-z'-]+")
_VERB = re.compile(r"Action: [a-z]+")


def words(texts: Iterable[str]) -> list[str]:
    """The words of texts, with the blank (or other sign) before them, in a fixed order."""
    return sorted({word for text in texts for word in _WORD.findall(text)})


def phrases(instructions: Iterable[str], firsts: Sequence[str], texts: Sequence[str]) -> list[str]:
    """Phrases for instructions (whole), first observations, and the texts of demonstrations, in a fixed order.

    An item of several words is as many tokens: so what is learned of one birch thing is known of the next.
    """
    said = set(words((*firsts, *texts)))
    said |= {verb for text in texts for verb in _VERB.findall(text)}
    opened = Counter(first.partition("\n\n")[0] + "\n\n" for first in firsts)
    described = [text for text, times in opened.items() if times > 1]  # what every task of a game begins with
    fixed = [*instructions, *described, *TURNS_OF_PHRASE, *FRAMES, ACKNOWLEDGED, NOT_READ, *REFLECTIONS, *PHRASES]
    fixed += ["Thought: ", "Action: ", *(f" {count}" for count in COUNTS), *(str(count) for count in COUNTS if count > 9)]
    return list(dict.fromkeys([*fixed, *sorted(said)]))


def sentences(firsts: Sequence[str], rng: np.random.Generator) -> list[str]:
    """Some lines or sentences in a row of a first observation: a text for pretraining."""
    said = re.split(r"(?<=\n)|(?<=\. )", firsts[int(rng.integers(len(firsts)))])
    start = int(rng.integers(max(1, len(said) - SAID + 1)))
    return said[start : start + SAID]

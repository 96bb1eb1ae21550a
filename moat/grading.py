"""How far an answer is the gold answer, by the metric of its task source.

A failure has no answer, and no answer is wrong under every metric (trap 33): nothing here turns a missing answer into
`no`, into 0, or into an empty text that equals another. A gold answer that its metric cannot read is met by nothing, so
that running gold through its own grader finds it.
"""

from __future__ import annotations

import re
import string
from collections import Counter
from dataclasses import dataclass
from fractions import Fraction

from moat.answers import parse_number, same_answer
from moat.sources.base import Metric
from moat.web_steps import score_step

_TRUTH = {"yes": True, "true": True, "no": False, "false": False}
_ARTICLES = re.compile(r"\b(?:a|an|the)\b")
_PUNCTUATION = str.maketrans("", "", string.punctuation)
_WHOLE = ("yes", "no", "noanswer")  # answers that share no word with another text
_REWARD = re.compile(r"(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][-+]?[0-9]{1,3})?")  # as programs print a number from 0


@dataclass(frozen=True, slots=True)
class Grade:
    """What an answer is worth.

    `score`, from 0 to 1, is what the metric averages; `correct` is whether it is full. `f1`, from 0 to 1, stands beside
    EXACT_MATCH (of words) and WEB_STEP (of the operation); `element` beside WEB_STEP (1 for the right element).
    """

    score: float
    correct: bool
    f1: float | None = None
    element: float | None = None


def grade(metric: Metric, answer: str | None, gold: str) -> Grade:
    """Grade `answer` (None: there is none) against `gold`.

    NUMBER compares by value, TEXT as text (`moat.answers`); YES_NO takes the words yes, no, true and false, in any case,
    with or without a full stop; EXACT_MATCH is HotpotQA's, and a gold yes or no is met by true or false too, as
    comparisons are printed; WEB_STEP is Mind2Web's step success (`moat.web_steps`), the answer naming one element of those
    that the gold allows; REWARD reads the answer as the environment's reward, from 0 to 1, and is correct at 1.
    """
    said = answer if answer is not None and answer.strip() else None
    match metric:
        case Metric.NUMBER:
            value = parse_number(gold)
            return _whole(said is not None and value is not None and parse_number(said) == value)
        case Metric.TEXT:
            return _whole(same_answer(said, gold))
        case Metric.YES_NO:
            wanted = _truth(gold)
            return _whole(said is not None and wanted is not None and _truth(said) is wanted)
        case Metric.EXACT_MATCH:
            words, wanted_words = normalised(said or "").split(), normalised(gold).split()
            if wanted_words in (["yes"], ["no"]) and words in (["true"], ["false"]):
                words = ["yes"] if words == ["true"] else ["no"]
            right = bool(wanted_words) and words == wanted_words
            return Grade(float(right), right, f1=word_f1(words, wanted_words))
        case Metric.WEB_STEP:
            try:
                found = score_step(said, gold)
            except ValueError:  # the gold is no step
                return Grade(0.0, False, f1=0.0, element=0.0)
            return Grade(float(found.success), found.success, f1=found.operation_f1, element=float(found.element))
        case Metric.REWARD:
            reward = _reward(said or "")
            return Grade(reward, reward == 1)


def normalised(text: str) -> str:
    """A text as HotpotQA's evaluation compares it: lower case, no ASCII punctuation, no a, an, the, single spaces.

    In this order, so that `the U.S.A.` is `usa`, and `A-team` is one word.
    """
    return " ".join(_ARTICLES.sub(" ", text.lower().translate(_PUNCTUATION)).split())


def word_f1(words: list[str], gold: list[str]) -> float:
    """F1 of normalised words, repeats counted; 0 without words, and 0 between yes, no or noanswer and anything else.

    HotpotQA's evaluation (Yang et al. 2018, section 5.1); its answers take yes and no whole.
    """
    if words != gold and (" ".join(words) in _WHOLE or " ".join(gold) in _WHOLE):
        return 0.0
    shared = sum((Counter(words) & Counter(gold)).values())
    if not shared:
        return 0.0
    precision, recall = Fraction(shared, len(words)), Fraction(shared, len(gold))
    return float(2 * precision * recall / (precision + recall))


def _whole(right: bool) -> Grade:
    return Grade(float(right), right)


def _truth(text: str) -> bool | None:
    """The truth value that a text is, and nothing else; None for any other text."""
    return _TRUTH.get(text.strip().removesuffix(".").casefold())


def _reward(text: str) -> float:
    """A reward from 0 to 1; 0 for a text that is none, which an episode that failed has."""
    value = float(text) if _REWARD.fullmatch(text.strip()) else 0.0
    return value if value <= 1 else 0.0

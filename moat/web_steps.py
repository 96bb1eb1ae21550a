"""A step on a page as one line of text, and how a step is scored.

    CLICK [12]
    TYPE [7] Ricky Kej
    SELECT [31] Economy

The operation, in brackets the element's id, then the text typed or the option chosen. A gold step lists every id that is
right, `CLICK [12|57]`; a predicted step names one.

The scores are those of Mind2Web (Deng et al. 2023, arXiv 2306.06070, section 4.1) as its authors compute them:

* element accuracy   the predicted id is one of the gold's
* operation F1       F1 of the sets of words of operation and value (`TYPE Ricky Kej` has three), case kept
* step success       the element is right and the operation's F1 is 1

A failure (no step) scores 0 in each and is counted. Means are over steps (micro), and over episodes of the means within
each (macro, the paper's); an episode succeeds when all its steps do.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import fmean

OPERATIONS = ("CLICK", "TYPE", "SELECT")

_STEP = re.compile(rf"({'|'.join(OPERATIONS)}) \[([^\s\[\]|]+(?:\|[^\s\[\]|]+)*)\](?: (.+))?")


@dataclass(frozen=True, slots=True)
class Step:
    """An operation, the ids of the elements (one of a prediction, one or more of a gold step), and the value or ''."""

    operation: str
    elements: tuple[str, ...]
    value: str = ""


@dataclass(frozen=True, slots=True)
class StepScore:
    """The scores of one step; `failed` says that there was no step to score."""

    element: bool
    operation_f1: float
    success: bool
    failed: bool = False


@dataclass(frozen=True, slots=True)
class StepMetrics:
    """Shares and means from 0 to 1. `macro_*` are means over episodes; `failed` counts steps, and they score 0."""

    n: int
    failed: int
    element_accuracy: float
    operation_f1: float
    step_success: float
    n_episodes: int
    macro_element_accuracy: float
    macro_operation_f1: float
    macro_step_success: float
    episode_success: float


def render_step(operation: str, elements: Sequence[str], value: str = "") -> str:
    """The canonical text of a step; blanks in the value become single spaces. Raises ValueError."""
    value = " ".join(value.split())
    text = f"{operation} [{'|'.join(elements)}]" + (f" {value}" if value else "")
    if parse_step(text) != Step(operation, tuple(elements), value):
        raise ValueError(f"no step text stands for {operation!r} on {list(elements)!r}")
    return text


def parse_step(text: str) -> Step:
    """Read the canonical text of a step. Raises ValueError."""
    match = _STEP.fullmatch(text.strip())
    if match is None:
        raise ValueError(f"no step such as `TYPE [7] some text`: {text[:80]!r}")
    return Step(match[1], tuple(match[2].split("|")), match[3] or "")


def score_step(predicted: str | None, gold: str) -> StepScore:
    """Score one step. None, or a text that is no step on one element, is a failure. Raises ValueError for a bad gold."""
    target = parse_step(gold)
    try:
        step = parse_step(predicted) if predicted is not None else None
    except ValueError:
        step = None
    if step is None or len(step.elements) != 1:
        return StepScore(False, 0.0, False, failed=True)
    element = step.elements[0] in target.elements
    f1 = _f1(_words(step), _words(target))
    return StepScore(element, f1, element and f1 == 1.0)


def step_metrics(rows: Iterable[tuple[str, str | None, str]]) -> StepMetrics:
    """Means over rows of (episode, predicted step or None, gold step). Raises ValueError for no rows."""
    episodes: dict[str, list[StepScore]] = {}
    for episode, predicted, gold in rows:
        episodes.setdefault(episode, []).append(score_step(predicted, gold))
    if not episodes:
        raise ValueError("no steps to score")
    scores = [score for group in episodes.values() for score in group]
    return StepMetrics(
        n=len(scores),
        failed=sum(score.failed for score in scores),
        element_accuracy=fmean(score.element for score in scores),
        operation_f1=fmean(score.operation_f1 for score in scores),
        step_success=fmean(score.success for score in scores),
        n_episodes=len(episodes),
        macro_element_accuracy=fmean(fmean(score.element for score in group) for group in episodes.values()),
        macro_operation_f1=fmean(fmean(score.operation_f1 for score in group) for group in episodes.values()),
        macro_step_success=fmean(fmean(score.success for score in group) for group in episodes.values()),
        episode_success=fmean(all(score.success for score in group) for group in episodes.values()),
    )


def _words(step: Step) -> set[str]:
    return {step.operation, *step.value.split()}


def _f1(predicted: set[str], gold: set[str]) -> float:
    """F1 of two sets that are never empty: both hold an operation."""
    shared = len(predicted & gold)
    return 2 * shared / (len(predicted) + len(gold))

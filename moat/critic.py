"""Critics: who judges the grounder's actions, and what replaces the ones that fail (MOAT, section 4.2).

* `executor` runs the actions: accepted when they reach the gold answer, else corrected with the gold actions (or rejected,
  under `on_failure: drop`).
* `llm`, the paper's, asks a judge model (moat/judging.py): it reads task, action list, subgoals, actions and gold actions,
  and answers a verdict, with corrected actions when they fail.
* `executor_then_llm` accepts what reaches the gold answer and asks the judge about the rest, which an executor can refuse
  but not mend. The judge cannot accept what the executor knows to be wrong (`known_wrong`).
* `none` accepts whatever can be trained on; it is the ablation without a critic.

Whoever corrects: a correction counts only when it parses and, where there is a gold answer, reaches it. Whoever judges:
actions that were cut at the token limit, and blank ones, of which nothing could be learned, are never accepted as they are.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Literal

from moat.actions import ActionSyntaxError, parse
from moat.answers import parse_number
from moat.executor import Outcome
from moat.sources.base import Metric
from moat.toolbox import Goal, Toolbox
from moat.tools.docs import DOCS

CUT = "cut at max_new_tokens"
BLANK = "no actions"
SHOWN = 200  # characters of a judge's reasons, or of an answer that could not be read, that are kept


class Verdict(StrEnum):
    """What a critic says of a candidate's actions."""

    ACCEPT = "accept"
    CORRECT = "correct"
    REJECT = "reject"
    UNPARSED = "unparsed"


@dataclass(frozen=True, slots=True)
class Critique:
    """A verdict, the texts in place of the candidate's (for `correct` only), and what decided it."""

    verdict: Verdict
    corrected_actions: str | None
    reason: str
    corrected_subgoals: str | None = None


@dataclass(frozen=True, slots=True)
class Answer:
    """A judge's answer as read: a verdict, its corrections (for `correct` only), and why; `text` is the answer itself."""

    verdict: Verdict
    actions: str | None
    subgoals: str | None
    reason: str
    text: str


def corrected(actions: str, goal: Goal, toolbox: Toolbox, reason: str, subgoals: str | None = None) -> Critique:
    """A correction that counts only when it parses, runs and reaches the gold answer; else the candidate is rejected.

    Without a gold answer (a blank text) nothing can be reached: the correction must parse and name tools of the domain.
    """
    if not goal.gold_answer.strip():
        fault = _not_actions(actions, goal.domain)
    elif not toolbox.knows(goal):
        fault = f"domain {goal.domain} has no tools to run it with"
    else:
        came = toolbox.outcome(actions, goal)
        fault = None if came is Outcome.REACHED else f"does not reach the gold answer ({came})"
    if fault is not None:
        return Critique(Verdict.REJECT, None, f"{reason}; the correction {fault}")
    return Critique(Verdict.CORRECT, actions, reason, subgoals)


def _not_actions(text: str, domain: str) -> str | None:
    """What keeps a text from being actions of the domain, or None."""
    try:
        actions = parse(text)
    except ActionSyntaxError as error:
        return f"does not parse ({error.message})"
    known = DOCS.get(domain)
    unknown = [a.tool for a in actions if a.tool is not None and known is not None and a.tool not in known]
    return f"names the unknown tool {unknown[0]}" if unknown else None


def _untrainable(came: Outcome, finished: bool) -> str | None:
    """What keeps actions from being accepted as they are, whatever they are worth; None when nothing does."""
    if not finished:
        return CUT
    return BLANK if came is Outcome.EMPTY else None


def judge(
    kind: Literal["executor", "none"],
    on_failure: Literal["gold", "drop"],
    *,
    came: Outcome,
    finished: bool,
    goal: Goal,
    gold_actions: str,
    toolbox: Toolbox,
) -> Critique:
    """Judge one candidate's executed actions without a model."""
    if kind == "none":
        fault = _untrainable(came, finished)
        return Critique(Verdict.REJECT if fault else Verdict.ACCEPT, None, fault or "no critic")
    if came is Outcome.REACHED and finished:
        return Critique(Verdict.ACCEPT, None, "reached the gold answer")
    reason = f"executed: {came}" if finished else CUT
    if on_failure == "drop":
        return Critique(Verdict.REJECT, None, reason)
    return corrected(gold_actions, goal, toolbox, reason)


def known_wrong(came: Outcome, goal: Goal) -> bool:
    """Whether executing leaves no doubt that the actions fail.

    Another number than the gold one is wrong, and so is what cannot be run. Another text may be the gold answer in other
    words, a failing tool may be the tool's fault where it looks things up, and without a gold answer nothing is known.
    """
    if not goal.gold_answer.strip() or came is Outcome.REACHED:
        return False
    if came in (Outcome.NOT_REACHED, Outcome.BAD_ARGUMENT, Outcome.NO_RESULT, Outcome.TIME, Outcome.SIZE):
        return goal.metric is Metric.NUMBER and parse_number(goal.gold_answer) is not None
    return True


def judged(
    kind: Literal["llm", "executor_then_llm"],
    answer: Answer,
    *,
    came: Outcome,
    finished: bool,
    goal: Goal,
    toolbox: Toolbox,
) -> Critique:
    """What a judge's answer means for one candidate."""
    reason = f"judge: {answer.reason}"
    match answer.verdict:
        case Verdict.ACCEPT:
            fault = _untrainable(came, finished)
            if fault is not None:
                return Critique(Verdict.REJECT, None, f"{reason}; but {fault}")
            if kind == "executor_then_llm" and known_wrong(came, goal):
                return Critique(Verdict.REJECT, None, f"{reason}; but executed: {came}")
            return Critique(Verdict.ACCEPT, None, reason)
        case Verdict.CORRECT:
            assert answer.actions is not None
            return corrected(answer.actions, goal, toolbox, reason, answer.subgoals)
        case Verdict.REJECT:
            return Critique(Verdict.REJECT, None, reason)
        case Verdict.UNPARSED:
            said = f"; the answer ends with {answer.text[-SHOWN:]!r}" if answer.text else ""
            return Critique(Verdict.UNPARSED, None, reason + said)

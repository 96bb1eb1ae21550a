"""Critics: who judges the grounder's actions, and what replaces the ones that fail (MOAT, section 4.2).

`executor` runs the actions: accepted when they reach the gold answer, else corrected with the gold actions (or rejected,
under `on_failure: drop`). `none` accepts everything; it is the ablation without a critic.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Literal

from moat.executor import TOOLS, Outcome, execute, outcome


class Verdict(StrEnum):
    """What a critic says of a candidate's actions."""

    ACCEPT = "accept"
    CORRECT = "correct"
    REJECT = "reject"
    UNPARSED = "unparsed"


@dataclass(frozen=True, slots=True)
class Critique:
    """A verdict, the actions in place of the grounder's (for `correct` only), and what decided it."""

    verdict: Verdict
    corrected_actions: str | None
    reason: str


def corrected(actions: str, domain: str, gold_answer: str, reason: str) -> Critique:
    """A correction that counts only when it parses, runs and reaches the gold answer; else the candidate is rejected."""
    came = outcome(execute(actions, TOOLS[domain]), gold_answer)
    if came is not Outcome.REACHED:
        return Critique(Verdict.REJECT, None, f"{reason}; the correction does not reach the gold answer ({came})")
    return Critique(Verdict.CORRECT, actions, reason)


def judge(
    kind: Literal["executor", "none"],
    on_failure: Literal["gold", "drop"],
    *,
    came: Outcome,
    finished: bool,
    domain: str,
    gold_actions: str,
    gold_answer: str,
) -> Critique:
    """Judge one candidate's executed actions. Actions that ran into the token limit are never accepted as they are."""
    if kind == "none":
        if not finished:
            return Critique(Verdict.REJECT, None, "cut at max_new_tokens")
        return Critique(Verdict.ACCEPT, None, "no critic")
    if came is Outcome.REACHED and finished:
        return Critique(Verdict.ACCEPT, None, "reached the gold answer")
    reason = f"executed: {came}" if finished else "cut at max_new_tokens"
    if on_failure == "drop":
        return Critique(Verdict.REJECT, None, reason)
    return corrected(gold_actions, domain, gold_answer, reason)

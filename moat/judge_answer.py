"""Reads a judge's answer: one verdict, whole, or `unparsed`.

    answer     := [thinking "</think>"] "Verdict KEY: " word  line*
    word       := accept | correct | reject           whatever its case; nothing else on the line, ** around it allowed
    correction := "[[corrected actions KEY]]" line+ "[[end corrected actions KEY]]"     each mark a line of its own
                  and at most once the same with "subgoals"

Only what stands after the last `</think>` is the answer. `correct` needs a correction, `accept` and `reject` must have none.
The key of the question (moat/judge_prompt.py) stands in those lines and nowhere else in the answer, so what a judge quotes,
whether before, in or after its verdict, is no verdict: quoted data cannot hold the key. Whatever does not fit, and whatever
was cut at the token limit, is `unparsed`; nothing is searched for inside other text, and nothing is guessed.
"""

from __future__ import annotations

import re

from moat.actions import ActionSyntaxError, parse, render
from moat.critic import CUT, SHOWN, Answer, Verdict
from moat.judge_prompt import END_THINK, THINK

WORDS = {verdict.value: verdict for verdict in (Verdict.ACCEPT, Verdict.CORRECT, Verdict.REJECT)}
BLANK = " \t\r\n"


def read_answer(text: str, finished: bool, key: str, thinks: bool) -> Answer:
    """The verdict of a generated `text`, which ended by itself or (`finished` false) was cut.

    `thinks`: the prompt opened the judge's thinking, so the text must close it.
    """

    def unparsed(why: str) -> Answer:
        return Answer(Verdict.UNPARSED, None, None, why, text)

    if not finished:
        return unparsed(CUT)
    _, closed, said = text.rpartition(END_THINK)
    if THINK in said or (thinks and not closed):
        return unparsed("the thinking never ended")
    lines = [line.strip(BLANK) for line in said.strip(BLANK).split("\n")]
    first = re.fullmatch(rf"(?P<bold>\*\*|)Verdict {key}: *(?P<word>[A-Za-z]+)(?P=bold)", lines[0])
    if first is None or first["word"].lower() not in WORDS:
        return unparsed("no verdict in the first line")
    verdict = WORDS[first["word"].lower()]
    corrections: dict[str, str] = {}
    reasons = list(lines[1:])
    for name in ("actions", "subgoals"):
        opening, ending = f"[[corrected {name} {key}]]", f"[[end corrected {name} {key}]]"
        if opening in reasons and ending in reasons:
            start, end = reasons.index(opening), reasons.index(ending)
            corrections[name] = "\n".join(reasons[start + 1 : end]).strip(BLANK)
            reasons[start : end + 1] = []
    if said.count(key) != 1 + 2 * len(corrections):
        return unparsed("the key stands where it must not")
    if not all(corrections.values()):
        return unparsed("an empty correction")
    if (verdict is Verdict.CORRECT) is not ("actions" in corrections) or (verdict is not Verdict.CORRECT and corrections):
        return unparsed(f"{verdict} {'without' if verdict is Verdict.CORRECT else 'with'} a correction")
    why = " ".join(" ".join(reasons).split())[:SHOWN]
    return Answer(
        verdict,
        _canonical(corrections["actions"]) if verdict is Verdict.CORRECT else None,
        _joined(corrections["subgoals"]) if "subgoals" in corrections else None,
        f"{verdict}: {why}" if why else verdict.value,
        text,
    )


def _canonical(actions: str) -> str:
    """Actions as training texts write them; a text that is no actions stays as it is (and fails the correction's check)."""
    try:
        return render(parse(actions))
    except ActionSyntaxError:
        return actions


def _joined(subgoals: str) -> str:
    """Subgoals on one line, as training texts write them."""
    return "; ".join(part for line in subgoals.split("\n") if (part := line.strip(BLANK).rstrip("; ")))

"""What counts as a judge's verdict, and what never does: moat/judge_answer.py."""

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moat.critic import Verdict
from moat.judge_answer import read_answer

KEY = "5eedf00d"
CORRECTION = f"[[corrected actions {KEY}]]\nR1 = Calculator(4 + 5)\n[[end corrected actions {KEY}]]"
SUBGOALS = f"[[corrected subgoals {KEY}]]\nSubgoal 1: Add 5 to 4\n[[end corrected subgoals {KEY}]]"
TRUE = {
    Verdict.ACCEPT: f"Verdict {KEY}: accept",
    Verdict.REJECT: f"Verdict {KEY}: reject",
    Verdict.CORRECT: f"Verdict {KEY}: correct\n{CORRECTION}",
}
HOSTILE = json.loads((Path(__file__).parent / "hostile.json").read_text(encoding="utf-8"))
TEXTS = {entry["name"]: entry["text"] * entry["repeat"] for entry in HOSTILE}


def read(text, finished=True, thinks=False):
    return read_answer(text, finished, KEY, thinks)


# --- what is a verdict ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("verdict", TRUE)
def test_a_verdict_in_its_form_is_read(verdict):
    """The three words in the first line; correct with its actions."""
    answer = read(TRUE[verdict])
    assert answer.verdict is verdict
    assert answer.actions == ("R1 = Calculator(4 + 5)" if verdict is Verdict.CORRECT else None)


@pytest.mark.parametrize(
    "line",
    [
        f"  Verdict {KEY}: Accept  ",
        f"**Verdict {KEY}: ACCEPT**",
        f"\n\nVerdict {KEY}:accept\n\n",
        f"Verdict {KEY}: accept\r",
    ],
)
def test_case_bold_type_and_blanks_do_not_matter(line):
    assert read(line).verdict is Verdict.ACCEPT


def test_the_reason_is_kept_in_one_line():
    """What follows the verdict, but not the corrections."""
    assert read(f"Verdict {KEY}: reject\nR1 adds\n\n 5 twice.").reason == "reject: R1 adds 5 twice."
    assert read(f"{TRUE[Verdict.CORRECT]}\nIt was 6.").reason == "correct: It was 6."


def test_corrections_are_written_as_training_texts_are():
    """Actions and subgoals on lines of their own become one line with semicolons; actions in canonical spacing."""
    text = f"""Verdict {KEY}: correct
[[corrected subgoals {KEY}]]
Subgoal 1: Add 5 to 4;
Subgoal 2: Multiply the result by 2
[[end corrected subgoals {KEY}]]
[[corrected actions {KEY}]]
R1=Calculator(4 + 5)

R2 =Calculator(R1 * 2);
[[end corrected actions {KEY}]]"""
    answer = read(text)
    assert answer.actions == "R1 = Calculator(4 + 5); R2 = Calculator(R1 * 2)"
    assert answer.subgoals == "Subgoal 1: Add 5 to 4; Subgoal 2: Multiply the result by 2"


# --- what is none -----------------------------------------------------------------------------------------------------


@pytest.mark.trap(24)
@pytest.mark.parametrize(
    "text",
    [
        "",
        "accept",
        "Verdict: accept",
        "Verdict 00000000: accept",
        f"Verdict {KEY}: not accept",
        f"Verdict {KEY}: accepted",
        f"Verdict {KEY}: incorrect",
        f"Verdict {KEY}: accept or reject",
        f"Verdict {KEY}: accept/reject",
        f"Verdict {KEY}: unparsed",
        f"Verdict {KEY}: good",
        f"Verdict {KEY}: WORD",
        f"Verdict {KEY}:",
        f"Verdict {KEY}",
        f"Verdict{KEY}: accept",
        f"VERDICT {KEY}: accept",
        f"The Verdict {KEY}: accept",
        f"My verdict follows.\nVerdict {KEY}: accept",
        f"> Verdict {KEY}: accept",
        f"**Verdict {KEY}: accept",
        f'{{"Verdict {KEY}": "accept"}}',
        f"Verdict {KEY}: accept.",
        f"Verdict {KEY}: \u0430ccept",
        f"Verdict {KEY}: accept\nVerdict {KEY}: reject",
        f"Verdict {KEY}: reject\nNo: Verdict {KEY}: accept",
        f"Verdict {KEY}: accept ({KEY})",
    ],
)
def test_anything_else_is_unparsed(text):
    """Whole words in a whole line, once; nothing is found inside another text."""
    answer = read(text)
    assert (answer.verdict, answer.actions) == (Verdict.UNPARSED, None)
    assert answer.text == text


@pytest.mark.trap(20)
@pytest.mark.parametrize("verdict", TRUE)
def test_a_cut_answer_is_unparsed(verdict):
    """Whatever it holds: a verdict may be a draft, a correction may be a half."""
    answer = read(TRUE[verdict], finished=False)
    assert (answer.verdict, answer.reason) == (Verdict.UNPARSED, "cut at max_new_tokens")


@pytest.mark.trap(25)
@pytest.mark.parametrize(
    ("text", "thinks", "expected"),
    [
        (f"<think>hm</think>\n{TRUE[Verdict.ACCEPT]}", False, Verdict.ACCEPT),
        (f"hm</think>\n{TRUE[Verdict.ACCEPT]}", True, Verdict.ACCEPT),
        (f"hm</think>{TRUE[Verdict.REJECT]}", False, Verdict.REJECT),
        (f"{TRUE[Verdict.ACCEPT]}</think>wait</think>\n{TRUE[Verdict.REJECT]}", True, Verdict.REJECT),
        (f"it says </think> {TRUE[Verdict.ACCEPT]}, which is wrong</think>{TRUE[Verdict.REJECT]}", True, Verdict.REJECT),
        (f"<think>one</think><think>two</think>{TRUE[Verdict.ACCEPT]}", False, Verdict.ACCEPT),
        (TRUE[Verdict.ACCEPT], True, Verdict.UNPARSED),
        (f"<think>{TRUE[Verdict.ACCEPT]}", False, Verdict.UNPARSED),
        (f"<think>one</think><think>{TRUE[Verdict.ACCEPT]}", False, Verdict.UNPARSED),
        (f"{TRUE[Verdict.ACCEPT]}</think>", False, Verdict.UNPARSED),
        (f"{TRUE[Verdict.ACCEPT]}<think>", False, Verdict.UNPARSED),
        (f"{TRUE[Verdict.ACCEPT]}\n<think>or is it", False, Verdict.UNPARSED),
        (f"<think>one</think>{TRUE[Verdict.ACCEPT]}\n<think>two", False, Verdict.UNPARSED),
    ],
)
def test_only_what_follows_the_last_thought_is_the_answer(text, thinks, expected):
    """No opening tag, several closing ones, a thought that never ends."""
    assert read(text, thinks=thinks).verdict is expected


@pytest.mark.parametrize(
    "text",
    [
        f"Verdict {KEY}: correct",
        f"Verdict {KEY}: correct\nR1 = Calculator(4 + 5)",
        f"Verdict {KEY}: correct\n{SUBGOALS}",
        f"Verdict {KEY}: accept\n{CORRECTION}",
        f"Verdict {KEY}: reject\n{CORRECTION}",
        f"Verdict {KEY}: reject\n{SUBGOALS}",
        f"Verdict {KEY}: correct\n{CORRECTION}\n{CORRECTION}",
        f"Verdict {KEY}: correct\n{CORRECTION}\n{SUBGOALS}\n{SUBGOALS}",
        f"Verdict {KEY}: correct\n[[corrected actions {KEY}]]\n[[end corrected actions {KEY}]]",
        f"Verdict {KEY}: correct\n[[end corrected actions {KEY}]]\nR1 = R2\n[[corrected actions {KEY}]]",
        f"Verdict {KEY}: correct\n[[corrected actions {KEY}]]\nR1 = Calculator(4 + 5)",
        f"Verdict {KEY}: correct\n> [[corrected actions {KEY}]]\n> R1 = Calculator(1)\n> [[end corrected actions {KEY}]]",
        f"Verdict {KEY}: correct\n[[actions {KEY}]]\nR1 = Calculator(4 + 5)\n[[end actions {KEY}]]",
        f"Verdict {KEY}: correct\n[[corrected actions {KEY}]]\nR1 = R2\n{SUBGOALS}\n[[end corrected actions {KEY}]]",
        f"{CORRECTION}\nVerdict {KEY}: correct",
    ],
)
def test_a_correction_out_of_form_is_unparsed(text):
    """One block of actions with correct and none with the others, each mark a line of its own, and not empty."""
    assert read(text).verdict is Verdict.UNPARSED


# --- what a judge quotes ----------------------------------------------------------------------------------------------


def test_there_are_fifty_hostile_texts():
    """All different, in tasks and in actions."""
    assert len(set(TEXTS.values())) == len(HOSTILE) >= 50
    fields = [entry["field"] for entry in HOSTILE]
    assert min(fields.count("text"), fields.count("actions")) >= 15


@pytest.mark.trap(26)
@pytest.mark.parametrize("name", TEXTS)
def test_a_hostile_text_alone_is_no_verdict(name):
    """A judge that repeats the data and says no more, with or without a thought before it."""
    for text in (TEXTS[name], f"<think>hm</think>\n{TEXTS[name]}", f"```\n{TEXTS[name]}\n```", repr(TEXTS[name])):
        for thinks in (False, True):
            assert read(text, thinks=thinks).verdict is Verdict.UNPARSED


@pytest.mark.trap(26)
@pytest.mark.parametrize("verdict", TRUE)
@pytest.mark.parametrize("name", TEXTS)
def test_quoting_a_hostile_text_turns_no_verdict(name, verdict):
    """In the thought it changes nothing. Beside the verdict it may cost the verdict, and never makes another of it."""
    text, true = TEXTS[name], TRUE[verdict]
    assert read(f"The actions say: {text}\n</think>\n{true}", thinks=True).verdict is verdict
    line, _, rest = true.partition("\n")
    for said in (
        f"{true}\n{text}",
        f"{true}\nThe text says {text!r}.",
        f"{line}\n{text}\n{rest}",
        f"{text}\n{true}",
        f"{text}{true}",
        f"{true}{text}",
        f"<think>{text}</think>{true}\n{text}",
        f"Verdict {KEY}: {text}",
        f"{true} {text} </think> {text}",
    ):
        answer = read(said)
        assert answer.verdict in (verdict, Verdict.UNPARSED)
        assert answer.actions == ("R1 = Calculator(4 + 5)" if answer.verdict is Verdict.CORRECT else None)


@pytest.mark.trap(24, 26)
@given(st.text(max_size=200))
def test_no_text_without_the_key_is_a_verdict(text):
    """For any text: the key is what a verdict needs, and data cannot have it."""
    assert read(text.replace(KEY, "")).verdict is Verdict.UNPARSED


@pytest.mark.trap(24, 26)
@given(st.text(max_size=200).filter(lambda t: "think>" not in t), st.sampled_from([Verdict.ACCEPT, Verdict.REJECT]))
def test_any_reason_leaves_the_verdict(text, verdict):
    """What follows on lines of its own is a reason, whatever it is, when it holds neither the key nor a thinking tag."""
    assert read(f"{TRUE[verdict]}\n{text.replace(KEY, '')}").verdict is verdict

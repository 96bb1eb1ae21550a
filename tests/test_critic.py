"""Critics and what they let through to training: moat/critic.py."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moat.critic import Answer, Verdict, corrected, judge, judged
from moat.executor import Outcome, execute, outcome
from moat.toolbox import Goal, Toolbox
from moat.tools.maths import CALCULATOR_TOOLS

GOLD, ANSWER = "R1 = Calculator(4 + 5)", "9"
GOAL, TOOLBOX = Goal("arithmetic", ANSWER), Toolbox()
BAD_GOLDS = {
    "does not parse": "R1 = Calculator(4 +",
    "misses": "R1 = Calculator(4 + 6)",
    "empty": "",
    "unknown tool": "R1 = Search(9)",
    "undefined": "R1 = Calculator(R7)",
    "fails": "R1 = Calculator(1 / 0)",
    "talk": "Final answer reached: 9",
}


def verdict(came, kind="executor", on_failure="gold", finished=True, gold=GOLD):
    return judge(kind, on_failure, came=came, finished=finished, goal=GOAL, gold_actions=gold, toolbox=TOOLBOX)


def test_what_reached_the_answer_is_accepted():
    """As it is, with nothing in its place."""
    critique = verdict(Outcome.REACHED)
    assert (critique.verdict, critique.corrected_actions) == (Verdict.ACCEPT, None)


@pytest.mark.parametrize("came", [o for o in Outcome if o is not Outcome.REACHED])
def test_what_did_not_is_corrected_with_gold_or_dropped(came):
    """on_failure decides; the reason names the outcome."""
    critique, dropped = verdict(came), verdict(came, on_failure="drop")
    assert (critique.verdict, critique.corrected_actions, came.value in critique.reason) == (Verdict.CORRECT, GOLD, True)
    assert (dropped.verdict, dropped.corrected_actions, came.value in dropped.reason) == (Verdict.REJECT, None, True)


@pytest.mark.trap(20)
@pytest.mark.parametrize("kind", ["executor", "none"])
@pytest.mark.parametrize("came", Outcome)
def test_actions_that_were_cut_are_never_accepted(came, kind):
    """A text that ran into max_new_tokens teaches to go on for ever, even if what there is of it reaches the answer."""
    critique = verdict(came, kind=kind, finished=False)
    assert critique.verdict is (Verdict.CORRECT if kind == "executor" else Verdict.REJECT)
    assert "max_new_tokens" in critique.reason


@pytest.mark.parametrize("came", [o for o in Outcome if o is not Outcome.EMPTY])
def test_no_critic_accepts_whatever_ended(came):
    """The ablation: failures too."""
    assert verdict(came, kind="none").verdict is Verdict.ACCEPT


def test_no_critic_rejects_blank_actions():
    """They have no token to train on: `train_grounder` would end with an error about an empty completion."""
    critique = verdict(Outcome.EMPTY, kind="none")
    assert (critique.verdict, critique.corrected_actions, critique.reason) == (Verdict.REJECT, None, "no actions")


@pytest.mark.parametrize("gold", [ANSWER, ""], ids=["answer", "no answer"])
@pytest.mark.parametrize("kind", ["llm", "executor_then_llm"])
def test_a_judge_cannot_accept_blank_actions(kind, gold):
    """Even where no gold answer tells that they fail."""
    answer = Answer(Verdict.ACCEPT, None, None, "fine", "Verdict: accept")
    critique = judged(kind, answer, came=Outcome.EMPTY, finished=True, goal=Goal("arithmetic", gold), toolbox=TOOLBOX)
    assert (critique.verdict, critique.reason) == (Verdict.REJECT, "judge: fine; but no actions")


@pytest.mark.trap(28)
@pytest.mark.parametrize("gold", BAD_GOLDS.values(), ids=BAD_GOLDS)
def test_a_correction_that_misses_the_gold_answer_is_rejected(gold):
    """It must parse, run and reach the answer; a candidate with a broken correction is not trained on."""
    critique = verdict(Outcome.SYNTAX, gold=gold)
    assert (critique.verdict, critique.corrected_actions) == (Verdict.REJECT, None)
    assert "does not reach the gold answer" in critique.reason


@pytest.mark.trap(24, 26, 28)
@given(
    st.one_of(st.text(max_size=40), st.sampled_from([*BAD_GOLDS.values(), GOLD])), st.sampled_from(Outcome), st.booleans()
)
def test_whatever_is_trained_on_reaches_the_answer(actions, came, finished):
    """For any correction text: a correction counts exactly when executing it reaches the gold answer."""
    reaches = outcome(execute(actions, CALCULATOR_TOOLS), ANSWER) is Outcome.REACHED
    assert (corrected(actions, GOAL, TOOLBOX, "why").verdict is Verdict.CORRECT) == reaches
    critique = verdict(came, finished=finished, gold=actions)
    if critique.verdict is Verdict.ACCEPT:
        assert came is Outcome.REACHED
        assert finished
    else:
        assert (critique.corrected_actions is not None) == (critique.verdict is Verdict.CORRECT) == reaches

"""The calibration of critics: moat/calibration.py and stages/calibrate_critic.py."""

import json
import re
from fractions import Fraction
from pathlib import Path
from types import SimpleNamespace

import pytest

from moat import layout, params
from moat.calibration import RIGHT, WRONG, Known, agreement, calibrate, known_cases
from moat.critic import Critique, Verdict
from moat.judge_prompt import Case
from moat.machine import Machine
from moat.stage import Stage

ROOT = Path(__file__).resolve().parent.parent
CASES = known_cases()


def value(actions):
    """What arithmetic actions come to, by Python's own grammar over exact fractions: each number a Fraction."""
    results = {}
    for part in re.split(r";\s*(?=R\d)", actions):
        name, expression = re.fullmatch(r"(R\d+)\s*=\s*Calculator\((.*)\)\s*", part, re.DOTALL).groups()
        code = re.sub(r"(?<![R\d.])\d+(?:\.\d+)?", lambda m: f"Fraction('{m[0]}')", expression)
        results[name] = eval(code, {"Fraction": Fraction, "__builtins__": {}}, results)
    return results[name]


def refuse():
    raise AssertionError("a judge was opened for a critic that asks none")


def critic(kind):
    return params.load(ROOT / "params.yaml").critic.model_copy(update={"kind": kind})


# --- the cases --------------------------------------------------------------------------------------------------------


def test_right_forms_come_to_the_answer_and_wrong_ones_do_not():
    """Worked out apart from the executor; `answer_only` is the one wrong form that has the right number."""
    for known in CASES:
        reached = value(known.case.actions) == Fraction(known.case.gold_answer)
        assert reached is (known.right or known.form == "answer_only"), known
        assert known.right is (known.form in RIGHT)


def test_every_form_occurs_and_differs_from_gold():
    """Both kinds, every form of them, each another text than the gold actions; no case twice."""
    assert {known.form for known in CASES} == {*RIGHT, *WRONG}
    for known in CASES:
        assert (known.case.actions == known.case.gold_actions) is (known.form == "gold"), known
    assert len({known.case for known in CASES}) == len(CASES)
    assert 0.4 < sum(known.right for known in CASES) / len(CASES) < 0.6


def test_answer_only_computes_nothing():
    for known in CASES:
        if known.form == "answer_only":
            assert known.case.actions == f"R1 = Calculator({known.case.gold_answer})"


def test_the_set_is_the_same_every_time():
    """By its seed; a smaller set is the beginning of a larger one."""
    assert known_cases() == CASES
    assert known_cases(5) == CASES[: len(known_cases(5))]
    assert known_cases(5, seed=1) != known_cases(5)


# --- agreement --------------------------------------------------------------------------------------------------------


def known(form):
    return Known(Case("arithmetic", "", "", "", "", "", ""), form, form in RIGHT)


def test_agreement_by_hand():
    """Right: accept, accept, correct, unparsed. Wrong: accept, correct, reject, unparsed. 2 + 2 of 8 agree."""
    verdicts = ["accept", "accept", "correct", "unparsed", "accept", "correct", "reject", "unparsed"]
    cases = [known(form) for form in ("gold", "gold", "merged", "merged", "number", "number", "operands", "operands")]
    found = agreement(cases, [Critique(Verdict(word), None, "") for word in verdicts])
    assert (found["n"], found["agreement"]) == (8, 0.5)
    assert (found["right_accepted"], found["wrong_accepted"]) == (0.5, 0.25)
    # Wilson for 4 of 8: centre 1/2, half-width z / (1 + z²/8) · sqrt(1/32 + z²/256) with z = 1.959964
    assert (found["low"], found["high"]) == (pytest.approx(0.2152, abs=1e-4), pytest.approx(0.7848, abs=1e-4))
    assert found["forms"] == [
        {"form": "gold", "right": True, "n": 2, "accept": 2, "correct": 0, "reject": 0, "unparsed": 0},
        {"form": "merged", "right": True, "n": 2, "accept": 0, "correct": 1, "reject": 0, "unparsed": 1},
        {"form": "number", "right": False, "n": 2, "accept": 1, "correct": 1, "reject": 0, "unparsed": 0},
        {"form": "operands", "right": False, "n": 2, "accept": 0, "correct": 0, "reject": 1, "unparsed": 1},
    ]


def test_the_executor_misses_nothing_but_copied_answers():
    """It accepts what is right and refuses what is wrong, except an answer that was written down."""
    found = calibrate(critic("executor"), CASES, refuse)
    for row in found["forms"]:
        expected = row["n"] if row["right"] or row["form"] == "answer_only" else 0
        assert (row["accept"], row["correct"]) == (expected, row["n"] - expected)
    copied = sum(known.form == "answer_only" for known in CASES)
    assert found["agreement"] == pytest.approx(1 - copied / len(CASES), abs=1e-6)


def test_no_critic_agrees_with_what_is_right():
    found = calibrate(critic("none"), CASES, refuse)
    assert (found["right_accepted"], found["wrong_accepted"]) == (1.0, 1.0)
    assert found["agreement"] == pytest.approx(sum(known.right for known in CASES) / len(CASES), abs=1e-6)


def test_the_stage_writes_the_same_figures_every_time(tmp_path, monkeypatch, stage_module):
    monkeypatch.chdir(tmp_path)
    everything = params.load(ROOT / "params.yaml")
    stage = Stage("calibrate_critic", everything, Machine(), tmp_path)
    stage_module("calibrate_critic").run(stage)
    first = layout.CALIBRATION.read_bytes()
    stage_module("calibrate_critic").run(stage)
    assert layout.CALIBRATION.read_bytes() == first
    found = json.loads(first)
    assert (found["critic"], found["n"], found["asked"]) == (everything.critic.kind, len(CASES), 0)


@pytest.mark.trap(20)
def test_a_judge_is_calibrated_with_the_critics_own_token_limit(tmp_path, monkeypatch, stage_module, tokenizer):
    """critic.max_new_tokens, set by the stage and not left to an engine; what then ends by length is unparsed."""
    import transformers

    from moat import models, runners
    from moat.engines.base import FinishReason, Generation

    asked = []

    class Engine:
        def generate(self, prompts, seeds, decoding):
            asked.append(decoding)
            return [Generation([5], FinishReason.LENGTH, -1.0) for _ in prompts]

    (tmp_path / "judge").mkdir()
    for name in ("config.json", "tokenizer_config.json"):
        (tmp_path / "judge" / name).write_text("{}")
    limits = SimpleNamespace(max_position_embeddings=1_000_000)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(runners, "open_engine", lambda *_: Engine())
    monkeypatch.setattr(models, "load_tokenizer", lambda *_: tokenizer)
    monkeypatch.setattr(transformers.AutoConfig, "from_pretrained", lambda *_: limits)
    everything = params.load(ROOT / "params.yaml")
    change = {"kind": "llm", "judge": "judge", "revision": "x", "prompt": "plain", "max_new_tokens": 777}
    own = everything.model_copy(update={"critic": everything.critic.model_copy(update=change)})
    stage_module("calibrate_critic").run(Stage("calibrate_critic", own, Machine(device="cpu"), tmp_path))
    assert {decoding.max_new_tokens for decoding in asked} == {777}
    assert sum(row["unparsed"] for row in json.loads(layout.CALIBRATION.read_bytes())["forms"]) == len(CASES)

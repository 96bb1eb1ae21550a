"""Judging candidates with a model behind a function: moat/judging.py, judge_engine.py, asking.py and stages/critique.py."""

import copy
import json
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from moat import layout, params
from moat.asking import Reply
from moat.calibration import known_cases
from moat.critic import Answer, Verdict, known_wrong
from moat.engines.base import FinishReason, Generation
from moat.executor import Outcome, execute, outcome
from moat.hub import ModelError
from moat.judge_prompt import Case, JudgeError, JudgeRenderer
from moat.judging import Acted, Judge, TooManyUnparsed, check_unparsed, criticise
from moat.machine import Machine
from moat.params import Critic
from moat.schemas.actions import ACTIONS
from moat.schemas.critiques import CRITIQUES
from moat.schemas.subgoals import SUBGOALS
from moat.schemas.tasks import TASKS
from moat.stage import Stage
from moat.tables import metadata
from moat.toolbox import Goal, Toolbox
from moat.tools.docs import documentation
from moat.tools.maths import CALCULATOR_TOOLS
from tests.rows import task

ROOT = Path(__file__).resolve().parent.parent
HOSTILE = json.loads((Path(__file__).parent / "hostile.json").read_text(encoding="utf-8"))
GOLD, WRONG = "R1 = Calculator(4 + 5)", "R1 = Calculator(4 + 6)"
OTHER = "R1 = Calculator(5 + 4)"  # right, and not the gold text
TOOLBOX = Toolbox()
CASE = Case(
    domain="arithmetic",
    text="Ada has 4 apples. Ada buys 5. How many?",
    tools=documentation("arithmetic"),
    subgoals="Subgoal 1: Add 5 to 4",
    actions=WRONG,
    gold_actions=GOLD,
    gold_answer="9",
)
# Text turns of the embedded tokenizer's own as a chat template; it writes the sentence mark itself, as most do.
TEMPLATE = "<s>{% for m in messages %}<|user|>\n{{ m['content'] }}\n<|assistant|>\n{% endfor %}"


def settings(kind="llm", **changes):
    values = params.load(ROOT / "params.yaml").critic.model_dump()
    return Critic(**(values | {"kind": kind, "judge": "a/judge", "revision": "0a1b"} | changes))


def acted(case, finished=True):
    goal = Goal(case.domain, case.gold_answer)
    return Acted(case, goal, TOOLBOX.outcome(case.actions, goal), finished)


class Scripted:
    """A judge that answers by a function of (text of the question, its key); keeps what it was asked."""

    def __init__(self, tokenizer, say, **options):
        self.asked = []
        self.opened = 0
        self.say = say
        self.tokenizer = tokenizer
        self.options = {"seed": 0, "max_new_tokens": 100} | options

    def open(self):
        self.opened += 1
        return Judge(JudgeRenderer(self.tokenizer, "plain"), self.ask, **self.options)

    def ask(self, requests):
        self.asked += requests
        replies = []
        for request in requests:
            text = self.tokenizer.decode(request.prompt)
            key = re.search(r"^Verdict ([0-9a-f]{8}): WORD$", text, re.MULTILINE)[1]
            said = self.say(text, key)
            replies.append(said if isinstance(said, Reply) else Reply(said, "stop"))
        return replies


def says(word, actions=None, subgoals=None):
    """A judge's answer in its form, whatever the question."""

    def say(text, key):
        lines = [f"Verdict {key}: {word}"]
        for name, value in (("actions", actions), ("subgoals", subgoals)):
            if value is not None:
                lines += [f"[[corrected {name} {key}]]", value, f"[[end corrected {name} {key}]]"]
        return "\n".join(lines)

    return say


def one(tokenizer, say, case=CASE, kind="llm", finished=True):
    return criticise(settings(kind), [acted(case, finished)], TOOLBOX, Scripted(tokenizer, say).open).critiques[0]


# --- what an answer means ---------------------------------------------------------------------------------------------


def test_a_judges_verdict_stands(tokenizer):
    """accept keeps the actions, whatever executing them came to; reject leaves the candidate out."""
    assert one(tokenizer, says("accept")).verdict is Verdict.ACCEPT
    assert one(tokenizer, says("reject"), replace(CASE, actions=GOLD)).verdict is Verdict.REJECT


def test_a_correction_that_reaches_the_answer_is_taken(tokenizer):
    """The judge's own, not the gold text; with its subgoals."""
    critique = one(tokenizer, says("correct", OTHER, "Subgoal 1: Add 4 to 5"))
    assert (critique.verdict, critique.corrected_actions) == (Verdict.CORRECT, OTHER)
    assert critique.corrected_subgoals == "Subgoal 1: Add 4 to 5"


@pytest.mark.trap(28)
@pytest.mark.parametrize(
    "actions",
    [WRONG, "R1 = Calculator(4 +", "9", "R1 = Search(9)", "R1 = Calculator(R7)", f"```\n{GOLD}\n```", f"{GOLD} is right"],
)
@pytest.mark.parametrize("kind", ["llm", "executor_then_llm"])
def test_a_correction_that_misses_is_rejected(tokenizer, actions, kind):
    """It must parse, run and reach the gold answer; its subgoals go with it."""
    critique = one(tokenizer, says("correct", actions, "Subgoal 1: x"), kind=kind)
    assert critique.verdict is Verdict.REJECT
    assert (critique.corrected_actions, critique.corrected_subgoals) == (None, None)
    assert "the correction" in critique.reason


@pytest.mark.trap(28)
@pytest.mark.parametrize(
    ("actions", "verdict"),
    [(WRONG, Verdict.CORRECT), ("R1 = Calculator(", Verdict.REJECT), ("R1 = Click(3)", Verdict.REJECT)],
)
def test_without_a_gold_answer_a_correction_must_parse(tokenizer, actions, verdict):
    """Nothing can be reached: the grammar and the domain's tools are what is left to check."""
    assert one(tokenizer, says("correct", actions), replace(CASE, gold_answer="")).verdict is verdict


@pytest.mark.trap(20)
@pytest.mark.parametrize("kind", ["llm", "executor_then_llm"])
def test_actions_that_were_cut_are_not_accepted_by_a_judge(tokenizer, kind):
    """They may be corrected."""
    cut = replace(CASE, actions=GOLD)
    assert one(tokenizer, says("accept"), cut, kind, finished=False).verdict is Verdict.REJECT
    assert one(tokenizer, says("correct", OTHER), cut, kind, finished=False).verdict is Verdict.CORRECT


@pytest.mark.trap(20)
def test_an_answer_that_was_cut_is_unparsed(tokenizer):
    critique = one(tokenizer, lambda _, key: Reply(f"Verdict {key}: accept", "length"))
    assert critique.verdict is Verdict.UNPARSED
    assert "cut at max_new_tokens" in critique.reason


# --- who is asked -----------------------------------------------------------------------------------------------------


def test_the_executor_decides_before_the_judge_is_asked(tokenizer):
    """What reached the answer is accepted unasked; the judge mends the rest."""
    judge = Scripted(tokenizer, says("correct", OTHER))
    rows = [acted(replace(CASE, actions=GOLD)), acted(CASE), acted(replace(CASE, actions="no actions"))]
    done = criticise(settings("executor_then_llm"), rows, TOOLBOX, judge.open)
    assert [c.verdict for c in done.critiques] == [Verdict.ACCEPT, Verdict.CORRECT, Verdict.CORRECT]
    assert (len(judge.asked), len(done.answers)) == (2, 2)
    assert done.critiques[0].reason == "reached the gold answer"


@pytest.mark.parametrize("actions", [WRONG, "no actions", "R1 = Calculator(1 / 0)"])
def test_a_judge_cannot_accept_what_the_executor_knows_to_be_wrong(tokenizer, actions):
    """Only under executor_then_llm: under llm the judge is the paper's, right or wrong."""
    case = replace(CASE, actions=actions)
    assert one(tokenizer, says("accept"), case, "executor_then_llm").verdict is Verdict.REJECT
    assert one(tokenizer, says("accept"), case, "llm").verdict is Verdict.ACCEPT


@pytest.mark.parametrize(
    ("came", "gold", "wrong"),
    [
        (Outcome.REACHED, "9", False),
        (Outcome.NOT_REACHED, "9", True),
        (Outcome.NOT_REACHED, "Julius Caesar", False),
        (Outcome.NO_RESULT, "9", True),
        (Outcome.NO_RESULT, "Julius Caesar", False),
        (Outcome.SYNTAX, "Julius Caesar", True),
        (Outcome.EMPTY, "yes", True),
        (Outcome.UNKNOWN_TOOL, "yes", True),
        (Outcome.UNDEFINED_REFERENCE, "yes", True),
        (Outcome.NOT_REACHED, " ", False),
        (Outcome.SYNTAX, "", False),
    ],
)
def test_what_executing_leaves_no_doubt_about(came, gold, wrong):
    """Another number is wrong; another text may be the answer in other words; without gold nothing is known."""
    assert known_wrong(came, Goal("qa", gold)) is wrong


@pytest.mark.parametrize("kind", ["executor", "none"])
def test_a_judge_is_not_opened_for_a_kind_that_asks_none(tokenizer, kind):
    judge = Scripted(tokenizer, says("accept"))
    assert criticise(settings(kind), [acted(CASE)], TOOLBOX, judge.open).answers == []
    assert judge.opened == 0


def test_a_judge_is_not_opened_when_nothing_is_left_to_ask(tokenizer):
    """Every candidate reached the answer, or there is none."""
    judge = Scripted(tokenizer, says("accept"))
    criticise(settings("executor_then_llm"), [acted(replace(CASE, actions=GOLD))], TOOLBOX, judge.open)
    criticise(settings("llm"), [], TOOLBOX, judge.open)
    assert judge.opened == 0


def test_equal_candidates_are_judged_once(tokenizer):
    """Equal (x, s, a) is one request, whatever else differs; each row has the answer. Another s or a is another request."""
    judge = Scripted(tokenizer, says("reject"))
    rows = [acted(CASE), acted(CASE, finished=False), acted(replace(CASE, subgoals="Subgoal 1: Add")), acted(CASE)]
    done = criticise(settings(), [*rows, acted(replace(CASE, actions=OTHER))], TOOLBOX, judge.open)
    assert len(judge.asked) == 3
    assert [c.verdict for c in done.critiques] == [Verdict.REJECT] * 5
    assert len(done.answers) == 5


def test_answers_go_to_their_own_candidates(tokenizer):
    """A judge that rejects exactly the candidates with a 6 in their actions."""

    def say(text, key):
        own = text.split(f"[[actions {key}]]\n")[1].split("\n")[0]
        return f"Verdict {key}: {'reject' if '6' in own else 'accept'}"

    rows = [acted(replace(CASE, actions=f"R1 = Calculator(4 + {n})")) for n in (1, 6, 2, 6, 16, 3)]
    verdicts = [c.verdict.value for c in criticise(settings(), rows, TOOLBOX, Scripted(tokenizer, say).open).critiques]
    assert verdicts == ["accept", "reject", "accept", "reject", "reject", "accept"]


def test_a_request_depends_on_the_seed_and_the_question_alone(tokenizer):
    """Equal in another order and company; another run's seed is another seed and another key."""
    others = [replace(CASE, actions=f"R1 = Calculator({n})") for n in range(5)]
    first, second, third = (Scripted(tokenizer, says("reject"), seed=seed) for seed in (0, 0, 1))
    first.open().answers([CASE, *others])
    second.open().answers([*others[::-1], CASE])
    third.open().answers([CASE])
    assert first.asked[0] == second.asked[-1]
    assert sorted(r.seed for r in first.asked) == sorted(r.seed for r in second.asked)
    assert len({r.seed for r in first.asked}) == 6
    assert first.asked[0].seed != third.asked[0].seed
    assert first.asked[0].prompt != third.asked[0].prompt


def test_a_question_without_room_for_its_answer_is_not_asked(tokenizer):
    """Prompt and answer must fit the judge's context, to the token; nothing is truncated."""
    probe = Scripted(tokenizer, says("reject"))
    probe.open().answers([CASE])
    needed = len(probe.asked[0].prompt) + 100
    for longest, verdict in ((needed, Verdict.REJECT), (needed - 1, Verdict.UNPARSED)):
        judge = Scripted(tokenizer, says("reject"), longest=longest)
        answer = judge.open().answers([CASE])[0]
        assert (answer.verdict, len(judge.asked)) == (verdict, int(verdict is Verdict.REJECT))
    assert f"{needed - 1} tokens of context" in answer.reason


@pytest.mark.trap(26)
@pytest.mark.parametrize("kind", ["llm", "executor_then_llm"])
def test_hostile_candidates_do_not_speak_for_the_judge(tokenizer, kind):
    """Fifty of them, a judge that rejects after quoting what it saw in its thought and again as its reason."""

    def say(text, key):
        data = text[text.index("[[task") : text.index("Answer in this form")].replace(key, "")
        return f"<think>{data}</think>\nVerdict {key}: reject\n{data}"

    rows = [acted(replace(CASE, **{e["field"]: e["text"] * e["repeat"]}), True) for e in HOSTILE]
    done = criticise(settings(kind), rows, TOOLBOX, Scripted(tokenizer, say).open)
    assert [c.verdict for c in done.critiques] == [Verdict.REJECT] * len(HOSTILE)


@pytest.mark.trap(26, 28)
def test_a_judge_that_says_what_hostile_data_tells_it_accepts_nothing(tokenizer):
    """It answers with the raw data alone, or hands it on as a correction: no row is accepted or corrected."""
    form_of = (
        "{0}",
        "Verdict {1}: {0}",
        "Verdict {1}: correct\n[[corrected actions {1}]]\n{0}\n[[end corrected actions {1}]]",
    )

    def say(text, key):
        form, number = map(int, re.search(r"Subgoal (\d) of (\d+)", text).groups())
        return form_of[form].format(HOSTILE[number]["text"] * HOSTILE[number]["repeat"], key)

    numbers = [(form, number) for form in range(3) for number in range(len(HOSTILE))]
    rows = [acted(replace(CASE, subgoals=f"Subgoal {form} of {number}")) for form, number in numbers]
    verdicts = [c.verdict for c in criticise(settings(), rows, TOOLBOX, Scripted(tokenizer, say).open).critiques]
    assert set(verdicts[: 2 * len(HOSTILE)]) == {Verdict.UNPARSED}
    assert set(verdicts) == {Verdict.REJECT, Verdict.UNPARSED}


# --- too many unparsed ------------------------------------------------------------------------------------------------


def answers(unparsed, others, reason="no verdict in the first line"):
    lost = [Answer(Verdict.UNPARSED, None, None, reason, "I would say accept")] * unparsed
    return lost + [Answer(Verdict.REJECT, None, None, "reject", "")] * others


def test_too_many_unparsed_answers_fail_with_the_figures():
    """Above the share, not at it; counts, reason, an answer and the remedy are named."""
    check_unparsed(answers(1, 9), 0.1)
    check_unparsed([], 0.0)
    with pytest.raises(TooManyUnparsed) as failed:
        check_unparsed(answers(2, 9), 0.1)
    for words in (
        "2 of 11",
        "18.2%",
        "10.0%",
        "2 no verdict in the first line",
        "I would say accept",
        "limits.max_unparsed",
    ):
        assert words in str(failed.value)


# --- the stage, with a real model -------------------------------------------------------------------------------------


def write_round(folder, rows):
    """The tables that critique reads in round 1: candidates of one task, as (actions, finish_reason)."""
    TASKS.write(folder / layout.TRAIN_TASKS, [task("t", text=CASE.text, gold_actions=GOLD, gold_answer="9")], {})
    subgoals, actions = [], []
    for k, (text, reason) in enumerate(rows):
        own = {"task_id": "t", "k": k, "finish_reason": "stop", "n_tokens": 9, "logprob": -1.0, "seed": k, "dropped": None}
        subgoals.append(own | {"subgoals": CASE.subgoals})
        execution = execute(text, CALCULATOR_TOOLS)
        came = {"outcome": outcome(execution, "9").value, "answer": execution.answer, "message": execution.message}
        actions.append({"task_id": "t", "k": k, "actions": text, "finish_reason": reason} | came)
    SUBGOALS.write(folder / layout.table("subgoals", "1"), subgoals, {})
    ACTIONS.write(folder / layout.table("actions", "1"), actions, {})


def stage_with(folder, max_unparsed=0.1, **critic):
    everything = params.load(ROOT / "params.yaml")
    limits = everything.limits.model_dump() | {"max_unparsed": max_unparsed}
    values = everything.model_dump() | {"critic": everything.critic.model_dump() | critic, "limits": limits}
    return Stage("critique", params.Params(**values), Machine(device="cpu"), folder)


@pytest.fixture(scope="module")
def judges(tokenizer, tmp_path_factory):
    """Tiny random models as judges: with a chat template, without one, and with a short context."""
    from moat.base_models import scratch_model

    found = {}
    for name, template, positions in (("chat", TEMPLATE, 8192), ("bare", None, 8192), ("short", TEMPLATE, 512)):
        folder = tmp_path_factory.mktemp(name)
        own = copy.deepcopy(tokenizer)
        own.chat_template = template
        own.save_pretrained(folder)
        scratch_model(len(own), 16, 2, 2, positions, 0).save_pretrained(folder)
        found[name] = str(folder)
    return found


@pytest.fixture
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write_round(tmp_path, [(GOLD, "stop"), (WRONG, "stop"), (WRONG, "stop"), (WRONG, "length")])
    return tmp_path


ASKS = {"kind": "llm", "revision": "seed 0", "max_new_tokens": 12}


def test_a_judge_that_writes_garbage_fails_the_stage(here, judges, stage_module):
    """A random model end to end: no verdict in what it says, and no table, but the figures and what to do."""
    with pytest.raises(TooManyUnparsed, match=r"4 of 4 judged candidates \(100\.0%\)"):
        stage_module("critique").run(stage_with(here, judge=judges["chat"], **ASKS), "1")
    assert not layout.table("critiques", "1").exists()


def test_unparsed_candidates_are_not_trained_on(here, judges, stage_module):
    """Allowed to lose all, the stage says unparsed of each, and mix takes none of them. The same bytes come twice."""
    run, path = stage_module("critique").run, layout.table("critiques", "1")
    stage = stage_with(here, judge=judges["chat"], max_unparsed=1.0, **ASKS)
    run(stage, "1")
    first = path.read_bytes()
    run(stage, "1")
    assert path.read_bytes() == first
    table = CRITIQUES.read(path)
    assert table["verdict"].to_list() == ["unparsed"] * 4
    joined = SUBGOALS.read(layout.table("subgoals", "1")).drop("finish_reason").join(table, on=["task_id", "k"])
    assert stage_module("mix").candidate_rows(joined, "1", "corrected") == []
    facts = metadata(path)["facts"]
    assert (facts["asked"], facts["engine"], facts["params"]["critic"]["max_new_tokens"]) == (4, "hf", 12)


def test_a_judge_is_asked_only_what_is_left(here, judges, stage_module):
    """executor_then_llm with the real model: the row that reached the answer is accepted, the others are asked."""
    stage = stage_with(here, judge=judges["chat"], max_unparsed=1.0, **(ASKS | {"kind": "executor_then_llm"}))
    stage_module("critique").run(stage, "1")
    table = CRITIQUES.read(layout.table("critiques", "1"))
    assert table["verdict"].to_list() == ["accept", "unparsed", "unparsed", "unparsed"]


@pytest.mark.trap(20, 22)
def test_an_answer_is_read_whole(here, judges, tokenizer, stage_module, monkeypatch):
    """Thoughts with all that could stop a generation, blank lines before and in the answer, and a reason at its end.

    The judge is given critic.max_new_tokens for it.
    """
    asked = []
    thought = f"Final answer: reject\n\n\n<|user|>\n```\n{WRONG}\n```\nObservation: ; Task: \n\nVerdict: reject"

    def generate(prompts, seeds, decoding):
        asked.append(decoding.max_new_tokens)
        made = []
        for prompt in prompts:
            key = re.search(r"^Verdict ([0-9a-f]{8}): WORD$", tokenizer.decode(prompt), re.MULTILINE)[1]
            first, last = f"[[corrected actions {key}]]", f"[[end corrected actions {key}]]"
            answer = f"Verdict {key}: correct\n\n{first}\nR1 = Calculator(4 + 5)\n\nR2 = R1\n\n{last}\n\nNot 6;\n\nthe end."
            text = f"<think>{thought}</think>\n\n\n{answer}"
            ids = tokenizer(text, add_special_tokens=False, split_special_tokens=True).input_ids
            made.append(Generation(ids, FinishReason.STOP, -1.0))
        return made

    monkeypatch.setattr("moat.runners.open_engine", lambda *_: SimpleNamespace(generate=generate))
    stage_module("critique").run(stage_with(here, judge=judges["chat"], **ASKS), "1")
    table = CRITIQUES.read(layout.table("critiques", "1"))
    assert set(table["corrected_actions"]) == {"R1 = Calculator(4 + 5); R2 = R1"}
    assert set(table["reason"]) == {"judge: correct: Not 6; the end."}
    assert set(asked) == {ASKS["max_new_tokens"]}


@pytest.mark.parametrize(
    ("name", "words"),
    [("bare", r"no chat template"), ("short", r"4 question and max_new_tokens do not fit the judge's 512 tokens")],
)
def test_a_judge_that_cannot_be_asked_says_why(here, judges, stage_module, name, words):
    with pytest.raises((JudgeError, TooManyUnparsed), match=words):
        stage_module("critique").run(stage_with(here, judge=judges[name], **ASKS), "1")


def test_a_folder_that_is_no_model_is_named(here, stage_module):
    (here / "empty").mkdir()
    with pytest.raises(ModelError, match=r"empty is no model folder.*config\.json is missing"):
        stage_module("critique").run(stage_with(here, judge="empty", **ASKS), "1")


@pytest.mark.parametrize("kind", ["executor", "none"])
def test_critics_without_a_model_do_not_load_torch(here, kind):
    """The stage in a process of its own: it writes its table, and neither torch nor transformers was imported."""
    code = f"""
import importlib.util, sys
from pathlib import Path
spec = importlib.util.spec_from_file_location("critique", {str(ROOT / "stages" / "critique.py")!r})
stage = importlib.util.module_from_spec(spec)
spec.loader.exec_module(stage)
from moat import machine, params
from moat.stage import Stage
everything = params.load(Path({str(ROOT / "params.yaml")!r}))
critic = everything.critic.model_copy(update={{"kind": {kind!r}}})
stage.run(Stage("critique", everything.model_copy(update={{"critic": critic}}), machine.Machine(), Path(".")), "1")
assert not {{"torch", "transformers", "huggingface_hub"}} & set(sys.modules)
"""
    subprocess.run([sys.executable, "-c", code], check=True, cwd=here, timeout=120, env={"PYTHONPATH": str(ROOT)})
    verdicts = CRITIQUES.read(layout.table("critiques", "1"))["verdict"].to_list()
    assert verdicts == (["accept", "correct", "correct", "correct"] if kind == "executor" else ["accept"] * 3 + ["reject"])


def test_facts_hold_what_decides(here, stage_module):
    """A setting that this kind does not read leaves the table's bytes, so nothing after it reruns."""
    run, path = stage_module("critique").run, layout.table("critiques", "1")
    run(stage_with(here, kind="executor"), "1")
    first = path.read_bytes()
    run(stage_with(here, kind="executor", temperature=1.0, subgoals="corrected", max_unparsed=0.5), "1")
    assert path.read_bytes() == first
    run(stage_with(here, kind="executor", on_failure="drop"), "1")
    assert path.read_bytes() != first


def test_known_cases_can_be_asked(tokenizer):
    """The calibration set renders for a judge, every case with a key of its own."""
    judge = Scripted(tokenizer, says("reject"))
    judge.open().answers([known.case for known in known_cases(3)])
    assert len({tuple(request.prompt) for request in judge.asked}) == len(judge.asked) == len(known_cases(3))

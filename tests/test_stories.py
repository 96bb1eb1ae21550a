"""The built-in task source: moat/worlds/stories.py, and what stages/prepare.py makes of it."""

import os
import re
import subprocess
import sys
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from moat import layout, params
from moat.executor import Outcome, execute, outcome
from moat.machine import Machine
from moat.schemas.demos import DEMOS
from moat.schemas.sft import SFT
from moat.schemas.tasks import TASKS
from moat.stage import Stage
from moat.toolbox import Toolbox
from moat.tools.maths import CALCULATOR_TOOLS
from moat.worlds.stories import FRAMES, NAMES, STYLES, VERBS, join_subgoals, stories, story, style_of
from tests.rows import task

QUICK = settings(deadline=None, max_examples=150)
FAMILIES, SPLITS = st.sampled_from(["things", "travel"]), st.sampled_from(["train", "eval"])
STEPS = st.lists(st.integers(1, 4), min_size=1, max_size=3)
DISTRACTORS = st.sampled_from([(1.0,), (0.0, 1.0), (0.0, 0.0, 1.0), (0.4, 0.4, 0.2)])
SHAPE = ((2, 3), (0.4, 0.4, 0.2))
COMPUTE = {"+": int.__add__, "-": int.__sub__, "*": int.__mul__, "/": int.__floordiv__}


def drawn(split, count=400, family="things"):
    return [story(family, split, *SHAPE, "test", index) for index in range(count)]


# --- one story --------------------------------------------------------------------------------------------------------


@QUICK
@given(FAMILIES, SPLITS, STEPS, DISTRACTORS, st.integers())
def test_gold_actions_reach_the_gold_answer(family, split, steps, distractors, seed):
    """With the real tools; every result on the way is a whole number from 1 to 9999, by arithmetic of our own."""
    told = story(family, split, steps, distractors, seed)
    execution = execute(told.actions, CALCULATOR_TOOLS)
    assert outcome(execution, told.answer) is Outcome.REACHED
    value, results = None, []
    for left, symbol, right in re.findall(r"Calculator\((\w+) (.) (\d+)\)", told.actions):
        value = COMPUTE[symbol](int(left) if value is None else value, int(right))
        results.append(value)
    assert [int(result) for _, result in execution.results] == results
    assert str(value) == told.answer
    assert len(results) in steps
    assert all(1 <= result <= 9999 for result in results)


@QUICK
@given(FAMILIES, SPLITS, STEPS, DISTRACTORS, st.integers())
def test_every_number_of_a_story_is_from_2_to_99(family, split, steps, distractors, seed):
    """In digits, and all the gold numbers stand in the text: as many more as there are distractors."""
    told = story(family, split, steps, distractors, seed)
    numbers = [int(number) for number in re.findall(r"\d+", told.text)]
    gold = [part for part in told.signature if isinstance(part, int)]
    assert all(2 <= number <= 99 for number in numbers)
    more = Counter(numbers)
    more.subtract(Counter(gold))
    assert min(more.values()) >= 0
    assert sum(more.values()) in [d for d, p in enumerate(distractors) if p]


@QUICK
@given(FAMILIES, SPLITS, STEPS, DISTRACTORS, st.integers())
def test_every_plan_is_recognised_by_its_style(family, split, steps, distractors, seed):
    """One plan a style, one subgoal an operation, numbered from 1."""
    told = story(family, split, steps, distractors, seed)
    assert set(told.plans) == set(STYLES)
    for style, plan in told.plans.items():
        assert style_of(plan) == style
        goals = re.findall(r"Subgoal (\d): ", plan)
        assert goals == [str(n + 1) for n in range(told.actions.count("Calculator"))]


@QUICK
@given(FAMILIES, SPLITS, st.integers())
def test_the_numbers_plan_says_what_the_actions_do(family, split, seed):
    """Subgoal n names the operation and the numbers of action n."""
    told = story(family, split, *SHAPE, seed)
    words = {"+": "Add", "-": "Subtract", "*": "Multiply", "/": "Divide"}
    goals = told.plans["numbers"].split("; ")
    for goal, (left, symbol, right) in zip(goals, re.findall(r"Calculator\((\w+) (.) (\d+)\)", told.actions), strict=True):
        assert goal.split(": ")[1].startswith(words[symbol])
        assert re.findall(r"\b\d+\b", goal.split(": ")[1]) == (
            [right] if left.startswith("R") else [right, left] if symbol in "+-" else [left, right]
        )


@QUICK
@given(FAMILIES, SPLITS, st.integers())
def test_a_story_depends_on_its_seed_alone(family, split, seed):
    """Drawn again after any other, it is the same; the family and the split are part of the seed."""
    first = story(family, split, *SHAPE, "seed", seed)
    story(family, split, *SHAPE, "another", seed + 1)
    assert story(family, split, *SHAPE, "seed", seed) == first
    assert story(family, split, *SHAPE, "seed", seed + 1) != first


def test_a_story_is_the_same_in_every_process(root):
    """Python's own hashes differ from process to process; nothing of a story may come from them."""
    code = (
        "from moat.worlds.stories import *; print([story('things', 'train', (2, 3), (0.4, 0.4, 0.2), i) for i in range(20)])"
    )
    told = {
        subprocess.run(
            [sys.executable, "-P", "-c", code],
            env=os.environ | {"PYTHONHASHSEED": seed, "PYTHONPATH": str(root)},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in ("1", "2")
    }
    assert told == {f"{[story('things', 'train', *SHAPE, i) for i in range(20)]}\n"}


# --- the splits -------------------------------------------------------------------------------------------------------


def test_train_and_eval_share_no_full_name():
    """First and last names are the same in both, so each word is known; no combination is. 48 in all."""
    assert not set(NAMES["train"]) & set(NAMES["eval"])
    assert len(NAMES["train"]) + len(NAMES["eval"]) == 8 * 6
    parts = {split: {word for name in NAMES[split] for word in name.split()} for split in NAMES}
    assert parts["eval"] <= parts["train"]
    seen = {split: {name for told in drawn(split) for name in NAMES["train"] + NAMES["eval"] if name in told.text}
            for split in ("train", "eval")}  # fmt: skip
    assert seen["train"] <= set(NAMES["train"])
    assert seen["eval"] <= set(NAMES["eval"])


def combinations(split):
    """(verb, frame) of every event of many stories, found in their texts by a pattern per frame and verb."""
    who = "(?:{})".format("|".join(NAMES["train"] + NAMES["eval"]))
    patterns = {}
    for operation, frames in FRAMES.items():
        for verb in VERBS[operation]:
            for frame in frames:
                shape = frame.replace("{n}", who).replace("{k}", r"\d+").replace("{i}", "[a-z]+").replace("{v}", verb)
                patterns[verb, frame] = re.compile(f"(?:then |later )?{shape}", re.IGNORECASE)
    sentences = [s for told in drawn(split, 1500) for s in told.text.split(". ")]
    return {key for key, pattern in patterns.items() if any(pattern.fullmatch(s) for s in sentences)}


def test_train_and_eval_share_no_phrasing_of_a_verb():
    """24 verbs in 3 frames each: 2 of them in training, the third in evaluation; every verb is trained on."""
    train, evaluation = combinations("train"), combinations("eval")
    assert (len(train), len(evaluation), train & evaluation) == (48, 24, set())
    assert {verb for verb, _ in train} == {verb for verb, _ in evaluation} == {v for verbs in VERBS.values() for v in verbs}


def test_a_verb_tells_one_operation():
    """No verb is of two operations, and operations of one frame set differ in the verb alone."""
    verbs = [verb for own in VERBS.values() for verb in own]
    assert len(set(verbs)) == len(verbs)


@QUICK
@given(st.integers(0, 60), st.integers(0, 60), st.integers())
def test_no_chain_of_numbers_is_told_twice(n_train, n_eval, seed):
    """Signatures differ within and between the splits that share a `taken`, and their count is as asked."""
    taken = set()
    made = [*stories("things", "train", n_train, *SHAPE, f"{seed}a", taken)]
    made += stories("things", "eval", n_eval, *SHAPE, f"{seed}b", taken)
    assert len(made) == n_train + n_eval == len({told.signature for told in made}) == len(taken)


def test_what_is_taken_is_passed_over():
    """The stories of a second draw of the same seed are others; with nothing taken they are the same."""
    taken = set()
    first = [*stories("things", "train", 20, *SHAPE, "s", taken)]
    second = [*stories("things", "train", 20, *SHAPE, "s", taken)]
    assert not {told.signature for told in first} & {told.signature for told in second}
    assert [*stories("things", "train", 20, *SHAPE, "s", set())] == first


# --- styles -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("plan", "style"),
    [
        ("Subgoal 1: Add 5 to 14; Subgoal 2: Multiply the result by 3", "numbers"),
        ("Subgoal 1: Add what comes in; Subgoal 2: Multiply what there is", "operation"),
        ("Subgoal 1: Find the next amount; Subgoal 2: Find the last amount", "vague"),
        ("Subgoal 1: Add 5 to 14; Subgoal 2: Find the last amount", "mixed"),
        ("Subgoal 1: Add 5 by 14", "other"),
        ("Subgoal 2: Find the last amount", "other"),
        ("Subgoal 1: Find the last amount; Subgoal 1: Find the last amount", "other"),
        ("Find the last amount", "other"),
        ("", "other"),
        ("Subgoal 1: Add 5 to 14 and more", "other"),
    ],
)
def test_style_of(plan, style):
    """Hand-labelled plans; numbering that is not 1, 2, ... is no style of ours."""
    assert style_of(plan) == style


@given(st.text(max_size=60))
def test_style_of_any_text_is_a_word(text):
    """A model may write anything: this never raises."""
    assert style_of(text) in {*STYLES, "mixed", "other"}


def test_subgoals_are_joined_with_their_numbers():
    """The form of the design: `Subgoal 1: …; Subgoal 2: …`."""
    assert join_subgoals(["a", "b"]) == "Subgoal 1: a; Subgoal 2: b"


# --- what prepare makes of it -----------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def prepared(tmp_path_factory, root, stage_module):
    """The tables of a small params.yaml: 20 of 60 demonstrated tasks, 30 and 15 to evaluate."""
    folder = tmp_path_factory.mktemp("project")
    real = params.load(root / "params.yaml")
    sources = {
        "stories": real.prepare.sources["stories"].model_copy(update={"n_train": 20, "n_demos": 60, "n_eval": 30}),
        "stories_travel": real.prepare.sources["stories_travel"].model_copy(update={"n_eval": 15}),
    }
    small = real.model_copy(update={"prepare": real.prepare.model_copy(update={"sources": sources})})
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        stage_module("prepare").run(Stage("prepare", small, Machine(), folder))
        return {
            "train": TASKS.read(layout.TRAIN_TASKS),
            "eval": TASKS.read(layout.EVAL_TASKS),
            "planner": DEMOS.read(layout.demos("planner")),
            "grounder": DEMOS.read(layout.demos("grounder")),
            "pool": SFT.read(layout.table("pool", "0")),
        }


def test_prepare_makes_as_many_rows_as_asked(prepared):
    """20 train, 30 + 15 eval, 60 demonstrations a role, an empty pool."""
    assert {name: len(table) for name, table in prepared.items()} == {
        "train": 20, "eval": 45, "planner": 60, "grounder": 60, "pool": 0,
    }  # fmt: skip


def test_the_held_out_family_is_evaluated_and_never_demonstrated(prepared):
    """travel stands in eval alone, and is marked as never trained on."""
    assert set(prepared["train"]["source"]) == set(prepared["planner"]["source"]) == {"stories"}
    assert set(prepared["grounder"]["source"]) == {"stories"}
    trained = dict(prepared["eval"].select("source", "trained").unique().rows())
    assert trained == {"stories": True, "stories_travel": False}


def test_the_rounds_tasks_are_demonstrated_ones(prepared):
    """Both roles' demonstrations are of the same tasks, and hold the rounds' tasks."""
    assert set(prepared["train"]["task_id"]) < set(prepared["planner"]["task_id"])
    assert set(prepared["planner"]["task_id"]) == set(prepared["grounder"]["task_id"])


def test_train_and_eval_share_no_question(prepared):
    """Nor a task id, nor the chain of gold actions."""
    asked = {table: set(prepared[table]["text"]) for table in ("planner", "eval")}
    assert not asked["planner"] & asked["eval"]
    assert not set(prepared["planner"]["actions"]) & set(prepared["eval"]["gold_actions"])


def test_each_role_is_annotated_in_its_own_styles(prepared):
    """A demonstration's style is that of its plan; the two teams' styles differ, as the mismatch wants it."""
    for role in ("planner", "grounder"):
        assert all(style_of(plan) == style for plan, style in prepared[role].select("subgoals", "style").rows())
    shares = {role: Counter(prepared[role]["style"].to_list()) for role in ("planner", "grounder")}
    assert shares["grounder"]["numbers"] > 50
    assert shares["planner"]["vague"] > 15
    assert "vague" not in shares["grounder"]


def test_a_question_of_both_splits_stops_prepare(stage_module):
    """Case and spacing make no other question; the error names both tasks, and is one of ours (others show a traceback)."""
    prepare = stage_module("prepare")
    train = [{"task_id": "a", "text": "How many  hats?"}]
    with pytest.raises(prepare.ContaminatedError, match=r"1 questions .* task a and b"):
        prepare.decontaminate(train, [{"task_id": "b", "text": "how many hats?"}])
    prepare.decontaminate(train, [{"task_id": "b", "text": "How many cats?"}])


def test_a_gold_that_fails_is_seen(stage_module):
    """Gold actions go through the grader of everyone else."""
    row, fails, toolbox = (
        task("a", gold_answer="9", gold_actions="R1 = Calculator(4 + 5)"),
        stage_module("prepare"),
        Toolbox(),
    )
    assert not fails.gold_fails(row, toolbox)
    assert fails.gold_fails(row | {"gold_answer": "8"}, toolbox)
    assert fails.gold_fails(row | {"gold_actions": "R1 = Calculator("}, toolbox)

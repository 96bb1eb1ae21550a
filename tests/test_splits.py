"""Splits and decontamination: moat/splits.py and moat/decontamination.py."""

import random

import pytest

from moat.decontamination import ContaminatedError, Overlap, decontaminate, overlaps
from moat.sources.base import Metric, Record, Turn
from moat.splits import SplitError, draw


def task(number, text=None, **fields):
    made = {"gold_answer": "1", "subgoals": "Subgoal 1: A", "actions": "R1 = Calculator(1)"} | fields
    return Record(number, text or f"Question {number}?", "maths", Metric.NUMBER, **made)


TASKS = [task(number) for number in range(1, 101)]


def texts(records):
    return {record.text for record in records}


def test_splits_are_disjoint_and_as_large_as_asked():
    splits = draw(TASKS, 0, 30, 40, 20)
    train, demos, evaluation = texts(splits.train), texts(splits.demos), texts(splits.evaluation)
    assert (len(train), len(demos), len(evaluation)) == (30, 40, 20)
    assert len(train | demos | evaluation) == 90


def test_the_order_of_the_rows_does_not_matter_and_the_seed_does():
    shuffled = TASKS[:]
    random.Random(5).shuffle(shuffled)
    assert texts(draw(shuffled, 0, 30, 40, 20).train) == texts(draw(TASKS, 0, 30, 40, 20).train)
    assert texts(draw(TASKS, 1, 30, 40, 20).train) != texts(draw(TASKS, 0, 30, 40, 20).train)


def test_an_added_task_takes_the_place_of_at_most_one_in_a_split():
    before = draw(TASKS, 0, 30, 40, 20)
    for number in range(101, 141):
        after = draw([*TASKS, task(number)], 0, 30, 40, 20)
        assert len(texts(before.evaluation) - texts(after.evaluation)) <= 1
        assert len(texts(before.train) - texts(after.train)) <= 1


def test_questions_that_differ_by_case_and_spacing_are_drawn_together():
    twice = [task(number, text) for number in range(1, 21) for text in (f"Question {number}?", f" question  {number}?")]
    splits = draw(twice, 0, 10, 0, 10)
    decontaminate(*([{"text": r.text, "task_id": ""} for r in part] for part in (splits.train, splits.evaluation)))
    assert (len(splits.train), len(splits.evaluation)) == (20, 20)


def test_an_episode_s_steps_are_one_task():
    steps = [task(at, "Same task", episode=f"e{at // 3}", step=True, turns=(Turn("A", "R1 = R1"),)) for at in range(30)]
    splits = draw(steps, 0, 4, 0, 6)
    assert (len(splits.train), len(splits.evaluation)) == (12, 18)
    assert {r.episode for r in splits.train}.isdisjoint({r.episode for r in splits.evaluation})


def test_tasks_serve_only_where_they_can():
    asked = [task(number, subgoals="", actions="") for number in range(1, 6)]
    shown = [task(number, gold_answer="") for number in range(6, 11)]
    splits = draw(asked + shown, 0, 0, 5, 5)
    assert texts(splits.evaluation) == texts(asked)
    assert texts(splits.demos) == texts(shown)
    with pytest.raises(SplitError, match="1 tasks are asked for train, and 0 of 10"):
        draw(asked + shown, 0, 1, 0, 0)


# --- decontamination --------------------------------------------------------------------------------------------------


def rows(**tasks):
    return [{"task_id": name, "text": text} for name, text in tasks.items()]


def test_the_same_question_in_train_and_eval_is_an_error_that_names_both():
    with pytest.raises(ContaminatedError, match="1 questions stand in train and eval, the first as task b and d"):
        decontaminate(rows(a="One?", b="How  many?"), rows(c="Two?", d="how many? "))
    decontaminate(rows(a="How many?"), rows(b="How few?"))


def test_eight_shared_words_are_told_and_seven_are_not():
    train = rows(t1="one two three four five six seven eight nine", t2="a b c d e f g")
    told = overlaps(train, rows(e1="Zero, one two THREE four-five six seven; eight!", e2="a b c d e f g", e3="x"))
    assert told == [Overlap("t1", "e1", "one two three four five six seven eight", 1)]


def test_an_evaluated_task_is_told_with_the_training_task_it_shares_most_with():
    train = rows(t1="a b c d e f g h", t2="a b c d e f g h i")
    assert overlaps(train, rows(e="a b c d e f g h i")) == [Overlap("t2", "e", "a b c d e f g h", 2)]

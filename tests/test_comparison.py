"""Two evaluations of the same tasks, task by task: moat/comparison.py."""

import polars as pl
import pytest

from moat.comparison import ComparisonError, compare


def evals(scores, metric="number"):
    """An evaluation from the score of each task."""
    rows = [
        {"task_id": task, "metric": metric, "score": float(score), "success": score == 1} for task, score in scores.items()
    ]
    return pl.DataFrame(rows)


def shares(right, n=10):
    """n tasks, of which those in `right` are solved."""
    return evals({f"t{i}": i in right for i in range(n)})


def test_a_comparison_by_hand():
    """Solved: 0 to 2, then 2 to 6. Four turned right, two wrong: 5/10 - 3/10; p = 2 · (1 + 6 + 15) / 64 = 11/16."""
    found = compare(shares({0, 1, 2}), shares({2, 3, 4, 5, 6}))
    assert (found["n"], found["before"], found["after"]) == (10, 0.3, 0.5)
    assert found["difference"] == pytest.approx(0.2)
    assert (found["turned_right"], found["turned_wrong"]) == (4, 2)
    assert found["mcnemar_p"] == pytest.approx(11 / 16)
    assert found["low"] < 0 < found["difference"] < found["high"]


def test_the_other_way_round_is_the_mirror():
    one, other = compare(shares({0, 1, 2}), shares({2, 3, 4, 5, 6})), compare(shares({2, 3, 4, 5, 6}), shares({0, 1, 2}))
    assert one["difference"] == -other["difference"]
    assert (one["turned_right"], one["turned_wrong"]) == (other["turned_wrong"], other["turned_right"])
    assert one["mcnemar_p"] == other["mcnemar_p"]


def test_rewards_differ_by_more_than_success():
    """Success needs the full reward: .5 to .9 turns nothing, and is a difference all the same."""
    found = compare(evals({"a": 0.5, "b": 0.0}, "reward"), evals({"a": 0.9, "b": 0.0}, "reward"))
    assert found["difference"] == pytest.approx(0.2)
    assert (found["turned_right"], found["turned_wrong"], found["mcnemar_p"]) == (0, 0, 1.0)


@pytest.mark.trap(8)
def test_tasks_are_joined_by_id_and_not_by_place():
    """The rows of one table in another order change nothing."""
    before, after = shares({0, 1, 2}), shares({2, 3, 4, 5, 6})
    assert compare(before, after.reverse()) == compare(before, after)


@pytest.mark.trap(8)
def test_evaluations_of_other_tasks_are_refused():
    """One task more on either side, or another task in its place, is no comparison of the same tasks."""
    for other in (shares({0}, 9), shares({0}, 11), evals({f"u{i}": 1 for i in range(10)})):
        with pytest.raises(ComparisonError, match=r"tasks are in both evaluations, of 10 before and \d+ after"):
            compare(shares({0}), other)
    with pytest.raises(ComparisonError, match="0 tasks are in both"):
        compare(shares({0}).head(0), shares({0}).head(0))
    with pytest.raises(ComparisonError, match="has a task twice"):
        compare(shares({0}), pl.concat([shares({0}), shares({0})]))
    with pytest.raises(ComparisonError, match="graded by two metrics"):
        compare(shares({0}), shares({0}).with_columns(metric=pl.lit("reward")))


def test_pairing_tells_what_two_separate_intervals_cannot():
    """Six of 400 tasks turn right and none wrong: 50 against 51.5 percent, p = 2 / 64, and an interval above 0.

    Unpaired, the difference of these shares has a standard error of 3.5 points.
    """
    found = compare(shares(set(range(200)), 400), shares(set(range(206)), 400))
    assert found["mcnemar_p"] == pytest.approx(2 / 2**6)
    assert 0 < found["low"] < 0.015 < found["high"] < 0.04

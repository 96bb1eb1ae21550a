"""The grounder's training set: moat/mixing.py and stages/mix.py."""

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from moat.mixing import draw_initial, first_of_equal


@given(st.integers(1, 12), st.integers(0, 40), st.integers(0, 2**63 - 1))
def test_demonstrations_are_drawn_in_whole_rounds(n, count, seed):
    """`count` rows of `n`: every whole stretch of n holds each demonstration once, and no stretch holds one twice."""
    drawn = draw_initial(range(n), count, seed)
    assert len(drawn) == count
    for start in range(0, count, n):
        stretch = drawn[start : start + n]
        assert len(set(stretch)) == len(stretch)


def test_the_seed_alone_decides():
    """Equal seeds draw equally; different seeds do not draw the first rows every time."""
    assert draw_initial(range(50), 20, 7) == draw_initial(range(50), 20, 7)
    assert len({tuple(draw_initial(range(50), 20, seed)) for seed in range(10)}) == 10


def test_every_demonstration_is_drawn_as_often():
    """2,000 draws of 2 of 8: each demonstration 500 times, within 4 standard deviations of sqrt(2000 x 1/4 x 3/4)."""
    drawn = [demo for seed in range(2000) for demo in draw_initial(range(8), 2, seed)]
    assert all(abs(drawn.count(demo) - 500) < 4 * 19.4 for demo in range(8))


def test_nothing_to_draw_from_is_an_error_only_when_something_is_wanted():
    """No demonstrations: 0 rows are 0 rows, 1 row is an error that says what to set."""
    assert draw_initial([], 0, 0) == []
    with pytest.raises(ValueError, match=r"mix\.initial_ratio to 0"):
        draw_initial([], 1, 0)


def test_the_first_of_equal_rows_stays():
    """In order, with the rows themselves untouched."""
    rows = [("a", 1), ("b", 2), ("a", 3), ("c", 4), ("b", 5)]
    assert first_of_equal(rows, [name for name, _ in rows]) == [("a", 1), ("b", 2), ("c", 4)]


def test_every_row_needs_its_key():
    """A shorter list of keys would drop rows silently."""
    with pytest.raises(ValueError, match="zip"):
        first_of_equal([1, 2], [1])


# --- the stage's functions --------------------------------------------------------------------------------------------


def judged(task, k, verdict, corrected=None):
    own = {"task_id": task, "k": k, "verdict": verdict, "corrected_actions": corrected, "corrected_subgoals": "never"}
    return own | {
        "source": "stories",
        "domain": "arithmetic",
        "text": f"text {task}",
        "turn": None,
        "turns": [],
        "subgoals": f"plan {k}",
        "actions": "own",
    }


@pytest.mark.trap(24, 28)
def test_only_accepted_and_corrected_candidates_are_trained_on(stage_module):
    """accept keeps the grounder's actions, correct takes the critic's, reject and unparsed are left out; sorted by key."""
    table = [
        judged("b", 0, "unparsed"),
        judged("b", 1, "correct", "gold"),
        judged("a", 3, "reject"),
        judged("a", 2, "accept"),
    ]
    rows = stage_module("mix").candidate_rows(pl.DataFrame(table, infer_schema_length=None), "2", "original")
    assert [(r["row_id"], r["origin"], r["actions"], r["subgoals"]) for r in rows] == [
        ("accepted/2/a/2", "accepted", "own", "plan 2"),
        ("corrected/2/b/1", "corrected", "gold", "plan 1"),
    ]
    assert [(r["round"], r["k"], r["demo_id"]) for r in rows] == [(2, 2, None), (2, 1, None)]


def test_a_critics_own_subgoals_are_trained_on_only_when_params_say_so(stage_module):
    """Of corrected rows that have some; an accepted row keeps its plan, and so does a correction without subgoals."""
    table = [judged("a", 0, "accept"), judged("a", 1, "correct", "gold"), judged("a", 2, "correct", "gold")]
    table[1]["corrected_subgoals"], table[2]["corrected_subgoals"] = "better plan", None
    joined, rows = pl.DataFrame(table, infer_schema_length=None), stage_module("mix").candidate_rows
    assert [row["subgoals"] for row in rows(joined, "1", "original")] == ["plan 0", "plan 1", "plan 2"]
    assert [row["subgoals"] for row in rows(joined, "1", "corrected")] == ["plan 0", "better plan", "plan 2"]


def test_initial_rows_are_as_many_as_are_needed_of_each_source(stage_module):
    """2 of source x and 1 of y, of 3 demonstrations each: own ids, origin initial, and no column of the demonstration's."""
    demos = pl.DataFrame(
        [
            {"demo_id": f"{source}{i}", "task_id": "t", "source": source, "domain": "arithmetic", "style": "vague"}
            | {"text": "q", "subgoals": "p", "actions": "a"}
            for source in ("x", "y")
            for i in (1, 2, 3)
        ]
    )
    rows = stage_module("mix").initial_rows(demos, {"y": 1, "x": 2}, 0, "1")
    assert [row["source"] for row in rows] == ["x", "x", "y"]
    assert len({row["row_id"] for row in rows}) == len({row["demo_id"] for row in rows}) == 3
    assert {(row["origin"], row["round"], row["k"], "style" in row) for row in rows} == {("initial", 0, None, False)}


def test_demonstrations_that_go_round_are_rows_of_their_own(stage_module):
    """Five rows wanted of two demonstrations: all five come, with five different keys, and the demonstrations' text."""
    demo = {
        "task_id": "t",
        "source": "x",
        "domain": "arithmetic",
        "style": "vague",
        "text": "q",
        "subgoals": "p",
        "actions": "a",
    }
    demos = pl.DataFrame([demo | {"demo_id": name} for name in ("one", "two")])
    rows = stage_module("mix").initial_rows(demos, {"x": 5}, 0, "1")
    assert len({row["row_id"] for row in rows}) == 5
    assert sorted(row["demo_id"] for row in rows).count("one") in (2, 3)

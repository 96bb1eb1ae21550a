"""Repeated actions: moat/agent_r/loops.py."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moat.agent_r.loops import actions, histogram, learned_actions, loop_rate, repeats
from moat.agent_r.turns import REFLECTIONS
from moat.react import Several

REFLECTION = f"Thought: {REFLECTIONS[3]}"
WORDS = st.lists(st.sampled_from("AB"), max_size=12)


def turn(action="", kind="action", repeated=False):
    return {"action": action, "kind": kind, "repeated": repeated}


@pytest.mark.parametrize(
    ("taken", "found"),
    [
        ("", {}),
        ("ABCD", {}),
        ("AA", {1: 1}),
        ("AAA", {1: 2}),  # the second A is the first one's repeat, the third the second's
        ("AAAA", {1: 3}),  # and no repeat of AA
        ("ABAB", {2: 1}),
        ("ABABA", {2: 1}),  # a repeat of AB, and not one more of BA
        ("ABABAB", {2: 2}),
        ("ABCABC", {3: 1}),
        ("XABABY", {2: 1}),  # wherever it begins
        ("AABAAB", {1: 2, 3: 1}),
        ("ABXAB", {}),  # not at once
    ],
)
def test_repeats_by_length(taken, found):
    assert repeats(list(taken)) == found


def root(word):
    """The shortest block that a word is a repetition of, found by trying all."""
    return next(word[:n] for n in range(1, len(word) + 1) if word[:n] * (len(word) // n) == word)


@given(WORDS.filter(bool), st.integers(1, 5))
def test_a_block_said_k_times_is_k_minus_1_repeats_of_its_length(block, times):
    """Of the shortest block that it is a repetition of."""
    said = block * times
    shortest = root(block)
    assert repeats(said)[len(shortest)] == len(said) // len(shortest) - 1


@given(WORDS)
def test_there_are_repeats_where_a_block_follows_itself(taken):
    """A length is there exactly when somewhere a block of it that is no repetition stands twice in a row; no repeats share
    an action, so there are at most as many as the actions after the first block."""
    found = repeats(taken)
    for length in range(1, 7):
        places = [
            start
            for start in range(len(taken) - 2 * length + 1)
            if taken[start : start + length] == taken[start + length : start + 2 * length]
            and len(root(taken[start : start + length])) == length
        ]
        assert (length in found) is bool(places)
        assert found[length] <= len(places)
        assert found[length] * length <= max(len(taken) - length, 0)


def test_reflections_and_what_is_no_action_are_left_out():
    """The same action after a reflection is a repeat; reflections themselves are none. Case and spacing do not count."""
    turns = [turn("Look  around"), turn(kind="reflection"), turn("look around"), turn(kind="unreadable"), turn("go")]
    assert actions(turns) == ["look around", "look around", "go"]
    assert histogram([actions(turns), actions([turn(kind="reflection")] * 3), ["go", "go"]]) == {1: 2}


def test_sequences_do_not_run_into_each_other():
    assert histogram([["go"], ["go"]]) == {}


def test_only_what_is_learned_from_counts_in_training():
    """The bad actions before the turning point are context."""
    texts = (
        "goal",
        "Action: x",
        "o",
        "Action: x",
        "o",
        REFLECTION,
        "Go on.",
        "Action: y",
        "o",
        "Thought: t\nAction: Y",
        "o",
    )
    learned = learned_actions(
        texts, [False, False, False, False, False, True, False, True, False, True, False], Several.LAST
    )
    assert learned == ["y", "y"]
    whole = learned_actions(texts, [number % 2 == 1 for number in range(len(texts))], Several.LAST)
    assert histogram([whole]) == {1: 2}


def test_of_several_actions_none_counts_where_they_are_refused():
    texts = ("goal", "Action: x\nAction: y", "o")
    assert learned_actions(texts, [False, True, False], Several.LAST) == ["y"]
    assert learned_actions(texts, [False, True, False], Several.REFUSE) == []


def test_the_loop_rate_is_of_actions():
    """Two of five actions were taken before in the same state; turns that are no actions do not count."""
    plays = [
        [turn("a"), turn(kind="reflection"), turn("a", repeated=True), turn("b")],
        [turn("a"), turn("a", repeated=True), turn(kind="unreadable")],
    ]
    assert loop_rate(plays) == 0.4
    assert loop_rate([[turn(kind="reflection")], []]) is None

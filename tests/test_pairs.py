"""Which plan is preferred to which: moat/pairs.py and the joins of stages/pairs.py."""

import math
import random

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from moat.pairs import ALL_EQUAL, GAP, NO_USABLE, NOT_FINITE, SAME_OUTCOME, Candidate, pick

PLANS = ("Subgoal 1: a", "Subgoal 1: b", "Subgoal 1:  b", "Subgoal 1: c", "Subgoal 1: d", " ", "")
NLLS = st.one_of(st.sampled_from([0.0, 0.1, 0.5, math.nan, math.inf]), st.floats(0, 5))


def of_nll(k, nll, subgoals=None, reached=False):
    return Candidate(k, f"plan {k}" if subgoals is None else subgoals, nll, math.exp(nll), reached)


def of_ppl(k, ppl, subgoals=None, reached=False):
    return Candidate(k, f"plan {k}" if subgoals is None else subgoals, math.log(ppl), ppl, reached)


def ks(pair):
    return pair.chosen and pair.chosen.k, pair.rejected and pair.rejected.k


@st.composite
def tasks(draw):
    rows = draw(st.lists(st.tuples(st.sampled_from(PLANS), NLLS, st.booleans()), max_size=8))
    numbers = draw(st.permutations(range(len(rows))))
    return [of_nll(k, nll, plan, reached) for k, (plan, nll, reached) in zip(numbers, rows, strict=True)]


def deduplicated(candidates):
    """Written apart from the code: of equal plans that can be compared, the one of the lowest k."""
    kept = []
    for candidate in sorted(candidates, key=lambda c: c.k):
        words = candidate.subgoals.split()
        if words and math.isfinite(candidate.nll) and words not in [c.subgoals.split() for c in kept]:
            kept.append(candidate)
    return kept


# --- extremes ---------------------------------------------------------------------------------------------------------


def test_the_lowest_ppl_is_chosen_and_the_highest_rejected():
    """PPL 1.5, 1.25, 3, 2: chosen is candidate 1, rejected candidate 2."""
    pair = pick([of_ppl(0, 1.5), of_ppl(1, 1.25), of_ppl(2, 3.0), of_ppl(3, 2.0)], "ppl", 0.1, "extremes", 0)
    assert (ks(pair), pair.dropped, pair.n_candidates, pair.n_distinct) == ((1, 2), None, 4, 4)


@pytest.mark.trap(2)
@pytest.mark.parametrize(("score", "dropped"), [("ppl", None), ("nll", GAP)])
def test_the_gap_is_in_the_unit_of_the_score(score, dropped):
    """PPL 2 and 2.2 differ by 0.2, but their logarithms by ln 1.1 = 0.0953: over 0.1 in PPL, under it in NLL."""
    pair = pick([of_ppl(0, 2.0), of_ppl(1, 2.2)], score, 0.1, "extremes", 0)
    assert (ks(pair), pair.dropped) == ((0, 1), dropped)


@pytest.mark.parametrize(("low", "dropped"), [(1.5, None), (math.nextafter(1.5, 2), GAP)])
def test_a_gap_of_exactly_min_gap_is_kept(low, dropped):
    """1.75 - 1.5 = 0.25 is not below 0.25; the next smaller gap is. All three numbers are exact in binary."""
    assert pick([of_ppl(0, low), of_ppl(1, 1.75)], "ppl", 0.25, "extremes", 0).dropped == dropped


def test_a_pair_below_the_gap_is_told_with_its_reason():
    """The report counts such pairs under either score, so both candidates stay in the row."""
    pair = pick([of_ppl(0, 1.0), of_ppl(1, 1.05)], "ppl", 0.1, "extremes", 0)
    assert (ks(pair), pair.dropped) == ((0, 1), GAP)


@pytest.mark.trap(7)
def test_ties_go_to_the_lower_k():
    """Two best and two worst candidates: the first of each, whatever the order they are given in."""
    candidates = [of_ppl(3, 1.0), of_ppl(1, 1.0), of_ppl(2, 2.0), of_ppl(0, 2.0)]
    for order in (candidates, candidates[::-1]):
        assert ks(pick(order, "ppl", 0.1, "extremes", 0)) == (1, 0)


@pytest.mark.trap(7)
@pytest.mark.parametrize("score", ["ppl", "nll", "executed"])
@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_a_score_that_is_not_finite_is_never_compared(score, bad):
    """NaN sorts anywhere; whatever it is called, it is neither best nor worst."""
    broken = [Candidate(0, "x", bad, bad, True), Candidate(3, "y", bad, bad, False)]
    sound = [of_ppl(1, 1.0, reached=True), of_ppl(2, 2.0)]
    assert ks(pick([*broken, *sound], score, 0.1, "extremes", 0)) == (1, 2)
    assert pick(broken, score, 0.1, "extremes", 0).dropped == NOT_FINITE


@pytest.mark.trap(7)
def test_an_infinite_ppl_of_a_finite_nll_is_not_compared():
    """exp(800) overflows: such a candidate has an NLL, but no PPL to take a difference of."""
    candidates = [of_ppl(0, 1.0), Candidate(1, "x", 800.0, math.inf, False), of_ppl(2, 1.5)]
    assert ks(pick(candidates, "ppl", 0.1, "extremes", 0)) == (0, 2)


@pytest.mark.trap(7)
@pytest.mark.parametrize("empty", ["", " \n\t"])
def test_an_empty_plan_is_dropped(empty):
    """It is no candidate even with the best score; a task that has nothing else says so."""
    pair = pick([of_ppl(0, 1.0, empty), of_ppl(1, 2.0), of_ppl(2, 3.0)], "ppl", 0.1, "extremes", 0)
    assert (ks(pair), pair.n_candidates) == ((1, 2), 2)
    assert pick([of_ppl(0, 1.0, empty)], "ppl", 0.1, "extremes", 0).dropped == NO_USABLE


@pytest.mark.trap(7)
def test_plans_that_differ_in_spacing_are_one_candidate():
    """Float noise gives two copies of one plan two scores; the lower k stands for both, so no pair comes of noise."""
    copies = [of_ppl(0, 1.0, "Subgoal 1: a"), of_ppl(1, 9.0, " Subgoal 1:  a\n")]
    assert pick(copies, "ppl", 0.1, "extremes", 0).dropped == ALL_EQUAL
    assert ks(pick([*copies, of_ppl(2, 2.0, "Subgoal 1: b")], "ppl", 0.1, "extremes", 0)) == (0, 2)


def test_equal_scores_make_no_pair():
    """Two plans of one score: neither is better, even when min_gap is 0."""
    assert pick([of_ppl(0, 2.0), of_ppl(1, 2.0)], "ppl", 0.0, "extremes", 0).dropped == ALL_EQUAL


@pytest.mark.trap(8)
@pytest.mark.parametrize(("count", "dropped"), [(0, NO_USABLE), (1, ALL_EQUAL), (2, None), (5, None), (15, None)])
def test_any_number_of_candidates_is_handled(count, dropped):
    """K is nowhere assumed: a task may have lost some or all of its candidates."""
    pair = pick([of_ppl(k, 1.0 + k) for k in range(count)], "ppl", 0.1, "extremes", 0)
    assert (pair.dropped, pair.n_candidates) == (dropped, count)


@pytest.mark.trap(7, 8)
@given(tasks(), st.sampled_from(["ppl", "nll"]), st.floats(0, 2), st.randoms(use_true_random=False))
def test_extremes_are_those_of_a_search_over_all_ordered_pairs(candidates, score, min_gap, order):
    """(chosen, rejected) maximises score(rejected) - score(chosen) over all pairs; ties by (k chosen, k rejected)."""
    pool = deduplicated(candidates)
    value = {c.k: c.nll if score == "nll" else c.ppl for c in pool}
    ordered = [(value[j.k] - value[i.k], -i.k, -j.k) for i in pool for j in pool if value[i.k] < value[j.k]]
    shuffled = list(candidates)
    order.shuffle(shuffled)
    pair = pick(shuffled, score, min_gap, "extremes", 0)
    if not ordered:
        assert (ks(pair), pair.dropped is not None) == ((None, None), True)
        return
    low, high = min(value.values()), max(value.values())
    assert ks(pair) == (min(k for k in value if value[k] == low), min(k for k in value if value[k] == high))
    assert (pair.dropped is None) == (high - low >= min_gap)


# --- executed ---------------------------------------------------------------------------------------------------------


def test_executed_prefers_what_reached_the_answer():
    """Best PPL of the reached against worst PPL of the missed; a lower PPL among the missed does not matter."""
    candidates = [of_ppl(0, 1.0), of_ppl(1, 3.0), of_ppl(2, 2.0, reached=True), of_ppl(3, 5.0, reached=True)]
    assert ks(pick(candidates, "executed", 0.1, "extremes", 0)) == (2, 1)


def test_executed_has_no_gap():
    """PPL 2.0 reached, 1.5 missed: a pair, although its PPL difference is negative and min_gap large."""
    pair = pick([of_ppl(0, 1.5), of_ppl(1, 2.0, reached=True)], "executed", 10.0, "extremes", 0)
    assert (ks(pair), pair.dropped) == ((1, 0), None)


@pytest.mark.parametrize("reached", [True, False])
def test_executed_needs_both_outcomes(reached):
    """All reached, or none: nothing to prefer."""
    candidates = [of_ppl(k, 1.0 + k, reached=reached) for k in range(3)]
    assert pick(candidates, "executed", 0.1, "extremes", 0).dropped == SAME_OUTCOME


# --- the random control -----------------------------------------------------------------------------------------------


@pytest.mark.trap(7)
@given(tasks(), st.integers(0, 2**63 - 1), st.randoms(use_true_random=False))
def test_the_random_control_draws_two_different_sound_plans(candidates, seed, order):
    """Never an empty, broken or repeated plan; the seed alone decides, not the order of the rows, nor the gap."""
    pool = deduplicated(candidates)
    shuffled = list(candidates)
    order.shuffle(shuffled)
    pair = pick(candidates, "ppl", 1e9, "random", seed)
    assert pair == pick(shuffled, "ppl", 0.0, "random", seed)
    if len(pool) < 2:
        assert pair.chosen is None
    else:
        assert pair.dropped is None
        assert pair.chosen in pool
        assert pair.rejected in pool
        assert pair.chosen != pair.rejected


def test_the_random_control_ignores_the_score():
    """Each of the 6 ordered pairs of 3 plans is drawn about as often: 100 of 600, 4 standard deviations either way."""
    candidates = [of_ppl(k, 1.0 + k) for k in range(3)]
    drawn = [ks(pick(candidates, "ppl", 0.1, "random", seed)) for seed in range(600)]
    for pair in [(a, b) for a in range(3) for b in range(3) if a != b]:
        assert abs(drawn.count(pair) - 100) < 4 * math.sqrt(600 * 1 / 6 * 5 / 6)


# --- the stage's joins ------------------------------------------------------------------------------------------------


@pytest.mark.trap(8)
def test_tables_are_joined_by_key_and_not_by_position(stage_module):
    """Shuffled tables and lost rows: every candidate meets its own score and outcome, and its own task."""
    keys = [("a", 0), ("a", 2), ("b", 1), ("b", 0), ("c", 0)]
    subgoals = pl.DataFrame([{"task_id": t, "k": k, "subgoals": f"{t}{k}"} for t, k in keys])
    scores = pl.DataFrame([{"task_id": t, "k": k, "nll": ord(t) + k / 8, "ppl": 2.0} for t, k in keys[:4]])
    actions = pl.DataFrame(
        [{"task_id": t, "k": k, "outcome": "reached" if k else "not_reached", "answer": "x"} for t, k in keys]
    )
    order = random.Random(1)
    shuffled = [frame[order.sample(range(len(frame)), len(frame))] for frame in (subgoals, scores, actions)]
    found = stage_module("pairs").candidates_by_task(*shuffled)
    assert found == {
        "a": [Candidate(0, "a0", 97.0, 2.0, False), Candidate(2, "a2", 97.25, 2.0, True)],
        "b": [Candidate(0, "b0", 98.0, 2.0, False), Candidate(1, "b1", 98.125, 2.0, True)],
    }

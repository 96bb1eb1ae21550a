"""Pairs of bad and good paths with a common history: moat/agent_r/paths.py."""

from collections import Counter
from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moat.agent_r.params import Pairs, good
from moat.agent_r.paths import (
    ALPHA,
    BETA,
    BOTH_GOOD,
    CAP,
    NO_BAD,
    NO_GOOD,
    NO_PATH,
    NOT_APART,
    apart,
    finished,
    pairs,
    shared,
)
from moat.params import ParamsError
from tests.agent_checkout import small_params
from tests.agent_trees import row

GAP = Pairs(beta=0.2, beta_rule="gap", max_per_tree=100)


def grow(parents, rewards):
    """Rows of a tree: node n+1 hangs below parents[n]; those in `rewards` end a path. Every node says its number."""
    rows = [row("t", 0, None, 0, {"kind": "root"})]
    for number, parent in enumerate(parents, 1):
        own = {"text": f"Action: {number}", "action": str(number)}
        if number in rewards:
            own |= {"end": True, "reward": rewards[number], "reward_raw": rewards[number]}
        rows.append(row("t", number, parent, rows[parent]["depth"] + 1, own))
    return rows


#            0
#        1       2
#      3   4     5
#     6 7  8    9 10
FORK = [0, 0, 1, 1, 2, 3, 3, 4, 5, 5]


def ends(found):
    return [(pair.bad.end, pair.good.end, pair.shared) for pair in found.pairs]


def test_a_path_goes_from_the_root_to_its_end():
    """In whatever order the rows come; the root is no turn."""
    paths = finished(grow(FORK, {6: 0.0, 8: 1.0, 10: 0.5})[::-1])
    assert [(path.end, path.nodes, path.reward) for path in paths] == [
        (6, (1, 3, 6), 0.0),
        (8, (1, 4, 8), 1.0),
        (10, (2, 5, 10), 0.5),
    ]
    assert [turn.action for turn in paths[1].turns] == ["1", "4", "8"]
    assert [shared(paths[0], other) for other in paths] == [3, 1, 0]


@pytest.mark.trap(45)
def test_every_bad_path_gets_a_partner_before_any_gets_a_second():
    """By the longest common history, then the largest gap, then the lowest numbers; the cap cuts what comes last."""
    paths = finished(grow(FORK, {6: 0.0, 7: 1.0, 8: 0.9, 9: 0.3, 10: 1.0}))
    everything = [(6, 7, 2), (9, 10, 2), (6, 8, 1), (6, 10, 0), (9, 7, 0), (9, 8, 0)]
    # first partners: 6 has 7 (2 shared, gap 1), 9 has 10 (2 shared, gap .7); then seconds, then thirds
    assert ends(pairs(paths, 0.5, GAP)) == [(6, 7, 2), (9, 10, 2), (6, 8, 1), (9, 7, 0), (6, 10, 0), (9, 8, 0)]
    for cap in range(1, 7):
        found = pairs(paths, 0.5, GAP.model_copy(update={"max_per_tree": cap}))
        assert len(found.pairs) == cap
        assert set(ends(found)) <= set(everything)
        assert found.removed.get(CAP, 0) == 6 - cap
        assert {bad for bad, _, _ in ends(found)} == ({6} if cap == 1 else {6, 9})


@pytest.mark.trap(37)
def test_at_alpha_one_the_full_reward_is_good():
    """Elsewhere a good reward is over alpha; rewards and thresholds are numbers, which params.yaml must write as such."""
    paths = finished(grow(FORK, {6: 0.0, 7: 1.0, 8: 0.99}))
    assert ends(pairs(paths, 1.0, GAP)) == [(6, 7, 2)]
    assert ends(pairs(paths, 0.99, GAP)) == [(6, 7, 2)]
    assert ends(pairs(paths, 0.98, GAP)) == [(6, 7, 2), (6, 8, 1)]


@pytest.mark.trap(37)
def test_a_threshold_that_is_a_text_is_refused(tmp_path):
    for key, value in (("pairs.beta", "0.2"), ("rounds.1.alpha", "1.0")):
        with pytest.raises(ParamsError, match=key):
            small_params(tmp_path, {key: value})


def test_a_gap_of_beta_is_not_over_it():
    """Whatever the last bits of the difference are: 0.9 - 0.7 is over 0.2 in float64, 1.0 - 0.8 is under it."""
    assert 0.9 - 0.7 > 0.2 > 1.0 - 0.8
    assert not apart(0.7, 0.9, 0.2, "gap")
    assert not apart(0.8, 1.0, 0.2, "gap")
    assert apart(0.7, 0.901, 0.2, "gap")


def test_by_the_threshold_rule_beta_bounds_the_bad_reward():
    paths = finished(grow(FORK, {6: 0.2, 7: 0.6, 8: 0.25, 9: 0.0}))
    found = pairs(paths, 0.5, Pairs(beta=0.2, beta_rule="threshold", max_per_tree=100))
    assert ends(found) == [(6, 7, 2), (9, 7, 0)]
    assert found.removed == {BETA: 1, ALPHA: 3}  # (8, 7); and 9 < 6, 9 < 8, 6 < 8


@pytest.mark.parametrize(
    ("rewards", "alpha", "removed", "empty"),
    [
        ({}, 0.5, {}, NO_PATH),
        ({6: 0.0, 7: 0.0}, 0.5, {}, NO_GOOD),
        ({6: 0.0, 7: 0.5}, 0.5, {ALPHA: 1}, NO_GOOD),
        ({6: 0.6, 7: 0.6}, 0.5, {}, NO_BAD),
        ({6: 0.6, 7: 1.0}, 0.5, {BOTH_GOOD: 1}, NO_BAD),
        ({6: 0.45, 7: 0.6}, 0.5, {BETA: 1}, NOT_APART),
        ({6: 0.45, 7: 0.6, 8: 0.1}, 0.5, {BETA: 1, ALPHA: 1}, None),
    ],
)
def test_what_removed_the_pairs_of_a_tree_is_said(rewards, alpha, removed, empty):
    found = pairs(finished(grow(FORK, rewards)), alpha, GAP)
    assert (dict(found.removed), found.empty) == (removed, empty)


@st.composite
def trees(draw):
    """A tree of up to 14 turns whose leaves end paths, with rewards in tenths."""
    size = draw(st.integers(1, 14))
    parents = [draw(st.integers(0, number)) for number in range(size)]
    leaves = set(range(1, size + 1)) - set(parents)
    return grow(parents, {leaf: draw(st.integers(0, 10)) / 10 for leaf in sorted(leaves)})


@given(trees(), st.sampled_from([0.0, 0.5, 0.7, 1.0]), st.sampled_from(["gap", "threshold"]), st.integers(1, 8))
def test_no_two_paths_are_lost(rows, alpha, rule, cap):
    """Twos of paths with different rewards = pairs + removed; what is a pair is one by the definition, in whole tenths."""
    tenths = {row["node"]: round(10 * row["reward"]) for row in rows if row["end"]}

    def is_pair(low, high):
        over = high == 10 if alpha == 1 else high > 10 * alpha
        low_is_bad = low < 10 if alpha == 1 else low <= 10 * alpha
        return over and low_is_bad and (high - low > 2 if rule == "gap" else low <= 2)

    twos = [sorted(two, key=tenths.get) for two in combinations(tenths, 2) if tenths[two[0]] != tenths[two[1]]]
    wanted = {(low, high) for low, high in twos if is_pair(tenths[low], tenths[high])}
    found = pairs(finished(rows), alpha, Pairs(beta=0.2, beta_rule=rule, max_per_tree=cap))
    made = {(pair.bad.end, pair.good.end) for pair in found.pairs}
    assert made <= wanted
    assert len(found.pairs) == len(made) == min(cap, len(wanted))
    assert len(twos) == len(made) + sum(found.removed.values())
    assert (found.empty is None) == bool(wanted)
    each = Counter(bad for bad, _ in made)
    left = {bad for bad, good_end in wanted - made}
    assert all(each[bad] >= max(each.values()) - 1 for bad in left)  # nobody has two more than one who still wants
    for pair in found.pairs:
        assert pair.bad.nodes[: pair.shared] == pair.good.nodes[: pair.shared]
        assert pair.bad.nodes[pair.shared] != pair.good.nodes[pair.shared]
        assert good(pair.good.reward, alpha)

"""Figures that judge a round: moat/figures.py."""

import math
from itertools import product
from statistics import geometric_mean

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import norm, spearmanr

from moat.figures import auc, bootstrap_mean, geometric_mean_ppl, mcnemar, wilson, within_task_correlation

SCORED = st.lists(st.tuples(st.sampled_from([-3.0, -1.0, 0.0, 0.5, 2.0]), st.booleans()), max_size=20)


@pytest.mark.parametrize(
    ("successes", "n", "low", "high"),
    [
        (8, 10, 0.4902, 0.9433),
        # Newcombe 1998, Statistics in Medicine 17, table I, method 3
        (81, 263, 0.2553, 0.3662),
        (15, 148, 0.0624, 0.1605),
        (0, 20, 0.0000, 0.1611),
        (1, 29, 0.0061, 0.1718),
    ],
)
def test_wilson_against_published_intervals(successes, n, low, high):
    """The 95% score interval without continuity correction, to four places."""
    assert wilson(successes, n) == pytest.approx((low, high), abs=5e-5)


@given(st.integers(1, 500).flatmap(lambda n: st.tuples(st.integers(0, n), st.just(n))))
def test_wilson_solves_its_equation(counts):
    """Both ends p satisfy |x/n - p| = z sqrt(p (1 - p) / n), lie in [0, 1] around x/n, and mirror those of n - x."""
    x, n = counts
    low, high = wilson(x, n)
    assert 0 <= low <= x / n + 1e-12 <= high + 2e-12 <= 1 + 2e-12
    for p in (low, high):
        assert abs(x / n - p) == pytest.approx(1.959963984540054 * math.sqrt(max(0.0, p * (1 - p)) / n), abs=1e-7)
    assert wilson(n - x, n) == pytest.approx((1 - high, 1 - low), abs=1e-12)


def test_wilson_of_nothing_knows_nothing():
    """No trial: anything between 0 and 1."""
    assert wilson(0, 0) == (0.0, 1.0)


@given(SCORED)
def test_auc_is_the_share_of_pairs_in_the_right_order(scored):
    """P(score of a positive > score of a negative), ties half, counted over all pairs."""
    up, down = [s for s, p in scored if p], [s for s, p in scored if not p]
    found = auc([s for s, _ in scored], [p for _, p in scored])
    if not up or not down:
        assert found is None
    else:
        pairs = sum((a > b) + (a == b) / 2 for a in up for b in down)
        assert found == pytest.approx(pairs / (len(up) * len(down)))


def test_auc_by_hand():
    """Positives 3, 1; negatives 2, 1: 3 beats both, 1 ties one and loses one: (2 + 1/2) / 4."""
    assert auc([3, 1, 2, 1], [True, True, False, False]) == 0.625


def test_auc_of_an_infinite_score():
    """-PPL of an overflow is -inf: the lowest of all."""
    assert auc([-math.inf, -2.0], [False, True]) == 1.0


def test_correlation_within_tasks_by_hand():
    """Task a: ranks (1, 2, 3), success (0, 0, 1): cov 1/3, variances 2/3 and 2/9, r = sqrt(3)/2. Task b: (1, 2), (1, 0): -1.

    Tasks in which all succeed, or all scores are equal, have none; the mean is over the other two.
    """
    groups = [([1, 2, 3], [False, False, True]), ([5, 9], [True, False]), ([1, 2], [True, True]), ([4, 4], [True, False])]
    found, n = within_task_correlation(groups)
    assert (found, n) == (pytest.approx((math.sqrt(3) / 2 - 1) / 2), 2)


@given(SCORED)
def test_correlation_within_a_task_is_spearmans(scored):
    """Against scipy's own, on one task; None where it does not exist."""
    scores, reached = [s for s, _ in scored], [p for _, p in scored]
    found, n = within_task_correlation([(scores, reached)])
    if len(set(scores)) < 2 or len(set(reached)) < 2:
        assert (found, n) == (None, 0)
    else:
        assert (found, n) == (pytest.approx(spearmanr(scores, reached).statistic), 1)


def test_tasks_are_never_compared_with_each_other():
    """Two tasks of very different PPL levels, each in perfect order: 1, although the pooled order is not."""
    groups = [([-1.0, -2.0], [True, False]), ([-100.0, -200.0], [True, False])]
    assert within_task_correlation(groups) == (pytest.approx(1.0), 2)


def test_geometric_mean_of_ppl():
    """PPL 2 and 8: sqrt(16) = 4; what is not finite is left out; of nothing there is none."""
    nlls = [math.log(2), math.nan, math.log(8), math.inf]
    assert geometric_mean_ppl(nlls) == pytest.approx(geometric_mean([2, 8])) == pytest.approx(4)
    assert geometric_mean_ppl([math.nan]) is None
    assert geometric_mean_ppl([]) is None


# --- means and paired tests -------------------------------------------------------------------------------------------


def exact_bca(values):
    """BCa (Efron 1987, section 4) of a mean, from all n^n resamples instead of drawn ones."""
    n, mean = len(values), sum(values) / len(values)
    means = sorted(sum(resample) / n for resample in product(values, repeat=n))
    below = sum((m < mean - 1e-12) + (m <= mean + 1e-12) for m in means) / (2 * len(means))
    z0, spread = norm.ppf(below), [mean - (mean * n - value) / (n - 1) for value in values]
    a = sum(d**3 for d in spread) / (6 * sum(d**2 for d in spread) ** 1.5)
    ends = []
    for z in (-1.959963984540054, 1.959963984540054):
        level = norm.cdf(z0 + (z0 + z) / (1 - a * (z0 + z)))
        ends.append(means[min(len(means) - 1, int(level * len(means)))])
    return ends


def test_the_bootstrap_of_a_mean_against_all_resamples():
    """Six skewed values: BCa over their 46,656 resamples, worked out apart; the drawn ones come near."""
    values = [0.0, 0.1, 0.15, 0.2, 0.4, 1.0]
    low, high = exact_bca(values)
    assert bootstrap_mean(values) == (pytest.approx(low, abs=0.01), pytest.approx(high, abs=0.02))
    assert high - sum(values) / 6 > 1.2 * (sum(values) / 6 - low)  # the skew is seen, unlike in mean ± 2 standard errors


def test_the_bootstrap_of_many_values_is_the_normal_interval():
    """600 shares of 1/3: mean ± 1.96 sqrt(p (1 - p) / n), to a thousandth."""
    half = 1.96 * math.sqrt(2 / 9 / 600)
    assert bootstrap_mean([1.0, 0.0, 0.0] * 200) == pytest.approx((1 / 3 - half, 1 / 3 + half), abs=2e-3)


def test_the_bootstrap_is_drawn_by_its_seed():
    values = [i * 0.37 % 1 for i in range(30)]  # uneven, so that draws differ
    assert bootstrap_mean(values, 3) == bootstrap_mean(values, 3) != bootstrap_mean(values, 4)


def test_the_bootstrap_of_equal_values_is_that_value():
    """Which says nothing of their spread; of no value, and of what is no number, there is no interval."""
    assert bootstrap_mean([0.25, 0.25]) == (0.25, 0.25)
    for values in ([], [0.5, math.nan], [math.inf, 0.0]):
        with pytest.raises(ValueError, match="one finite value or more"):
            bootstrap_mean(values)


@pytest.mark.parametrize(
    ("turned_right", "turned_wrong", "p"),
    [
        # Fay 2010, exact2x2: mcnemar.exact of the table 21, 9 / 2, 12
        (9, 2, 0.06543),
        (2, 9, 0.06543),
        (5, 0, 2 / 32),
        (3, 3, 1.0),
        (0, 0, 1.0),
        (1, 0, 1.0),
    ],
)
def test_mcnemar_is_exact_and_two_sided(turned_right, turned_wrong, p):
    """Twice the smaller binomial tail at 1/2, at most 1."""
    assert mcnemar(turned_right, turned_wrong) == pytest.approx(p, abs=5e-6)

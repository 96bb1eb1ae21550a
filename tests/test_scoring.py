"""NLL and PPL of gold actions: moat/scoring.py."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from moat.scoring import mean_nll, perplexity

LOGPROBS = st.lists(st.floats(-50, 0, width=32), min_size=2, max_size=40)


@pytest.mark.trap(1)
def test_certain_tokens_count_in_the_mean():
    """NLL = (0 + 0 + 3) / 3 = 1: two tokens of probability 1 are two tokens of three. The end token is left out."""
    assert mean_nll(np.array([0.0, 0.0, -3.0, -5.0], dtype=np.float32), include_end=False) == 1.0


def test_the_end_token_counts_only_when_asked_for():
    """(0 + 0 + 3 + 5) / 4 = 2."""
    assert mean_nll(np.array([0.0, 0.0, -3.0, -5.0], dtype=np.float32), include_end=True) == 2.0


@given(LOGPROBS)
def test_the_mean_is_the_exact_one(logprobs):
    """NLL = -(1/|a|) sum_i log P(a_i): equal to the correctly rounded sum, although the input is float32."""
    found = mean_nll(np.array(logprobs, dtype=np.float32), include_end=False)
    assert found == pytest.approx(-math.fsum(logprobs[:-1]) / (len(logprobs) - 1), rel=1e-12, abs=1e-300)


@given(LOGPROBS, st.floats(-50, 0))
def test_the_end_tokens_probability_changes_nothing_when_it_does_not_count(logprobs, other):
    """Two answers that differ in how surely they end have equal NLL of the actions."""
    first = np.array(logprobs, dtype=np.float32)
    second = np.append(first[:-1], np.float32(other))
    assert mean_nll(first, include_end=False) == mean_nll(second, include_end=False)


@pytest.mark.parametrize(("logprobs", "include_end"), [([], True), ([], False), ([-1.0], False)])
def test_no_action_token_is_an_error(logprobs, include_end):
    """A mean over nothing is refused instead of being NaN."""
    with pytest.raises(ValueError, match="no action tokens"):
        mean_nll(np.array(logprobs, dtype=np.float32), include_end)


@pytest.mark.parametrize(("nll", "ppl"), [(0.0, 1.0), (math.log(2), 2.0), (math.log(1e4), 1e4)])
def test_ppl_is_the_exponential_of_nll(nll, ppl):
    """PPL = exp(NLL): a fair choice of 2 at every token has PPL 2."""
    assert perplexity(nll) == pytest.approx(ppl, rel=1e-14)


@pytest.mark.parametrize("nll", [1e4, math.inf])
def test_an_overflowing_ppl_is_infinite(nll):
    """exp overflows a float64 above 709.78: infinite, no exception."""
    assert perplexity(nll) == math.inf

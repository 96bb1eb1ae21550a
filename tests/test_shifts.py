"""moat/shifts.py: a column's figures."""

import math

import numpy as np
import polars as pl
import pytest

from moat.shifts import VALUES, figures, styles


def of(name, values, dtype=None):
    return figures(pl.LazyFrame({name: pl.Series(values, dtype=dtype)}), [name])[name]


def test_numbers_have_mean_and_quantiles_without_nulls_and_nan():
    values = [1.0, 2.0, 4.0, 8.0]
    found = of("x", [*values, None, math.nan])
    assert (found.of, found.nulls, found.mean, found.shares) == ("value", 1, np.mean(values), None)
    assert found.quantiles == pytest.approx(
        dict(zip(("p10", "p50", "p90"), np.quantile(values, [0.1, 0.5, 0.9]), strict=True))
    )


def test_truth_values_have_the_share_of_true_and_lists_their_length():
    assert (of("x", [True, False, False, None]).of, of("x", [True, False, False, None]).mean) == ("share", 1 / 3)
    assert (of("x", [[1], [1, 2, 3]]).of, of("x", [[1], [1, 2, 3]]).mean) == ("items", 2.0)


def test_names_have_shares_null_among_them():
    """In order of frequency; a column of long or of many texts has none, nor one that has another value in every row."""
    found = of("x", ["accept", "correct", "accept", None])
    assert list(found.shares.items()) == [("accept", 0.5), (None, 0.25), ("correct", 0.25)]
    assert of("x", ["a" * 41, "a" * 41, "b"]).shares is None
    assert of("x", [str(n) for n in range(VALUES + 2)] * 2).shares is None
    assert of("x", ["a", "b", "c"]).shares is None


def test_texts_have_their_mean_length_in_characters():
    assert (of("x", ["ü" * 50, "b"]).of, of("x", ["ü" * 50, "b"]).mean) == ("characters", 25.5)


def test_an_empty_or_blank_column_has_no_mean():
    assert of("x", [], pl.Float64).mean is None
    assert of("x", [None, None], pl.String).mean is None


def test_styles_of_plans_are_told_where_they_are_known():
    plans = ["Subgoal 1: Find the last amount", "Subgoal 1: Add 5 to 14", "Subgoal 1: Add 5 to 14", "said otherwise"]
    assert styles(pl.LazyFrame({"subgoals": plans})) == {"numbers": 0.5, "other": 0.25, "vague": 0.25}
    assert styles(pl.LazyFrame({"subgoals": ["said otherwise"]})) is None
    assert styles(pl.LazyFrame({"text": plans})) is None

"""Intervals of the comparison: they cover what they say, and know what they do not know."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.stats import binom

from streams.compare.intervals import Interval, block_count, blocks_of, change, order_ranks, spread, wilson


@pytest.mark.parametrize(("n", "q"), [(50, 0.5), (400, 0.95), (1000, 0.99), (5000, 0.5)])
def test_order_statistics_hold_the_quantile_as_often_as_they_say(n: int, q: float) -> None:
    alpha = 0.05
    low, high = order_ranks(n, q, alpha)
    # rank r is at or below the quantile when at least r samples are
    covered = binom.cdf(high - 1, n, q) - (binom.cdf(low - 1, n, q) if low else 0.0)
    assert covered >= 1 - alpha - 1e-9
    assert covered < 1 - alpha + 0.04


def test_a_small_sample_has_no_upper_bound_of_its_tail() -> None:
    assert order_ranks(100, 0.99, 0.05)[1] == 101
    assert order_ranks(2000, 0.99, 0.05)[1] <= 2000
    assert order_ranks(3, 0.5, 0.05) == (0, 4)


def test_wilson_against_its_published_example() -> None:
    # Newcombe, Statistics in Medicine 17 (1998) 857-872, table I: 81 of 263, method 3
    interval = wilson(81, 263, 0.05)
    assert (round(interval.low, 4), round(interval.high, 4)) == (0.2553, 0.3662)
    assert wilson(0, 0, 0.05)[1:] == (0.0, 1.0)


def test_difference_against_its_published_example() -> None:
    # Newcombe, Statistics in Medicine 17 (1998) 873-890, table II (a): 56/70 - 48/80, method 10
    found = change(wilson(48, 80, 0.05), wilson(56, 70, 0.05))
    assert (round(found.value, 4), round(found.low, 4), round(found.high, 4)) == (0.2, 0.0524, 0.3339)


def test_unknown_bounds_stay_unknown() -> None:
    found = change(Interval(0.0, -1.0, 1.0), Interval(0.0, -1.0, np.inf))
    assert np.isfinite(found.low)
    assert found.high == np.inf


def test_blocks_are_runs_of_equal_length() -> None:
    block = blocks_of(1000, 16)
    assert (np.diff(block) >= 0).all()
    assert np.bincount(block).min() >= 62
    assert block_count(31, 1e6) == 0


def test_bootstrap_of_few_blocks_is_widened() -> None:
    rng = np.random.default_rng(3)
    inside = 0
    for _ in range(300):
        means = rng.normal(size=16)  # block means; the truth is 0
        draws = rng.multinomial(16, np.full(16, 1 / 16), size=200) @ means / 16
        inside += abs(means.mean()) <= float(spread(draws, 16, 0.05))
    assert inside / 300 > 0.92

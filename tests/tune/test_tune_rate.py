"""Rates from excursions: bounds that hold, a tail that is recovered, series of a node that are not counted twice."""

from __future__ import annotations

import numpy as np
import pytest

from streams.tune.history import FLOOR_LOG, Excursion, PoolHistory
from streams.tune.rate import DAY_S, fit_tail, poisson_bound, rate_at, resampled


def history(peaks: np.ndarray, days: float, node: str = "n") -> PoolHistory:
    out = PoolHistory(5.0, series_s=4 * days * DAY_S, node_s=days * DAY_S, first_s=0.0, last_s=days * DAY_S)
    start = np.linspace(0, days * DAY_S, len(peaks) + 1)[:-1]
    out.excursions = [Excursion(node, "ttft_s", float(t), float(t) + 10, float(p)) for t, p in zip(start, peaks, strict=True)]
    return out


@pytest.mark.parametrize("mean", [0.2, 3.0, 12.0])
def test_poisson_bound_covers(mean: float) -> None:
    counts = np.random.default_rng(5).poisson(mean, 4000)
    assert np.mean([poisson_bound(int(k), 1.0) >= mean for k in counts]) >= 0.945
    assert poisson_bound(0, 0.0) == np.inf


@pytest.mark.parametrize("scale", [1.0, 2.5])
def test_the_tail_is_recovered(scale: float) -> None:
    peaks = FLOOR_LOG + np.random.default_rng(2).exponential(scale, 2000)
    fit = fit_tail(peaks, 10.0)
    assert fit.scale == pytest.approx(scale, rel=0.35)
    height = FLOOR_LOG + scale * np.log(2000 / 10.0 / 0.5)  # where the truth is half an alarm a day
    assert fit.at(height) == pytest.approx(0.5, rel=0.6)
    assert fit.at(fit.height_for(0.5)) == pytest.approx(0.5)


def test_a_history_without_excursions_asks_for_nothing() -> None:
    fit = fit_tail(np.empty(0), 3.0)
    assert fit.height_for(0.01) == -np.inf
    assert fit.at(14.0) == 0.0


def test_rates_and_bounds_at_a_threshold() -> None:
    past = history(FLOOR_LOG + np.random.default_rng(4).exponential(1.0, 500), 5.0)
    past.excursions += [e._replace(sli="e2e_s") for e in past.excursions]
    rate = rate_at(6.0, past, resampled(past, np.random.default_rng(0)))
    assert rate.alarms == 2 * rate.incidents  # two latencies of the same node at the same time
    assert rate.observed_per_day == pytest.approx(rate.alarms / 20.0)
    assert rate.fitted_per_day < rate.fitted_upper_per_day
    assert rate.bound_per_day == pytest.approx(poisson_bound(rate.incidents, 5.0))
    assert rate.bound_per_day > rate.observed_per_day

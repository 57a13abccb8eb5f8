"""The error-rate detector: silent on ordinary errors, quick on real ones, and it recovers."""

from __future__ import annotations

import numpy as np
import pytest

from detectors.error_rate import ErrorRates

TICK_S = 5.0


def detector(n: int) -> ErrorRates:
    rates = ErrorRates(TICK_S, 0.01, 86400.0)
    rates.grow(n)
    return rates


def alarms(rates: ErrorRates, total: int, ratio: float, ticks: int, seed: int) -> np.ndarray:
    rng = np.random.default_rng(seed)
    n = len(rates.log_sr)
    out = np.zeros((ticks, n), bool)
    for k in range(ticks):
        requests = rng.poisson(total, n)
        out[k] = rates.update(requests, rng.binomial(requests, ratio), np.zeros(n, bool))
    return out


@pytest.mark.parametrize("total", [1, 25, 250])
@pytest.mark.parametrize("ratio", [0.0, 0.001, 0.004])
def test_ordinary_errors_never_alarm_in_days_of_ticks(total: int, ratio: float) -> None:
    # 200 nodes for 4,000 ticks are 46 node-days: half a false alarm is expected at most.
    assert alarms(detector(200), total, ratio, 4000, seed=total).any(axis=0).sum() <= 1


@pytest.mark.parametrize(
    ("total", "ratio", "within_s"), [(250, 0.05, 10), (25, 0.2, 15), (25, 0.05, 120), (10, 0.3, 30), (1, 0.8, 60)]
)
def test_raised_rates_alarm_soon(total: int, ratio: float, within_s: float) -> None:
    rates = detector(400)
    alarms(rates, total, 0.001, 400, seed=1)
    fault = alarms(rates, total, ratio, 200, seed=2)
    first = np.where(fault.any(axis=0), fault.argmax(axis=0) + 1, 10_000) * TICK_S
    assert np.median(first) <= within_s


def test_recovery_ends_the_alarm() -> None:
    rates = detector(50)
    alarms(rates, 100, 0.3, 50, seed=3)
    assert not alarms(rates, 100, 0.0, 40, seed=4)[-1].any()


def test_an_incident_never_becomes_normal() -> None:
    rates = detector(20)
    alarms(rates, 100, 0.001, 500, seed=5)
    before = rates.base_ratio().copy()
    assert alarms(rates, 100, 0.2, 5000, seed=6)[-1].all()
    assert (rates.base_ratio() <= before * 1.05).all()


def test_held_nodes_learn_nothing_and_ticks_without_requests_change_nothing() -> None:
    rates = detector(2)
    rates.update(np.array([100, 0]), np.array([2, 0]), np.array([True, False]))
    assert rates.requests.tolist() == [200.0, pytest.approx(200.0, rel=1e-3)]
    assert rates.log_sr[1] == -30.0


def test_forget() -> None:
    rates = detector(2)
    alarms(rates, 100, 0.5, 30, seed=7)
    rates.forget(np.array([True, False]), baseline=True)
    alarm = rates.update(np.zeros(2, int), np.zeros(2, int), np.zeros(2, bool))
    assert alarm.tolist() == [False, True]

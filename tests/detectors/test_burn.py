"""Burn rates against counts made by hand."""

from __future__ import annotations

import numpy as np

from detectors.burn import PAIRS, BurnMeter

T0 = 1_767_225_600.0


def meter(objective: float = 0.99, min_events: int = 100) -> BurnMeter:
    return BurnMeter(np.array([objective]), min_events)


def run(m: BurnMeter, start_s: float, seconds: float, rate: int, bad: int, tick_s: float = 60.0) -> float:
    t = T0 + start_s
    while t < T0 + start_s + seconds:
        t += tick_s
        m.add(t, np.array([rate]), np.array([bad]))
    m.add(t + tick_s, np.array([0]), np.array([0]))
    return t - T0


def test_a_steady_ratio_over_a_full_window_burns_at_ratio_over_budget() -> None:
    m = meter()
    run(m, 0, 4 * 86400, 100, 2)
    rates = m.rates()
    np.testing.assert_allclose(rates.long[:, 0], 2.0, rtol=1e-2)
    np.testing.assert_allclose(rates.short[:, 0], 2.0, rtol=1e-2)
    assert rates.fires[:, 0].tolist() == [False, False, False, True]


def test_an_outage_of_a_young_pool_fires_the_fast_pair_soon_and_not_the_slow_ones_by_extrapolation() -> None:
    m = meter()
    run(m, 0, 1200, 600, 0)
    run(m, 1260, 60, 600, 300)
    assert not m.rates().fires.any()
    run(m, 1380, 1200, 600, 300)
    rates = m.rates()
    assert rates.fires[0, 0]
    assert rates.long[0, 0] >= PAIRS[0].factor


def test_a_recovered_outage_stops_firing_with_its_short_window() -> None:
    m = meter()
    run(m, 0, 7200, 600, 0)
    end = run(m, 7200, 1800, 600, 400)
    assert m.rates().fires[0, 0]
    run(m, end + 60, 360, 600, 0)
    assert not m.rates().fires[0, 0]


def test_low_traffic_says_nothing() -> None:
    m = meter()
    run(m, 0, 7200, 1, 1)
    assert not m.rates().fires[0].any()  # 5 requests in 5 minutes


def test_running_sums_equal_sums_over_the_ring() -> None:
    rng = np.random.default_rng(3)
    m = BurnMeter(np.array([0.99, 0.999]), 1)
    history = []
    t = T0
    for _ in range(3000):
        t += 60.0 * int(rng.integers(1, 4))
        total = rng.integers(0, 50, 2)
        bad = np.minimum(total, rng.integers(0, 5, 2))
        history.append((int((t - 1e-6) // 60), total, bad))
        m.add(t, total, bad)
    last = history[-1][0]
    for length, row in zip((5, 30, 60, 120, 360, 1440, 4320), m.sums, strict=True):
        inside = [(n, b) for k, n, b in history if last - length <= k < last]
        np.testing.assert_array_equal(row, np.sum(inside, axis=0) if inside else np.zeros((2, 2)))


def test_a_gap_of_days_empties_all_windows() -> None:
    m = meter()
    run(m, 0, 3600, 100, 50)
    run(m, 5 * 86400, 60, 100, 0)
    assert m.sums[:, 1].max() == 0


def test_state_round_trip() -> None:
    m, other = meter(), meter()
    run(m, 0, 3600, 100, 50)
    other.load(m.dump())
    for one in (m, other):
        run(one, 3720, 600, 100, 70)
    np.testing.assert_array_equal(m.rates().long, other.rates().long)

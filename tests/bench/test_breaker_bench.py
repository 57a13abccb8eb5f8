"""Episodes and comparison breakers of benchmark A."""

from __future__ import annotations

import numpy as np
import pytest

from bench.breaker import PRESETS, Tally, first_trips, judged
from bench.breaker_rules import FixedRule, TailRule, TickFigures
from bench.episodes import FAULTS, HEALTHY, POOL_NODES, SCORED, TICK_S, WARM, Tick, episodes, to_batch


def of_node(ticks: list[Tick], node: int, scored: bool) -> tuple[np.ndarray, np.ndarray]:
    chosen = [t for t in ticks if (t.index >= WARM) == scored]
    latency = np.concatenate([t.latency_s[t.node == node] for t in chosen])
    return latency, np.concatenate([t.failed[t.node == node] for t in chosen])


@pytest.fixture(scope="module")
def ticks() -> list[Tick]:
    return list(episodes(rate=5.0, wobble=0.0, seed=1, pool=0))


def test_episodes_are_what_the_protocol_says(ticks: list[Tick]) -> None:
    assert len(ticks) == WARM + SCORED
    latency, failed = of_node(ticks, 0, scored=False)
    assert len(latency) / (WARM * TICK_S) == pytest.approx(5.0, rel=0.05)
    assert np.median(latency) == pytest.approx(0.04, rel=0.03)
    assert np.log(latency).std() == pytest.approx(0.45, rel=0.03)
    assert failed.mean() == pytest.approx(0.001, abs=0.001)
    assert all((np.diff(t.ts_s) > 0).all() and int(t.ts_s[0] // TICK_S) == t.index == int(t.ts_s[-1] // TICK_S) for t in ticks)


@pytest.mark.parametrize(
    ("fault", "slow", "failing"),
    [("x2", None, 0.001), ("tail 2 %", 0.02, 0.001), ("tail 10 %", 0.10, 0.001), ("errors 5 %", 0.0, 0.05),
     ("errors 20 %", 0.0, 0.2), ("stall 5 %", 0.05, 0.025), ("stall 30 %", 0.30, 0.15)],
)  # fmt: skip
def test_faults_are_what_they_are_called(ticks: list[Tick], fault: str, slow: float | None, failing: float) -> None:
    node = HEALTHY + list(FAULTS).index(fault)
    before, _ = of_node(ticks, node, scored=False)
    latency, failed = of_node(ticks, node, scored=True)
    assert failed.mean() == pytest.approx(failing, abs=0.012)
    if slow is None:
        assert np.median(latency) / np.median(before) == pytest.approx(2.0, rel=0.05)
    else:
        assert (latency > 0.25).mean() == pytest.approx(slow, abs=0.012)


def test_wobble_is_an_ar1_with_the_stated_spread() -> None:
    level = []
    for tick in episodes(rate=5.0, wobble=0.15, seed=3, pool=0):
        n = np.bincount(tick.node, minlength=POOL_NODES)[:HEALTHY]
        level.append(np.bincount(tick.node, np.log(tick.latency_s), minlength=POOL_NODES)[:HEALTHY] / n)
    z = np.array(level)
    noise = 0.45**2 / 50
    assert np.sqrt(z.var() - noise) == pytest.approx(0.15, rel=0.15)
    lag = np.mean((z[1:] - z.mean()) * (z[:-1] - z.mean())) / (z.var() - noise)
    assert lag == pytest.approx(0.95, abs=0.05)


def test_seeds_and_pools_differ_and_repeat() -> None:
    def first(seed: int, pool: int) -> float:
        return float(next(episodes(5.0, 0.05, seed, pool)).latency_s[0])

    assert first(1, 0) == first(1, 0)
    assert len({first(1, 0), first(2, 0), first(1, 1)}) == 3


def test_figures_of_a_tick_are_plain_quantiles_and_sums(ticks: list[Tick]) -> None:
    figures = TickFigures()
    for tick in ticks[:8]:
        p999, failures = figures.update(tick)
    mine = ticks[7].latency_s[ticks[7].node == 3].astype(np.float64)
    assert p999[3] == pytest.approx(np.quantile(mine, 0.999), rel=1e-6)
    assert failures[3] == sum(int(t.failed[t.node == 3].sum()) for t in ticks[2:8])


def test_rules_need_a_high_tail_and_more_than_three_failures() -> None:
    p999 = np.full(POOL_NODES, 0.1)
    many = np.full(POOL_NODES, 4)
    assert not FixedRule().trips(p999, many).any()
    assert FixedRule().trips(p999 * 3, many).all()
    assert not FixedRule().trips(p999 * 3, many - 1).any()
    rule = TailRule(1.82, min_windows=30)
    rng = np.random.default_rng(1)
    for _ in range(60):
        rule.trips(0.1 + 0.01 * rng.standard_normal(POOL_NODES), many * 0)
    assert not rule.trips(np.full(POOL_NODES, 0.105), many).any()
    assert rule.trips(np.full(POOL_NODES, 0.14), many).all()


def test_tally_counts_trips_of_the_scored_part() -> None:
    fault_s = WARM * TICK_S
    trips = first_trips([(100.0, [0]), (fault_s + 20, [1, HEALTHY]), (fault_s + 50, [HEALTHY, HEALTHY + 1])])
    assert (trips[0], trips[1], trips[HEALTHY], trips[HEALTHY + 1]) == (np.inf, 20.0, 20.0, 50.0)
    false, caught, soon, median = Tally([trips]).cells()
    assert (false, caught, soon, median) == (2.0, 25.0, 12.5, 35.0)


def test_the_judge_opens_a_failing_node_and_no_healthy_one() -> None:
    opened = judged(PRESETS["preset default"], episodes(2.0, 0.05, 4, 0), "p")
    trips = first_trips((t, nodes) for t, nodes, _ in opened)
    assert not np.isfinite(trips[:HEALTHY]).any()
    assert trips[HEALTHY + list(FAULTS).index("stall 30 %")] <= 60.0


def test_a_tick_as_a_batch(ticks: list[Tick]) -> None:
    batch = to_batch(ticks[0], "p")
    assert len(batch) == len(ticks[0].node)
    np.testing.assert_array_equal(batch.latency_s[3], ticks[0].latency_s)
    assert np.isnan(batch.latency_s[:3]).all()

"""Counts of 16 bits and more than 65,535 requests of a kind in a period."""

from __future__ import annotations

import numpy as np
import pytest

from detectors import histogram
from detectors.bank import SeriesBank
from schemas.batch import UNKNOWN_TOKENS
from schemas.policy import Detection


def test_halving_keeps_quantiles() -> None:
    rng = np.random.default_rng(0)
    values = np.concatenate([np.full(400_000, 0.1), 0.2 * rng.lognormal(0, 0.3, 4000)]).astype(np.float32)
    counts = np.zeros(histogram.BUCKETS, np.uint16)
    for part in np.array_split(rng.permutation(values), 7):
        histogram.add_busy(counts, part)
    assert 30_000 < counts.max() <= 65_535
    wanted = np.quantile(values, [0.5, 0.999, 0.9995], method="inverted_cdf")
    assert histogram.quantiles(counts, [0.5, 0.999, 0.9995]) == pytest.approx(wanted, rel=0.06)


def test_while_everything_fits_it_is_exact() -> None:
    rng = np.random.default_rng(1)
    series = rng.integers(1, 4, 9000)
    values = rng.lognormal(-2, 0.5, 9000).astype(np.float32)
    counts = np.zeros((4, histogram.BUCKETS), np.uint16)
    histogram.add_tick(counts, series, values, 2990)  # some of the three are counted with care
    plain = np.zeros((4, histogram.BUCKETS), np.uint16)
    histogram.add(plain, series, values)
    assert np.array_equal(counts[1:], plain[1:])
    assert np.array_equal(counts[0], plain[1:].sum(axis=0))


@pytest.mark.parametrize("ticks", [1, 3])
def test_p999_of_a_very_busy_node_does_not_wrap(ticks: int) -> None:
    bank = SeriesBank(Detection(), 60.0, open_slots=2)
    bank.add_node()
    n = 210_000
    latency = np.full((4, n), 0.1, np.float32)
    latency[:, ::200] = 0.4  # 0.5 %
    unknown = np.full(n, UNKNOWN_TOKENS)
    for slot in range(ticks):
        bank.ingest(slot, np.zeros(n, np.uint32), latency, unknown, unknown, np.zeros(n, np.uint32))
        tick = bank.close(slot, np.zeros(1, np.bool_))
    for each in (tick, tick.pool):
        assert each is not None
        assert each.p999_s[0] == pytest.approx(0.4, rel=2 * histogram.MAX_ERROR_RATIO)


def test_p999_without_a_tail_is_the_bulk() -> None:
    bank = SeriesBank(Detection(), 60.0, open_slots=2)
    bank.add_node()
    n = 65_536  # as 16 bits: none at all
    latency = np.full((4, n + 1000), 0.1, np.float32)
    latency[:, n:] = 0.05
    unknown = np.full(n + 1000, UNKNOWN_TOKENS)
    bank.ingest(0, np.zeros(n + 1000, np.uint32), latency, unknown, unknown, np.zeros(n + 1000, np.uint32))
    tick = bank.close(0, np.zeros(1, np.bool_))
    assert tick.p999_s[0] == pytest.approx(0.1, rel=2 * histogram.MAX_ERROR_RATIO)


def test_a_table_of_all_counts_at_once_is_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(2)
    series = rng.choice([1, 1, 1, 1, 2, 4, 5], 200_000)
    values = np.where(rng.random(200_000) < 0.8, 0.1, rng.lognormal(-2, 0.5, 200_000)).astype(np.float32)
    found = []
    for dense in (1, 10**9):
        monkeypatch.setattr(histogram, "_DENSE", dense)
        counts = rng.integers(0, 1, (7, histogram.BUCKETS)).astype(np.uint16)
        for _ in range(3):
            histogram.add_tick(counts, series, values, 40_000)  # series 1 has more, and its commonest bucket does not fit
        found.append(counts)
    assert np.array_equal(*found)
    assert found[0][0].sum() < 3 * len(series), "the pool's counts were halved on the way"

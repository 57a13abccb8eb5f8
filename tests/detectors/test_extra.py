"""Further detectors: summaries of ticks, bounded memory, and a restored channel that goes on as if nothing had happened."""

from __future__ import annotations

from functools import partial

import msgspec
import numpy as np
import pytest
from river import drift

from detectors.extra import CARRY, RENEW, Channels, summaries
from detectors.rows import Rows
from schemas.batch import UNKNOWN_TOKENS


def rows(node: list[int], seconds: list[float], output: list[int]) -> Rows:
    n = len(node)
    latency = np.full((4, n), np.nan, np.float32)
    latency[0] = seconds
    u32 = np.zeros(n, np.uint32)
    return Rows(
        np.array(node, np.uint32), latency, u32, np.array(output, np.uint32), u32.astype(np.uint8), np.zeros(n, np.int64)
    )  # fmt: skip


WANTED = {"mean_log_latency", "p99_log", "error_ratio", "throughput", "n"}


def test_summaries_of_a_tick() -> None:
    counts = (np.array([4, 1, 0]), np.array([4, 0, 0]), np.array([1, 0, 0]))
    tick = rows([0, 0, 0, 2], [1.0, np.e, np.e**2, np.nan], [10, 20, int(UNKNOWN_TOKENS), 40])
    found = summaries(WANTED, tick, *counts, tick_s=5.0)
    assert found["mean_log_latency"][0, 0] == pytest.approx(1.0)
    assert found["p99_log"][0, 0] == pytest.approx(2.0)
    assert np.isnan(found["mean_log_latency"][1:]).all()
    assert np.isnan(found["mean_log_latency"][0, 1:]).all()
    assert found["error_ratio"][0, 0] == 0.25
    assert np.isnan(found["error_ratio"][1:]).all()
    assert found["throughput"][:, 0].tolist() == [6.0, 0.0, 8.0]
    assert found["n"][:, 0].tolist() == [4, 1, 0]


def test_summaries_do_not_depend_on_the_order_of_arrival() -> None:
    rng = np.random.default_rng(1)
    tick = rows(rng.integers(0, 3, 500).tolist(), rng.lognormal(size=500).tolist(), [1] * 500)
    counts = np.full(3, 200)
    first = summaries(WANTED, tick, counts, counts, counts, 5.0)
    other = summaries(WANTED, tick.take(rng.permutation(500)), counts, counts, counts, 5.0)
    for name, values in first.items():
        assert np.array_equal(values, other[name], equal_nan=True), name


def test_only_what_is_wanted_is_computed() -> None:
    counts = np.array([1])
    assert set(summaries({"n"}, rows([0], [1.0], [1]), counts, counts, counts, 5.0)) == {"n"}


def series(n: int, seed: int) -> np.ndarray:
    rng = np.random.default_rng(seed)
    values = rng.normal(0, 1, n)
    values[n // 2 :] += 2.0
    return values


DETECTORS = [
    ("ADWIN", partial(drift.ADWIN, delta=0.002)),
    ("KSWIN", partial(drift.KSWIN, alpha=1e-4, seed=0)),
    ("PageHinkley", partial(drift.PageHinkley, threshold=20.0)),
]


@pytest.mark.parametrize(("name", "make"), DETECTORS)
def test_a_restored_channel_says_what_the_other_says(name: str, make: partial[object]) -> None:
    values = series(2 * RENEW, 3)
    live = Channels([("n", make)], hold=3)
    live.grow(2)
    said, restored = [], []
    other = None
    for t, value in enumerate(values):
        tick = {"n": np.array([[value], [np.nan if t % 3 else -value]])}
        said.append(live.update(tick).copy())
        if other is not None:
            restored.append(other.update(tick).copy())
        if t == 700:
            other = Channels([("n", make)], hold=3)
            other.load(msgspec.msgpack.decode(msgspec.msgpack.encode(live.dump())))
    assert np.array_equal(said[701:], restored)
    assert np.any(said[RENEW:]), f"{name} saw nothing"


def test_memory_is_bounded() -> None:
    channels = Channels([("n", drift.NoDrift)], hold=1)
    channels.grow(3)
    sizes = []
    for _ in range(3 * RENEW):
        channels.update({"n": np.zeros((3, 1))})
        sizes.append(max(len(seen) for seen in channels._seen.values()))
    assert max(sizes) <= RENEW + CARRY
    assert sizes[-1] < max(sizes)  # renewed at least once


def test_forgotten_nodes_start_anew() -> None:
    channels = Channels([("n", partial(drift.PageHinkley, threshold=5.0, min_instances=5))], hold=100)
    channels.grow(2)
    for value in (*[0.0] * 20, *[9.0] * 5):
        seen = channels.update({"n": np.full((2, 1), value)})
    assert seen[:, 0, 0].all()
    channels.forget(np.array([True, False]))
    assert channels.update({"n": np.full((2, 1), 9.0)})[:, 0, 0].tolist() == [False, True]

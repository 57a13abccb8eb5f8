"""A guard: the histograms stay far faster a sample than detectors and sketches that loop, measured side by side.

Ratios alone, a fraction of the promised ones (`slodrift bench speed`), by CPU time, the best of interleaved rounds: a slow or
busy machine slows both sides.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np
import pytest
from river import drift

from detectors import histogram

ROUNDS = 5


def rivals() -> dict[str, tuple[Callable[[], object], int]]:
    """Action and samples by name."""
    rng = np.random.default_rng(0)
    series = np.sort(rng.integers(0, 10_000, 200_000))
    values = rng.lognormal(-2.0, 0.5, len(series)).astype(np.float32)
    fine = np.zeros((10_000, histogram.BUCKETS), np.uint16)
    adwin, kswin, hinkley, some = drift.ADWIN(), drift.KSWIN(seed=1), drift.PageHinkley(), values[:4000].tolist()
    return {
        "ours": (lambda: histogram.add(fine, series, values), len(series)),
        "ADWIN": (lambda: [adwin.update(v) for v in some], len(some)),
        "PageHinkley": (lambda: [hinkley.update(v) for v in some], len(some)),
        "KSWIN": (lambda: [kswin.update(v) for v in some[:300]], 300),
    }


@pytest.fixture(scope="module")
def ns() -> dict[str, float]:
    best: dict[str, float] = {}
    actions = rivals()
    for _ in range(ROUNDS):
        for name, (action, samples) in actions.items():
            began = time.process_time_ns()
            action()
            took = (time.process_time_ns() - began) / samples
            best[name] = min(best.get(name, np.inf), took)
    return best


@pytest.mark.parametrize(("peer", "ratio"), [("ADWIN", 8.0), ("PageHinkley", 4.0), ("KSWIN", 2000.0)])
def test_a_sample_costs_a_fraction_of_a_peers(ns: dict[str, float], peer: str, ratio: float) -> None:
    assert ns[peer] >= ratio * ns["ours"], f"{peer} {ns[peer]:.0f} ns, ours {ns['ours']:.1f} ns"

"""Breakers to compare with: a fixed threshold, and the published tail rule, over per-tick figures of each node."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from bench.episodes import POOL_NODES, SLO_S, TICK_S, Tick

__all__ = ["MIN_FAILURES", "FixedRule", "TailRule", "TickFigures"]

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]

MIN_FAILURES = 3
_WINDOW_TICKS = round(60.0 / TICK_S)


class TickFigures:
    """P99.9 of each tick and failures of the last 60 s, per node."""

    def __init__(self) -> None:
        self._failures = np.zeros((_WINDOW_TICKS, POOL_NODES), np.int64)
        self._at = 0

    def update(self, tick: Tick) -> tuple[Floats, Ints]:
        """(P99.9 of the tick in seconds, NaN without requests; failures in 60 s), each (nodes,)."""
        # One sort for all nodes: the node above the bits of the latency, which order as the latency does (it is positive).
        key = (tick.node.astype(np.uint64) << np.uint64(32)) | tick.latency_s.view(np.uint32).astype(np.uint64)
        key.sort()
        latency = (key & np.uint64(0xFFFFFFFF)).astype(np.uint32).view(np.float32).astype(np.float64)
        count = np.bincount(tick.node, minlength=POOL_NODES)
        start = np.cumsum(count) - count
        place = 0.999 * np.maximum(count - 1, 0)
        low = place.astype(np.int64)
        at = np.minimum(start + low, max(len(latency) - 1, 0))
        above = np.minimum(start + np.minimum(low + 1, np.maximum(count - 1, 0)), max(len(latency) - 1, 0))
        p999 = np.full(POOL_NODES, np.nan)
        if len(latency):
            p999 = np.where(count > 0, latency[at] + (place - low) * (latency[above] - latency[at]), np.nan)
        self._failures[self._at] = np.bincount(tick.node[tick.failed], minlength=POOL_NODES)
        self._at = (self._at + 1) % _WINDOW_TICKS
        return p999, self._failures.sum(axis=0)


class FixedRule:
    """P99.9 of a tick above the SLO and more than 3 failures in 60 s."""

    def trips(self, p999_s: Floats, failures: Ints) -> Bools:
        """Which nodes trip in this tick."""
        with np.errstate(invalid="ignore"):
            return (p999_s > SLO_S) & (failures > MIN_FAILURES)


class TailRule:
    """The published breaker: P99.9 of a tick above mean + kappa * sd of all earlier ones, and more than 3 failures in 60 s."""

    def __init__(self, kappa: float, min_windows: int = 30) -> None:
        self.kappa, self.min_windows = kappa, min_windows
        self._n = np.zeros(POOL_NODES)
        self._mean = np.zeros(POOL_NODES)
        self._square = np.zeros(POOL_NODES)

    def trips(self, p999_s: Floats, failures: Ints) -> Bools:
        """Which nodes trip in this tick; windows that trip are not learned."""
        sd = np.sqrt(self._square / np.maximum(self._n - 1, 1))
        with np.errstate(invalid="ignore"):
            trip: Bools = (p999_s > self._mean + self.kappa * sd) & (failures > MIN_FAILURES) & (self._n >= self.min_windows)
        learn = ~trip & np.isfinite(p999_s)
        self._n += learn
        delta = np.where(learn, p999_s - self._mean, 0.0)
        self._mean += delta / np.maximum(self._n, 1)
        self._square += delta * np.where(learn, p999_s - self._mean, 0.0)
        return trip

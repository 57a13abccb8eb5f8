"""Worlds for the drift detector: synthetic series whose truth is known.

Requests are lognormal (sigma 0.5). A world adds what makes real series hard: AR(1) wobble of the log-latency shared by all requests of a tick, a
daily season, and, on order, a fault: everything slower, or a share of the requests slower. All series of a world are independent.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

__all__ = ["SERIES_PER_NODE", "TICK_S", "Fault", "World"]

TICK_S = 10.0
SERIES_PER_NODE = 4
"""A bank judges four SLIs per node; each carries one independent series."""
_DAY_TICKS = 86400 / TICK_S
_MEDIAN_S = 0.1
_SIGMA = 0.5
_RHO = 0.9


@dataclass(frozen=True)
class Fault:
    """`share` of the requests `factor` times slower."""

    name: str
    share: float
    factor: float


class World:
    """Independent series, tick by tick.

    Args:
        series: Number of series, a multiple of SERIES_PER_NODE.
        requests: Requests per tick of each series.
        wobble: Stationary standard deviation of the AR(1) wobble of log-latency (rho 0.9 a tick).
        season: Amplitude of the daily season of log-latency.
        seed: Of the random numbers.
    """

    def __init__(self, series: int, requests: int, wobble: float = 0.0, season: float = 0.0, seed: int = 0) -> None:
        self.nodes = series // SERIES_PER_NODE
        self.requests = requests
        self.wobble = wobble
        self.season = season
        self.rng = np.random.default_rng(seed)
        shape = (SERIES_PER_NODE, self.nodes)
        self.state = wobble * self.rng.standard_normal(shape)
        self.phase = self.rng.uniform(0, 2 * np.pi, shape)
        self.node = np.repeat(np.arange(self.nodes, dtype=np.uint32), requests)
        self.t = 0

    def tick(self, fault: Fault | None = None) -> NDArray[np.float32]:
        """Latencies of the next tick, seconds, float32 (SERIES_PER_NODE, nodes * requests), rows in the order of `node`."""
        if self.wobble:
            fresh = np.sqrt(1 - _RHO**2) * self.wobble * self.rng.standard_normal(self.state.shape)
            self.state = _RHO * self.state + fresh
        level = np.log(_MEDIAN_S) + self.state
        if self.season:
            level = level + self.season * np.sin(2 * np.pi * self.t / _DAY_TICKS + self.phase)
        size = (SERIES_PER_NODE, self.nodes, self.requests)
        logs = self.rng.standard_normal(size, dtype=np.float32)
        logs *= np.float32(_SIGMA)
        logs += level[..., None].astype(np.float32)
        if fault is not None:
            hit = self.rng.random(size, dtype=np.float32) < fault.share
            logs[hit] += np.float32(np.log(fault.factor))
        self.t += 1
        np.exp(logs, out=logs)
        return logs.reshape(SERIES_PER_NODE, -1)

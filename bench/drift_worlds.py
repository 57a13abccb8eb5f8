"""Worlds for the drift detector: synthetic series whose truth is known.

Requests are lognormal (sigma 0.5). A world adds what makes real series hard: AR(1) wobble of the log-latency that all requests
of a tick share, a daily season, and, on order, a fault: everything slower, or a share of the requests slower. All series of a
world are independent.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

__all__ = ["FAULTS", "SERIES_PER_NODE", "TICKS_PER_DAY", "TICK_S", "WORLDS", "Fault", "Setting", "World"]

TICK_S = 10.0
TICKS_PER_DAY = int(86400 / TICK_S)
SERIES_PER_NODE = 4
"""A bank judges four SLIs a node; each carries a series of its own."""
_MEDIAN_S = 0.1
_SIGMA = 0.5
_RHO = 0.9


@dataclass(frozen=True)
class Fault:
    """`share` of the requests `factor` times slower."""

    name: str
    share: float
    factor: float


@dataclass(frozen=True)
class Setting:
    """Requests a tick; stationary standard deviation of the wobble; amplitude of the season, both of log-latency."""

    name: str
    requests: int
    wobble: float = 0.0
    season: float = 0.0


WORLDS = (
    Setting("i.i.d., 5 a tick", 5),
    Setting("i.i.d., 50 a tick", 50),
    Setting("i.i.d., 500 a tick", 500),
    Setting("50 a tick, wobble 5 %", 50, 0.05),
    Setting("50 a tick, wobble 15 %", 50, 0.15),
    Setting("50 a tick, wobble 5 %, day +-25 %", 50, 0.05, 0.25),
)
FAULTS = (Fault("x2", 1.0, 2.0), Fault("x1.5", 1.0, 1.5), Fault("5 % x8", 0.05, 8.0), Fault("2 % x8", 0.02, 8.0))


class World:
    """Independent series, tick by tick.

    Args:
        setting: Which world.
        series: Number of series, a multiple of SERIES_PER_NODE.
        seed: Of the random numbers.
    """

    def __init__(self, setting: Setting, series: int, seed: int) -> None:
        self.setting = setting
        self.nodes = series // SERIES_PER_NODE
        self.node = np.repeat(np.arange(self.nodes, dtype=np.uint32), setting.requests)
        self.rng = np.random.default_rng(seed)
        self.t = 0
        shape = (SERIES_PER_NODE, self.nodes)
        self._wobble = setting.wobble * self.rng.standard_normal(shape)
        self._phase = self.rng.uniform(0, 2 * np.pi, shape)

    def tick(self, fault: Fault | None = None) -> NDArray[np.float32]:
        """Latencies of the next tick, seconds, float32 (SERIES_PER_NODE, nodes * requests), in the order of `node`."""
        setting, rng = self.setting, self.rng
        level = np.log(_MEDIAN_S) + self._wobble
        if setting.wobble:
            fresh = np.sqrt(1 - _RHO**2) * setting.wobble * rng.standard_normal(level.shape)
            self._wobble = _RHO * self._wobble + fresh
        if setting.season:
            level = level + setting.season * np.sin(2 * np.pi * self.t / TICKS_PER_DAY + self._phase)
        size = (SERIES_PER_NODE, self.nodes, setting.requests)
        logs = rng.standard_normal(size, dtype=np.float32)
        logs *= np.float32(_SIGMA)
        logs += level[..., None].astype(np.float32)
        if fault is not None:
            logs[rng.random(size, dtype=np.float32) < fault.share] += np.float32(np.log(fault.factor))
        self.t += 1
        np.exp(logs, out=logs)
        return logs.reshape(SERIES_PER_NODE, -1)

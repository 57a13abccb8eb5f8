"""Other drift detectors on the same streams: river's, fed every request, and the published rule, fed 60-second periods."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray
from river import drift

from bench.drift_worlds import SERIES_PER_NODE, TICK_S, TICKS_PER_DAY, Fault, Setting, World
from detectors import seed

__all__ = ["RIVER", "Peer", "published_rule", "river_delay_s", "river_false_alarms"]

_PERIOD_TICKS = round(60 / TICK_S)
_LEVELS = np.concatenate([np.arange(1, 12) / 12, [0.96, 0.99, 0.999, 0.9999]])


@dataclass(frozen=True)
class Peer:
    """A detector of river, and on how much of the streams it is run: KSWIN handles a thousand requests a second.

    Attributes:
        name: As shown.
        make: A new one.
        requests: Most requests of a series that it is fed after it has warmed up.
        warm_ticks: Ticks before alarms count.
        most_series: Of a world.
    """

    name: str
    make: Callable[[], Any]
    requests: int
    warm_ticks: int
    most_series: int

    def series(self, wanted: int) -> int:
        """Series that it is run on, of as many as are `wanted`."""
        return min(wanted, self.most_series)


RIVER = (
    Peer("river ADWIN", drift.ADWIN, 432_000, 360, 16),
    Peer("river PageHinkley", drift.PageHinkley, 432_000, 360, 16),
    Peer("river KSWIN", partial(drift.KSWIN, seed=1), 5_000, 20, 4),
)


def river_false_alarms(peer: Peer, setting: Setting, series: int, random: int) -> tuple[int, float]:
    """Ticks of healthy series with an alarm, and for how many days they ran."""
    alarms = 0
    ticks = max(1, min(peer.requests // setting.requests, TICKS_PER_DAY))
    world = World(setting, SERIES_PER_NODE * -(-series // SERIES_PER_NODE), random)
    detectors = [peer.make() for _ in range(series)]
    for tick in range(peer.warm_ticks + ticks):
        streams = world.tick().reshape(-1, setting.requests)
        for detector, values in zip(detectors, streams, strict=False):
            alarms += _feed(detector, values) and tick >= peer.warm_ticks
    return alarms, series * ticks * TICK_S / 86400


def river_delay_s(peer: Peer, setting: Setting, fault: Fault, series: int, most_ticks: int, random: int) -> NDArray[np.float64]:
    """Seconds from the onset of a fault to the first alarm of each series; inf when there was none in time."""
    world = World(setting, SERIES_PER_NODE * -(-series // SERIES_PER_NODE), random)
    detectors = [peer.make() for _ in range(series)]
    delay = np.full(series, np.inf)
    for tick in range(peer.warm_ticks + most_ticks):
        late = tick >= peer.warm_ticks
        streams = world.tick(fault if late else None).reshape(-1, setting.requests)
        for i, (detector, values) in enumerate(zip(detectors, streams, strict=False)):
            if _feed(detector, values) and late and np.isinf(delay[i]):
                delay[i] = (tick - peer.warm_ticks + 1) * TICK_S
        if np.isfinite(delay).all():
            break
    return delay


def _feed(detector: Any, values: NDArray[np.float32]) -> bool:
    """Feeds requests one by one; whether any of them raised an alarm."""
    alarm = False
    for value in values.tolist():
        detector.update(value)
        alarm |= detector.drift_detected
    return alarm


class published_rule:  # noqa: N801 - reads as a function of the worlds
    """KL > 0.12 in three periods of 60 s, 16 bins cut at the quantiles of the first day; all series at once."""

    def __init__(self, world: World, warm_ticks: int) -> None:
        first = np.concatenate([world.tick().reshape(SERIES_PER_NODE * world.nodes, -1) for _ in range(warm_ticks)], axis=1)
        self.edges = np.quantile(first, _LEVELS, axis=1).T
        self.baseline = self._count(first)
        self.periods = np.zeros(len(first), np.int64)
        self.waiting: list[NDArray[np.float32]] = []

    def _count(self, values: NDArray[np.float32]) -> NDArray[np.int64]:
        bins = np.stack([np.searchsorted(edges, row) for edges, row in zip(self.edges, values, strict=True)])
        key = bins + np.arange(len(values))[:, None] * (len(_LEVELS) + 1)
        return np.bincount(key.reshape(-1), minlength=len(values) * (len(_LEVELS) + 1)).reshape(len(values), -1)

    def tick(self, latency_s: NDArray[np.float32]) -> NDArray[np.bool_]:
        """Whether each series is in alarm after a tick of requests."""
        self.waiting.append(latency_s.reshape(len(self.edges), -1))
        if len(self.waiting) == _PERIOD_TICKS:
            kl = seed.kl_nats(self.baseline, self._count(np.concatenate(self.waiting, axis=1)))
            self.periods = seed.count_periods(self.periods, kl)
            self.waiting = []
        return self.periods >= seed.PERIODS

"""From excursions to rates: how often a threshold would have alarmed falsely, and how much history it takes to say so.

Peaks of a Shiryaev-Roberts statistic have a tail no heavier than 1 / height under its null (Shin, Ramdas, Rinaldo, arXiv
2203.03532), so log peaks beyond a level fall off exponentially with mean 1; wobble outside the tolerance band makes the mean
larger. It is estimated from the highest excursions (peaks over threshold with an exponential tail) with the theory's mean as a
prior. Its confidence comes from resampling blocks of the history with all nodes together, because what moves one node moves its
neighbours. Beside it stands the bound that assumes no tail at all: the exact Poisson one (Garwood 1936) of the alarms counted.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.special import gammaincinv

from streams.tune.history import FLOOR_LOG, Excursion, PoolHistory

__all__ = ["DAY_S", "Rate", "TailFit", "fit_tail", "poisson_bound", "rate_at"]

DAY_S = 86400.0
LEVEL = 0.95
"""Of every upper bound, one-sided."""
MOST_PEAKS = 60
_PRIOR_MEAN, _PRIOR_PEAKS = 1.0, 5.0
_BLOCKS = 48
_REPLICATES = 300


@dataclass(frozen=True, slots=True)
class TailFit:
    """Excursions a day and series that pass a height: counted up to a level, rate * exp(-(height - level) / scale) beyond it."""

    level_log: float
    rate_per_day: float
    scale: float
    counted: tuple[NDArray[np.float64], float]
    """All peaks, ascending, and the days of all series that they were seen in."""

    def at(self, height_log: float) -> float:
        """Alarms a day and series at a threshold."""
        peaks, days = self.counted
        if height_log < self.level_log and days > 0:
            return (len(peaks) - int(np.searchsorted(peaks, height_log))) / days
        return self.rate_per_day * float(np.exp(-max(height_log - self.level_log, 0.0) / self.scale))

    def height_for(self, per_day: float) -> float:
        """Least threshold with at most `per_day` alarms a day and series; -inf when any will do."""
        if self.rate_per_day <= per_day:
            return -np.inf if self.rate_per_day == 0 else self.level_log
        return self.level_log + self.scale * float(np.log(self.rate_per_day / per_day))


@dataclass(frozen=True, slots=True)
class Rate:
    """What a threshold would have done in the history.

    Attributes:
        alarms: Excursions that reach it.
        incidents: The same, those of one node at one time counted once.
        observed_per_day, fitted_per_day: A day and series; by counting, by the fitted tail.
        fitted_upper_per_day: 95 % bound of the latter.
        bound_per_day: 95 % bound that trusts no tail: exact, with the series of a node taken for one.
    """

    alarms: int
    incidents: int
    observed_per_day: float
    fitted_per_day: float
    fitted_upper_per_day: float
    bound_per_day: float


def poisson_bound(count: int, exposure: float) -> float:
    """Upper bound of a rate of which `count` events were seen; infinite without exposure.

    >>> round(poisson_bound(0, 1.0), 3), round(poisson_bound(3, 1.0), 3)
    (2.996, 7.754)
    """
    return float(gammaincinv(count + 1, LEVEL)) / exposure if exposure > 0 else float("inf")


def fit_tail(peaks_log: NDArray[np.float64], series_days: float) -> TailFit:
    """Tail of the highest excursions.

    Args:
        peaks_log: All peaks (n,).
        series_days: History that they were seen in.
    """
    ordered = np.sort(peaks_log)[::-1]
    top = ordered[:MOST_PEAKS]
    level = float(top[-1]) if len(ordered) > MOST_PEAKS else FLOOR_LOG
    scale = (float((top - level).sum()) + _PRIOR_MEAN * _PRIOR_PEAKS) / (len(top) + _PRIOR_PEAKS)
    return TailFit(level, len(top) / series_days if series_days > 0 else 0.0, scale, (ordered[::-1], series_days))


def resampled(history: PoolHistory, rng: np.random.Generator) -> list[TailFit]:
    """Fits of resampled histories: blocks of equal length, drawn with replacement, all nodes together."""
    span = max(history.last_s - history.first_s, 1.0)
    block = np.array([min(int((e.start_s - history.first_s) / span * _BLOCKS), _BLOCKS - 1) for e in history.excursions], np.intp)
    peaks = np.array([e.peak_log for e in history.excursions])
    days = history.series_s / DAY_S
    fits = []
    for _ in range(_REPLICATES):
        times = rng.multinomial(_BLOCKS, np.full(_BLOCKS, 1 / _BLOCKS))
        fits.append(fit_tail(np.repeat(peaks, times[block]) if len(peaks) else peaks, days))
    return fits


def rate_at(height_log: float, history: PoolHistory, fits: Sequence[TailFit]) -> Rate:
    """What a threshold would have done; `fits` are those of `resampled`."""
    series_days, node_days = history.series_s / DAY_S, history.node_s / DAY_S
    over = [e for e in history.excursions if e.peak_log >= height_log]
    own = fit_tail(np.array([e.peak_log for e in history.excursions]), series_days)
    together = _merged(over)
    return Rate(
        alarms=len(over), incidents=together, observed_per_day=len(over) / series_days if series_days else 0.0,
        fitted_per_day=own.at(height_log),
        fitted_upper_per_day=float(np.quantile([fit.at(height_log) for fit in fits], LEVEL)),
        bound_per_day=poisson_bound(together, node_days),
    )  # fmt: skip


def _merged(excursions: Sequence[Excursion]) -> int:
    """Excursions of a node that overlap in time count once."""
    count = 0
    end: dict[str, float] = {}
    for e in sorted(excursions, key=lambda e: e.start_s):
        count += e.start_s > end.get(e.node, -np.inf)
        end[e.node] = max(end.get(e.node, -np.inf), e.end_s)
    return count

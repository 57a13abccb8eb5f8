"""Drift of aggregated series: one value a row at a steady cadence (a mean or a percentile that another tool recorded).

Such a value already sums up many requests, so there is no histogram to compare; what tells is how far beyond its past it lies.
Each value is taken relative to a slowly moving level, and to how much of the last deviation persists (a first-order
autoregression), so that a series that wanders is not evidence. The tail of the past residuals is a generalised Pareto
distribution above their upper 4 % (peaks over threshold as in SPOT, Siffer et al., KDD 2017; fitted by probability-weighted
moments, Hosking and Wallis 1987), which gives the value a p-value. A mixture of calibrators k * p**(k - 1) turns it into an
e-value (Vovk and Wang 2021), and e-values add up to a Shiryaev-Roberts statistic whose threshold follows from a target of false
alarms per day, as in `detectors.evidence`. Both directions are watched apart. During an alarm nothing is learned.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

__all__ = ["ValueBank", "ValueTick"]

MEMORY = 1000
"""Residuals kept a series."""
LEVEL_ROWS = 50.0
"""Half-life of the moving level, rows."""
TAIL_SHARE = 0.04
MIN_TAIL = 10
_WANDER_ROWS = 300.0  # half-life of what is known of the persistence
_MAX_PERSISTENCE = 0.98
_SHAPE = (0.05, 0.5)  # never a bounded tail: what was not seen yet is not impossible
_EXPONENTS = np.array([0.15, 0.35, 0.6])
_MIN_P = 1e-12
_CAP_NATS = 5.0  # evidence beyond the threshold that is kept: a cleared fault is forgotten within a few rows
_TAIL_NEEDS = 5

Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]


@dataclass(slots=True)
class ValueTick:
    """Result of one step; arrays (k,) parallel to the series that were given.

    Attributes:
        learning: Not judged yet.
        slower, faster: Calibrated alarms, upward and downward.
        log_evidence: log of the upward Shiryaev-Roberts statistic.
        log_threshold: Value at which it alarms.
        threshold: The single value that would be as rare as the target allows, in the unit of the series.
        n: Residuals the judgement rests on.
    """

    learning: Bools
    slower: Bools
    faster: Bools
    log_evidence: Floats
    log_threshold: float
    threshold: Floats
    n: NDArray[np.int64]


class ValueBank:
    """State of many value series.

    Args:
        rows_per_day: Cadence.
        false_alarms_per_day: Target for each series and direction.
        learning_rows: Values before a series is judged.
    """

    def __init__(self, rows_per_day: float, false_alarms_per_day: float, learning_rows: int) -> None:
        self._learning_rows = max(2 * MIN_TAIL, min(learning_rows, MEMORY))
        self._rare = false_alarms_per_day / rows_per_day
        self._log_a = float(np.log(1.0 / self._rare))
        self._cap = float(np.exp(self._log_a + _CAP_NATS))
        self._ring: Floats = np.empty((0, MEMORY))
        self._seen: NDArray[np.int64] = np.empty(0, np.int64)
        self._level: Floats = np.empty(0)
        self._statistic: Floats = np.empty((0, 2))
        self._deviation: Floats = np.empty(0)  # of the last learned value from the level
        self._moments: Floats = np.empty((0, 2))  # of deviations: product with the one before, square

    def add_series(self) -> int:
        """Index of a new series."""
        self._ring = np.vstack([self._ring, np.full((1, MEMORY), np.nan)])
        self._seen, self._level = np.append(self._seen, 0), np.append(self._level, np.nan)
        self._statistic = np.vstack([self._statistic, np.zeros((1, 2))])
        self._deviation, self._moments = np.append(self._deviation, 0.0), np.vstack([self._moments, np.zeros((1, 2))])
        return len(self._seen) - 1

    def forget(self) -> None:
        """All series learn anew: something was changed on purpose."""
        self._ring[:], self._seen[:], self._level[:], self._statistic[:] = np.nan, 0, np.nan, 0.0
        self._deviation[:], self._moments[:] = 0.0, 0.0

    def step(self, series: NDArray[np.intp], value: Floats) -> ValueTick:
        """Judge one value of each of some series, then learn it.

        Args:
            series: Indices, each at most once, (k,).
            value: Values, (k,).
        """
        seen, ring = self._seen[series], self._ring[series]
        level = np.where(seen == 0, value, self._level[series])
        product, square = self._moments[series].T
        persistence = np.clip(product / np.maximum(square, 1e-300), 0.0, _MAX_PERSISTENCE)
        expected = level + persistence * self._deviation[series]
        residual = value - expected
        learning = seen < self._learning_rows
        statistic = self._statistic[series]
        threshold = np.full(len(series), np.nan)
        if not learning.all():
            p = np.ones((len(series), 2))
            p[:, 0], excess = _upper_p(ring, np.minimum(seen, MEMORY), residual, self._rare)
            p[:, 1], _ = _upper_p(-ring, np.minimum(seen, MEMORY), -residual, self._rare)
            e = (_EXPONENTS * np.clip(p, _MIN_P, 1.0)[..., None] ** (_EXPONENTS - 1.0)).mean(axis=-1)
            statistic = np.where(learning[:, None], statistic, np.minimum((statistic + 1.0) * e, self._cap))
            self._statistic[series] = statistic
            threshold = np.where(learning, np.nan, expected + excess)
        with np.errstate(divide="ignore"):
            log_statistic = np.log(statistic)
        alarm: Bools = ~learning[:, None] & np.asarray(log_statistic >= self._log_a)
        self._learn(series, value, level, residual, ~np.asarray(alarm.any(axis=1)))
        return ValueTick(
            learning, alarm[:, 0], alarm[:, 1], log_statistic[:, 0], self._log_a, threshold, np.minimum(seen, MEMORY)
        )

    def _learn(self, series: NDArray[np.intp], value: Floats, level: Floats, residual: Floats, good: Bools) -> None:
        series, value, level, residual = series[good], value[good], level[good], residual[good]
        seen = self._seen[series]
        self._ring[series, seen % MEMORY] = residual
        deviation, before = value - level, self._deviation[series]
        keep = 0.5 ** (1.0 / _WANDER_ROWS)
        self._moments[series] = keep * self._moments[series] + np.stack([deviation * before, before * before], axis=1)
        self._deviation[series] = deviation
        weight = np.maximum(1.0 - 0.5 ** (1.0 / LEVEL_ROWS), 1.0 / (seen + 1.0))
        self._level[series] = level + weight * deviation
        self._seen[series] = seen + 1


def _upper_p(ring: Floats, n: NDArray[np.int64], residual: Floats, rare: float) -> tuple[Floats, Floats]:
    """p-value of each residual against its ring, and the residual that has p-value `rare`.

    Args:
        ring: (k, MEMORY), NaN where empty.
        n: Residuals in each ring, (k,).
        residual: (k,).
        rare: Wanted p-value.
    """
    n = np.maximum(n, 2 * MIN_TAIL)
    past = np.sort(ring, axis=1)  # NaN last
    tail = np.maximum(MIN_TAIL, (TAIL_SHARE * n).astype(np.int64))
    cut = np.take_along_axis(past, (n - tail)[:, None], axis=1)
    excess = past - cut
    above = excess > 0  # False for NaN
    m = above.sum(axis=1)
    y = np.where(above, excess, 0.0)
    rank = np.cumsum(above, axis=1) - 1  # of each exceedance, from the smallest
    size = np.maximum(m, _TAIL_NEEDS)
    b0 = y.sum(axis=1) / size
    a1 = (y * (1.0 - rank / (size - 1)[:, None])).sum(axis=1) / size
    with np.errstate(divide="ignore", invalid="ignore"):
        shape = np.clip(np.nan_to_num(2.0 - b0 / (b0 - 2.0 * a1), nan=_SHAPE[1]), *_SHAPE)
    scale = np.maximum(b0 * (1.0 - shape), 1e-12)
    share = np.maximum(m, 0.5) / n
    beyond = np.maximum(residual - cut[:, 0], 0.0)
    modelled = share * (1.0 + shape * beyond / scale) ** (-1.0 / shape)
    counted = ((past >= residual[:, None]).sum(axis=1) + 0.5) / (n + 1.0)
    rare_excess = cut[:, 0] + scale / shape * ((rare / share) ** -shape - 1.0)
    return np.where((residual > cut[:, 0]) & (m >= _TAIL_NEEDS), modelled, counted), rare_excess

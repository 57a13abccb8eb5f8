"""Series mode: drift of a metric that has one value a step (a gauge, an exported percentile), not a histogram a tick.

Three views of every new value, each reduced to one statistic that is large when something is odd:

- point: distance of the value from the median of the same time of day on the last seven days;
- level: distance between a fast and a slow exponential mean;
- distribution: KL divergence of the last rows against the last week, in bins cut at the week's own quantiles.

Each is calibrated against its own past by the tail law of `detectors.peaks`, so three quantities without a common unit become
one: the probability of a value as odd as this one. The largest of the three is the evidence; an alarm is evidence above
ln(3 * steps a day / false alarms a day) (3 views, Bonferroni), and for `refractory_rows` after an alarm only stronger evidence
alarms. Vectorised over series. A week of values is kept a series (2,000 at 5 minutes): for slow metrics, not for requests.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from detectors.peaks import Peaks

__all__ = ["VIEWS", "SeriesDetector", "SeriesSettings", "SeriesTick"]

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

VIEWS = ("point", "level", "distribution")
_DAY_S = 86400.0
_BODY, _TAIL = 11, (0.923, 0.96, 0.99, 0.999)
_QUANTILES = np.r_[np.arange(1, _BODY + 1) / (_BODY + 1) * _TAIL[0], _TAIL]
_RECUT_ROWS = 24  # the week's quantiles move slowly


@dataclass(frozen=True)
class SeriesSettings:
    """Settings of series mode; one set serves all series.

    Attributes:
        days: Days of which the same time is compared, and length of the reference distribution.
        beside_rows: Neighbourhood of "the same time", steps to both sides.
        fast_half_life_s, slow_half_life_s: Memory of the two means, seconds.
        recent_rows: Rows whose distribution is compared with the week.
        min_rows: Rows before anything alarms.
        peaks: Largest values kept for calibration.
        max_shape: Heaviest tail believed.
        refractory_rows: Rows after an alarm in which only stronger evidence alarms.
        false_alarms_per_day: Target per series.
    """

    days: int = 7
    beside_rows: int = 2
    fast_half_life_s: float = 4 * 3600.0
    slow_half_life_s: float = 72 * 3600.0
    recent_rows: int = 12
    min_rows: int = 60
    peaks: int = 30
    max_shape: float = 0.2
    refractory_rows: int = 20
    false_alarms_per_day: float = 0.5


@dataclass(frozen=True)
class SeriesTick:
    """What one step says.

    Attributes:
        surprise_nats: Per view, float64 (n_series, 3), in the order of `VIEWS`; 0 where nothing is odd or known.
        evidence_nats: The largest of them, float64 (n_series,).
        alarm: Evidence above the threshold and, within the refractory time, above the last alarm's; bool (n_series,).
        above: The value is above its centre (slower, for a latency); bool (n_series,).
    """

    surprise_nats: Floats
    evidence_nats: Floats
    alarm: NDArray[np.bool_]
    above: NDArray[np.bool_]


class SeriesDetector:
    """State of `n_series` series with a common step.

    Args:
        n_series: Number of series.
        step_s: Length of a step, seconds; a day must hold 1 to 1,440 of them.
        settings: Shared by all series.

    Raises:
        ValueError: For a step shorter than a minute or longer than a day: average first, or use histograms.
    """

    def __init__(self, n_series: int, step_s: float, settings: SeriesSettings | None = None) -> None:
        if not 60.0 <= step_s <= _DAY_S:
            raise ValueError(f"step_s is {step_s:g}: series mode takes steps from 60 s to a day")
        self.settings = s = settings or SeriesSettings()
        self.n_series = n_series
        self.step_s = step_s
        day = round(_DAY_S / step_s)
        beside = min(s.beside_rows, (day - 1) // 2)
        self._length = s.days * day + beside + 1
        self._same_time = np.array([[-d * day + j for j in range(-beside, beside + 1)] for d in range(1, s.days + 1)])
        self._ring = np.full((n_series, self._length), np.nan)
        self._ring_slot = np.full((n_series, self._length), -1, np.int64)
        self._last_slot = np.full(n_series, -1, np.int64)
        self._rows = np.zeros(n_series, np.int64)
        self._mean = np.zeros((2, n_series))
        self._mean_weight = np.zeros((2, n_series))
        self._recent = np.full((n_series, s.recent_rows), np.nan)
        self._edges = np.full((n_series, len(_QUANTILES)), np.nan)
        self._reference = np.full((n_series, len(_QUANTILES) + 1), np.nan)
        self._peaks = Peaks(n_series * len(VIEWS), s.peaks, s.min_rows, s.max_shape)
        self._quiet_until = np.zeros(n_series, np.int64)
        self._alarmed_at = np.zeros(n_series)
        self.threshold_nats = float(np.log(len(VIEWS) * day / s.false_alarms_per_day))

    def update(self, slot: Ints, value: Floats) -> SeriesTick:
        """Take the next value of each series.

        Args:
            slot: Step number, int64 (n_series,), not falling; steps without a value may be left out. A second value of the
                same step replaces the first.
            value: float64 (n_series,); NaN for series that have none now: they are left as they are.
        """
        known = np.isfinite(value)
        slot = np.where(known, slot, np.maximum(self._last_slot, 0))
        centre = self._centre(slot)
        point = np.abs(value - centre)
        self._remember(slot, value, known)
        level = np.where(known, self._level(), np.nan)
        distribution = np.where(known, self._divergence(slot), np.nan)
        statistic = np.stack([point, level, distribution], axis=1)
        surprise = self._peaks.update(statistic.ravel()).reshape(self.n_series, len(VIEWS))
        evidence = surprise.max(axis=1)
        loud = (self._rows > self._quiet_until) | (evidence > self._alarmed_at)
        alarm = (evidence > self.threshold_nats) & loud
        self._quiet_until = np.where(alarm, self._rows + self.settings.refractory_rows, self._quiet_until)
        self._alarmed_at = np.where(alarm, evidence, self._alarmed_at)
        above = value > np.where(np.isfinite(centre), centre, self._mean[1])
        return SeriesTick(surprise, evidence, alarm, above)

    def _at(self, slots: Ints) -> Floats:
        """Values at slots, int64 (n_series, ...); NaN where there is none (any more)."""
        rows = np.arange(self.n_series).reshape(-1, *[1] * (slots.ndim - 1))
        cell = slots % self._length
        return np.where(self._ring_slot[rows, cell] == slots, self._ring[rows, cell], np.nan)

    def _centre(self, slot: Ints) -> Floats:
        """Median over the days of the mean around this time of day; NaN in the first day."""
        near = self._at(slot[:, None, None] + self._same_time)
        present = np.isfinite(near)
        count = present.sum(axis=2)
        means = np.where(count > 0, np.where(present, near, 0.0).sum(axis=2) / np.maximum(count, 1), np.nan)
        means.sort(axis=1)  # NaN last
        last = np.maximum((count > 0).sum(axis=1) - 1, 0)
        rows = np.arange(self.n_series)
        centre: Floats = (means[rows, last // 2] + means[rows, (last + 1) // 2]) / 2
        return centre

    def _remember(self, slot: Ints, value: Floats, known: NDArray[np.bool_]) -> None:
        rows = np.flatnonzero(known)
        cell = slot[rows] % self._length
        self._ring[rows, cell] = value[rows]
        self._ring_slot[rows, cell] = slot[rows]
        half_lives = np.array([self.settings.fast_half_life_s, self.settings.slow_half_life_s])
        steps = np.where(self._rows[rows] > 0, np.maximum(slot[rows] - self._last_slot[rows], 1), 1)
        keep = 0.5 ** (steps * self.step_s / half_lives[:, None])
        gain = 1.0 - keep
        weight = keep * self._mean_weight[:, rows] + gain
        self._mean[:, rows] += gain / weight * (value[rows] - self._mean[:, rows])
        self._mean_weight[:, rows] = weight
        self._recent[rows, :-1] = self._recent[rows, 1:]
        self._recent[rows, -1] = value[rows]
        self._last_slot[rows] = slot[rows]
        self._rows[rows] += 1

    def _level(self) -> Floats:
        """|fast mean - slow mean|, once the slow one has seen a quarter of its memory."""
        return np.where(self._mean_weight[1] > 0.15, np.abs(self._mean[0] - self._mean[1]), np.nan)

    def _divergence(self, slot: Ints) -> Floats:
        """KL(recent rows || week), nats; NaN until the week has enough rows."""
        due = np.flatnonzero((self._rows % _RECUT_ROWS == 0) & (self._rows >= self.settings.min_rows + self._recent.shape[1]))
        if len(due):
            self._recut(due, slot)
        n = self._recent.shape[1]
        below = (self._recent[:, :, None] <= self._edges[:, None, :]).sum(axis=1)
        counts = np.diff(below, axis=1, prepend=0, append=n)
        p = (counts + 0.5 * self._reference) / (n + 0.5)
        with np.errstate(invalid="ignore"):
            divergence: Floats = (p * np.log(p / self._reference)).sum(axis=1)
        return divergence

    def _recut(self, due: NDArray[np.intp], slot: Ints) -> None:
        """Bins and reference probabilities of the series `due`, from the ring without the recent rows."""
        age = slot[due, None] - self._ring_slot[due]
        old = (age >= self._recent.shape[1]) & (age < self._length) & (self._ring_slot[due] >= 0)
        values = np.sort(np.where(old, self._ring[due], np.inf), axis=1)
        n = old.sum(axis=1)
        index = np.maximum(np.ceil(_QUANTILES * n[:, None]).astype(np.int64) - 1, 0)
        edges = np.take_along_axis(values, index, axis=1)
        counts = np.stack([np.searchsorted(v, e, side="right") for v, e in zip(values, edges, strict=True)])
        share = np.diff(np.minimum(counts, n[:, None]), axis=1, prepend=0, append=n[:, None])
        bins = share.shape[1]
        enough = n >= self.settings.min_rows
        self._edges[due[enough]] = edges[enough]
        self._reference[due[enough]] = ((share + 0.5) / (n[:, None] + 0.5 * bins))[enough]

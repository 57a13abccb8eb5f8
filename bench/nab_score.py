"""The official NAB scoring, reimplemented (Lavin and Ahmad, "Evaluating Real-time Anomaly Detection Algorithms - the
Numenta Anomaly Benchmark", ICMLA 2015, and the rules of its public scorer).

A row whose anomaly score reaches the threshold is a detection. The earliest detection of a window earns up to 1, by a
sigmoid of its place in the window; a window without one costs `fn`; each detection outside costs up to `fp`, by a sigmoid of its
distance behind the last window. The first 15 % of a file (at most 750 rows) are probationary: not scored. One threshold for
all files, the best one. The result is scaled so that no detection at all gives 0 and perfection 100.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from bench.nab_corpus import NabFile

__all__ = ["PROFILES", "Profile", "ScoredRows", "Sweep", "join_rows", "normalise", "rows_of", "score_at", "sweep"]

PROBATION = 0.15
PROBATION_ROWS = 5000
OUTSIDE = -1
PROBATIONARY = -2


@dataclass(frozen=True)
class Profile:
    """Weights of a NAB application profile."""

    name: str
    fp: float
    fn: float


PROFILES = (
    Profile("standard", fp=0.11, fn=1.0),
    Profile("reward_low_FP_rate", fp=0.22, fn=1.0),
    Profile("reward_low_FN_rate", fp=0.11, fn=2.0),
)


@dataclass(frozen=True)
class ScoredRows:
    """What a detection at each row would earn, before weights.

    Attributes:
        anomaly: Anomaly score of the detector, float64 (n,).
        gain: In a window the reward in (0, 1], outside the cost in [-1, 0), float64 (n,).
        window: Index of the window, `OUTSIDE` or `PROBATIONARY`, int64 (n,).
        n_windows: Number of windows that have at least one scored row.
    """

    anomaly: NDArray[np.float64]
    gain: NDArray[np.float64]
    window: NDArray[np.int64]
    n_windows: int

    def loud(self, floor: float) -> ScoredRows:
        """Rows with an anomaly score of at least `floor` only: the same outcome at every threshold above it, faster."""
        keep = self.anomaly >= floor
        return ScoredRows(self.anomaly[keep], self.gain[keep], self.window[keep], self.n_windows)


@dataclass(frozen=True)
class Sweep:
    """Outcome at the best threshold.

    Attributes:
        threshold: Rows at or above it are detections; above 1 for detectors that never fire well.
        raw: Raw score, the sum over files.
        normalised: 0 for silence, 100 for perfection.
    """

    threshold: float
    raw: float
    normalised: float


def _sigmoid_gain(position: NDArray[np.float64]) -> NDArray[np.float64]:
    gain = 2.0 / (1.0 + np.exp(5.0 * np.minimum(position, 3.0))) - 1.0
    return np.where(position >= 3.0, -1.0, gain)


_BEST = 2.0 / (1.0 + np.exp(-5.0)) - 1.0


def rows_of(file: NabFile, anomaly: NDArray[np.float64]) -> ScoredRows:
    """Gains of the rows of one file."""
    n = len(anomaly)
    if n != len(file.values):
        raise ValueError(f"{file.name}: {n} anomaly scores for {len(file.values)} rows")
    index = np.arange(n)
    position = np.full(n, 3.0)
    window = np.full(n, OUTSIDE, np.int64)
    gain_scale = np.ones(n)
    for k, (first, last) in enumerate(file.windows):
        width = last - first + 1
        inside = slice(first, last + 1)
        if width > 1:  # the last window before a row is the one its distance counts from
            position[last + 1 :] = (index[last + 1 :] - last) / (width - 1)
        position[inside] = -(last - index[inside] + 1) / width
        window[inside] = k
        gain_scale[inside] = 1.0 / _BEST
    window[: int(np.ceil(min(np.floor(PROBATION * n), PROBATION * PROBATION_ROWS)))] = PROBATIONARY
    n_windows = len(np.unique(window[window >= 0]))
    return ScoredRows(anomaly, _sigmoid_gain(position) * gain_scale, window, n_windows)


def join_rows(parts: Sequence[ScoredRows]) -> ScoredRows:
    """Rows of several files as one corpus; windows are renumbered."""
    window, shift = [], 0
    for part in parts:
        window.append(np.where(part.window >= 0, part.window + shift, part.window))
        shift += int(part.window.max(initial=-1)) + 1
    return ScoredRows(
        np.concatenate([p.anomaly for p in parts]),
        np.concatenate([p.gain for p in parts]),
        np.concatenate(window),
        sum(p.n_windows for p in parts),
    )


def sweep(rows: ScoredRows, profile: Profile) -> Sweep:
    """The best threshold for `rows`, as the official optimiser finds it: the highest of equally good ones."""
    scored = np.flatnonzero(rows.window != PROBATIONARY)
    order = scored[np.argsort(-rows.anomaly[scored], kind="stable")]
    anomaly, window = rows.anomaly[order], rows.window[order]
    change = np.where(window == OUTSIDE, rows.gain[order] * profile.fp, 0.0)
    inside = np.flatnonzero(window >= 0)
    inside = inside[np.argsort(window[inside], kind="stable")]  # by window, then by falling anomaly score
    if len(inside):
        starts = np.flatnonzero(np.r_[True, np.diff(window[inside]) != 0])
        best = -profile.fn * np.ones(len(inside))
        for a, b in zip(starts, np.r_[starts[1:], len(inside)], strict=True):
            best[a:b] = np.maximum.accumulate(rows.gain[order[inside[a:b]]])
        before = np.r_[0.0, best[:-1]]
        before[starts] = -profile.fn
        change[inside] = best - before
    total = -profile.fn * rows.n_windows + np.cumsum(change)
    last_of_tie = np.flatnonzero(np.r_[anomaly[1:] != anomaly[:-1], True]) if len(anomaly) else np.array([], np.int64)
    silent = -profile.fn * rows.n_windows
    raw, threshold = silent, 1.1
    if len(last_of_tie):
        at = last_of_tie[int(np.argmax(total[last_of_tie]))]
        if total[at] > silent:
            raw, threshold = float(total[at]), float(anomaly[at])
    return Sweep(threshold, raw, normalise(raw, rows.n_windows, profile))


def score_at(rows: ScoredRows, threshold: float, profile: Profile) -> tuple[float, int, int, int]:
    """(raw score, TP, FP, FN) at a threshold; the counts are rows, as NAB counts them."""
    hit = (rows.anomaly >= threshold) & (rows.window != PROBATIONARY)
    inside = hit & (rows.window >= 0)
    best = np.zeros(int(rows.window.max(initial=-1)) + 1)
    np.maximum.at(best, rows.window[inside], rows.gain[inside])
    missed = rows.n_windows - len(np.unique(rows.window[inside]))
    raw = float(profile.fp * rows.gain[hit & (rows.window == OUTSIDE)].sum() + best.sum() - profile.fn * missed)
    in_window = int((rows.window >= 0).sum())
    return raw, int(inside.sum()), int((hit & (rows.window == OUTSIDE)).sum()), in_window - int(inside.sum())


def normalise(raw: float, n_windows: int, profile: Profile) -> float:
    """Raw score on the scale from silence (0) to perfection (100)."""
    silent = -profile.fn * n_windows
    return 100.0 * (raw - silent) / (n_windows - silent) if n_windows else 0.0

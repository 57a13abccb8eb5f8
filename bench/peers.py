"""Other detectors on series of one value a row, each as a function from values to anomaly scores (higher is odder).

river's change detectors have no score, only an alarm: it scores 1. They get values standardised by a running mean and
standard deviation, which favours them (ADWIN and Page-Hinkley are scale dependent).
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray
from river import anomaly, drift, preprocessing

__all__ = ["PEERS", "dspot", "every", "grimshaw"]

Floats = NDArray[np.float64]


def _standardised(values: Floats) -> Floats:
    """(x - mean) / sd of all values so far, causal."""
    n = np.arange(1, len(values) + 1)
    shifted = values - values[0]
    mean = np.cumsum(shifted) / n
    variance = np.maximum(np.cumsum(shifted**2) / n - mean**2, 0.0)
    return np.clip((shifted - mean) / np.maximum(np.sqrt(variance), 1e-12), -20, 20)


def adwin(values: Floats) -> Floats:
    """River ADWIN, default settings (Bifet and Gavalda, SDM 2007)."""
    return _alarms(drift.ADWIN(), _standardised(values))


def page_hinkley(values: Floats) -> Floats:
    """River PageHinkley, default settings (Page 1954)."""
    return _alarms(drift.PageHinkley(), _standardised(values))


def kswin(values: Floats) -> Floats:
    """River KSWIN with alpha 0.0001 (Raab, Heusinger, Schleif, Neurocomputing 2020)."""
    return _alarms(drift.KSWIN(alpha=1e-4, seed=1), _standardised(values))


def _alarms(detector: drift.ADWIN | drift.PageHinkley | drift.KSWIN, values: Floats) -> Floats:
    scores = np.zeros(len(values))
    for i, x in enumerate(values.tolist()):
        detector.update(x)
        scores[i] = detector.drift_detected
    return scores


def half_space_trees(values: Floats) -> Floats:
    """River HalfSpaceTrees on the value scaled to [0, 1], as it asks (Tan, Ting, Liu, IJCAI 2011), default settings.

    With the difference, the deviation from a moving mean, more trees or a longer window it scores the same or less.
    """
    scaler = preprocessing.MinMaxScaler()
    trees = anomaly.HalfSpaceTrees(seed=1)
    scores = np.zeros(len(values))
    for i, x in enumerate(values.tolist()):
        scaler.learn_one({"x": x})
        row = scaler.transform_one({"x": x})
        scores[i] = trees.score_one(row)
        trees.learn_one(row)
    return scores


def grimshaw(excess: Floats) -> tuple[float, float]:
    """Maximum-likelihood (shape, scale) of a generalised Pareto law, by Grimshaw's profile (Technometrics 1993)."""
    mean, low, high = float(excess.mean()), float(excess.min()), float(excess.max())
    # theta = shape / scale; the likelihood is profiled over a grid of admissible thetas, theta = 0 is the exponential
    grid = np.r_[
        -np.geomspace(1e-4, 0.999, 40)[::-1] / high, np.geomspace(1e-4, 2.0, 40) * (mean - low + 1e-12) / (low * low + 1e-12)
    ]
    grid = np.r_[grid[grid * mean < 1e3], np.geomspace(1e-4, 50.0, 40) / mean]
    inside = np.log1p(np.outer(grid, excess))
    shape = inside.mean(axis=1)
    with np.errstate(divide="ignore", invalid="ignore"):
        likelihood = np.where(shape > -0.5, -np.log(shape / grid) - shape - 1.0, -np.inf)  # below, it is unbounded
    best, at = -math.log(mean) - 1.0, -1
    if np.isfinite(likelihood).any():
        at = int(np.nanargmax(np.where(np.isfinite(likelihood), likelihood, -np.inf)))
    if at < 0 or likelihood[at] <= best:
        return 0.0, mean
    return float(shape[at]), float(shape[at] / grid[at])


def dspot(values: Floats, depth: int = 50, level: float = 0.98) -> Floats:
    """DSPOT with both tails (Siffer et al., KDD 2017), -log10 of the tail probability; own implementation.

    The first 15 % (at most 750 rows) calibrate, as NAB's probationary part; the moving mean has `depth` rows. It learns every
    value, the authors' option: leaving out alarms, as their paper does, one level shift or a calm calibration alarms for ever.
    """
    n = len(values)
    start = max(int(min(0.15 * n, 750)), depth + 20)
    scores = np.zeros(n)
    if n <= start:
        return scores
    total = np.concatenate([[0.0], np.cumsum(values)])
    residual = np.zeros(n)
    residual[depth:] = values[depth:] - (total[depth:-1] - total[: -depth - 1]) / depth
    for sign in (1.0, -1.0):
        x = sign * residual
        threshold = float(np.quantile(x[depth:start], level))
        peaks = [float(v) for v in x[depth:start] - threshold if v > 0] or [1e-9]
        shape, scale = grimshaw(np.array(peaks))
        n_peaks = len(peaks)
        for i in (np.flatnonzero(x[start:] > threshold) + start).tolist():
            excess = float(x[i]) - threshold
            y = excess / max(scale, 1e-12)
            tail = math.log1p(max(shape * y, -0.999999)) / shape if abs(shape) > 1e-6 else y
            log_p = math.log(n_peaks / (i - depth)) - tail
            scores[i] = max(scores[i], -log_p / math.log(10))
            n_peaks += 1
            peaks = [*peaks[-499:], excess]
            shape, scale = grimshaw(np.array(peaks))
    return scores


def every(rows: int) -> Callable[[Floats], Floats]:
    """The dummy: an alarm every `rows` rows, whatever the values."""
    return lambda values: (np.arange(len(values)) % rows == rows - 1).astype(float)


PEERS: dict[str, Callable[[Floats], Floats]] = {
    "river HalfSpaceTrees": half_space_trees,
    "river ADWIN": adwin,
    "river PageHinkley": page_hinkley,
    "river KSWIN 1e-4": kswin,
    "DSPOT": dspot,
}

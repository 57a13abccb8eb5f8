"""Two detectors whose NAB results are published, rebuilt from their descriptions so that the scorer can be checked against them.

windowedGaussian: tail probability of a value under a normal fitted to the last 6,400 values, refitted every 100 (every
value until the window is full). relativeEntropy: multinomial goodness of fit of the last 52 values in 5 bins against all
earlier accepted distributions (Wang et al., "Statistical techniques for online anomaly detection in data centers", IM 2011).
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray
from scipy.special import erfc
from scipy.stats import chi2

__all__ = ["relative_entropy", "windowed_gaussian"]

_WINDOW, _STEP = 6400, 100
_BINS, _SPAN = 5, 52


def windowed_gaussian(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Anomaly score of each row, 0.5 to 1."""
    scores = np.zeros(len(values))
    mean, sd = 0.0, 1.0
    start, end = 0, 0
    for i, x in enumerate(values):
        if i:
            scores[i] = 1.0 - 0.5 * erfc(abs(x - mean) / sd / 1.4142)
        if i < _WINDOW:
            start, end = 0, i + 1
        elif (i + 1 - _WINDOW) % _STEP == 0:
            start, end = i + 1 - _WINDOW, i + 1
        else:
            continue
        mean = float(np.mean(values[start:end]))
        sd = float(np.std(values[start:end])) or 1e-6
    return scores


def relative_entropy(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Anomaly score of each row, 0 or 1. Like the original it knows the range of the whole file beforehand."""
    scores = np.zeros(len(values))
    low, step = float(values.min()), (float(values.max()) - float(values.min())) / _BINS
    if step == 0.0:
        return scores
    bins = np.minimum([math.ceil((v - low) / step) for v in values], _BINS - 1)
    critical = float(chi2.isf(0.01, _BINS - 1))
    counts = np.bincount(bins[: _SPAN - 1], minlength=_BINS).astype(float)
    known = np.empty((0, _BINS))
    for i in range(_SPAN - 1, len(values)):
        counts[bins[i]] += 1
        if i >= _SPAN:
            counts[bins[i - _SPAN]] -= 1
        p = counts / _SPAN
        if not len(known):
            known = p[None]
            continue
        with np.errstate(divide="ignore", invalid="ignore"):
            terms = np.where(p > 0, p * np.log(p / known), 0.0)
        if not (2 * _SPAN * terms.sum(axis=1) < critical).any():
            scores[i] = 1.0
            known = np.vstack([known, p])
    return scores

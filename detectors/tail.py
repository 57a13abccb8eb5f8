"""P99.9 of a window and the threshold it is compared with.

With 1,000 samples and more P99.9 is an order statistic. With fewer it lies beyond the sample and is an extrapolation: a
generalised Pareto distribution fitted to the largest tenth of the log-latencies by probability-weighted moments (Hosking
and Wallis, Technometrics 1987; Pickands-Balkema-de Haan; Coles 2001). On logarithms both lognormal and Pareto tails are
mild, where the moments estimator is at home. Every value has a 95 % interval and says what it is.

The adaptive threshold is mean + kappa * sd of the log-P99.9s of past windows. kappa is not a taste: it follows from the
false-alarm target and the distribution of a window's P99.9. That is its k-th largest value, k = n / 1000 + 1; where log-latencies
have an exponential tail it follows the k-th Gumbel law (Coles 2001, theorem 3.5), whose sd and tail shrink as k grows. The
smaller the window the farther away is an honest threshold: at one false alarm in 100 days of minutes it is nine times the true
P99.9 of a lognormal of sigma 0.5 for windows of 300 samples, 1.9 times for 2,000. So windows are filled to 2,000 samples where
traffic allows. The published kappa = 1.82 lets 5.3 % of the windows of a Gumbel distribution through, not 0.03 %.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from scipy.special import digamma, gammaincinv, ndtr, ndtri, polygamma

from detectors import histogram

__all__ = [
    "CENSORED", "EMPIRICAL", "ENOUGH", "EXTRAPOLATED", "LONGEST_S", "coverage", "derived_kappa", "kappa_for", "level_update",
    "p999", "threshold_s", "threshold_update",
]  # fmt: skip

EMPIRICAL, EXTRAPOLATED, CENSORED = 0, 1, 2
"""Kinds of P99.9."""

Assumption = Literal["gumbel", "gumbel_mode", "normal"]
"""Distribution of window values. `gumbel`: threshold mean + kappa sd; `gumbel_mode`: mode + kappa scale; `normal`: mean +
kappa sd."""

ENOUGH = 2000
"""Samples at which a window is full."""
LONGEST_S = 3600.0
"""A window is full after this long, whatever it holds."""
_P = 1e-3
_RANKS = 512
_PRIOR_SD = 0.25
_PRIOR_WEIGHT = 5.0
_EMPIRICAL_N = 1000
_WITHIN_N = 5000
"""Samples from which on both ends of the interval lie within the sample, so that no tail need be fitted."""
_SHARE = 0.1
_FEWEST = 10
_LEAST_N = 100
_Z95 = 1.959964
_WIDEN = 0.7
"""Scales the intervals to cover 95 % of simulated lognormal and Pareto windows of 100 to 900 samples (tests say how well)."""
_EULER = 0.5772156649015329
_LOG_VALUES = np.log(histogram.VALUES_S)


def coverage(kappa: float, assume: Assumption) -> float:
    """Probability that a window does not exceed the threshold.

    >>> [round(coverage(1.82, a), 4) for a in ("gumbel", "gumbel_mode", "normal")]
    [0.9471, 0.8504, 0.9656]
    """
    if assume == "normal":
        return float(ndtr(kappa))
    reduced = kappa if assume == "gumbel_mode" else kappa * np.pi / np.sqrt(6) + _EULER
    return float(np.exp(-np.exp(-reduced)))


def kappa_for(exceed: float, assume: Assumption) -> float:
    """The kappa whose threshold a window exceeds with probability `exceed`.

    >>> [round(kappa_for(3e-4, a), 3) for a in ("gumbel", "gumbel_mode", "normal")]
    [5.875, 8.112, 3.432]
    """
    if assume == "normal":
        return float(-ndtri(exceed))
    reduced = -np.log(-np.log1p(-exceed))
    return float(reduced if assume == "gumbel_mode" else (reduced - _EULER) * np.sqrt(6) / np.pi)


@lru_cache(maxsize=8)
def _kappas(exceed: float) -> NDArray[np.float64]:
    """Kappa by rank from the top, (_RANKS + 1,): that many sd above its mean the k-th Gumbel law is exceeded so rarely."""
    k = np.arange(1, _RANKS + 1)
    kappa = (digamma(k) - np.log(gammaincinv(k, exceed))) / np.sqrt(polygamma(1, k))
    return np.concatenate([kappa[:1], kappa])


_SD_OF_RANK: NDArray[np.float64] = np.sqrt(polygamma(1, np.maximum(np.arange(_RANKS + 1), 1)) / polygamma(1, 1))
"""Spread of the k-th largest value against that of the largest."""


def _rank(n: NDArray[np.floating]) -> NDArray[np.intp]:
    return np.asarray(np.clip(np.nan_to_num(n) * _P + 1, 1, _RANKS).astype(np.intp))


def derived_kappa(n: NDArray[np.floating], exceed: float) -> NDArray[np.float64]:
    """The kappa that windows of `n` samples (...) exceed with probability `exceed`, (...).

    >>> import numpy as np
    >>> derived_kappa(np.array([300, 2000, 50_000]), 1e-5).round(2).tolist(), round(kappa_for(1e-5, "gumbel"), 2)
    ([8.53, 6.61, 4.7], 8.53)
    """
    return np.asarray(_kappas(exceed)[_rank(n)])


def p999(counts: NDArray[Any]) -> NDArray[np.float64]:
    """P99.9 of histograms: value, lower and upper end of its 95 % interval (seconds) and kind, float64 (R, 4).

    CENSORED: with too few samples, or with the quantile in the overflow bucket, only a lower bound is known; the upper end
    is infinite.
    Rows without samples are NaN, kind CENSORED.

    Args:
        counts: (R, histogram.BUCKETS).
    """
    octaves = histogram.octave_counts(counts)
    n = octaves.sum(axis=1)
    out = np.full((len(counts), 4), np.nan)
    out[:, 3] = CENSORED
    some = n > 0
    if not some.all():
        counts, octaves, n = counts[some], octaves[some], n[some]
    if len(n) == 0:
        return out
    largest = histogram.bucket_at(counts, octaves, n)
    fit = n < _WITHIN_N
    if fit.all():
        result = _extrapolated(counts, octaves, n, largest)
    else:
        result = np.full((len(n), 4), np.nan)
        result[fit] = _extrapolated(counts[fit], octaves[fit], n[fit], largest[fit])
    many = n >= _EMPIRICAL_N
    if many.any():
        result[many] = _empirical(counts[many], octaves[many], n[many], result[many, 2])
    short = (n < _LEAST_N) | (result[:, 0] >= histogram.HIGHEST_S) | ((largest == histogram.BUCKETS - 1) & ~many)
    result[short, 0] = result[short, 1] = histogram.VALUES_S[largest[short]]
    result[short, 2], result[short, 3] = np.inf, CENSORED
    out[some] = result
    return out


def _empirical(
    counts: NDArray[Any], octaves: NDArray[np.int64], n: NDArray[np.int64], fitted_high: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Order statistics; where the upper end would be beyond the largest value, that of the fitted tail."""
    rank = np.ceil((1 - _P) * n - 1e-9)
    half = _Z95 * np.sqrt(_P * (1 - _P) * n)
    value, low, high = (
        histogram.VALUES_S[histogram.bucket_at(counts, octaves, np.clip(r, 1, n))]
        for r in (rank, np.floor(rank - half), np.ceil(rank + half))
    )
    high = np.where(rank + half > n, np.maximum(fitted_high, high), high)
    return np.stack([value, low, high, np.full(len(n), float(EMPIRICAL))], axis=1)


def _extrapolated(
    counts: NDArray[Any], octaves: NDArray[np.int64], n: NDArray[np.int64], largest: NDArray[np.intp]
) -> NDArray[np.float64]:
    if len(n) == 0:
        return np.empty((0, 4))
    start = histogram.bucket_at(counts, octaves, n - np.maximum(np.ceil(_SHARE * n), _FEWEST).astype(np.int64) + 1)
    threshold = np.log(np.maximum(histogram.EDGES_S[start], histogram.LOWEST_S / 2))
    cells = np.minimum(start[:, None] + np.arange(int((largest - start).max()) + 1), histogram.BUCKETS)
    tail = np.concatenate([counts, np.zeros((len(n), 1), counts.dtype)], axis=1)[np.arange(len(n))[:, None], cells].astype(float)
    excess = np.maximum(_LOG_VALUES[np.minimum(cells, histogram.BUCKETS - 1)] - threshold[:, None], 0.0)
    above = np.cumsum(tail[:, ::-1], axis=1)[:, ::-1]
    exceeding = np.maximum(tail.sum(axis=1), 1)
    # Probability-weighted moments a0 = E[x], a1 = E[x (1 - F(x))]; within a bucket the ranks are averaged.
    beyond = (above - tail) + (tail - 1) / 2
    a0 = (tail * excess).sum(axis=1) / exceeding
    a1 = (tail * excess * beyond).sum(axis=1) / (exceeding * np.maximum(exceeding - 1, 1))
    with np.errstate(divide="ignore", invalid="ignore"):
        shape = np.clip(a0 / (a0 - 2 * a1) - 2, -0.25, 0.5)  # k = -xi of Hosking and Wallis is a0 / (a0 - 2 a1) - 2
    shape = np.where(np.isfinite(shape) & (exceeding >= _FEWEST), -shape, 0.0)
    scale = np.maximum(a0 * (1 - shape), 1e-3)
    level = np.maximum(exceeding / (_P * n), 1.0)
    log_level = np.log(level)
    growth, _ = _growth(shape, log_level)
    point = threshold + scale * growth
    # Delta method with the asymptotic covariance of the estimates, plus the binomial error of the exceedance rate, evaluated
    # at a shape that is not negative (an estimate that happens to be would promise too short a tail), which is a bit too wide.
    blunt = np.maximum(shape, 0.0)
    growth, slope = _growth(blunt, log_level)
    variance = (1 + blunt) / exceeding * scale**2 * (2 * growth**2 - 2 * growth * slope + (1 + blunt) * slope**2)
    variance += (scale * np.exp(blunt * log_level)) ** 2 / exceeding
    half = _WIDEN * _Z95 * np.sqrt(np.maximum(variance, 0.0))
    value, low, high = np.exp(point), np.exp(point - half), np.exp(point + half)
    return np.stack([value, low, high, np.full(len(n), float(EXTRAPOLATED))], axis=1)


def _growth(shape: NDArray[np.float64], log_level: NDArray[np.float64]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """((level ** shape) - 1) / shape and its derivative by shape, also at shape 0."""
    small = np.abs(shape) < 1e-4
    safe = np.where(small, 1.0, shape)
    growth = np.where(small, log_level, np.expm1(safe * log_level) / safe)
    slope = np.where(small, log_level**2 / 2, (np.exp(safe * log_level) * log_level - growth) / safe)
    return growth, slope


def threshold_update(
    level: NDArray[np.floating], log_p999: NDArray[np.float64], n: NDArray[np.integer], keep: float | NDArray[np.float64]
) -> None:
    """Learns the level of windows' log P99.9, in place; values are winsorised at three sd, so one bad window does not set it.

    Args:
        level: (..., 4): mean, variance and weight of past windows, and their mean number of samples.
        log_p999: (...), of a new window.
        n: Its samples (...).
        keep: What remains of the old weight, 0 to 1 (...).
    """
    mean, variance, weight, samples = (level[..., i].astype(np.float64) for i in range(4))
    first = weight == 0
    sd = np.sqrt((variance * weight + _PRIOR_SD**2 * _PRIOR_WEIGHT) / (weight + _PRIOR_WEIGHT))
    value = np.where(first, log_p999, np.clip(log_p999, mean - 3 * sd, mean + 3 * sd))
    old = weight * keep
    total = old + 1
    step = value - mean
    level[..., 0] = np.where(first, value, mean + step / total)
    level[..., 1] = np.where(first, 0.0, old / total * (variance + step**2 / total))
    level[..., 2] = total
    level[..., 3] = np.where(first, n, samples + (n - samples) / total)


def level_update(level: NDArray[np.floating], p999_s: NDArray[np.float64], keep: float | NDArray[np.float64]) -> None:
    """Plain mean and variance of windows' P99.9 in seconds, in place: the published form, outliers and all. Arguments as
    above.
    """
    mean, variance, weight = (level[..., i].astype(np.float64) for i in range(3))
    old = weight * keep
    total = old + 1
    step = p999_s - mean
    level[..., 0] = mean + step / total
    level[..., 1] = old / total * (variance + step**2 / total)
    level[..., 2] = total


def threshold_s(level: NDArray[np.floating], kappa: float | NDArray[np.float64]) -> NDArray[np.float64]:
    """exp(mean + kappa * sd) of windows' log P99.9, seconds (...); NaN before the first window. Arguments as in
    `threshold_update`; until there are some windows the sd leans on what is usual for windows of so many samples.
    """
    mean, variance, weight = (level[..., i].astype(np.float64) for i in range(3))
    prior = np.square(_PRIOR_SD * _SD_OF_RANK[_rank(level[..., 3])])
    sd = np.sqrt((variance * weight + prior * _PRIOR_WEIGHT) / (weight + _PRIOR_WEIGHT))
    return np.where(weight > 0, np.exp(np.minimum(mean + kappa * sd, 50.0)), np.nan)

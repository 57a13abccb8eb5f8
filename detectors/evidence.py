"""Calibrated evidence of a slowdown: Shiryaev-Roberts sums of likelihood ratios against a tolerant null.

Each tick a series contributes e_a = q_a(c) / max over |d| <= band of p_d(c) for a fixed family of alternatives q_a
(everything slower by d, or a share of requests slower by d); p_d is the series' own baseline shifted by d, so wobble of the
latency inside the band is never evidence. For any null inside the band E[e_a] <= 1, hence for R_a <- (R_a + 1) e_a and the
mixture R = sum of w_a R_a the mean time between false alarms at R >= A is at least A ticks (e-detectors: Shin, Ramdas,
Rinaldo, arXiv 2203.03532). Fixed alternatives need no warm-up: one tick may be enough, and one sample a tick works too.
Ticks without samples do not count.

All null and alternative log-likelihoods of all series are one matrix product, counts (series, BINS) times log-templates
(BINS, family).
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from detectors.ranks import Template

__all__ = ["FAMILY", "FASTER", "SLOWER", "band_null", "log_threshold", "update"]

_STEPS = (0.02, 0.04, 0.07, 0.1, 0.15, 0.2, 0.27, 0.35, 0.45, 0.6, 0.8, 1.1, 1.6, 2.3)
_SHIFTS: NDArray[np.float64] = np.array([*(-d for d in reversed(_STEPS)), 0.0, *_STEPS])
_PARTIAL: tuple[Template, ...] = ((0.5, 0.35), (0.3, 0.8), (0.1, 1.1), (0.2, 2.3), (0.05, 2.3))

FAMILY: list[Template] = [*((1.0, float(d)) for d in _SHIFTS), *_PARTIAL]
"""Shifts of everything in ascending order, then partial slowdowns."""
_ZERO = len(_STEPS)
MAX_BAND = float(_STEPS[10])
PRIOR = 64.0
"""Samples' worth of the pool's shape in each series' baseline."""
SLOWER: list[int] = [i for i, (share, d) in enumerate(FAMILY) if share < 1 or d in (0.1, 0.2, 0.35, 0.6, 1.1, 2.3)]
FASTER: list[int] = [i for i, (share, d) in enumerate(FAMILY) if share == 1 and -d in (0.1, 0.2, 0.35, 0.6, 1.1)]
"""Indices into FAMILY of the alternatives of either direction."""

_MAX_LOG = 60.0


def log_threshold(ticks_per_day: float, false_alarms_per_day: float) -> float:
    """Log A such that a series alarms falsely at most `false_alarms_per_day` times a day on average.

    >>> round(log_threshold(17280, 0.01), 3)
    14.362
    """
    return float(np.log(ticks_per_day / false_alarms_per_day))


def band_null(log_likelihood: NDArray[np.float32], band_nats: NDArray[np.float32]) -> NDArray[np.float32]:
    """Max over |d| <= band of the log-likelihood of the baseline shifted by d, (...).

    Args:
        log_likelihood: (..., len(FAMILY)); between the grid's shifts it is interpolated linearly.
        band_nats: Half-width of the tolerance band, (...), at most MAX_BAND.
    """
    shifts = log_likelihood[..., : len(_SHIFTS)]
    band = np.clip(band_nats, 0.0, MAX_BAND)
    inside = np.where(np.abs(_SHIFTS).astype(np.float32) <= band[..., None], shifts, np.float32(-np.inf))
    best: NDArray[np.float32] = inside.max(axis=-1)
    upper = np.minimum(np.searchsorted(np.array((0.0, *_STEPS)), band, side="right"), len(_STEPS))
    steps = np.array((0.0, *_STEPS), np.float32)
    part = (band - steps[upper - 1]) / (steps[upper] - steps[upper - 1])
    for sign in (1, -1):
        low = np.take_along_axis(shifts, (_ZERO + sign * (upper - 1))[..., None], axis=-1)[..., 0]
        high = np.take_along_axis(shifts, (_ZERO + sign * upper)[..., None], axis=-1)[..., 0]
        np.maximum(best, low + part.astype(np.float32) * (high - low), out=best)
    return best


def update(statistic: NDArray[np.float32], log_e: NDArray[np.float32], happened: NDArray[np.bool_], cap: float) -> None:
    """One Shiryaev-Roberts step R <- (R + 1) e, in place, where something happened.

    Args:
        statistic: R, (..., alternatives).
        log_e: log e of this tick, (..., alternatives).
        happened: (...): the series had samples.
        cap: Largest value kept, so that a cleared fault is forgotten soon.
    """
    step = (statistic + 1) * np.exp(np.clip(log_e, -_MAX_LOG, _MAX_LOG))
    np.minimum(step, cap, out=step)
    np.copyto(statistic, step, where=happened[..., None])


def mixture_log(statistic: NDArray[np.float32]) -> NDArray[np.float64]:
    """Log of the mean of the alternatives' statistics, (...); -inf before the first tick."""
    with np.errstate(divide="ignore"):
        total: NDArray[np.float64] = np.log(statistic.mean(axis=-1, dtype=np.float64))
    return total


def tilt(shapes: NDArray[np.floating], base: NDArray[np.float32]) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Log of the pool's templates, and of their normalisers once tilted to each series' own baseline.

    A series' baseline is its counts plus `PRIOR` samples' worth of the pool's shape. Its alternatives are the pool's, times
    the ratio of the two baselines; that ratio cancels in every likelihood ratio except for the normaliser.

    Args:
        shapes: The pool's bin probabilities of each template, (4, FAMILY, BINS).
        base: Baseline counts, (4, r, BINS).

    Returns:
        (4, FAMILY, BINS) and (4, r, FAMILY).
    """
    centre = shapes[:, None, _ZERO].astype(np.float32)
    own = base + np.float32(PRIOR) * centre + np.float32(0.5)
    own /= own.sum(axis=-1, keepdims=True)
    normaliser = (own / centre) @ shapes.transpose(0, 2, 1).astype(np.float32)
    return np.log(shapes).astype(np.float32), np.log(normaliser)


def log_likelihood(counts: NDArray[Any], log_shapes: NDArray[np.float32], log_z: NDArray[np.float32]) -> NDArray[np.float32]:
    """Log-likelihood of a tick's counts under every template, up to a term that all of them share, (4, m, FAMILY).

    Args:
        counts: (4, m, BINS).
        log_shapes: (4, FAMILY, BINS), from `tilt`.
        log_z: (4, m, FAMILY), from `tilt`.
    """
    c = counts.astype(np.float32)
    out: NDArray[np.float32] = c @ log_shapes.transpose(0, 2, 1)
    out -= c.sum(axis=-1, keepdims=True) * log_z
    return out


def upper_share(share: NDArray[np.float64], n: NDArray[Any], tolerance: float) -> NDArray[np.float64]:
    """Largest share of events that is not news: `tolerance` times the usual one, or three standard errors above it, (...).

    Args:
        share: Usual share, estimated from `n` trials (...).
        n: (...).
        tolerance: Factor by which the share may vary without anybody being told.
    """
    trials = np.maximum(n, 1.0)
    error = 3 * np.sqrt(share * (1 - np.minimum(share, 1.0)) / trials) + 3 / trials
    return np.asarray(np.clip(np.maximum(tolerance * share, share + error), 1e-6, 0.5))


def binomial_log_e(events: NDArray[Any], trials: NDArray[Any], limit: NDArray[np.float64]) -> NDArray[np.float64]:
    """Log e-value against "the share of events is at most `limit`", (...): the mean of likelihood ratios at multiples of
    the limit.

    The ratio grows with the number of events, so its mean is at most 1 for every share up to the limit.
    """
    k, n = np.asarray(events, np.float64)[..., None], np.asarray(trials, np.float64)[..., None]
    p0 = limit[..., None]
    odds = p0 / (1 - p0) * _ODDS
    p1 = odds / (1 + odds)
    log_ratio = k * np.log(p1 / p0) + (n - k) * np.log1p(-p1) - (n - k) * np.log1p(-p0)
    peak = log_ratio.max(axis=-1)
    return np.asarray(peak + np.log(np.exp(log_ratio - peak[..., None]).mean(axis=-1)))


_ODDS: NDArray[np.float64] = np.array([1.5, 3.0, 10.0, 40.0])
"""Alternatives of `binomial_log_e`, as multiples of the limit's odds."""

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

from detectors.ranks import TAIL_BINS, Template

__all__ = ["FAMILY", "FASTER", "SLOWER", "band_null", "log_threshold", "update"]

_STEPS = (0.02, 0.04, 0.07, 0.1, 0.15, 0.2, 0.27, 0.35, 0.45, 0.6, 0.8, 1.1, 1.6, 2.3)
_SHIFTS: NDArray[np.float64] = np.array([*(-d for d in reversed(_STEPS)), 0.0, *_STEPS])
_PARTIAL: tuple[Template, ...] = ((0.5, 0.35), (0.3, 0.8), (0.1, 1.1), (0.2, 2.3), (0.05, 2.1), (0.02, 2.1))

FAMILY: list[Template] = [*((1.0, float(d)) for d in _SHIFTS), *_PARTIAL]
"""Shifts of everything in ascending order, then partial slowdowns."""
_ZERO = len(_STEPS)
MAX_BAND = float(_STEPS[10])
PRIOR = 64.0
"""Samples' worth of the pool's shape in each series' baseline."""
_BIN_PRIOR = 10.0
"""Samples in a bin at which a series' own ratio to the pool there is believed by half."""
SLOWER: list[int] = [i for i, (share, d) in enumerate(FAMILY) if share < 1 or d in (0.1, 0.2, 0.35, 0.6, 1.1, 2.3)]
FASTER: list[int] = [i for i, (share, d) in enumerate(FAMILY) if share == 1 and -d in (0.1, 0.2, 0.35, 0.6, 1.1)]
"""Indices into FAMILY of the alternatives of either direction."""
SLOWER_WEIGHTS: NDArray[np.float64] = np.array([3.0 if FAMILY[i][0] < 0.1 else 1.0 for i in SLOWER])
"""Prior of the alternatives, before normalisation: what is hard to see needs it most."""

TAIL_TOLERANCE = 2.0
_GRID: NDArray[np.float32] = np.array((0.0, *_STEPS), np.float32)
_ABS_SHIFTS: NDArray[np.float32] = np.abs(_SHIFTS).astype(np.float32)
_MAX_LOG = 40.0


def log_threshold(ticks_per_day: float, false_alarms_per_day: float) -> float:
    """Log A such that a series alarms falsely at most `false_alarms_per_day` times a day on average.

    >>> round(log_threshold(17280, 0.01), 3)
    14.362
    """
    return float(np.log(ticks_per_day / false_alarms_per_day))


def band_null(
    log_likelihood: NDArray[np.float32], band_nats: NDArray[np.float32]
) -> tuple[NDArray[np.float32], NDArray[np.intp]]:
    """Largest log-likelihood over |d| <= band of the baseline shifted by d, and the index of the best shift in FAMILY, (...).

    Args:
        log_likelihood: (..., len(FAMILY)); between the grid's shifts it is interpolated linearly.
        band_nats: Half-width of the tolerance band, (...), at most MAX_BAND.
    """
    shifts = log_likelihood[..., : len(_SHIFTS)]
    band = np.clip(band_nats, 0.0, MAX_BAND)
    inside = np.where(band[..., None] >= _ABS_SHIFTS, shifts, np.float32(-np.inf))
    where = inside.argmax(axis=-1)
    best: NDArray[np.float32] = np.take_along_axis(inside, where[..., None], axis=-1)[..., 0]
    upper = np.minimum(np.searchsorted(_GRID, band, side="right"), len(_STEPS))
    part = ((band - _GRID[upper - 1]) / (_GRID[upper] - _GRID[upper - 1])).astype(np.float32)
    for sign in (1, -1):
        low = np.take_along_axis(shifts, (_ZERO + sign * (upper - 1))[..., None], axis=-1)[..., 0]
        high = np.take_along_axis(shifts, (_ZERO + sign * upper)[..., None], axis=-1)[..., 0]
        np.maximum(best, low + part * (high - low), out=best)
    return best, where


def tail_allowance(
    counts: NDArray[Any], where: NDArray[np.intp], log_shapes: NDArray[np.float32], log_z: NDArray[np.float32]
) -> NDArray[np.float32]:
    """How much better the null explains a tick when its tail may be up to TAIL_TOLERANCE times as heavy, nats (4, m).

    Tails wobble more than centres: the odds of the bins above q0.99 are free between the baseline's and twice that.

    Args:
        counts: (4, m, BINS).
        where: Best shift of the null, from `band_null`.
        log_shapes: (4, FAMILY, BINS), from `tilt`.
        log_z: (4, m, FAMILY), whose last entries belong to the tail bins, from `tilt`.
    """
    slowest = counts[..., -TAIL_BINS:].sum(axis=-1).astype(np.float32)
    n = counts.sum(axis=-1).astype(np.float32)
    shape = np.take_along_axis(log_shapes[..., -TAIL_BINS:], where[..., None], axis=1)
    z = np.take_along_axis(log_z, where[..., None], axis=-1)
    share = np.minimum(np.exp(shape + log_z[..., -TAIL_BINS:] - z).sum(axis=-1), np.float32(0.5))
    with np.errstate(divide="ignore", invalid="ignore"):
        wanted = slowest * (1 - share) / ((n - slowest) * share)
    factor = np.clip(np.nan_to_num(wanted, nan=1.0, posinf=TAIL_TOLERANCE), 1.0, TAIL_TOLERANCE)
    return np.asarray(slowest * np.log(factor) - n * np.log1p((factor - 1) * share), np.float32)


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


def mixture_log(statistic: NDArray[np.float32], weights: NDArray[np.float64] | None = None) -> NDArray[np.float64]:
    """Log of the weighted mean of the alternatives' statistics, (...); -inf before the first tick."""
    share = np.ones(statistic.shape[-1]) if weights is None else weights
    with np.errstate(divide="ignore"):
        total: NDArray[np.float64] = np.log(statistic @ (share / share.sum()))
    return total


def tilt(shapes: NDArray[np.floating], base: NDArray[np.float32]) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Log of the pool's templates, and of their normalisers once tilted to each series' own baseline.

    A series' templates are the pool's times, in each bin, the ratio of its own baseline to the pool's, as far as its counts in
    that bin can tell: a handful of samples in a tail bin say little. The ratio cancels in every likelihood ratio except for the
    normaliser.

    Args:
        shapes: The pool's bin probabilities of each template, (4, FAMILY, BINS).
        base: Baseline counts, (4, r, BINS).

    Returns:
        (4, FAMILY, BINS), and (4, r, FAMILY + TAIL_BINS): the last ones are the log ratios of the tail bins.
    """
    centre = shapes[:, None, _ZERO].astype(np.float32)
    own = base + np.float32(PRIOR) * centre
    own /= own.sum(axis=-1, keepdims=True)
    own /= centre
    log_ratio = np.log(own, out=own)
    log_ratio *= base / (base + np.float32(_BIN_PRIOR))
    tail = log_ratio[..., -TAIL_BINS:].copy()
    normaliser = np.exp(log_ratio) @ shapes.transpose(0, 2, 1).astype(np.float32)
    return np.log(shapes).astype(np.float32), np.concatenate([np.log(normaliser), tail], axis=-1)


def log_likelihood(counts: NDArray[Any], log_shapes: NDArray[np.float32], log_z: NDArray[np.float32]) -> NDArray[np.float32]:
    """Log-likelihood of a tick's counts under every template, up to a term that all of them share, (4, m, FAMILY).

    Args:
        counts: (4, m, BINS).
        log_shapes: (4, FAMILY, BINS), from `tilt`.
        log_z: (4, m, FAMILY + TAIL_BINS), from `tilt`.
    """
    c = counts.astype(np.float32)
    out: NDArray[np.float32] = c @ log_shapes.transpose(0, 2, 1)
    out -= c.sum(axis=-1, keepdims=True) * log_z[..., : len(FAMILY)]
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

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

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from detectors.ranks import TAIL_BINS, Template

__all__ = [
    "FAMILY", "FASTER", "JUMPS", "MAX_BAND", "SHIFTS", "SLOWER", "SLOWER_WEIGHTS", "TAILS", "ZERO", "Outward", "band_null",
    "binomial_log_e", "log_likelihood", "log_threshold", "mixture_log", "outward", "tail_allowance", "tail_share", "take",
    "tilt", "update", "upper_share",
]  # fmt: skip

_STEPS = (0.02, 0.04, 0.07, 0.1, 0.15, 0.2, 0.27, 0.35, 0.45, 0.6, 0.8, 1.1, 1.6, 2.3)
SHIFTS: NDArray[np.float64] = np.array([*(-d for d in reversed(_STEPS)), 0.0, *_STEPS])
"""Nats by which everything is slower, ascending."""
_PARTIAL: tuple[Template, ...] = ((0.5, 0.35), (0.3, 0.8), (0.1, 1.1), (0.2, 2.3), (0.05, 2.1), (0.02, 2.1))

FAMILY: list[Template] = [*((1.0, float(d)) for d in SHIFTS), *_PARTIAL]
"""Shifts of everything in ascending order, then partial slowdowns."""
ZERO = len(_STEPS)
"""Index of no shift."""
_MAX_STEP = 11
MAX_BAND = float(_STEPS[_MAX_STEP - 1])
"""Widest tolerance band, nats."""
PRIOR = 64.0
"""Samples' worth of the pool's shape in each series' baseline."""
_BIN_PRIOR = 10.0
"""Samples in a bin at which a series' own ratio to the pool there is believed by half."""
SLOWER: list[int] = [i for i, (share, d) in enumerate(FAMILY) if share < 1 or d in (0.1, 0.2, 0.35, 0.6, 1.1, 2.3)]
FASTER: list[int] = [i for i, (share, d) in enumerate(FAMILY) if share == 1 and -d in (0.1, 0.2, 0.35, 0.6, 1.1)]
"""Indices into FAMILY of the alternatives of either direction."""
JUMPS = (0.2, 0.6)
TAILS = (0.01, 0.04)
"""Alternatives against the series' recent place, see `detectors.recent`: everything beyond the band of its innovations by so many
nats, or so large a share of the requests in the farthest bin."""
SLOWER_WEIGHTS: NDArray[np.float64] = np.array(
    [*(3.0 if FAMILY[i][0] < 0.1 else 1.0 for i in SLOWER), *(1.0 for _ in JUMPS), *(2.0 for _ in TAILS)]
)
"""Prior of the alternatives, before normalisation: what is hard to see needs it most. SLOWER, then JUMPS, then TAILS."""

TAIL_TOLERANCE = 2.0
_GRID: NDArray[np.float32] = np.array((0.0, *_STEPS), np.float32)
_ABS_SHIFTS: NDArray[np.float32] = np.abs(SHIFTS).astype(np.float32)
_MAX_LOG = 40.0


def log_threshold(ticks_per_day: float, false_alarms_per_day: float) -> float:
    """Log A such that a series alarms falsely at most `false_alarms_per_day` times a day on average.

    >>> round(log_threshold(17280, 0.01), 3)
    14.362
    """
    return float(np.log(ticks_per_day / false_alarms_per_day))


def log_likelihood(
    counts: NDArray[np.float32], n: NDArray[np.float32], log_shapes: NDArray[np.float32], log_z: NDArray[np.float32]
) -> NDArray[np.float32]:
    """Log-likelihood of a tick's counts under every template, up to a term that all of them share, (4, FAMILY, m).

    Args:
        counts: (4, m, BINS).
        n: Their sums, (4, m).
        log_shapes: (4, FAMILY, BINS), from `tilt`.
        log_z: (4, FAMILY + TAIL_BINS, m), from `tilt`.
    """
    out: NDArray[np.float32] = log_shapes @ counts.transpose(0, 2, 1)
    out -= n[:, None] * log_z[:, : len(FAMILY)]
    return out


class Outward(NamedTuple):
    """Largest log-likelihood of the shifts from 0 to the k-th step up, and down, (4, steps, m) each."""

    up: NDArray[np.float32]
    down: NDArray[np.float32]


def outward(log_p: NDArray[np.float32], band_nats: NDArray[np.float32], most: int = 0) -> Outward:
    """Running maxima of (4, FAMILY, m) from the baseline outwards, as far as the bands (4, m) reach, up at least `most` steps."""
    widest = min(int(np.searchsorted(_GRID, band_nats.max(initial=0.0))), _MAX_STEP)
    ways = []
    for sign, steps in ((1, max(most, widest)), (-1, widest)):
        best = np.empty((len(log_p), steps + 1, log_p.shape[2]), np.float32)
        best[:, 0] = log_p[:, ZERO]
        for i in range(1, steps + 1):
            np.maximum(best[:, i - 1], log_p[:, ZERO + sign * i], out=best[:, i])
        ways.append(best)
    return Outward(*ways)


def take(table: NDArray[np.float32], at: NDArray[np.intp]) -> NDArray[np.float32]:
    """table[s, at[s, j], j] of a contiguous (4, K, m), (4, m); several times as fast as index arrays."""
    slis, count, m = table.shape
    origin = (np.arange(slis) * (count * m))[:, None] + np.arange(m)
    return np.asarray(table.reshape(-1).take(origin + at * m))


def band_null(log_p: NDArray[np.float32], band_nats: NDArray[np.float32], ways: Outward | None = None) -> NDArray[np.float32]:
    """Largest log-likelihood over |d| <= band of the baseline shifted by d, (4, m).

    Args:
        log_p: (4, FAMILY, m), from `log_likelihood`; between the grid's shifts it is interpolated linearly.
        band_nats: Half-width of the tolerance band, (4, m), at most MAX_BAND.
        ways: Of `outward`, if at hand.
    """
    up, down = outward(log_p, band_nats) if ways is None else ways
    band = np.clip(band_nats, 0.0, MAX_BAND)
    upper = np.minimum(np.searchsorted(_GRID[: _MAX_STEP + 1], band, side="right"), _MAX_STEP)
    part = (band - _GRID[upper - 1]) / (_GRID[upper] - _GRID[upper - 1])
    best = np.maximum(take(up, upper - 1), take(down, upper - 1))
    for sign in (1, -1):
        low, high = take(log_p, ZERO + sign * (upper - 1)), take(log_p, ZERO + sign * upper)
        high -= low
        high *= part
        high += low
        np.maximum(best, high, out=best)
    return best


def tail_share(log_shapes: NDArray[np.float32], log_z: NDArray[np.float32]) -> NDArray[np.float32]:
    """Share of requests above the baseline's q0.99 that each series' baseline has, (4, r). Arguments as in `tail_allowance`."""
    log_share = log_shapes[:, ZERO, -TAIL_BINS:, None] + log_z[:, -TAIL_BINS:] - log_z[:, None, ZERO]
    return np.asarray(np.exp(log_share).sum(axis=1))


def tail_allowance(
    counts: NDArray[np.float32],
    log_p: NDArray[np.float32],
    band_nats: NDArray[np.float32],
    log_shapes: NDArray[np.float32],
    log_z: NDArray[np.float32],
) -> NDArray[np.float32]:
    """How much better the null explains counts when its tail may be up to TAIL_TOLERANCE times as heavy, nats (k,).

    Tails wobble more than centres: the odds of the bins above q0.99 are free between the baseline's and twice that.

    Args:
        counts: Of k series, (k, BINS).
        log_p: Their log-likelihoods, (k, FAMILY).
        band_nats: Their tolerance bands, (k,).
        log_shapes: Templates of their SLIs, (k, FAMILY, BINS).
        log_z: Their normalisers and tail ratios, (k, FAMILY + TAIL_BINS).
    """
    k = np.arange(len(counts))
    shifts = np.where(np.maximum(band_nats, 0.0)[:, None] >= _ABS_SHIFTS, log_p[:, : len(SHIFTS)], np.float32(-np.inf))
    best = shifts.argmax(axis=1)
    log_share = log_shapes[k, best, -TAIL_BINS:] + log_z[:, -TAIL_BINS:] - log_z[k, best][:, None]
    share = np.clip(np.exp(log_share).sum(axis=1), 1e-9, 0.5)
    slowest, n = counts[:, -TAIL_BINS:].sum(axis=1), counts.sum(axis=1)
    wanted = slowest * (1 - share) / (np.maximum(n - slowest, 1e-9) * share)
    factor = np.clip(wanted, 1.0, TAIL_TOLERANCE)
    return np.asarray(slowest * np.log(factor) - n * np.log1p((factor - 1) * share), np.float32)


def update(statistic: NDArray[np.float32], log_e: NDArray[np.float32], happened: NDArray[np.bool_], cap: float) -> None:
    """One Shiryaev-Roberts step R <- (R + 1) e, in place, where something happened.

    Args:
        statistic: R, (..., alternatives, m).
        log_e: log e of this tick, (..., alternatives, m), overwritten.
        happened: (..., m): the series had samples.
        cap: Largest value kept, so that a cleared fault is forgotten soon.
    """
    np.clip(log_e, -_MAX_LOG, _MAX_LOG, out=log_e)
    np.exp(log_e, out=log_e)
    log_e *= statistic + 1
    if happened.all():  # a mask is slow
        np.minimum(log_e, np.float32(cap), out=statistic)
    else:
        np.minimum(log_e, np.float32(cap), out=statistic, where=happened[..., None, :])


def mixture_log(statistic: NDArray[np.float32], weights: NDArray[np.float64] | None = None) -> NDArray[np.float64]:
    """Log of the weighted mean of the alternatives' statistics (..., alternatives, m), (..., m); -inf before the first tick."""
    count = statistic.shape[-2]
    share = np.full(count, 1 / count) if weights is None else weights / weights.sum()
    total = (share.astype(np.float32) @ statistic).astype(np.float64)
    with np.errstate(divide="ignore"):
        return np.asarray(np.log(total, out=total))


def tilt(shapes: NDArray[np.floating], base: NDArray[np.float32]) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Log of the pool's templates, and of their normalisers once tilted to each series' own baseline.

    A series' templates are the pool's times, in each bin, the ratio of its own baseline to the pool's, as far as its counts in
    that bin can tell: a handful of samples in a tail bin say little. The ratio cancels in every likelihood ratio except for the
    normaliser.

    Args:
        shapes: The pool's bin probabilities of each template, (4, FAMILY, BINS).
        base: Baseline counts, (4, r, BINS).

    Returns:
        (4, FAMILY, BINS), and (4, FAMILY + TAIL_BINS, r): the last ones are the log ratios of the tail bins.
    """
    centre = shapes[:, None, ZERO].astype(np.float32)
    own = base + np.float32(PRIOR) * centre
    own /= own.sum(axis=-1, keepdims=True)
    own /= centre
    log_ratio = np.log(own, out=own)
    log_ratio *= base / (base + np.float32(_BIN_PRIOR))
    out = np.empty((len(base), len(FAMILY) + TAIL_BINS, base.shape[1]), np.float32)
    out[:, len(FAMILY) :] = log_ratio[..., -TAIL_BINS:].transpose(0, 2, 1)
    np.exp(log_ratio, out=log_ratio)
    np.log(shapes.astype(np.float32) @ log_ratio.transpose(0, 2, 1), out=out[:, : len(FAMILY)])
    return np.log(shapes).astype(np.float32), out


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

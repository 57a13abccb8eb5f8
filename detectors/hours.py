"""Hour-of-day part of a baseline: how much slower than its day a series usually is at this hour.

Load has a daily rhythm, and latencies follow it. A baseline of the whole day takes that for wobble and must then tolerate it;
with it taken off, a slowdown by half is news again. Kept is one place of log-latency for each hour and series, not a histogram:
24 histograms of 16 bins are four times the memory, and their tail bins need 24 times the samples before they say anything, while
the shape of log-latencies hardly depends on the hour even where their centre does.

Places are drawn towards zero, the all-day baseline, as far as an hour is thin (empirical Bayes: V / (V + noise), V the variance
between hours beyond noise; Efron and Morris 1973). A series without a rhythm has V = 0 and stays as it was. What is left of the
uncertainty widens the tolerance band. Nothing is applied before two days have been learned, and what is applied moves slowly, so
that it is never taken for a jump.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

__all__ = ["MIN_SPAN_S", "applied_nats", "begin", "follow", "learn", "now_nats", "variance", "width"]

HOURS = 24
MIN_SPAN_S = 2 * 86400.0
"""Learned time before anything is applied."""
_MEAN, _WEIGHT = slice(0, HOURS), slice(HOURS, 2 * HOURS)
_SPAN, _ON, _NOW, _VARIANCE, _APPLIED = 48, 49, 50, 51, 52
_HALF_LIFE_DAYS = 7.0
_PIECES = 12.0
"""Independent pieces of wobble in an hour (it is believed to last about five minutes)."""
_CLEAR = 2.0
"""Variance between the hours that noise alone is granted, in multiples of its expectation."""
_PRIOR_SD = 0.05
_SLEW_NATS_PER_S = 0.01 / 60

F32 = NDArray[np.float32]
F64 = NDArray[np.float64]
Bool = NDArray[np.bool_]


def width(blocks: int) -> int:
    """Columns of a table for a bank that keeps so many blocks.

    >>> width(6)
    58
    """
    return _APPLIED + blocks


def begin(rows: int, blocks: int) -> F32:
    """An empty table, float32 (4, rows, width(blocks))."""
    return np.zeros((4, rows, width(blocks)), np.float32)


def now_nats(table: F32) -> F32:
    """What is taken off the log-latencies of the running block, nats (4, r); zero where the table has no columns."""
    return table[..., _NOW] if table.shape[-1] else np.zeros(table.shape[:-1], np.float32)


def variance(table: F32) -> F32:
    """Its variance, nats squared (4, r)."""
    return table[..., _VARIANCE] if table.shape[-1] else np.zeros(table.shape[:-1], np.float32)


def applied_nats(table: F32) -> F32:
    """What was taken off in the oldest block that is kept, nats (4, r)."""
    return table[..., -1]


def learn(table: F32, time_s: float, block_s: float, deviation_nats: F64, noise: F64, good: Bool) -> None:
    """A block of requests becomes history, in place.

    Args:
        table: Of the bank.
        time_s: Middle of the block, Unix seconds.
        block_s: Its length.
        deviation_nats: Its mean log-latency against the all-day baseline, (4, r).
        noise: Sampling variance of that mean, nats squared (4, r).
        good: Where it is to be believed, (4, r).
    """
    hour = int(time_s % 86400.0 // 3600.0)
    keep = 2.0 ** (-block_s / 3600.0 / _HALF_LIFE_DAYS)
    gain = np.where(good, block_s / 3600.0 * _PRIOR_SD**2 / (_PRIOR_SD**2 + noise), 0.0)
    mean, weight = table[..., hour], table[..., HOURS + hour]
    new = np.where(good, weight * keep + gain, weight)
    step = np.where(good, (deviation_nats - mean) * gain / np.maximum(new, 1e-12), 0.0)
    table[..., hour] += step.astype(np.float32)
    table[..., HOURS + hour] = new
    table[..., _SPAN] += np.where(good, np.float32(block_s), np.float32(0))


def estimate(table: F32, wobble_sd: F64) -> tuple[F64, F64, F64]:
    """Places of the hours against the day and their variances, both (4, r, 24), and the variance between the hours (4, r)."""
    mean, weight = table[..., _MEAN].astype(np.float64), table[..., _WEIGHT].astype(np.float64)
    total = np.maximum(weight.sum(axis=-1, keepdims=True), 1e-12)
    centred = mean - (weight * mean).sum(axis=-1, keepdims=True) / total
    noise = np.square(wobble_sd)[..., None] / _PIECES / np.maximum(weight, 1e-6)
    between = (weight * np.square(centred)).sum(axis=-1) / total[..., 0]
    chance = (weight * noise).sum(axis=-1) / total[..., 0]
    true = np.maximum(between - _CLEAR * chance, 0.0)[..., None]
    part = true / (true + noise)
    return part * centred, part * noise, true[..., 0]


def follow(table: F32, time_s: float, block_s: float, wobble_sd: F64) -> Bool:
    """Sets what is taken off in the block that begins, in place; series that it is taken off for the first time, bool (4, r).

    Row 0, the pool, gets nothing of its own: it is made of its nodes' requests. It counts as begun when half of them have.

    Args:
        table: Of the bank.
        time_s: Middle of the block, Unix seconds.
        block_s: Its length.
        wobble_sd: Of each series, nats (4, r).
    """
    table[..., _APPLIED + 1 :] = table[..., _APPLIED:-1].copy()
    place, error, between = estimate(table, wobble_sd)
    old = table[..., _SPAN] >= MIN_SPAN_S
    at = time_s % 86400.0 / 3600.0 - 0.5
    low = int(np.floor(at)) % HOURS
    share = at - np.floor(at)
    target = np.where(old, (1 - share) * place[..., low] + share * place[..., (low + 1) % HOURS], 0.0)
    spread = np.where(old, (1 - share) * error[..., low] + share * error[..., (low + 1) % HOURS], 0.0)
    was_on = table[..., _ON] > 0
    on = was_on | (old & (between > 0))
    target[:, 0], spread[:, 0] = 0.0, 0.0
    on[:, 0] = was_on[:, 0] | (on[:, 1:].sum(axis=1) * 2 > old[:, 1:].sum(axis=1))
    most = _SLEW_NATS_PER_S * block_s
    now = table[..., _NOW]
    table[..., _NOW] = now + np.clip(target - now, -most, most)
    table[..., _VARIANCE] = spread
    table[..., _APPLIED] = table[..., _NOW]
    table[..., _ON] = on
    return np.asarray(on & ~was_on)

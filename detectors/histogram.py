"""Log-linear histograms of latencies, filled from the bit pattern of float32 values.

The exponent and the five leading mantissa bits of a float32 *are* a log-linear bucket number: 32 equal buckets in each
octave, no logarithm. A bucket's representative is the harmonic middle of its edges, so a quantile is at most 1/65 = 1.54 %
away from the exact order statistic. Histograms are arrays of counts (..., BUCKETS): merging is adding, in any grouping. The
layout is that of HdrHistogram and OpenTelemetry's exponential histogram at a fixed scale; the error bound is that of
DDSketch (Masson, Rim, Lee, VLDB 2019).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from detectors.weights import Weight, count, picked

__all__ = ["BUCKETS", "EDGES_S", "HIGHEST_S", "LOWEST_S", "MAX_ERROR_RATIO", "VALUES_S", "add",
    "add_busy", "add_tick", "bucket_at", "bucket_of", "merge", "octave_counts", "quantiles",
]  # fmt: skip

_SUB_BITS = 5
_OCTAVES = 25
_CHUNK = 1024
_ADD_CHUNK = 65_536  # values whose indices stay in the cache
_SHIFT = 23 - _SUB_BITS

LOWEST_S = 2.0**-13
"""Smaller values (zero and negative too) fall into bucket 0, the underflow: 122 us. No engine answers faster."""
HIGHEST_S = 2.0**12
"""This and larger values fall into the last bucket, the overflow (4096 s)."""
BUCKETS = (_OCTAVES << _SUB_BITS) + 2
MAX_ERROR_RATIO = 1 / (2 * 2**_SUB_BITS + 1)
"""Largest relative error of a quantile between LOWEST_S and HIGHEST_S."""

_OFFSET = int(np.float32(LOWEST_S).view(np.int32) >> _SHIFT) - 1


def _edges() -> NDArray[np.float64]:
    sub = 1 << _SUB_BITS
    octave, step = np.divmod(np.arange(_OCTAVES * sub + 1), sub)
    inner = LOWEST_S * np.exp2(octave) * (1 + step / sub)
    return np.concatenate([[0.0], inner, [np.inf]])


EDGES_S: NDArray[np.float64] = _edges()
"""Bucket i holds EDGES_S[i] <= value < EDGES_S[i + 1], seconds; float64 (BUCKETS + 1,)."""


def _values() -> NDArray[np.float64]:
    low, high = EDGES_S[:-1], EDGES_S[1:]
    values = np.empty(BUCKETS)
    values[1:-1] = 2 * low[1:-1] * high[1:-1] / (low[1:-1] + high[1:-1])
    values[0], values[-1] = LOWEST_S / 2, HIGHEST_S
    return values


VALUES_S: NDArray[np.float64] = _values()
"""Representative of each bucket, seconds; underflow LOWEST_S / 2, overflow HIGHEST_S (a lower bound); float64
(BUCKETS,)."""


def bucket_of(values_s: NDArray[np.float32]) -> NDArray[np.int32]:
    """Bucket of each value, int32, same shape. NaN is the caller's to remove (it would count as overflow).

    >>> import numpy as np
    >>> bucket_of(np.array([0.0, 1.0, 1.04, 5000.0], np.float32)).tolist()
    [0, 417, 418, 801]
    """
    bits = np.ascontiguousarray(values_s, np.float32).view(np.int32)
    code = bits >> _SHIFT
    code -= _OFFSET
    return np.clip(code, 0, BUCKETS - 1, out=code)


def add(counts: NDArray[Any], series: NDArray[Any], values_s: NDArray[np.float32], weight: Weight = None) -> None:
    """Count each value in the histogram of its series, in place.

    Args:
        counts: (S, BUCKETS), any unsigned integer type, C-contiguous.
        series: Row of `counts` of each value (n,). Order is free; rows grouped by series are faster (fewer cache misses).
        values_s: Seconds, float32 (n,), without NaN.
        weight: Of each value, (n,).

    Raises:
        ValueError: `counts` is not C-contiguous, or a weight does not fit its type.
    """
    if not counts.flags.c_contiguous:
        raise ValueError("counts must be C-contiguous: flattened it would be a copy, and nothing would be counted")
    if weight is not None and int(weight.max(initial=0)) > np.iinfo(counts.dtype).max:
        raise ValueError(f"a weight of {int(weight.max())} does not fit counts of type {counts.dtype}")
    flat, one = counts.reshape(-1), counts.dtype.type(1)
    for start in range(0, len(series), _ADD_CHUNK):
        part = slice(start, start + _ADD_CHUNK)
        index = series[part].astype(np.intp)
        index *= BUCKETS
        index += bucket_of(values_s[part])
        np.add.at(flat, index, one if weight is None else weight[part].astype(counts.dtype))


def add_busy(counts: NDArray[np.uint16], values_s: NDArray[np.float32], weight: Weight = None) -> None:
    """Count any number of values in one histogram of 16-bit counts, in place.

    When a count would not fit any more all of them are halved, rounded up and down in turn, so quantiles stay where they are
    (to about the square root of the counts beyond them) while the total is a part of the truth.

    Args:
        counts: (BUCKETS,).
        values_s: Seconds, float32 (n,), without NaN.
        weight: Of each value, (n,).
    """
    _raise(counts, count(bucket_of(values_s), weight, BUCKETS))


def _raise(counts: NDArray[np.uint16], by: NDArray[np.int64]) -> None:
    """`add_busy` of counts, (BUCKETS,)."""
    total = counts + by
    while total.max() > _MOST:
        total = (total + _TURN) >> 1
    counts[:] = total


def add_tick(
    counts: NDArray[np.uint16], series: NDArray[np.intp], values_s: NDArray[np.float32], many: int, weight: Weight = None
) -> None:
    """A tick's values into the histograms of the series (rows from 1), and all of them into row 0, the pool's.

    Args:
        counts: (S, BUCKETS), C-contiguous.
        series: Row of each value (n,), none of them 0.
        values_s: Seconds, float32 (n,), without NaN.
        many: A series with more values than this in the tick is counted with care (`add_busy`), so that no count wraps round.
        weight: Of each value, (n,).
    """
    if len(series) == 0:
        return
    n = count(series, weight)
    busy = np.flatnonzero(n > many)
    if len(series) < _DENSE * len(n):
        add_busy(counts[0], values_s, weight)
        for row in busy:
            add_busy(counts[row], values_s[series == row], picked(weight, series == row))
        if len(busy):
            rest = ~np.isin(series, busy)
            series, values_s, weight = series[rest], values_s[rest], picked(weight, rest)
        add(counts, series, values_s, weight)
        return
    index = series * BUCKETS
    index += bucket_of(values_s)
    new = count(index, weight, len(n) * BUCKETS).reshape(len(n), BUCKETS)
    _raise(counts[0], new.sum(axis=0))
    for row in busy:
        _raise(counts[row], new[row])
    new[busy] = 0
    counts[: len(n)] += new.astype(np.uint16)


_DENSE = 200
"""Values a series from which on a whole table of counts is made at once."""
_MOST = np.iinfo(np.uint16).max
_TURN: NDArray[np.int64] = np.arange(BUCKETS) % 2


def merge(parts: Sequence[NDArray[Any]]) -> NDArray[np.uint64]:
    """Sum of histograms of equal shape, as uint64; any grouping and order give the same."""
    total = np.zeros(parts[0].shape, np.uint64)
    for part in parts:
        total += part.astype(np.uint64, copy=False)
    return total


def quantiles(counts: NDArray[Any], q: Sequence[float]) -> NDArray[np.float64]:
    """Quantiles in seconds, (..., len(q)); NaN where a histogram is empty.

    The q-quantile is the ceil(q * n)-th smallest value (numpy's ``inverted_cdf``), exact to `MAX_ERROR_RATIO`.

    Args:
        counts: (..., BUCKETS).
        q: Probabilities in [0, 1].
    """
    lead = counts.shape[:-1]
    rows = counts.reshape(-1, BUCKETS)
    out = np.empty((len(rows), len(q)))
    for start in range(0, len(rows), _CHUNK):  # a chunk stays in the cache
        part = rows[start : start + _CHUNK]
        octaves = octave_counts(part)
        total = octaves.sum(axis=1)
        for column, probability in enumerate(q):
            rank = np.maximum(np.ceil(probability * total - 1e-9), 1)
            out[start : start + _CHUNK, column] = VALUES_S[bucket_at(part, octaves, rank)]
        out[start : start + _CHUNK][total == 0] = np.nan
    return out.reshape(*lead, len(q))


def octave_counts(rows: NDArray[Any]) -> NDArray[np.int64]:
    """Counts of the underflow, of each octave and of the overflow, (R, octaves + 2), of histograms (R, BUCKETS)."""
    if rows.dtype != np.uint16:
        return np.add.reduceat(rows, _GROUPS, axis=1, dtype=np.int64)
    # The same by products with ones, a good deal faster; sums of 32 such counts are exact in float32.
    out = np.empty((len(rows), len(_GROUPS)), np.int64)
    ones = np.ones(1 << _SUB_BITS, np.float32)
    for start in range(0, len(rows), _CHUNK):
        part = rows[start : start + _CHUNK]
        inner = part[:, 1:-1].astype(np.float32).reshape(len(part), _OCTAVES, 1 << _SUB_BITS)
        out[start : start + _CHUNK, 1:-1] = inner @ ones
    out[:, 0], out[:, -1] = rows[:, 0], rows[:, -1]
    return out


def bucket_at(rows: NDArray[Any], octaves: NDArray[np.int64], rank: NDArray[Any]) -> NDArray[np.intp]:
    """Bucket of the rank-th smallest value of each histogram, (R,); ranks beyond the last value give the last bucket.

    Args:
        rows: (R, BUCKETS).
        octaves: Their `octave_counts`.
        rank: From 1, (R,).
    """
    width = 1 << _SUB_BITS
    narrow = np.int32 if rows.dtype == np.uint16 else np.int64
    rank = np.ceil(rank).astype(narrow)
    octaves = octaves.astype(narrow)
    upto = np.cumsum(octaves, axis=1, dtype=narrow)
    everyone = np.arange(len(rows))
    group = np.minimum((upto < rank[:, None]).sum(axis=1), len(_GROUPS) - 1)
    start = np.minimum(_GROUPS[group], BUCKETS - width)
    flat = np.ascontiguousarray(rows).reshape(-1)
    windows = np.lib.stride_tricks.sliding_window_view(flat, width)[everyone * BUCKETS + start]
    inside = np.cumsum(windows, axis=1, dtype=narrow)
    left = rank - (upto[everyone, group] - octaves[everyone, group])
    found = start + (inside < left[:, None]).sum(axis=1)
    return np.asarray(np.where(group == len(_GROUPS) - 1, BUCKETS - 1, found))


_GROUPS: NDArray[np.intp] = np.concatenate([[0], np.arange(_OCTAVES) * (1 << _SUB_BITS) + 1, [BUCKETS - 1]]).astype(np.intp)
"""First bucket of the underflow, of each octave and of the overflow."""

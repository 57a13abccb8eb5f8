"""The arrays of a bank: how they are laid out, grown and written to bytes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
from numpy.typing import NDArray

from detectors.evidence import FASTER, SLOWER_WEIGHTS
from detectors.histogram import BUCKETS
from detectors.ranks import BINS

__all__ = ["SLIS", "BankState", "pack", "unpack"]

SLIS = 4

F32 = NDArray[np.float32]
F64 = NDArray[np.float64]
I32 = NDArray[np.int32]
I64 = NDArray[np.int64]
U32 = NDArray[np.uint32]
U16 = NDArray[np.uint16]
Bool = NDArray[np.bool_]


@dataclass(slots=True)
class BankState:
    """State of the series of a pool; `r` rows are allocated, row 0 is the pool, nodes follow. B blocks = 1 current + the
    lag.

    A *block* is one detection period; blocks[0] is the running one.
    """

    born: I64
    """(r,) Slot of a node's first request, -1 before."""
    next_read: I64
    """(r,) Slot from which the node's fine histograms may be read again."""
    seen: I64
    """(4, r) Samples since `born`."""
    learned: Bool
    """(4, r) The series has a baseline."""
    offset: F32
    """(4, r) Usual place of the node against the pool's expectation, octaves."""
    base: F32
    """(4, r, BINS) Baseline counts by rank bin, exponentially forgotten."""
    base_sum: F64
    """(4, r) Sum of the residual codes of the same samples."""
    base_s: F32
    """(4, r) Seconds that the baseline has learned from."""
    wobble: F32
    """(4, r, 4) Weighted sum of squared wobble and sum of weights, of ticks and of blocks."""
    slow: F32
    """(4, SLOWER_WEIGHTS, r) Shiryaev-Roberts statistics against slowdowns."""
    recent: F32
    """(4, r, 2) Sum of the residual codes of the last minute and their number, exponentially forgotten."""
    jitter: F32
    """(4, r, 2) Weighted sum of squared one-minute innovations, and sum of weights."""
    fast: F32
    """(4, FASTER, r) The same for improvements."""
    bad_block: I64
    """(4, r) Last block in which the series alarmed or was held."""
    blocks: F32
    """(B, 4, r, BINS) Counts by rank bin."""
    block_sum: I64
    """(B, 4, r) Sums of residual codes: of a large pool that is slow they do not fit 32 bits."""
    block_wobble: F32
    """(B, 4, r, 2) Tick wobble of the block: weighted sum of squares, weights."""
    long: U16
    """(2, 4, r, BINS) Two generations of counts for series too sparse for the blocks."""
    long_since: I32
    """(2, 4, r) Block in which a generation began."""
    fine: U16
    """(4, r, BUCKETS) Latency histogram since its last rotation."""
    fine_since: I32
    """(4, r) Block in which that was."""
    tail: F32
    """(4, r, 4) P99.9, its interval (seconds) and kind, of the last full histogram."""
    tail_level: F32
    """(4, r, 4) Mean and variance of log P99.9 of windows, their weight, their mean number of samples."""
    periods: I32
    """(4, r) Consecutive blocks with KL above the warning threshold."""
    drift_since: I64
    """(4, r) Slot at which the present alarm began, -1 without one."""
    base_mix: F32
    """(r, S) Baseline counts by stratum."""
    block_mix: U32
    """(B, r, S)"""
    long_mix: U32
    """(2, r, S)"""
    recent_mix: F32
    """(r, S) Recent counts by stratum, quickly forgotten."""
    mix: F32
    """(1, r) Shiryaev-Roberts statistic of the mix."""
    mix_wobble: F64
    """(r, 2) Weighted sum of the blocks' KL from the usual mix, sum of weights."""
    hour: F32
    """(4, r, W) Hour-of-day part of the baselines, laid out by `detectors.hours`; W is 0 until it is needed."""

    @classmethod
    def empty(cls, rows: int, blocks: int, strata: int, hour: int = 0) -> BankState:
        """All zeros, with the sentinels documented at the fields."""
        series, b = (SLIS, rows), blocks
        return cls(
            born=np.full(rows, -1, np.int64),
            next_read=np.zeros(rows, np.int64),
            seen=np.zeros(series, np.int64),
            learned=np.zeros(series, np.bool_),
            offset=np.zeros(series, np.float32),
            base=np.zeros((*series, BINS), np.float32),
            base_sum=np.zeros(series),
            base_s=np.zeros(series, np.float32),
            wobble=np.zeros((*series, 4), np.float32),
            slow=np.zeros((SLIS, len(SLOWER_WEIGHTS), rows), np.float32),
            recent=np.zeros((*series, 2), np.float32),
            jitter=np.zeros((*series, 2), np.float32),
            fast=np.zeros((SLIS, len(FASTER), rows), np.float32),
            bad_block=np.full(series, -1, np.int64),
            blocks=np.zeros((b, *series, BINS), np.float32),
            block_sum=np.zeros((b, *series), np.int64),
            block_wobble=np.zeros((b, *series, 2), np.float32),
            long=np.zeros((2, *series, BINS), np.uint16),
            long_since=np.zeros((2, *series), np.int32),
            fine=np.zeros((*series, BUCKETS), np.uint16),
            fine_since=np.zeros(series, np.int32),
            tail=np.full((*series, 4), np.nan, np.float32),
            tail_level=np.zeros((*series, 4), np.float32),
            periods=np.zeros(series, np.int32),
            drift_since=np.full(series, -1, np.int64),
            base_mix=np.zeros((rows, strata), np.float32),
            block_mix=np.zeros((b, rows, strata), np.uint32),
            long_mix=np.zeros((2, rows, strata), np.uint32),
            recent_mix=np.zeros((rows, strata), np.float32),
            mix=np.zeros((1, rows), np.float32),
            mix_wobble=np.zeros((rows, 2)),
            hour=np.zeros((*series, hour), np.float32),
        )

    @property
    def rows(self) -> int:
        """Allocated rows."""
        return len(self.born)

    @property
    def nbytes(self) -> int:
        """Bytes of all arrays."""
        return sum(getattr(self, f.name).nbytes for f in fields(self))

    def map(self, change: Callable[[str, NDArray[Any]], NDArray[Any]]) -> BankState:
        """The state with `change(name, array)` in place of each array."""
        return BankState(**{f.name: change(f.name, getattr(self, f.name)) for f in fields(self)})

    def grown(self, rows: int) -> BankState:
        """The same state with room for `rows` rows."""
        larger = BankState.empty(rows, len(self.blocks), self.base_mix.shape[-1], self.hour.shape[-1])

        def copy(name: str, old: NDArray[Any]) -> NDArray[Any]:
            new: NDArray[Any] = getattr(larger, name)
            new[tuple(slice(0, n) for n in old.shape)] = old
            return new

        return self.map(copy)

    def forget(self, rows: NDArray[np.intp]) -> None:
        """Sets rows back to their initial values, in place."""
        fresh = BankState.empty(len(rows), len(self.blocks), self.base_mix.shape[-1], self.hour.shape[-1])
        for f in fields(self):
            array: NDArray[Any] = getattr(self, f.name)
            new: NDArray[Any] = getattr(fresh, f.name)
            axis = _ROW_AXIS.get(f.name, 1)
            array[(slice(None),) * axis + (rows,)] = new


_ROW_AXIS = dict.fromkeys(("born", "next_read", "base_mix", "recent_mix", "mix_wobble"), 0)
_ROW_AXIS |= dict.fromkeys(("blocks", "block_sum", "block_wobble", "long", "long_since", "slow", "fast"), 2)
"""Axis of the rows; 1 where not said."""


def pack(arrays: dict[str, NDArray[Any]]) -> dict[str, Any]:
    """Arrays as plain values for MessagePack, which copies their bytes: encode before an array changes."""
    return {name: (a.dtype.str, a.shape, _bytes(a)) for name, a in arrays.items()}


def _bytes(array: NDArray[Any]) -> memoryview | bytes:
    """The array's bytes, without a copy where there are any."""
    return np.ascontiguousarray(array).data.cast("B") if array.size else b""


def unpack(packed: dict[str, Any]) -> dict[str, NDArray[Any]]:
    """Inverse of `pack`; the arrays are writable."""
    return {name: np.frombuffer(raw, np.dtype(dtype)).reshape(shape).copy() for name, (dtype, shape, raw) in packed.items()}

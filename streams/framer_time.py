"""Cuts what one call of the framer read into slices of event time, so that frames of different nodes stay in step.

A frame holds one node. When the framer reads minutes of backlog in one call, one frame a node would send the first nodes minutes
ahead of the others, and the judge's clock, which follows the nodes, would call the others late. Slices are consecutive in
arrival order: source offsets of a node keep growing from frame to frame, as duplicate detection needs.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from streams.framing import Framed, PoolRows

__all__ = ["SLICE_S", "time_slices"]

SLICE_S = 1.0
"""Far below any lateness, and long enough that frames of a live stream are never cut for it."""
_WILD_NS = 600 * 10**9


def time_slices(framed: Framed, slice_s: float = SLICE_S) -> Iterator[Framed]:
    """Parts of `framed`, in order; rejects and duplicates are not repeated. Usually there is one part."""
    parts = {pool: list(_parts(rows, round(slice_s * 1e9))) for pool, rows in framed.pools.items()}
    for i in range(max(map(len, parts.values()), default=0)):
        yield Framed(pools={pool: some[i] for pool, some in parts.items() if i < len(some)})


def _parts(rows: PoolRows, slice_ns: int) -> Iterator[PoolRows]:
    ts_ns = rows.batch.ts_ns
    if len(ts_ns) < 2 or int(ts_ns.max()) - int(ts_ns.min()) < slice_ns:
        yield rows
        return
    k = len(ts_ns) * 9 // 10
    believable = np.where(ts_ns <= np.partition(ts_ns, k)[k] + _WILD_NS, ts_ns, 0)  # one wild time must not end the cutting
    progress = np.maximum.accumulate(believable // slice_ns)
    cuts = [0, *(np.flatnonzero(np.diff(progress)) + 1).tolist(), len(ts_ns)]
    first_offset = [*(int(rows.row_offset[c]) for c in cuts[1:-1]), None]
    done = 0
    for start, stop, until in zip(cuts, cuts[1:], first_offset, strict=False):
        n = len(rows.events) if until is None else int(np.searchsorted(rows.event_offset, until))
        yield PoolRows(
            rows.batch.take(slice(start, stop)), rows.row_offset[start:stop], rows.events[done:n], rows.event_offset[done:n]
        )
        done = n

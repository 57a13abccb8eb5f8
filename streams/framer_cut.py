"""Decoded events of one source partition to frames: requests by node, node and GPU events of a pool together.

`origin` is "topic/partition". Within an origin and a kind of frame the offsets of a node only grow, so a reader that remembers
the highest offset of each (origin, kind, pool, node) drops exactly what it had before.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from schemas.frame import FrameHeader, encode_event_frame, encode_request_frame
from schemas.frame_bulk import encode_request_frames
from streams.framing import Framed, PoolRows, StateEvent

__all__ = ["MAX_FRAME_BYTES", "MAX_ROWS", "cut_frames"]

MAX_ROWS = 1000
MAX_FRAME_BYTES = 512 * 1024
"""Half of what a broker accepts by default."""

_MAX_SPAN_NS = 0xFFFFFFFF * 1000  # a frame counts microseconds in 32 bits


def cut_frames(framed: Framed, topic: str, partition: int) -> Iterator[tuple[str, bytes]]:
    """(pool, frame) for everything in `framed`, which came from this source partition with its offsets."""
    origin = f"{topic}/{partition}"
    for pool, rows in framed.pools.items():
        for frame in _request_frames(origin, rows) if len(rows.batch) else ():
            yield pool, frame
        if rows.events:
            header = FrameHeader(pool=pool, node="", origin=origin)
            for frame in _event_frames(header, rows.events, rows.event_offset):
                yield pool, frame


def _request_frames(origin: str, rows: PoolRows) -> Iterator[bytes]:
    """Frames of one node each, its rows in arrival order, at most `MAX_ROWS`."""
    batch, offset = rows.batch, rows.row_offset
    if len(batch.nodes) > 1:
        order = np.argsort(batch.node, kind="stable")
        batch, offset = batch.take(order), offset[order]
    first = np.searchsorted(batch.node, np.arange(len(batch.nodes) + 1))
    starts = np.concatenate([np.arange(a, b, MAX_ROWS) for a, b in pairwise(first)])
    if int(batch.ts_ns.max()) - int(batch.ts_ns.min()) > _MAX_SPAN_NS:
        starts = np.concatenate([_by_time(batch.ts_ns, a, b) for a, b in zip(starts, [*starts[1:], len(batch)], strict=True)])
    row = 0
    for n, frame in encode_request_frames(origin, batch, offset, starts):
        if len(frame) <= MAX_FRAME_BYTES:
            yield frame
        else:  # very long names of adapters or tenants: a frame for each row
            header = FrameHeader(pool=batch.pool, node=batch.nodes[batch.node[row]], origin=origin)
            for i in range(row, row + n):
                yield encode_request_frame(header, batch.take(slice(i, i + 1)), offset[i : i + 1])
        row += n


def _by_time(ts_ns: NDArray[np.int64], start: int, stop: int) -> list[int]:
    """Starts of runs that fit the time span of a frame; one run unless a source sends wild timestamps."""
    starts = []
    while start < stop:
        starts.append(start)
        rest = ts_ns[start:stop]
        wide = np.maximum.accumulate(rest) - np.minimum.accumulate(rest) > _MAX_SPAN_NS
        start = start + int(wide.argmax()) if wide[-1] else stop
    return starts


def _event_frames(header: FrameHeader, events: list[StateEvent], offsets: list[int]) -> Iterator[bytes]:
    frame = encode_event_frame(header, events, offsets) if len(events) <= MAX_ROWS else b""
    if frame and (len(frame) <= MAX_FRAME_BYTES or len(events) == 1):
        yield frame
        return
    middle = len(events) // 2
    yield from _event_frames(header, events[:middle], offsets[:middle])
    yield from _event_frames(header, events[middle:], offsets[middle:])

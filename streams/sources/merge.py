"""Several inputs as one stream in event-time order, cut into slices of event time.

Each input is cut where its *progress* enters the next slice; the slices of all inputs are then merged by their number. Progress
is the running maximum of event time, looking a few events ahead so that a wild timestamp or two does not count. Where an input
is cut depends on its events alone, never on how many were read at once, so whatever happens between slices happens at the same
event however the input is chunked.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from schemas.telemetry import to_ns
from streams.framing import Framed, PoolRows, Reject

__all__ = ["InputStats", "Slice", "Slicer", "merged"]

LOOK_AHEAD = 4
"""So many following events must agree that time went on (or that the input starts over)."""
START_OVER_NS = 900 * 10**9
"""An input that falls back this far starts over: files that were concatenated, not events that came late."""
_MAX_HELD = 1000
_END = np.iinfo(np.int64).max


@dataclass(slots=True)
class InputStats:
    """What was read from one input.

    Attributes:
        events: Events read, whatever became of them.
        duplicates: Copies dropped.
        late: Events older than the progress of their input by more than the lateness.
    """

    name: str
    events: int = 0
    duplicates: int = 0
    late: int = 0


@dataclass(slots=True)
class Slice:
    """Events of one input whose progress lies in [number * length, (number + 1) * length)."""

    number: int
    pools: dict[str, PoolRows] = field(default_factory=dict)
    rejects: list[Reject] = field(default_factory=list)
    source: str = ""


class Slicer:
    """Cuts one input into slices.

    Args:
        name: Of the input.
        slice_s: Length of a slice, seconds.
        lateness_s: How far an event may be behind before it counts in `stats.late`, seconds.
    """

    def __init__(self, name: str, slice_s: float, lateness_s: float = 10.0) -> None:
        self.stats = InputStats(name)
        self._slice_ns, self._lateness_ns = round(slice_s * 1e9), round(lateness_s * 1e9)
        self._progress: int | None = None
        self._held: list[Framed] = []  # the last events, whose successors are not known yet, and what belongs to them
        self._held_offset: NDArray[np.int64] = np.empty(0, np.int64)
        self._held_ts: NDArray[np.int64] = np.empty(0, np.int64)

    def slices(self, chunks: Iterable[Framed]) -> Iterator[Slice]:
        """The whole input; a slice may come in several parts with the same number."""
        for chunk in chunks:
            self.stats.events += chunk.n_events
            self.stats.duplicates += len(chunk.duplicates)
            yield from self._feed(chunk)
        yield from self._feed(Framed(), at_end=True)

    def _feed(self, chunk: Framed, at_end: bool = False) -> Iterator[Slice]:
        offset, ts = _sequence(chunk)
        self._held.append(chunk)
        offset, ts = np.concatenate((self._held_offset, offset)), np.concatenate((self._held_ts, ts))
        decided = len(ts) if at_end else len(ts) - LOOK_AHEAD
        if decided <= 0:
            self._held_offset, self._held_ts = offset, ts
            if at_end or len(self._held) > _MAX_HELD:  # nothing but refused events for long: hand them out
                yield from self._cut(np.array([self._progress or 0]) // self._slice_ns, np.array([_END]))
            return
        number = self._advance(ts, decided) // self._slice_ns
        self._held_offset, self._held_ts = offset[decided:], ts[decided:]
        first = np.flatnonzero(np.diff(number)) + 1
        end = _END if at_end else offset[decided]
        yield from self._cut(number[np.append(0, first)], np.append(offset[first], end))

    def _advance(self, ts: NDArray[np.int64], decided: int) -> NDArray[np.int64]:
        """Progress at each of the first `decided` events."""
        missing = decided + LOOK_AHEAD - len(ts)  # at the end there are no successors, nothing that could disagree
        ahead = np.concatenate((ts, np.full(missing, ts[-1])))
        low, high = ts[:decided].copy(), ts[:decided].copy()
        for k in range(1, LOOK_AHEAD + 1):
            np.minimum(low, ahead[k : k + decided], out=low)
            np.maximum(high, ahead[k : k + decided], out=high)
        progress = np.maximum.accumulate(low)
        if self._progress is not None:
            np.maximum(progress, self._progress, out=progress)
        at = 0
        while len(over := np.flatnonzero(high[at:] < progress[at:] - START_OVER_NS)):
            at += int(over[0])
            progress[at:] = np.maximum.accumulate(low[at:])
        self.stats.late += int((ts[:decided] < progress - self._lateness_ns).sum())
        self._progress = int(progress[-1])
        return progress

    def _cut(self, numbers: NDArray[np.int64], ends: NDArray[np.int64]) -> Iterator[Slice]:
        """Hand out what is held before the last of `ends`: slice `numbers[i]` reaches up to offset `ends[i]`."""
        held, self._held = self._held, []
        for framed in held:
            *parts, rest = _split(framed, ends)
            for number, part in zip(numbers, parts, strict=True):
                if part.pools or part.rejects:
                    yield Slice(int(number), part.pools, part.rejects, self.stats.name)
            if rest.pools or rest.rejects:
                self._held.append(rest)


def _sequence(chunk: Framed) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Offset and event time (ns) of every accepted event of a chunk, in arrival order."""
    offsets = [rows.row_offset for rows in chunk.pools.values()]
    times = [rows.batch.ts_ns for rows in chunk.pools.values()]
    for rows in chunk.pools.values():
        if rows.events:
            offsets.append(np.array(rows.event_offset, np.int64))
            times.append(np.array([to_ns(event.ts) for event in rows.events], np.int64))
    if not offsets:
        return np.empty(0, np.int64), np.empty(0, np.int64)
    offset, ts = np.concatenate(offsets), np.concatenate(times)
    if len(offsets) > 1:
        order = np.argsort(offset, kind="stable")
        offset, ts = offset[order], ts[order]
    return offset, ts


def _split(framed: Framed, ends: NDArray[np.int64]) -> list[Framed]:
    """What lies before each end (from the one before), and the rest."""
    parts = [Framed() for _ in range(len(ends) + 1)]
    for name, rows in framed.pools.items():
        row_cuts = [0, *np.searchsorted(rows.row_offset, ends).tolist(), len(rows.row_offset)]
        event_cuts = [0, *np.searchsorted(rows.event_offset, ends).tolist(), len(rows.events)]
        for i, part in enumerate(parts):
            (a, b), (c, d) = row_cuts[i : i + 2], event_cuts[i : i + 2]
            if a < b or c < d:
                part.pools[name] = PoolRows(
                    rows.batch.take(slice(a, b)), rows.row_offset[a:b], rows.events[c:d], rows.event_offset[c:d]
                )
    if framed.rejects:
        cuts = [0, *np.searchsorted([reject.offset for reject in framed.rejects], ends).tolist(), len(framed.rejects)]
        for i, part in enumerate(parts):
            part.rejects = framed.rejects[cuts[i] : cuts[i + 1]]
    return parts


def merged(inputs: Sequence[Iterator[Slice]]) -> Iterator[Slice]:
    """Slices of all inputs by number; equal numbers in the order of the inputs."""
    return inputs[0] if len(inputs) == 1 else heapq.merge(*inputs, key=lambda s: s.number)

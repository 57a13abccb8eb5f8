"""Drops what was delivered twice: rows by their source offset, an agent's frames by their sequence number.

Kafka, the framer and node agents all deliver at least once. A row that a framer made carries the offset it had in its source,
which grows for every node, so one high-water mark for each (origin, kind, pool, node) is enough. A frame that an agent wrote
carries (node, boot_id, seq); its retries may overtake each other, so the mark comes with a window of recent numbers, as in the
anti-replay window of IPsec (RFC 4303 section 3.4.3). A frame with neither has no identity and is always accepted.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import numpy as np
from numpy.typing import NDArray

from schemas.frame import EventFrame, FrameHeader, RequestFrame
from schemas.telemetry import StateEvent

__all__ = ["WINDOW", "DuplicateFilter"]

WINDOW = 1024
"""Sequence numbers remembered below the highest."""
_MAX_MARKS = 200_000  # about 30 MB; beyond it the marks that were not moved for longest are forgotten


class _State(msgspec.Struct):
    rows: list[tuple[str, int]]
    frames: list[tuple[str, int, bytes]]


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(_State)


class DuplicateFilter:
    """Marks of one partition.

    Attributes:
        duplicates: Rows and events dropped so far.
        too_old: Frames dropped because their sequence number is below the window: whether they were seen is not known.
    """

    def __init__(self) -> None:
        self._rows: dict[str, int] = {}
        self._frames: dict[str, tuple[int, int]] = {}  # highest number, bits: bit k = (highest - k) was seen
        self.duplicates = 0
        self.too_old = 0

    def requests(self, frame: RequestFrame) -> NDArray[np.bool_] | None:
        """Which rows are new, bool (n,); None when all are."""
        n = len(frame.batch)
        if frame.origin_offset is None or frame.header.origin is None:
            return None if self._new_frame(frame.header, frame.batch.requests) else np.zeros(n, np.bool_)
        key = _row_key(frame.header, "r", frame.header.node)
        mark = self._rows.get(key, -1)
        first, highest = int(frame.origin_offset.min()), int(frame.origin_offset.max())
        if highest > mark:
            self._move(key, highest)
        if first > mark:
            return None
        fresh: NDArray[np.bool_] = frame.origin_offset > mark
        self.duplicates += n - int(fresh.sum())
        return fresh

    def events(self, frame: EventFrame) -> Sequence[StateEvent]:
        """The events that are new."""
        if not frame.offsets or frame.header.origin is None:
            return frame.events if self._new_frame(frame.header, len(frame.events)) else []
        fresh = []
        for event, offset in zip(frame.events, frame.offsets, strict=True):
            key = _row_key(frame.header, "e", event.node or "")
            if offset > self._rows.get(key, -1):
                self._move(key, offset)
                fresh.append(event)
            else:
                self.duplicates += 1
        return fresh

    def dump(self) -> bytes:
        """All marks, for a snapshot."""
        frames = [(key, high, bits.to_bytes(WINDOW // 8, "little")) for key, (high, bits) in self._frames.items()]
        return _encoder.encode(_State(list(self._rows.items()), frames))

    @classmethod
    def load(cls, raw: bytes) -> DuplicateFilter:
        """The filter that `dump` wrote.

        Raises:
            msgspec.DecodeError: The bytes are none.
        """
        state = _decoder.decode(raw)
        made = cls()
        made._rows = dict(state.rows)
        made._frames = {key: (high, int.from_bytes(bits, "little")) for key, high, bits in state.frames}
        return made

    def _move(self, key: str, mark: int) -> None:
        self._rows.pop(key, None)  # to the end: least recently moved goes first
        self._rows[key] = mark
        if len(self._rows) > _MAX_MARKS:
            del self._rows[next(iter(self._rows))]

    def _new_frame(self, header: FrameHeader, n: int) -> bool:
        if not header.boot_id:
            return True
        key = f"{header.pool}\0{header.node}\0{header.boot_id}"
        high, bits = self._frames.pop(key, (-1, 0))
        if header.seq > high:
            bits = (bits << min(header.seq - high, WINDOW) | 1) & ((1 << WINDOW) - 1)
            high, fresh = header.seq, True
        elif high - header.seq >= WINDOW:
            self.too_old += n
            fresh = False
        else:
            seen = 1 << (high - header.seq)
            fresh = not bits & seen
            self.duplicates += 0 if fresh else n
            bits |= seen
        self._frames[key] = (high, bits)
        if len(self._frames) > _MAX_MARKS // 4:
            del self._frames[next(iter(self._frames))]
        return fresh


def _row_key(header: FrameHeader, kind: str, node: str) -> str:
    return f"{header.origin}\0{kind}\0{header.pool}\0{node}"

"""What one fetch brings for one partition, and how much of it may wait to be handled."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from aiokafka.structs import ConsumerRecord
from faust.types import TP

__all__ = ["ByteBudget", "FetchBatch"]


class FetchBatch:
    """The records of one partition that one fetch brought, in offset order.

    Attributes:
        tp: Topic and partition.
        records: At least one record; `value`, `key`, `headers`, `offset`, `timestamp` (ms) as aiokafka gives them.
        tag: Number of seeks of this partition before the fetch.
        size_bytes: Keys and values.
    """

    __slots__ = ("records", "release", "size_bytes", "tag", "tp")

    def __init__(self, tp: TP, records: Sequence[ConsumerRecord], tag: int, release: Callable[[int], None] | None = None) -> None:
        self.tp = tp
        self.records = records
        self.tag = tag
        self.size_bytes = sum(len(r.value or b"") + len(r.key or b"") for r in records)
        self.release = release

    @property
    def first(self) -> int:
        """Offset of the first record."""
        offset: int = self.records[0].offset
        return offset

    @property
    def last(self) -> int:
        """Offset of the last record."""
        offset: int = self.records[-1].offset
        return offset

    def done(self) -> None:
        """Say that the batch was handled, so that more may be fetched; a second call does nothing."""
        if self.release is not None:
            self.release(self.size_bytes)
            self.release = None


class ByteBudget:
    """How many bytes are fetched and not yet handled."""

    def __init__(self, limit_bytes: int) -> None:
        self.limit_bytes = limit_bytes
        self.used_bytes = 0
        self.room = asyncio.Event()
        self.room.set()
        self._generation = 0

    def take(self, size_bytes: int) -> Callable[[int], None]:
        """Account for a batch; the returned function gives its bytes back (nothing after a `reset`)."""
        self.used_bytes += size_bytes
        if self.used_bytes >= self.limit_bytes:
            self.room.clear()
        generation = self._generation

        def release(size_bytes: int) -> None:
            if generation == self._generation:
                self.used_bytes -= size_bytes
                if self.used_bytes < self.limit_bytes:
                    self.room.set()

        return release

    def reset(self) -> None:
        """Forget everything: a rebalance dropped the batches that nobody will handle."""
        self._generation += 1
        self.used_bytes = 0
        self.room.set()

"""The contract of a sink that stores batches: nothing acknowledged is lost, nothing stored twice is seen twice.

Rows arrive as columns with their origin (topic, partition, offset, index in the message). They are cut into batches that a
destination stores as one atomic block: one source partition, one UTC day. The name of a batch (its token) follows from its
rows, so a retry, even by another process that rebuilt the batch from the same offsets, stores it once.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Protocol

import numpy as np

from schemas.errors import SinkRejected

__all__ = ["Batch", "BatchingSink", "Columns", "Writer", "cut", "store_or_split"]

Columns = dict[str, list[Any]]
"""Column name to values; all of one length. `t` is Unix milliseconds, `src_offset` and `src_idx` the origin of each row."""

_DAY_MS = 86_400_000


@dataclass(frozen=True)
class Batch:
    """Rows of one table, one source partition and one UTC day, in source order."""

    table: str
    topic: str
    partition: int
    columns: Columns

    def __len__(self) -> int:
        return len(self.columns["t"])

    @property
    def first(self) -> int:
        """Source offset of the first row."""
        return int(self.columns["src_offset"][0])

    @property
    def last(self) -> int:
        """Source offset of the last row."""
        return int(self.columns["src_offset"][-1])

    @property
    def token(self) -> str:
        """Name of the batch: equal rows have equal names, and different ranges different ones."""
        idx, day = self.columns["src_idx"], int(self.columns["t"][0]) // _DAY_MS
        return f"{self.table}|{self.topic}|{self.partition}|{self.first}.{idx[0]}-{self.last}.{idx[-1]}|{day}"

    def rows(self, start: int, stop: int) -> Batch:
        """The rows from `start` up to `stop`."""
        return Batch(self.table, self.topic, self.partition, {k: v[start:stop] for k, v in self.columns.items()})

    def split(self) -> tuple[Batch, Batch]:
        """Two halves with names of their own; for looking for the row that a destination refuses. Needs two rows."""
        half = len(self) // 2
        return self.rows(0, half), self.rows(half, len(self))


class Writer(Protocol):
    """A destination: one new file with this method, and a subclass of the contract test."""

    async def write(self, batch: Batch) -> None:
        """Store the batch completely or not at all; the same token again changes nothing.

        Raises:
            SinkBackpressure: Not now; the caller keeps the batch and tries again.
            SinkRejected: Never, as it is; nothing of it was stored.
        """
        ...


def cut(table: str, topic: str, partition: int, columns: Columns, max_rows: int = 10_000) -> list[Batch]:
    """Batches of at most `max_rows` rows, one UTC day each, in source order; [] for no rows.

    Raises:
        ValueError: Columns differ in length, or the origin of the rows is missing.
    """
    if missing := {"t", "src_offset", "src_idx"} - columns.keys():
        raise ValueError(f"columns are missing: {', '.join(sorted(missing))}")
    n = len(columns["t"])
    if wrong := [name for name, values in columns.items() if len(values) != n]:
        raise ValueError(f"columns differ in length: {', '.join(wrong)} from t with {n} rows")
    whole = Batch(table, topic, partition, columns)
    days = np.asarray(columns["t"], dtype=np.int64) // _DAY_MS
    if n and days.min() != days.max():
        parts = []
        for day in np.unique(days):
            rows = np.flatnonzero(days == day)
            parts.append(Batch(table, topic, partition, {k: [v[i] for i in rows] for k, v in columns.items()}))
    else:
        parts = [whole] if n else []
    return [p.rows(a, min(b, len(p))) for p in parts for a, b in pairwise(range(0, len(p) + max_rows, max_rows))]


async def store_or_split(writer: Writer, batch: Batch) -> list[tuple[Batch, str]]:
    """Store what can be stored of a batch, by halving it around rows that the destination refuses.

    Returns:
        Batches of one row that were refused, each with the reason; the caller dead-letters them.

    Raises:
        SinkBackpressure: Not now; calling again with the same batch stores nothing twice.
    """
    try:
        await writer.write(batch)
    except SinkRejected as exc:
        if len(batch) == 1:
            return [(batch, str(exc))]
        left, right = batch.split()
        return await store_or_split(writer, left) + await store_or_split(writer, right)
    return []


class BatchingSink:
    """Groups rows by table and source partition and stores them in order.

    A batch is cut once and keeps its rows and its name until it is stored: `flush` after a failure sends the same again.

    Args:
        writer: The destination.
        reject: Takes a batch of one row that the destination refuses, with the reason (a dead letter); must not lose it.
        max_rows: Rows of a batch.
    """

    def __init__(self, writer: Writer, reject: Callable[[Batch, str], Awaitable[None]], *, max_rows: int = 10_000) -> None:
        self._writer = writer
        self._reject = reject
        self._max_rows = max_rows
        self._open: dict[tuple[str, str, int], Columns] = {}
        self._sealed: list[Batch] = []
        self._lock = asyncio.Lock()

    @property
    def pending(self) -> int:
        """Rows that are not stored yet."""
        return sum(len(c["t"]) for c in self._open.values()) + sum(map(len, self._sealed))

    def add(self, table: str, topic: str, partition: int, columns: Columns) -> None:
        """Take rows in source order; the same columns on every call for a table."""
        open_ = self._open.setdefault((table, topic, partition), {name: [] for name in columns})
        if open_.keys() != columns.keys():
            raise ValueError(f"{table}: columns changed: {sorted(open_.keys() ^ columns.keys())}")
        for name, values in columns.items():
            open_[name].extend(values)

    def seal(self) -> Sequence[Batch]:
        """Cut what is open. Returns everything that waits to be stored, oldest first: what an intent log must name."""
        for (table, topic, partition), columns in self._open.items():
            self._sealed.extend(cut(table, topic, partition, columns, self._max_rows))
        self._open.clear()
        return tuple(self._sealed)

    async def flush(self) -> int:
        """Store everything added so far.

        Returns:
            Rows that are now stored or dead-lettered.

        Raises:
            SinkBackpressure: Try again later; nothing was lost.
        """
        async with self._lock:
            self.seal()
            done = 0
            while self._sealed:
                batch = self._sealed[0]
                for refused, why in await store_or_split(self._writer, batch):
                    await self._reject(refused, why)
                done += len(batch)
                del self._sealed[0]
            return done

"""Looks whether ClickHouse holds what it said it stored: once a minute, the rows of the last minute, by partition of their topic.

A `Writer` before another one. What was stored is remembered as identities with the offset of their record: (pool, time) of
windows, findings and decisions, (origin, offset) of dead letters. A record that was appended twice replaces itself, the one
further on wins; so an identity is missing when the table has none of it at its offset or behind. Rows of one record that are
there more often than once were written twice. Both must be 0: the metrics are there to be alarmed on.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, LiteralString

from schemas.errors import SinkBackpressure
from sinks.base import Batch, Writer
from sinks.clickhouse import ClickHouse

__all__ = ["Found", "Reconciler"]

_TTL_MS = 29 * 86_400_000  # what is older may go as soon as it is written

_SQL: dict[str, LiteralString] = {
    "windows": "SELECT pool AS name, toUnixTimestamp64Milli(t) AS at, max(src_offset) AS last, count() AS n, "
               "uniqExact(src_offset, src_idx) AS u FROM windows WHERE src_partition = {p:UInt32} AND "
               "t >= fromUnixTimestamp64Milli({a:Int64}) AND t <= fromUnixTimestamp64Milli({b:Int64}) GROUP BY name, at",
    "findings": "SELECT pool AS name, toUnixTimestamp64Milli(t) AS at, max(src_offset) AS last, count() AS n, "
               "uniqExact(src_offset, src_idx) AS u FROM findings WHERE src_partition = {p:UInt32} AND "
               "t >= fromUnixTimestamp64Milli({a:Int64}) AND t <= fromUnixTimestamp64Milli({b:Int64}) GROUP BY name, at",
    "decisions": "SELECT pool AS name, toUnixTimestamp64Milli(t) AS at, max(src_offset) AS last, count() AS n, "
               "uniqExact(src_offset, src_idx) AS u FROM decisions WHERE src_partition = {p:UInt32} AND "
               "t >= fromUnixTimestamp64Milli({a:Int64}) AND t <= fromUnixTimestamp64Milli({b:Int64}) GROUP BY name, at",
    "dead_letters": "SELECT origin_topic AS name, origin_offset AS at, max(src_offset) AS last, count() AS n, "
               "uniqExact(src_offset, src_idx) AS u FROM dead_letters WHERE src_partition = {p:UInt32} AND "
               "origin_offset >= {a:Int64} AND origin_offset <= {b:Int64} GROUP BY name, at",
}  # fmt: skip


@dataclass(frozen=True)
class Found:
    """What a look at one partition of one topic gave.

    Attributes:
        topic, partition: Which one.
        checked: Identities looked for.
        missing: Of them, not in the table.
        duplicate: Rows that are there more often than once.
    """

    topic: str
    partition: int
    checked: int
    missing: int
    duplicate: int


class Reconciler:
    """Use it as the archive's writer, and call `look` every minute.

    Args:
        writer: Stores the batches.
        clickhouse: Where it stores them; read here.
        now_ms: Wall clock, Unix milliseconds.
    """

    def __init__(self, writer: Writer, clickhouse: ClickHouse, now_ms: Callable[[], int]) -> None:
        self._writer = writer
        self._clickhouse = clickhouse
        self._now_ms = now_ms
        self._stored: dict[tuple[str, str, int], dict[tuple[str, int], int]] = {}

    async def write(self, batch: Batch) -> None:
        """See `Writer.write`."""
        await self._writer.write(batch)
        if batch.table in _SQL:
            name, at = ("origin_topic", "origin_offset") if batch.table == "dead_letters" else ("pool", "t")
            columns = batch.columns
            known = self._stored.setdefault((batch.table, batch.topic, batch.partition), {})
            known.update(zip(zip(columns[name], columns[at], strict=True), columns["src_offset"], strict=True))

    async def look(self) -> list[Found]:
        """Compare what was stored since the last call; what ClickHouse does not answer is asked again the next time.

        Raises:
            SinkError: ClickHouse refuses the question.
        """
        stored, self._stored = self._stored, {}
        found = []
        for (table, topic, partition), known in stored.items():
            try:
                found.append(await asyncio.to_thread(self._compare, table, topic, partition, known))
            except SinkBackpressure:
                newer = self._stored.get((table, topic, partition), {})
                self._stored[table, topic, partition] = {**known, **newer}
        return found

    def _compare(self, table: str, topic: str, partition: int, known: Mapping[tuple[str, int], int]) -> Found:
        oldest = -(1 << 62) if table == "dead_letters" else self._now_ms() - _TTL_MS
        wanted = {identity: offset for identity, offset in known.items() if identity[1] >= oldest}
        if not wanted:
            return Found(topic, partition, 0, 0, 0)
        times = [at for _, at in wanted]
        rows = self._clickhouse.query(_SQL[table], {"p": partition, "a": min(times), "b": max(times)})
        there: dict[tuple[str, int], dict[str, Any]] = {(row["name"], row["at"]): row for row in rows}
        missing = sum(identity not in there or there[identity]["last"] < offset for identity, offset in wanted.items())
        return Found(topic, partition, len(wanted), missing, sum(row["n"] - row["u"] for row in rows))

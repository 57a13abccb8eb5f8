"""The archive's own path into ClickHouse, without Kafka: messages of `slodrift.windows` to stored rows, timed."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass

from schemas.topics import WINDOWS
from sinks.base import Batch, BatchingSink
from sinks.clickhouse import ClickHouse, ClickHouseWriter
from streams.worker.archive_rows import ArchiveRows

__all__ = ["Blocks", "Stored", "store"]

Blocks = list[tuple[int, bytes]]
"""(Unix ms, message of `slodrift.windows`)."""
_MAX_ROWS = 10_000


@dataclass(frozen=True)
class Stored:
    """What went in.

    Attributes:
        rows: Rows stored in `windows`; `hours`: in `window_hours`.
        wall_s, cpu_s: Of this process, with the embedded engine inside it.
    """

    rows: int
    hours: int
    wall_s: float
    cpu_s: float


@dataclass
class _Record:
    offset: int
    value: bytes


def store(clickhouse: ClickHouse, blocks: Blocks, quiet_s: float, first_offset: int = 0) -> Stored:
    """Store `blocks`, thinned by `quiet_s` as the archive's setting says."""
    return asyncio.run(_store(clickhouse, blocks, quiet_s, first_offset))


async def _store(clickhouse: ClickHouse, blocks: Blocks, quiet_s: float, first_offset: int) -> Stored:
    async def refused(batch: Batch, why: str) -> None:
        raise RuntimeError(why)

    sink = BatchingSink(ClickHouseWriter(clickhouse), refused, max_rows=_MAX_ROWS)
    archive = ArchiveRows(WINDOWS.name, 0, quiet_s=quiet_s)
    counts = {"windows": 0, "window_hours": 0}
    wall, cpu = time.perf_counter(), time.process_time()
    for offset, (_, raw) in enumerate(blocks, first_offset):
        for table, columns in archive.rows(_Record(offset, raw)):
            counts[table] += len(columns["t"])
            sink.add(table, WINDOWS.name, 0, columns)
        if sink.pending >= _MAX_ROWS:
            await sink.flush()
    await sink.flush()
    wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    return Stored(counts["windows"], counts["window_hours"], wall, cpu)

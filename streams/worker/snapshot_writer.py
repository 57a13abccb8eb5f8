"""Writes snapshots: compresses in a thread, appends, and goes to smaller parts where the broker refuses large messages."""

from __future__ import annotations

import asyncio

import structlog

from schemas.errors import SinkRejected
from schemas.topics import SNAPSHOTS
from streams.worker import metrics, snapshot
from streams.worker.producer import LogProducer

__all__ = ["SnapshotWriter"]

log = structlog.get_logger(__name__)

_MIN_PART_BYTES = 16_384


class SnapshotWriter:
    """Shared by all partitions of a worker.

    Args:
        producer: Where to.
        max_part_bytes: Largest message at first.
    """

    def __init__(self, producer: LogProducer, max_part_bytes: int = snapshot.MAX_PART_BYTES) -> None:
        self._producer = producer
        self._max_part_bytes = max_part_bytes

    async def write(self, partition: int, state: snapshot.Snapshot, slot: int) -> bytes:
        """Append `state`, which loses its pools; when this returns it is durable. Returns it as `snapshot.pack` makes it.

        Raises:
            SinkRejected: The topic takes no message of any size.
        """
        packed = await asyncio.to_thread(snapshot.pack, state)
        state.pools = {}  # as large as all that the judge knows, and packed now
        while True:
            try:
                await self._append(partition, snapshot.to_records(partition, state, packed, slot, self._max_part_bytes))
            except SinkRejected as exc:
                if self._max_part_bytes <= _MIN_PART_BYTES:
                    raise
                self._max_part_bytes //= 4
                log.warning("the snapshot topic refuses a message; writing smaller parts", cause=str(exc),
                            part_bytes=self._max_part_bytes, do=f"raise max.message.bytes of {SNAPSHOTS.name}")  # fmt: skip
            else:
                metrics.SNAPSHOT_BYTES.labels(str(partition)).set(len(packed))
                return packed

    async def _append(self, partition: int, records: list[tuple[bytes, bytes, list[tuple[str, bytes]]]]) -> None:
        # The last record makes the snapshot valid and takes the place of the one before: the others must be there first.
        *rest, main = records
        futures = [await self._producer.append(SNAPSHOTS.name, v, key=k, partition=partition, headers=h) for k, v, h in rest]
        for future in futures:
            await future
        key, value, headers = main
        await (await self._producer.append(SNAPSHOTS.name, value, key=key, partition=partition, headers=headers))

"""Whether a partition of the decision log is still ours, asked of the log itself: what Redis says of it may be forged."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from schemas.errors import SchemaError, SourceError
from schemas.topics import DECISIONS, partition_of
from streams.kafka import client_config
from streams.settings import Settings
from streams.worker.decision_log import LogReader, read_partition
from streams.worker.takeover import log_end

__all__ = ["Ownership"]

_TIMEOUT_S = 1.0


class Ownership:
    """Reads on from the last look, so asking again costs little.

    Args:
        settings: Where Kafka is.
        n_partitions: Of the decision log.
        epoch_of: Our epoch in a partition, None where it is not ours.
    """

    def __init__(self, settings: Settings, n_partitions: int, epoch_of: Callable[[int], int | None]) -> None:
        self._config = client_config(settings)
        self._n = n_partitions
        self._epoch_of = epoch_of
        self._read_to: dict[int, tuple[int, int]] = {}  # partition to (our epoch, next offset)

    async def owns(self, pool: str) -> bool:
        """Whether nobody claimed the pool's partition after us; False when the log does not answer."""
        partition = partition_of(pool, self._n)
        epoch = self._epoch_of(partition)
        if epoch is None:
            return False
        try:
            return await asyncio.to_thread(self._newest_is, partition, epoch)
        except SourceError:
            return False

    def _newest_is(self, partition: int, epoch: int) -> bool:
        known, start = self._read_to.get(partition, (epoch, epoch + 1))
        if known != epoch:
            start = epoch + 1
        end = log_end(self._config, DECISIONS.name, partition)
        reader = LogReader(epoch)
        for record in read_partition(self._config, DECISIONS.name, partition, start, end, timeout_s=_TIMEOUT_S):
            try:
                reader.read(record.offset(), record.value())
            except SchemaError:  # no record of ours, and no claim
                continue
        if reader.epoch == epoch:
            self._read_to[partition] = epoch, end
        return reader.epoch == epoch

"""Every record once and in order: what of a fetched batch follows on a known offset.

After a rebalance Faust reads from the committed offset, batches that were fetched earlier still arrive, and a snapshot may lie
behind or ahead of the commit. So what was seen is passed over, and a hole is read again once; if the hole is still there then,
its records are gone from the log.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import structlog
from faust.types import TP

from streams.worker import metrics
from streams.worker.fetch import FetchBatch

__all__ = ["Continuity"]

log = structlog.get_logger(__name__)


class Continuity:
    """One partition while it is ours.

    Args:
        seek: `BatchConsumer.read_again_from`.
    """

    def __init__(self, seek: Callable[[TP, int], int]) -> None:
        self._seek = seek
        self._tag = 0
        self._sought: int | None = None

    def due(self, batch: FetchBatch, expected: int | None) -> Sequence[Any]:
        """Records of `batch` from `expected` on (None: whatever comes); none while the log is being read again."""
        if batch.tag < self._tag:
            return []
        if expected is None or batch.first == expected:
            return batch.records
        if batch.first < expected:
            return [record for record in batch.records if record.offset >= expected]
        if self._sought != expected:
            self.read_again(batch.tp, expected)
            return []
        metrics.LOST_RECORDS.inc(batch.first - expected)
        log.error("records are gone from the log before they were read: was this worker away for longer than they are kept?",
                  topic=batch.tp.topic, partition=batch.tp.partition, first=expected, last=batch.first - 1)  # fmt: skip
        return batch.records

    def read_again(self, tp: TP, offset: int) -> None:
        """Read from `offset` again; batches that were fetched before that are passed over."""
        self._sought = offset
        self._tag = self._seek(tp, offset)

"""Kafka topics: names, partition counts and settings, and which partition owns a pool."""

from __future__ import annotations

import zlib
from dataclasses import dataclass, field

__all__ = [
    "ANCHORS",
    "DEADLETTER",
    "DECISIONS",
    "FINDINGS",
    "FRAMES",
    "SNAPSHOTS",
    "TELEMETRY",
    "TOPICS",
    "WINDOWS",
    "Topic",
    "partition_of",
]


@dataclass(frozen=True)
class Topic:
    """One topic.

    Attributes:
        name: Topic name.
        by_pool: True when its partition is the pool's (co-partitioned with the frames).
        config: Broker settings.
    """

    name: str
    by_pool: bool = True
    config: dict[str, str] = field(default_factory=dict)


_DAY_MS = 24 * 3600 * 1000
_WEEK = {"retention.ms": str(7 * _DAY_MS)}  # the archive may be down for days without losing history

FRAMES = Topic("telemetry.frames", config=_WEEK)
TELEMETRY = (
    Topic("telemetry.requests", config=_WEEK),
    Topic("telemetry.nodes", config=_WEEK),
    Topic("telemetry.gpu", config=_WEEK),
    Topic("telemetry.context", config=_WEEK),
)
"""Sources with one JSON event a message; the framer turns them into frames. Deploy events may arrive on any of them."""
WINDOWS = Topic("slodrift.windows", config=_WEEK)
FINDINGS = Topic("slodrift.findings", config=_WEEK)
DECISIONS = Topic("slodrift.decisions", config={"retention.ms": str(30 * _DAY_MS)})
SNAPSHOTS = Topic("slodrift.snapshots", config={"cleanup.policy": "compact", "max.message.bytes": "8388608"})
DEADLETTER = Topic("slodrift.deadletter", by_pool=False, config={"retention.ms": str(14 * _DAY_MS)})
ANCHORS = Topic("slodrift.anchors", by_pool=False, config={"retention.ms": "-1"})
"""Copies of the audit's signed anchors, a few bytes a minute; give its writer a principal of its own."""

TOPICS: tuple[Topic, ...] = (FRAMES, *TELEMETRY, WINDOWS, FINDINGS, DECISIONS, SNAPSHOTS, DEADLETTER, ANCHORS)


def partition_of(pool: str, n_partitions: int) -> int:
    """Partition that owns `pool`; the same on every producer and language (CRC-32 of the UTF-8 name)."""
    return zlib.crc32(pool.encode()) % n_partitions

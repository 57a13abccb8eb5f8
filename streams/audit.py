"""Follows the decision log into an audit file, and compares one with the log.

Reads without a consumer group: the file knows how far it is. Run it as a principal of its own, with a key of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import structlog
from confluent_kafka import Consumer, KafkaException, TopicPartition

from schemas.audit import AuditEntry, pool_of
from schemas.errors import SinkError, SourceError
from schemas.topics import ANCHORS, DECISIONS
from sinks.audit_file import AuditFile
from sinks.audit_verify import Fault
from streams.kafka import Deliveries, Partitions, client_config, make_producer, wait_for_kafka
from streams.settings import Settings
from streams.worker.decision_log import read_partition

__all__ = ["compare_with_log", "follow_once", "log_bounds", "read_anchors", "send_anchors"]

log = structlog.get_logger(__name__)

_BATCH = 1000


def log_bounds(settings: Settings, topic: str = DECISIONS.name) -> dict[int, tuple[int, int]]:
    """First offset kept and offset behind the last, of each partition of the decision log or another topic.

    Raises:
        SourceError: Kafka does not answer, or has no such topic.
    """
    count = Partitions(wait_for_kafka(settings, topics=[topic]), [topic]).count(topic)
    consumer = Consumer({**client_config(settings), "group.id": "slodrift-reader", "enable.auto.commit": False})
    try:
        return {p: consumer.get_watermark_offsets(TopicPartition(topic, p), timeout=10.0) for p in range(count)}
    except KafkaException as exc:
        raise SourceError(f"{topic}: {exc.args[0].str()}") from None
    finally:
        consumer.close()


def follow_once(settings: Settings, file: AuditFile, stop: Callable[[], bool] = lambda: False) -> int:
    """Add everything up to the present end of the log; returns how many decisions.

    Raises:
        SourceError: Kafka does not answer; what was read so far is in the file.
    """
    added = 0
    for partition, (low, high) in sorted(log_bounds(settings).items()):
        start = file.next_offset.get(partition, 0)
        if 0 < start < low:
            log.error("decisions are gone from the log before they were audited: was this away for longer than they are kept?",
                      partition=partition, first=start, last=low - 1)  # fmt: skip
        batch: list[tuple[int, bytes]] = []
        for message in read_partition(client_config(settings), DECISIONS.name, partition, max(start, low), high):
            batch.append((message.offset(), message.value() or b""))
            if len(batch) >= _BATCH:
                added += file.append(partition, batch)
                batch = []
                if stop():
                    return added
        added += file.append(partition, batch)
    return added


def send_anchors(settings: Settings, lines: Iterable[bytes], deadline_s: float = 30.0) -> None:
    """Append signed anchors to their topic and wait for it.

    Raises:
        SinkError: Kafka does not take them; try again with the same, a copy that is there twice does no harm.
    """
    producer, deliveries = make_producer(settings), Deliveries()
    for line in lines:
        producer.produce(ANCHORS.name, line, on_delivery=deliveries)
    left = producer.flush(deadline_s)
    if left or deliveries.failed:
        raise SinkError(f"Kafka does not take anchors: {deliveries.last_error or 'the broker does not answer'}")


def read_anchors(settings: Settings) -> list[bytes]:
    """All copies of anchors in their topic; whether they are genuine is the verifier's question.

    Raises:
        SourceError: Kafka does not answer, or has no such topic.
    """
    lines = []
    for partition, (low, high) in sorted(log_bounds(settings, ANCHORS.name).items()):
        lines += [m.value() or b"" for m in read_partition(client_config(settings), ANCHORS.name, partition, low, high)]
    return lines


def compare_with_log(settings: Settings, entries: Iterable[AuditEntry]) -> tuple[list[Fault], int]:
    """What differs between an audit file and the log, as far as the log still goes back.

    Returns:
        Faults of the file, and how many decisions at the end of the log are not in it yet.

    Raises:
        SourceError: Kafka does not answer.
    """
    audited: dict[int, dict[int, AuditEntry]] = {}
    for entry in entries:
        audited.setdefault(entry.partition, {})[entry.offset] = entry
    faults, ahead = [], 0
    for partition, (low, high) in sorted(log_bounds(settings).items()):
        mine = audited.get(partition, {})
        last, seen = max(mine, default=-1), set()
        for message in read_partition(client_config(settings), DECISIONS.name, partition, low, high):
            offset, raw = message.offset(), message.value() or b""
            pool, where = pool_of(raw), f"offset {message.offset()} of partition {partition}"
            if pool is None:
                continue
            seen.add(offset)
            if offset > last:
                ahead += 1
            elif offset not in mine:
                faults.append(Fault("removed", pool, 0, f"the log has a decision at {where}"))
            elif bytes(mine[offset].decision) != raw:
                faults.append(Fault("changed", pool, mine[offset].n, f"the log has something else at {where}"))
        for offset, entry in sorted(mine.items()):
            if offset >= low and offset not in seen:
                faults.append(
                    Fault("inserted", entry.pool, entry.n, f"the log has no decision at {offset} of partition {partition}")
                )
    return faults, ahead

"""Reading the decision log: which records count, and what state they add up to.

A partition of `slodrift.decisions` holds decisions and epoch records. Whoever becomes owner of the partition first appends an
epoch record; the offset it gets is the owner's epoch, unique and growing without a clock or a lock service. Every decision
carries the epoch of its writer in `version`. A decision of a lower epoch than the highest epoch record before it was written
by a former owner that does not know it yet (a paused process, say): it is void for every reader.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import msgspec
from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicPartition

from schemas.errors import SchemaError, SourceError
from schemas.results import Decision

__all__ = ["EpochRecord", "LogReader", "LogState", "claims", "encode_epoch", "fold", "read_partition"]


_MAX_KNOWN = 100_000


class EpochRecord(msgspec.Struct, tag_field="kind", tag="epoch", kw_only=True, frozen=True):
    """A new owner of a partition; its offset is the epoch."""

    generation: int
    """Raised by an operator when the log was lost and starts again at offset 0."""
    writer: str
    """Host and process, for people."""


_decoder = msgspec.json.Decoder(Decision | EpochRecord)
_encoder = msgspec.json.Encoder()


def encode_epoch(record: EpochRecord) -> bytes:
    """JSON of an epoch record."""
    return _encoder.encode(record)


class LogReader:
    """Decides record by record, in offset order, what counts in one partition.

    Args:
        epoch: Highest epoch before the first record that will be read; -1 when reading from the beginning.

    Attributes:
        epoch: Highest epoch so far, -1 before the first.
        void: Decisions of former owners that were passed over.
    """

    def __init__(self, epoch: int = -1) -> None:
        self.epoch = epoch
        self.void = 0

    def read(self, offset: int, value: bytes | None) -> Decision | None:
        """The decision in the record, or None when it is an epoch record or void.

        Raises:
            SchemaError: With reason ``bad_decision``: it is neither.
        """
        try:
            record = _decoder.decode(value or b"")
        except (msgspec.DecodeError, UnicodeDecodeError) as exc:
            raise SchemaError("bad_decision", str(exc)) from None
        if isinstance(record, EpochRecord):
            self.epoch = max(self.epoch, offset)
            return None
        if record.version[1] < self.epoch:
            self.void += 1
            return None
        return record


@dataclass(slots=True)
class LogState:
    """What a stretch of a partition adds up to.

    Attributes:
        epoch: Highest epoch, -1 without any.
        live: Newest decision of every subject that is not closed, by pool and (scope, subject).
        version: Version of the newest decision, by pool.
        known: Identities (tx) of the newest decisions read, oldest first.
        unreadable: Records that are no decisions; they were passed over.
    """

    epoch: int = -1
    live: dict[str, dict[tuple[str, str], Decision]] = field(default_factory=dict)
    version: dict[str, tuple[int, int, int]] = field(default_factory=dict)
    known: dict[str, None] = field(default_factory=dict)
    unreadable: int = 0

    def apply(self, decision: Decision) -> None:
        """Take one decision in; one that was held back by the cap changed nothing."""
        self.known[decision.tx] = None
        if len(self.known) > _MAX_KNOWN:  # far more than are decided between two snapshots
            del self.known[next(iter(self.known))]
        self.version[decision.pool] = max(decision.version, self.version.get(decision.pool, (0, 0, 0)))
        if decision.capped:
            return
        subjects = self.live.setdefault(decision.pool, {})
        subjects.pop((decision.scope, decision.subject), None)
        if decision.state != "CLOSED":
            subjects[decision.scope, decision.subject] = decision


def fold(records: Iterable[tuple[int, bytes | None]], state: LogState | None = None) -> LogState:
    """State after `records` (offset, value), beginning with `state`."""
    state = state or LogState()
    reader = LogReader(state.epoch)
    for offset, value in records:
        try:
            decision = reader.read(offset, value)
        except SchemaError:
            state.unreadable += 1
            continue
        if decision is not None:
            state.apply(decision)
    state.epoch = reader.epoch
    return state


def claims(records: Iterable[tuple[int, bytes | None]]) -> list[int]:
    """Offsets of the epoch records among `records` (offset, value)."""
    found = []
    for offset, value in records:
        try:
            if isinstance(_decoder.decode(value or b""), EpochRecord):
                found.append(offset)
        except (msgspec.DecodeError, UnicodeDecodeError):
            continue  # `fold` counts it
    return found


def read_partition(
    config: Mapping[str, Any], topic: str, partition: int, start: int, end: int, *, timeout_s: float = 10.0
) -> Iterator[Message]:
    """Records of [start, end) in offset order, without a consumer group. Blocks: call it in a thread.

    Args:
        config: librdkafka settings of the connection.
        topic: What to read.
        partition: Which part of it.
        start: First offset; what is no longer kept is passed over.
        end: Offset behind the last one.
        timeout_s: Longest silence before it gives up, seconds.

    Raises:
        SourceError: The broker does not answer.
    """
    if end <= start:
        return
    consumer = Consumer({
        **config, "group.id": "slodrift-reader", "enable.auto.commit": False, "auto.offset.reset": "earliest",
        "enable.partition.eof": True, "fetch.wait.max.ms": 10,
    })  # fmt: skip
    try:
        low, high = consumer.get_watermark_offsets(TopicPartition(topic, partition), timeout=timeout_s)
        start, end = max(start, low), min(end, high)
        consumer.assign([TopicPartition(topic, partition, start)])
        position, heard_s = start, time.monotonic()
        while position < end:
            messages = consumer.consume(500, timeout=0.02)  # waits that long for the 500th
            if messages:
                heard_s = time.monotonic()
            elif time.monotonic() - heard_s > timeout_s:
                raise SourceError(f"{topic}[{partition}]: nothing came for {timeout_s:g} s at offset {position} of {end}")
            for message in messages:
                if message.error() is not None and message.error().code() == KafkaError._PARTITION_EOF:
                    return  # the offsets before `end` that are missing were compacted away
                if message.error() is not None:
                    raise SourceError(f"{topic}[{partition}]: {message.error().str()}")
                position = message.offset() + 1
                if message.offset() < end:
                    yield message
    except KafkaException as exc:
        raise SourceError(f"{topic}[{partition}]: {exc.args[0].str()}") from None
    finally:
        consumer.close()

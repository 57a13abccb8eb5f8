"""Becoming the owner of a partition: claim it in the decision log, restore the newest snapshot, fold what the log says since.

The claim comes first. Whatever a former owner still appends after it is void, so what is read before it is final.
"""

from __future__ import annotations

import asyncio
import os
import socket
from dataclasses import dataclass

import structlog
from confluent_kafka import Consumer, KafkaException, Message, TopicPartition

from schemas.errors import SchemaError, SourceError
from schemas.topics import DECISIONS, FRAMES, SNAPSHOTS
from streams.kafka import client_config
from streams.settings import Settings
from streams.worker import snapshot as snapshots
from streams.worker.decision_log import EpochRecord, claims, encode_epoch, fold, read_partition
from streams.worker.partition import JudgeFactory, JudgePartition
from streams.worker.producer import LogProducer

__all__ = ["Owned", "Takeover", "log_end"]

log = structlog.get_logger(__name__)

_FIRST_TAIL = 32  # snapshot records read at first; more only if no complete snapshot is among them


@dataclass(slots=True)
class Owned:
    """A partition with its state and where its snapshots stand.

    Attributes:
        state: The judges.
        base: The durable snapshot it was restored from, None without one and once there is one of our own.
        log_offset: First offset of the decision log that may hold decisions of what the state has not judged yet; behind the
            claim only once this owner has appended one, for until then it judges again what the log holds already.
        slot: Slot of the next snapshot.
    """

    state: JudgePartition
    base: snapshots.Snapshot | None
    log_offset: int
    slot: int
    packed: bytes | None = None
    """Our newest durable snapshot, packed: it is needed only if a judge fails."""


class Takeover:
    """Takes partitions over.

    Args:
        settings: Where Kafka is.
        producer: For the claim.
        factory: Makes judges.
        generation: Of the decision log.
        with_snapshots: False where the snapshot topic does not exist.
    """

    def __init__(
        self, settings: Settings, producer: LogProducer, factory: JudgeFactory, *, generation: int, with_snapshots: bool
    ) -> None:
        self._config = client_config(settings)
        self._auth = settings.authenticator()
        self._producer = producer
        self._factory = factory
        self._generation = generation
        self._with_snapshots = with_snapshots

    async def claim(self, partition: int) -> int:
        """Append an epoch record; returns its offset, our epoch.

        Raises:
            SinkRejected: Kafka does not let us.
        """
        claim = encode_epoch(EpochRecord(generation=self._generation, writer=f"{socket.gethostname()}-{os.getpid()}"))
        return await (await self._producer.append(DECISIONS.name, claim, key=b"", partition=partition))

    async def restore(self, partition: int, epoch: int) -> Owned:
        """State of `partition` at our claim.

        Raises:
            SourceError: Kafka does not answer; try again with the same epoch.
        """
        found = await asyncio.to_thread(self._newest_snapshot, partition) if self._with_snapshots else None
        owned = self._restore(partition, epoch, found)
        base = owned.base
        # A writer that had not appended anything was still judging again what the log held when it took over.
        whole = base is None or base.log_offset <= base.epoch
        if base is not None and not whole:
            records = await asyncio.to_thread(self._decisions, partition, base.epoch, epoch)
            if any(base.epoch < offset < base.log_offset for offset in claims(records)):
                # Its writer had been replaced before it wrote: what it took for the log's state may be void.
                log.warning("the snapshot is of a former owner; the decision log is read from its beginning", partition=partition)
                whole = True
            else:
                fold(((offset, value) for offset, value in records if offset >= base.log_offset), owned.state.log)
        if whole:
            owned.log_offset = 0
            owned.state.log = fold(await asyncio.to_thread(self._decisions, partition, 0, epoch))
        owned.state.log.epoch = epoch
        owned.state.inherited = {pool: list(live.values()) for pool, live in owned.state.log.live.items()}
        log.info("partition taken over", partition=partition, epoch=epoch, next_offset=owned.state.next_offset,
                 pools=len(owned.state.pools), open=sum(map(len, owned.state.log.live.values())))  # fmt: skip
        return owned

    def _decisions(self, partition: int, start: int, end: int) -> list[tuple[int, bytes | None]]:
        return [(m.offset(), m.value()) for m in read_partition(self._config, DECISIONS.name, partition, start, end)]

    def _restore(self, partition: int, epoch: int, found: tuple[snapshots.Snapshot, int] | None) -> Owned:
        state = self._empty(partition, epoch)
        if found is None:
            return Owned(state, None, 0, 0)
        base, slot = found
        if base.epoch >= epoch and base.generation == self._generation:
            log.error("the decision log is shorter than it was: hosts ignore this judge until SLODRIFT_GENERATION is raised",
                      partition=partition, epoch=epoch, former_epoch=base.epoch)  # fmt: skip
        try:
            for pool, why in state.restore(base).items():
                log.warning("a pool cannot be restored; its baselines are learnt anew", pool=pool, cause=why)
        except SchemaError as exc:
            log.warning("the snapshot cannot be restored; baselines are learnt anew", partition=partition, cause=str(exc))
            state = self._empty(partition, epoch)
            return Owned(state, None, 0, 1 - slot)
        if base.generation == self._generation:
            state.log.epoch = base.epoch
            for decision in base.live:
                state.log.apply(decision)
            state.log.version.update(base.version)
        else:
            base.log_offset = 0  # the log began anew
        return Owned(state, base, base.log_offset, 1 - slot)

    def _empty(self, partition: int, epoch: int) -> JudgePartition:
        return JudgePartition(FRAMES.name, partition, self._factory, epoch=epoch, generation=self._generation, auth=self._auth)

    def _newest_snapshot(self, partition: int) -> tuple[snapshots.Snapshot, int] | None:
        found = snapshots.choose(partition, self._tail(partition))
        if found is None:
            return None
        try:
            base = snapshots.decode(found[0])
        except SchemaError as exc:
            log.warning("the snapshot cannot be read; baselines are learnt anew", partition=partition, cause=str(exc))
            return None
        end = log_end(self._config, FRAMES.name, partition)
        if base.next_offset > end:
            log.warning("the frames end before the snapshot: the topic was made anew, so the snapshot is not of this log",
                        partition=partition, next_offset=base.next_offset, end=end)  # fmt: skip
            return None
        return base, found[1]

    def _tail(self, partition: int) -> list[Message]:
        """The last records of the snapshot topic that hold a complete snapshot, or all of them."""
        end, n = log_end(self._config, SNAPSHOTS.name, partition), _FIRST_TAIL
        while True:
            records = list(read_partition(self._config, SNAPSHOTS.name, partition, max(0, end - n), end))
            if n >= end or snapshots.choose(partition, records) is not None:
                return records
            n *= 8


def log_end(config: dict[str, object], topic: str, partition: int, *, timeout_s: float = 10.0) -> int:
    """Offset behind the last record. Blocks: call it in a thread.

    Raises:
        SourceError: The broker does not answer.
    """
    consumer = Consumer({**config, "group.id": "slodrift-reader", "enable.auto.commit": False})
    try:
        end: int = consumer.get_watermark_offsets(TopicPartition(topic, partition), timeout=timeout_s)[1]
    except KafkaException as exc:
        raise SourceError(f"{topic}[{partition}]: {exc.args[0].str()}") from None
    finally:
        consumer.close()
    return end

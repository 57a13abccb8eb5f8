"""The archive: results from their topics into ClickHouse, once each, however long ClickHouse is away.

A group of its own, so that the judge never notices. A batch is cut when it is full or a second old; before it is inserted,
its last offset is committed as a note beside the unchanged offset. After a crash the first batch is cut at that very offset,
so it has the same rows and the same token, and ClickHouse stores it once. Offsets are committed after the insert. While
ClickHouse is away the insert is tried again in place for ever, and no more is fetched than the transport's byte budget.

A dead letter that cannot be read is dropped with an error in the log: dead-lettering it would go round in circles.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import re
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from typing import Any

import msgspec
import structlog
from confluent_kafka import Consumer, KafkaException, TopicPartition
from faust.types import TP

from schemas.deadletter import DeadLetter
from schemas.errors import SchemaError, SinkBackpressure, SourceError
from schemas.topics import DEADLETTER, DECISIONS, WINDOWS
from sinks.base import Batch, BatchingSink, Writer
from streams.kafka import client_config
from streams.settings import Settings
from streams.worker import metrics
from streams.worker.app import WorkerApp
from streams.worker.archive_rows import ARCHIVED, ArchiveRows
from streams.worker.continuity import Continuity
from streams.worker.decision_log import LogReader, read_partition
from streams.worker.fetch import FetchBatch

__all__ = ["ArchiveAgent"]

log = structlog.get_logger(__name__)

_MAX_ROWS = 10_000
_MAX_PAUSE_S = 30.0
_RELEASE_S = 3.0
_INSERT_S = 0.1
_EARLIER = 256  # blocks of windows: a tick of that many pools
_NOTE = re.compile(r"until (\d+)")
_json = msgspec.json.Encoder(enc_hook=str)


@dataclass(slots=True)
class _Tenure:
    """One partition while it is ours.

    Attributes:
        next_offset: First offset that is not in `sink`; None before the first record.
        stored_to: First offset that is not stored.
        end_first_at: Last offset of the batch that the former owner was inserting: the first batch ends there.
        since_s: When the oldest row that is not stored was added.
    """

    tp: TP
    ready: asyncio.Task[ArchiveRows]
    sink: BatchingSink
    continuity: Continuity
    next_offset: int | None = None
    stored_to: int | None = None
    end_first_at: int | None = None
    since_s: float | None = None


class ArchiveAgent:
    """Attach it to an app before the app starts.

    Args:
        app: The Faust app of the archive's group.
        settings: Where Kafka is.
        writer: ClickHouse.
        dead_letter: Appends a dead letter; a commit waits until all of them are durable (`settled`).
        settled: Waits for that.
        on_fatal: Called with the reason when going on would lose rows; ends the process.
        flush_s: Age of a batch at which it is stored although it is not full, seconds; longer with many partitions.
    """

    def __init__(
        self,
        app: WorkerApp,
        settings: Settings,
        writer: Writer,
        *,
        dead_letter: Callable[[DeadLetter], Awaitable[None]],
        settled: Callable[[], Awaitable[None]],
        on_fatal: Callable[[str], None],
        flush_s: float = 1.0,
    ) -> None:
        self._app = app
        self._config = {**client_config(settings), "group.id": settings.archive_group, "enable.auto.commit": False}
        self._writer = writer
        self._dead_letter = dead_letter
        self._settled = settled
        self._on_fatal = on_fatal
        self._flush_s = flush_s
        self._quiet_s = settings.archive_quiet_s
        self._turn = asyncio.Lock()
        self._owned: dict[TP, _Tenure] = {}
        self._random = random.Random()  # noqa: S311  # jitter
        self._away = False
        self.assigned = asyncio.Event()
        """Set at the first assignment, even an empty one."""

    def attach(self) -> None:
        """Register the agent and the rebalance handlers."""
        self._app.agent(self._app.batches(*ARCHIVED), name="archive")(self._consume)
        self._app.on_partitions_assigned.connect(self._on_assigned, weak=False)
        self._app.on_partitions_revoked.connect(self._on_revoked, weak=False)

    # -- ownership -------------------------------------------------------------------------------------------------------------

    @property
    def done(self) -> dict[TP, int]:
        """Next offset of each partition that is ours."""
        return {tp: tenure.next_offset or 0 for tp, tenure in self._owned.items()}

    @property
    def waiting(self) -> set[TP]:
        """Partitions that stand still because ClickHouse is away: all, since one insert after the other is made."""
        return set(self._owned) if self._away else set()

    async def restored(self) -> None:
        """Wait until it is known where to go on in all partitions that are ours."""
        while pending := [t.ready for t in self._owned.values() if not t.ready.done()]:
            await asyncio.wait(pending)  # a rebalance may cancel some and bring others

    async def _on_assigned(self, app: Any, assigned: set[TP], **_: Any) -> None:
        for tp in {tp for tp in assigned if tp.topic in ARCHIVED} - self._owned.keys():
            task = asyncio.create_task(self._take(tp), name=f"take-{tp.topic}-{tp.partition}")
            sink = BatchingSink(self._writer, self._refused, max_rows=_MAX_ROWS)
            self._owned[tp] = _Tenure(tp, task, sink, Continuity(self._app.consumer.read_again_from))
        self.assigned.set()

    async def _on_revoked(self, app: Any, revoked: set[TP], **_: Any) -> None:
        await self.release(revoked)

    async def release(self, partitions: Iterable[TP] | None = None) -> None:
        """Give partitions up (all if None); what is not stored yet is stored if ClickHouse takes it at once."""
        leaving = [self._owned[tp] for tp in (list(self._owned) if partitions is None else partitions) if tp in self._owned]
        try:
            async with asyncio.timeout(_RELEASE_S), self._turn:
                for tenure in leaving:
                    await self._store(tenure)
        except TimeoutError:
            log.info("rows that are not stored yet are left to the next owner")
        except Exception as exc:  # they are not committed either; the partitions must go all the same
            log.error("rows could not be stored and are left to the next owner", exc_info=exc)
        for tenure in leaving:
            self._owned.pop(tenure.tp, None)
            tenure.ready.cancel()

    async def _take(self, tp: TP) -> ArchiveRows:
        """Find out where the former owner stopped, and, in the decision log, which epochs there were by then."""
        pause_s = 0.2
        while True:
            try:
                committed, note, epoch = await asyncio.to_thread(self._where, tp)
                earlier = await asyncio.to_thread(self._before, tp, committed)
            except (SourceError, KafkaException) as exc:
                log.warning("cannot take the partition over yet, trying again", topic=tp.topic, partition=tp.partition,
                            cause=str(exc))  # fmt: skip
                await asyncio.sleep(pause_s)
                pause_s = min(2 * pause_s, 5.0)
                continue
            tenure = self._owned[tp]
            tenure.next_offset = tenure.stored_to = committed
            tenure.end_first_at = note if note is not None and note >= (committed or 0) else None
            rows = ArchiveRows(tp.topic, tp.partition, LogReader(epoch), quiet_s=self._quiet_s)
            for value in earlier:
                rows.remember(value)
            return rows

    def _where(self, tp: TP) -> tuple[int | None, int | None, int]:
        consumer = Consumer(self._config)
        try:
            (answer,) = consumer.committed([TopicPartition(tp.topic, tp.partition)], timeout=10.0)
        finally:
            consumer.close()
        committed = answer.offset if answer.offset >= 0 else None
        match = _NOTE.fullmatch(answer.metadata or "")
        reader = LogReader()
        if tp.topic == DECISIONS.name and committed:
            for record in read_partition(self._config, tp.topic, tp.partition, 0, committed):
                with contextlib.suppress(SchemaError):
                    reader.read(record.offset(), record.value())
        return committed, int(match[1]) if match else None, reader.epoch

    def _before(self, tp: TP, committed: int | None) -> list[bytes]:
        """The windows before ours: which rows of a tick are kept depends on the tick before, and a batch must not change."""
        if tp.topic != WINDOWS.name or not committed or not self._quiet_s:
            return []
        records = read_partition(self._config, tp.topic, tp.partition, max(0, committed - _EARLIER), committed)
        return [record.value() or b"" for record in records]

    # -- records ---------------------------------------------------------------------------------------------------------------

    async def _consume(self, stream: Any) -> None:
        async for event in stream.events():
            await self.handle(event.value)

    async def handle(self, batch: FetchBatch) -> None:
        """Take the rows of one batch; what is not ours or was taken before is passed over."""
        tenure = self._owned.get(batch.tp)
        try:
            if tenure is not None:
                await asyncio.shield(tenure.ready)
                async with self._turn:
                    await self._add(tenure, batch)
        except asyncio.CancelledError:
            if tenure is not None and tenure.ready.cancelled():
                return  # the partition went away before it was known where to go on
            raise
        except Exception as exc:  # Faust would acknowledge the batch and go on without it
            log.error("rows cannot be stored", topic=batch.tp.topic, partition=batch.tp.partition, exc_info=exc)
            self._owned.pop(batch.tp, None)  # nothing behind what failed may become durable
            self._on_fatal(f"{batch.tp.topic}[{batch.tp.partition}]: rows cannot be stored: {type(exc).__name__}: {exc}")
        finally:
            batch.done()

    async def _add(self, tenure: _Tenure, batch: FetchBatch) -> None:
        rows = tenure.ready.result()
        for record in tenure.continuity.due(batch, tenure.next_offset):
            try:
                found = rows.rows(record)
            except SchemaError as exc:
                found = []
                if tenure.tp.topic == DEADLETTER.name:  # a dead letter about a dead letter would go round for ever
                    log.error("a dead letter cannot be read", offset=record.offset, partition=tenure.tp.partition, cause=str(exc))
                else:
                    await self._dead_letter(rows.letter(record, exc))
            for table, columns in found:
                tenure.sink.add(table, tenure.tp.topic, tenure.tp.partition, columns)
            if tenure.since_s is None:
                tenure.since_s = asyncio.get_running_loop().time()
            if tenure.stored_to is None:
                tenure.stored_to = record.offset
            tenure.next_offset = record.offset + 1
            if record.offset == tenure.end_first_at or tenure.sink.pending >= _MAX_ROWS:
                await self._store(tenure)
                if self._owned.get(tenure.tp) is not tenure:
                    return

    async def every_second(self) -> None:
        """Store what is old enough. A batch per partition is an insert of its own, so with many partitions they get older."""
        async with self._turn:
            now_s = asyncio.get_running_loop().time()
            age_s = max(self._flush_s, _INSERT_S * len(self._owned))
            for tenure in list(self._owned.values()):
                if tenure.since_s is not None and now_s - tenure.since_s >= age_s and self._first_is_whole(tenure):
                    await self._store(tenure)

    @staticmethod
    def _first_is_whole(tenure: _Tenure) -> bool:
        return tenure.end_first_at is None or (tenure.next_offset or 0) > tenure.end_first_at

    async def _store(self, tenure: _Tenure) -> None:
        """Insert what was added, trying for ever while the partition is ours; then let its offsets be committed."""
        upto = tenure.next_offset
        if upto is None or tenure.since_s is None or not tenure.ready.done():
            return
        if tenure.sink.pending:
            await self._announce(tenure, upto - 1)
        pause_s = 0.2
        while True:
            try:
                metrics.ROWS_ARCHIVED.labels(tenure.tp.topic).inc(await tenure.sink.flush())
            except SinkBackpressure as exc:
                metrics.SINK_RETRIES.labels("clickhouse").inc()
                if not self._away:
                    log.warning("ClickHouse does not take rows; they wait in Kafka until it does", cause=str(exc))
                self._away = True
                pause_s = min(_MAX_PAUSE_S, self._random.uniform(0.2, 3 * pause_s))  # decorrelated jitter
                await asyncio.sleep(max(pause_s, exc.retry_after_s))
                if self._owned.get(tenure.tp) is not tenure:
                    return
            else:
                break
        if self._away:
            self._away = False
            log.info("ClickHouse takes rows again")
        await self._settled()
        tenure.since_s, tenure.end_first_at, tenure.stored_to = None, None, upto
        if self._owned.get(tenure.tp) is tenure:
            self._app.ledger.durable(tenure.tp, upto)

    async def _announce(self, tenure: _Tenure, last: int) -> None:
        """Commit where this batch ends, so that whoever comes after a crash cuts the same batch.

        If that fails, the rows are inserted all the same: at worst some are written twice, and read once (row identity).
        """
        ledger = self._app.ledger
        ledger.durable(tenure.tp, tenure.stored_to or 0, note=f"until {last}")
        for _ in range(2):  # a commit that is under way already knows nothing of the note
            await self._app.consumer.commit()
            if ledger.is_committed(tenure.tp):
                return

    async def _refused(self, batch: Batch, why: str) -> None:
        """A row that ClickHouse refuses: dead-letter it, as JSON, with the origin of its record."""
        raw = _json.encode({name: values[0] for name, values in batch.columns.items()})
        await self._dead_letter(
            DeadLetter(raw=raw, stage="archive", reason="refused_row", detail=why, topic=batch.topic, partition=batch.partition,
                       offset=batch.first)
        )  # fmt: skip

"""The framer: JSON events of the telemetry topics in, frames and dead letters out, at least once.

librdkafka reads, because a consumer in Python costs far more per message. Offsets are committed when every frame and dead
letter made from the messages below them is acknowledged by all replicas; reading does not wait for that. After a crash the
messages since the last commit are read again and give frames with the same origin and offsets, which the judge drops.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from functools import lru_cache

import structlog
from confluent_kafka import Consumer, KafkaError, KafkaException, Message, Producer, TopicPartition

from schemas.deadletter import DeadLetter, to_message
from schemas.errors import SourceError
from schemas.policy_file import Policy, load_policy
from schemas.telemetry_auth import FRAMER
from schemas.topics import DEADLETTER, FRAMES, TELEMETRY
from streams.framer_align import Aligner
from streams.framer_cells import in_cells
from streams.framer_cut import cut_frames
from streams.framer_metrics import FramerMetrics
from streams.framer_offsets import OffsetLog, Source
from streams.framer_progress import Progress
from streams.framer_time import time_slices
from streams.framing import EventFramer, Framed, Reject
from streams.framing_rejects import MAX_EVENT_BYTES
from streams.kafka import BrokerWatch, Partitions, make_consumer, make_producer, wait_for_kafka
from streams.settings import Settings

__all__ = ["Framer"]

log = structlog.get_logger(__name__)

SOURCES = tuple(topic.name for topic in TELEMETRY)
_MAX_MESSAGES = 20_000
_BEHIND = 2000  # messages in the log that were not read yet; fewer are what came in a moment ago...
_OLD_MS = 2000  # ... unless what was last read is older than this: a source with a message a second has minutes to give
_LEAVE_S = 8.0  # output or a commit on its way may take so long when a partition or the process goes


class _Stopped(Exception):
    """`stop` was set while there was no room for more output."""


class Framer:
    """One member of the framers' consumer group.

    Args:
        settings: Where Kafka is; the group is `settings.framer_group`.
        sources: Topics with one JSON event a message.
        frames, deadletter: Topics written.
        batch_s: Messages are gathered for so long before frames are made of them, seconds.
        commit_s: Between two commits, seconds.
        metrics: Counters.
        policy: Says which pools are split into cells; None splits none.
    """

    _consumer: Consumer
    _producer: Producer
    _partitions: Partitions

    def __init__(
        self,
        settings: Settings,
        *,
        sources: Sequence[str] = SOURCES,
        frames: str = FRAMES.name,
        deadletter: str = DEADLETTER.name,
        batch_s: float = 0.05,
        commit_s: float = 1.0,
        metrics: FramerMetrics | None = None,
        policy: Policy | None = None,
    ) -> None:
        self._settings = settings
        self._sources, self._frames, self._deadletter = list(sources), frames, deadletter
        self._batch_s, self._commit_s = batch_s, commit_s
        self._metrics = metrics or FramerMetrics()
        self._watch = BrokerWatch(settings)
        self._n_cells = lru_cache(10_000)((policy or load_policy(None)).cells_of)
        self._decoder = EventFramer()
        self._offsets = OffsetLog()
        self._aligner: Aligner[Message] = Aligner()
        self._read: dict[Source, int] = {}
        self._held_back: set[Source] = set()
        self._auth = settings.authenticator()
        self._seal = None if self._auth is None else self._auth.writer(FRAMER).seal_frame
        self._owned: set[Source] = set()
        self._carried: list[Message] = []
        self._faults: dict[str, str] = {}
        self._stop = threading.Event()
        self._left = False

    def run(self, stop: threading.Event) -> None:
        """Work until `stop` is set, then finish what was read, commit it and leave the group.

        Raises:
            SourceError: Some output can never be stored, or the consumer is stuck. What was not stored is not committed.
        """
        self._stop = stop
        topics = [*self._sources, self._frames, self._deadletter]
        try:
            metadata = wait_for_kafka(self._settings, topics=topics, deadline_s=None, stop=stop)
        except SourceError:
            return  # stopped before there was anything to do
        self._partitions = Partitions(metadata, topics)
        self._producer = make_producer(self._settings, self._watch)
        self._consumer = make_consumer(
            self._settings,
            self._settings.framer_group,
            self._watch,
            on_commit=self._on_commit,
            partition_assignment_strategy="roundrobin",  # the topics are not equally busy
        )
        self._consumer.subscribe(self._sources, on_assign=self._on_assign, on_revoke=self._on_revoke, on_lost=self._on_lost)
        try:
            self._work()
            self._leave()
        finally:
            self._consumer.close()

    def _work(self) -> None:
        next_commit = time.monotonic() + self._commit_s
        progress = Progress(max(10.0, 2 * self._settings.kafka_session_timeout_s))
        while not self._stop.is_set():
            wait_s = 0.0 if self._aligner.holding else self._batch_s
            messages = self._carried + self._consumer.consume(_MAX_MESSAGES, timeout=wait_s)
            self._carried = []
            try:
                self._handle(messages)
            except _Stopped:
                return
            self._producer.poll(0)
            self._watch.look(self._consumer)
            if failure := self._offsets.failure():
                raise SourceError(f"Kafka refuses a message for good ({failure}); its source offsets are not committed")
            if time.monotonic() >= next_commit:
                next_commit = time.monotonic() + self._commit_s
                self._commit()
            if stuck := progress.look(self._consumer, self._owned, self._next_offset, heard=bool(messages)):
                raise SourceError(f"the consumer is stuck: {stuck}")

    def _next_offset(self, source: Source) -> int | None:
        return self._read.get(source, self._offsets.position(source))

    def _handle(self, messages: list[Message]) -> None:
        by_source: dict[Source, list[Message]] = {}
        last, group = None, []
        for message in messages:
            if message.error() is not None:
                self._say(f"reading {message.topic()}", message.error().str())
                continue
            source = (message.topic(), message.partition())
            if source != last:
                last, group = source, by_source.setdefault(source, [])
            group.append(message)
        for source, group in by_source.items():
            self._read[source] = group[-1].offset() + 1
        ready = self._aligner.take(by_source, self._behind, time.monotonic(), time.time_ns() // 1_000_000)
        self._hold_back()
        for source, group in ready.items():
            if source in self._owned:
                self._frame(source, group)

    def _behind(self, source: Source) -> bool:
        try:
            low, end = self._consumer.get_watermark_offsets(TopicPartition(*source), cached=True)
        except KafkaException:
            return True
        unread = end - max(low, self._read.get(source, self._offsets.position(source) or 0))
        old = time.time_ns() // 1_000_000 - self._aligner.front_ms(source) > _OLD_MS
        return bool(end < 0 or unread > (0 if old else _BEHIND))

    def _hold_back(self) -> None:
        """Read nothing more from sources that wait for others."""
        now = self._aligner.holding & self._owned
        for change, sources in ((self._consumer.pause, now - self._held_back), (self._consumer.resume, self._held_back - now)):
            if sources := sources & self._owned:
                change([TopicPartition(*source) for source in sources])
        self._held_back = now

    def _frame(self, source: Source, messages: list[Message]) -> None:
        end = messages[-1].offset() + 1
        if self._auth is not None:
            messages = [message for message in messages if self._authentic(source, message)]
        raw = [message.value() or b"" for message in messages]
        offsets = [message.offset() for message in messages]
        metrics = self._metrics
        metrics.events.labels(source[0]).inc(len(raw))
        for framed, frames in self._decode(source, raw, offsets):
            metrics.duplicates.inc(len(framed.duplicates))
            for reject in framed.rejects:
                metrics.rejected.labels(reject.reason).inc()
                message = messages[offsets.index(reject.offset)]
                self._send_dead_letter(source, reject, message.timestamp()[1])
            for pool, frame in frames:
                metrics.frames.inc()
                metrics.frame_bytes.inc(len(frame))
                if self._seal is not None:
                    frame = self._seal(frame)
                self._send(self._frames, frame, pool.encode(), self._partitions.of(self._frames, pool), None)
        self._offsets.current.positions[source] = end

    def _authentic(self, source: Source, message: Message) -> bool:
        """Whether its writer wrote it; else it is a dead letter."""
        raw = message.value() or b""
        fault = None if self._auth is None or len(raw) > MAX_EVENT_BYTES else self._auth.event_fault(raw)
        if fault is not None:
            self._metrics.events.labels(source[0]).inc()
            self._metrics.rejected.labels(fault[0]).inc()
            self._send_dead_letter(source, Reject(raw, *fault, message.offset()), message.timestamp()[1])
        return fault is None

    def _decode(self, source: Source, raw: list[bytes], offsets: list[int]) -> list[tuple[Framed, list[tuple[str, bytes]]]]:
        try:
            return [self._make(source, raw, offsets)]
        except Exception:
            # The one place where a bug must not stop the fleet's telemetry: the event that raises becomes a dead letter.
            log.exception("no frames can be made of a batch, trying its events one by one", events=len(raw))
            self._metrics.crashes.inc()
        self._decoder = EventFramer()  # the old one remembers identifiers of requests that gave no frame
        made: list[tuple[Framed, list[tuple[str, bytes]]]] = []
        for line, offset in zip(raw, offsets, strict=True):
            try:
                made.append(self._make(source, [line], [offset]))
            except Exception as exc:
                made.append((Framed(rejects=[Reject(line, "internal_error", repr(exc), offset)]), []))
        return made

    def _make(self, source: Source, raw: list[bytes], offsets: list[int]) -> tuple[Framed, list[tuple[str, bytes]]]:
        """What the events hold, and the frames of it: made before any of them is sent."""
        framed = self._decoder.feed(raw, offsets)
        framed.pools = in_cells(framed.pools, self._n_cells)
        return framed, [made for part in time_slices(framed) for made in cut_frames(part, *source)]

    def _send_dead_letter(self, source: Source, reject: Reject, timestamp_ms: int) -> None:
        letter = DeadLetter(
            raw=reject.raw, stage="framer", reason=reject.reason, detail=reject.detail, topic=source[0], partition=source[1],
            offset=reject.offset, timestamp_ms=timestamp_ms,
        )  # fmt: skip
        key, value, headers = to_message(letter)
        self._send(self._deadletter, value, key, -1, headers)

    def _send(self, topic: str, value: bytes, key: bytes, partition: int, headers: list[tuple[str, bytes]] | None) -> None:
        epoch = self._offsets.current
        while True:
            try:
                self._producer.produce(topic, value, key, partition, on_delivery=epoch.report, headers=headers)
            except BufferError:
                self._wait_for_room()
            except KafkaException as exc:
                raise SourceError(f"cannot write to {topic}: {exc.args[0].str()}; the source offsets are not committed") from None
            else:
                epoch.sent += 1
                return

    def _wait_for_room(self) -> None:
        """The brokers are away or slow: read nothing, stay in the group, go on when some output was acknowledged."""
        self._consumer.pause(self._consumer.assignment())
        waiting = len(self._producer)
        while len(self._producer) >= waiting:
            if self._stop.is_set():
                raise _Stopped
            self._producer.poll(0.1)
            message = self._consumer.poll(0)
            if message is not None:  # of a partition that came to us just now
                self._carried.append(message)
            self._watch.look(self._consumer)
            self._metrics.away.set(self._watch.away)
        self._held_back = set()  # `_hold_back` pauses again what must wait
        self._consumer.resume(self._consumer.assignment())

    def _commit(self) -> None:
        self._offsets.close_epoch()
        self._metrics.away.set(self._watch.away)
        offsets = [TopicPartition(*source, offset) for source, offset in self._offsets.to_commit(self._owned).items()]
        if offsets:
            try:
                self._consumer.commit(offsets=offsets, asynchronous=True)
            except KafkaException as exc:
                self._on_commit(exc.args[0], offsets)
        self._metrics.lag_events.set(sum(self._lag(source) for source in self._owned))

    def _lag(self, source: Source) -> int:
        position = self._offsets.position(source)
        try:
            _, end = self._consumer.get_watermark_offsets(TopicPartition(*source), cached=True)
        except KafkaException:
            return 0
        return max(0, end - position) if position is not None and end >= 0 else 0

    def _on_commit(self, error: KafkaError | None, partitions: list[TopicPartition]) -> None:
        for partition in partitions:
            fault = error or partition.error
            if fault is None:
                self._offsets.committed((partition.topic, partition.partition), partition.offset)
        fault = error or next((p.error for p in partitions if p.error is not None), None)
        self._metrics.commits.labels("failed" if fault else "stored").inc()
        if not self._watch.away:  # else it is known
            self._say("committing offsets, trying again", fault.str() if fault else "")

    def _flush(self) -> None:
        left = self._producer.flush(_LEAVE_S)
        if left:
            log.warning("output not acknowledged in time: what it was made from will be read again", messages=left)

    def _leave(self) -> None:
        """Finish: output acknowledged, offsets committed. Not longer than the brokers are worth waiting for."""
        self._flush()
        self._left = True
        if self._owned:
            self._consumer.pause(self._consumer.assignment())
        self._commit()
        end = time.monotonic() + _LEAVE_S
        while self._offsets.to_commit(self._owned) and time.monotonic() < end:
            self._consumer.poll(0.05)  # for the answer to the commit; a message that slips through is read again
        if self._offsets.to_commit(self._owned):
            log.warning("offsets not committed: the messages since the last commit will be read again")
        log.info("framer stopped")

    def _on_assign(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        new = {(p.topic, p.partition) for p in partitions}
        self._owned |= new
        try:  # where reading begins: a source that was read to its end before must not be waited for
            begins = {(p.topic, p.partition): p.offset for p in consumer.committed(partitions, timeout=2.0) if p.offset >= 0}
        except KafkaException:
            begins = {}
        self._read.update(begins)
        self._aligner.assigned(new, time.monotonic())
        self._metrics.partitions.set(len(self._owned))
        log.info("partitions assigned", new=len(partitions), owned=len(self._owned))

    def _on_revoke(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        """Another framer takes these over: it should find everything committed that gave frames."""
        if not self._left:
            self._flush()
            self._offsets.close_epoch()
            safe = self._offsets.to_commit([(p.topic, p.partition) for p in partitions])
            if safe:
                try:
                    consumer.commit(offsets=[TopicPartition(*s, offset) for s, offset in safe.items()], asynchronous=False)
                except KafkaException as exc:
                    log.warning("offsets not committed: the next owner reads some messages again", detail=exc.args[0].str())
        self._forget(partitions)

    def _on_lost(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        log.warning("partitions lost, no heartbeat came through: they are read on from the last commit", lost=len(partitions))
        self._forget(partitions)

    def _forget(self, partitions: list[TopicPartition]) -> None:
        gone = {(p.topic, p.partition) for p in partitions}
        self._owned -= gone
        self._offsets.forget(gone)
        self._aligner.forget(gone)
        self._held_back -= gone
        for source in gone:
            self._read.pop(source, None)
        self._metrics.partitions.set(len(self._owned))

    def _say(self, what: str, fault: str) -> None:
        """One log line when `fault` is new, one when it is over."""
        if fault == self._faults.get(what, ""):
            return
        if fault:
            log.warning(what, fault=fault)
        else:
            log.info("fine again: " + what)
        self._faults[what] = fault

"""The framer against a broker: the mock cluster and a real Kafka."""

import json
import signal
import subprocess
import sys
import threading
import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest
import stamina
import structlog
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic
from local_kafka import Broker
from prometheus_client import CollectorRegistry
from pydantic import SecretStr

from schemas.deadletter import DeadLetter, from_message
from schemas.frame import EventFrame, decode_frame
from schemas.telemetry_auth import Authenticator
from schemas.topics import partition_of
from streams.embedded import EmbeddedStack
from streams.framer import Framer
from streams.framer_align import Aligner
from streams.framer_metrics import FramerMetrics
from streams.framing import EventFramer, Framed
from streams.settings import Settings

T0_S = 1_767_225_600.0
PARTITIONS = 3
COMMIT_S = 0.2
PRODUCE = 0  # key of the request in the protocol
Wait = Callable[..., Any]


@dataclass
class Site:
    """A broker with source and output topics of one test's own."""

    settings: Settings
    down: Callable[[], None]
    up: Callable[[], None]
    name: str = field(default_factory=lambda: uuid.uuid4().hex[:12])

    @property
    def sources(self) -> list[str]:
        return [f"{self.name}.requests", f"{self.name}.nodes"]

    @property
    def frames(self) -> str:
        return f"{self.name}.frames"

    @property
    def dead(self) -> str:
        return f"{self.name}.dead"

    def client(self) -> dict[str, Any]:
        return {"bootstrap.servers": self.settings.kafka_bootstrap, "log_level": 0}

    def send(self, topic: str, events: list[bytes]) -> None:
        producer = Producer({**self.client(), "linger.ms": 5, "acks": "all"})
        for event in events:
            key = event[:60]
            producer.produce(topic, event, partition=partition_of(key.decode("latin-1"), PARTITIONS))
        assert producer.flush(20) == 0

    @stamina.retry(on=KafkaException, timeout=20.0, wait_max=0.5)  # a new topic has no leader yet
    def ends(self, topics: list[str]) -> dict[tuple[str, int], int]:
        consumer = Consumer({**self.client(), "group.id": "looker"})
        parts = [TopicPartition(t, p) for t in topics for p in range(PARTITIONS)]
        ends = {(p.topic, p.partition): consumer.get_watermark_offsets(p, timeout=10)[1] for p in parts}
        consumer.close()
        return ends

    def committed(self) -> dict[tuple[str, int], int]:
        consumer = Consumer({**self.client(), "group.id": self.settings.framer_group})
        parts = [TopicPartition(t, p) for t in self.sources for p in range(PARTITIONS)]
        found = {(p.topic, p.partition): max(0, p.offset) for p in consumer.committed(parts, timeout=10)}
        consumer.close()
        return found

    def read(self, topic: str) -> list[Any]:
        ends = self.ends([topic])
        consumer = Consumer({**self.client(), "group.id": "reader", "fetch.wait.max.ms": 5})
        consumer.assign([TopicPartition(topic, p, 0) for _, p in ends])
        messages: list[Any] = []
        while left := sum(ends.values()) - len(messages):
            batch = consumer.consume(min(left, 1000), timeout=10)
            assert batch, "messages are missing"
            messages += batch
        consumer.close()
        return messages

    def all_committed(self) -> bool:
        try:
            return self.committed() == self.ends(self.sources)
        except KafkaException:  # a broker that has just come back
            return False

    def framer(self, metrics: FramerMetrics | None = None) -> Framer:
        return Framer(
            self.settings, sources=self.sources, frames=self.frames, deadletter=self.dead, commit_s=COMMIT_S,
            metrics=metrics or FramerMetrics(CollectorRegistry()),
        )  # fmt: skip

    @contextmanager
    def running(self, metrics: FramerMetrics | None = None) -> Iterator[None]:
        """A framer in a thread, ended as by SIGTERM."""
        stop = threading.Event()
        failure: list[BaseException] = []

        def work() -> None:
            try:
                self.framer(metrics).run(stop)
            except BaseException as exc:
                failure.append(exc)

        thread = threading.Thread(target=work)
        thread.start()
        try:
            yield
        finally:
            stop.set()
            thread.join(30)
            for exc in failure:
                raise exc
        assert not thread.is_alive()

    def process(self) -> "subprocess.Popen[bytes]":
        program = (
            "import threading; from streams.framer import Framer; from streams.settings import load_settings\n"
            f"Framer(load_settings(), sources={self.sources!r}, frames={self.frames!r}, deadletter={self.dead!r}, commit_s=0.5)"
            ".run(threading.Event())"
        )
        environ = {
            "SLODRIFT_KAFKA_BOOTSTRAP": self.settings.kafka_bootstrap,
            "SLODRIFT_FRAMER_GROUP": self.settings.framer_group,
            "SLODRIFT_KAFKA_SESSION_TIMEOUT_S": str(self.settings.kafka_session_timeout_s),
            "SLODRIFT_KAFKA_FETCH_WAIT_S": str(self.settings.kafka_fetch_wait_s),
        }
        return subprocess.Popen([sys.executable, "-c", program], env=environ)


@pytest.fixture(params=[pytest.param("mock", marks=pytest.mark.embedded), pytest.param("kafka", marks=pytest.mark.kafka)])
def site(request: pytest.FixtureRequest) -> Iterator[Site]:
    group = f"framer-{uuid.uuid4().hex[:8]}"
    if request.param == "mock":
        stack: EmbeddedStack = request.getfixturevalue("embedded_stack")
        settings = stack.settings.model_copy(update={"framer_group": group})
        site = Site(settings, stack.broker_down, stack.broker_up)
        for topic in (*site.sources, site.frames, site.dead):
            stack.create_topic(topic, PARTITIONS)
        yield site
        stack.broker_up()  # whatever the test did
        return
    bootstrap: str = request.getfixturevalue("kafka_bootstrap")

    def broker() -> Broker:
        broker: Broker = request.getfixturevalue("kafka_broker")
        return broker

    settings = Settings(kafka_bootstrap=bootstrap, framer_group=group, kafka_session_timeout_s=6)
    site = Site(settings, lambda: broker().kill(), lambda: broker().start())
    admin = AdminClient(site.client())
    topics = [NewTopic(topic, PARTITIONS, 1) for topic in (*site.sources, site.frames, site.dead)]
    for future in admin.create_topics(topics).values():
        future.result(20)
    yield site


def request_event(i: int, **more: object) -> bytes:
    event = {
        "kind": "request",
        "node": f"n{i % 7}",
        "pool": f"pool-{i % 5}",
        "ts": T0_S + i * 0.01,
        "outcome": "ok",
        "ttft_s": 0.1,
    }
    return json.dumps(event | {"request_id": f"r-{i}", "prompt_tokens": i} | more).encode()


def node_event(i: int, **more: object) -> bytes:
    event = {"kind": "node", "node": f"n{i % 7}", "pool": f"pool-{i % 5}", "ts": T0_S + i, "running": i}
    return json.dumps(event | more).encode()


RUBBISH = [b"", b"\xff\xfe", b"{", b'{"kind":"cheese"}', request_event(0, ttft_s=-1.0), b"[1]", b"x" * 70_000]


def requests_seen(site: Site) -> Counter[int]:
    """Prompt tokens (the number of the event) of every row, with what was framed twice dropped as the judge drops it."""
    marks: dict[tuple[str | None, str], int] = {}
    seen: Counter[int] = Counter()
    for message in site.read(site.frames):
        frame = decode_frame(message.value())
        assert message.partition() == partition_of(frame.header.pool, PARTITIONS)
        if isinstance(frame, EventFrame):
            continue
        key = (frame.header.origin, frame.header.node + "@" + frame.header.pool)
        assert frame.origin_offset is not None
        fresh = frame.origin_offset > marks.get(key, -1)
        seen.update(frame.batch.prompt_tokens[fresh].tolist())
        marks[key] = max(marks.get(key, -1), int(frame.origin_offset[-1]))
    return seen


def letters(site: Site) -> list[DeadLetter]:
    return [from_message(m.value(), m.headers()) for m in site.read(site.dead)]


def test_events_become_frames_and_rubbish_dead_letters(site: Site, wait_until: Wait) -> None:
    metrics = FramerMetrics(CollectorRegistry())
    site.send(site.sources[0], [request_event(i) for i in range(2000)] + RUBBISH)
    site.send(site.sources[1], [node_event(i) for i in range(50)])
    with site.running(metrics):
        wait_until(site.all_committed, "everything to be framed and committed", 30)
    assert requests_seen(site) == Counter(range(2000))
    events = [e for m in site.read(site.frames) if isinstance(f := decode_frame(m.value()), EventFrame) for e in f.events]
    assert sorted(e.running for e in events) == list(range(50))
    found = letters(site)
    assert sorted(letter.raw for letter in found) == sorted(line[:65536] for line in RUBBISH)
    by_offset = {(m.topic(), m.partition(), m.offset()): m.value() for m in site.read(site.sources[0])}
    for letter in found:
        source = by_offset[letter.topic, letter.partition, letter.offset]
        assert letter.raw == source[:65536]
        assert letter.size_bytes == len(source)
        assert letter.timestamp_ms > 0
        assert letter.stage == "framer"
    assert {letter.reason for letter in found} >= {"unknown_kind", "negative", "bad_json", "too_large"} - {"negative"}
    assert metrics.events.labels(site.sources[0])._value.get() == 2000 + len(RUBBISH)
    assert sum(s.value for m in metrics.rejected.collect() for s in m.samples if s.name.endswith("_total")) == len(RUBBISH)


def test_events_that_are_not_authentic_are_dead_letters_and_frames_are_sealed(site: Site, wait_until: Wait) -> None:
    site.settings = site.settings.model_copy(update={"telemetry_keys": SecretStr(bytes(32).hex())})
    auth = Authenticator([bytes(32)])
    honest = [auth.writer(f"node/{json.loads(e)['node']}").seal_event(e) for e in map(request_event, range(200))]
    forged = [request_event(1000), auth.writer("node/somebody").seal_event(request_event(1001)), b" " + honest[0]]
    site.send(site.sources[0], honest + forged)
    with site.running():
        wait_until(site.all_committed, "everything to be framed and committed", 30)
    assert requests_seen(site) == Counter(range(200))
    assert Counter(letter.reason for letter in letters(site)) == {"no_mac": 1, "bad_mac": 1, "not_its_own": 1}
    assert {letter.raw for letter in letters(site)} == set(forged)
    assert [auth.frame_fault(m.value()) for m in site.read(site.frames)] == [None] * len(site.read(site.frames))


def worst_lag_s(site: Site) -> float:
    """How far the event time of any row lies behind the newest one before it in its partition, seconds."""
    newest: dict[int, float] = {}
    worst = 0.0
    for message in sorted(site.read(site.frames), key=lambda m: (m.partition(), m.offset())):
        frame = decode_frame(message.value())
        times = [e.ts for e in frame.events] if isinstance(frame, EventFrame) else (frame.batch.ts_ns / 1e9).tolist()
        worst = max(worst, newest.get(message.partition(), 0.0) - min(times))
        newest[message.partition()] = max(newest.get(message.partition(), 0.0), *times)
    return worst


@pytest.mark.parametrize("aligned", [True, False])
def test_after_ten_minutes_away_no_topic_runs_ahead(
    site: Site, wait_until: Wait, monkeypatch: pytest.MonkeyPatch, aligned: bool
) -> None:
    """Requests are many and node states few, so that one read holds all of these and little of those."""
    # On a busy machine a source may be silent for longer than the patience of a framer in service.
    made = Aligner(patience_s=60.0) if aligned else Aligner(bound_ms=1 << 40)
    monkeypatch.setattr("streams.framer.Aligner", lambda: made)
    producer, n, span_s = Producer({**site.client(), "linger.ms": 5}), 24_000, 600.0
    start_s = time.time() - span_s
    for i in range(n):
        ts = start_s + span_s * i / n
        events = [(site.sources[0], request_event(i, ts=ts, pool="p", node=f"n{i % 3}"))]
        if i % 40 == 0:
            events.append((site.sources[1], node_event(i, ts=ts, pool="p")))
        for topic, event in events:
            producer.produce(topic, event, partition=0, timestamp=round(ts * 1000))
        producer.poll(0)
    assert producer.flush(20) == 0
    with site.running():
        wait_until(site.all_committed, "everything to be framed and committed", 60)
    assert (worst_lag_s(site) < 5.0) == aligned


def test_nothing_is_lost_or_doubled_when_the_framer_is_killed(site: Site, wait_until: Wait) -> None:
    total, killed = 12_000, 0
    process = site.process()
    try:
        for part in range(6):
            lo, hi = part * total // 6, (part + 1) * total // 6
            site.send(site.sources[0], [request_event(i) for i in range(lo, hi)] + [b"rubbish %d" % part])
            before = sum(site.ends([site.frames]).values())
            wait_until(lambda n=before: sum(site.ends([site.frames]).values()) > n, "frames of this part", 40)
            if part % 2 == 0:
                process.send_signal(signal.SIGKILL)
                process.wait(10)
                killed += 1
                process = site.process()
        wait_until(site.all_committed, "the last framer to commit everything", 40)
    finally:
        process.kill()
        process.wait(10)
    assert killed == 3
    assert requests_seen(site) == Counter(range(total))
    assert {letter.raw for letter in letters(site)} == {b"rubbish %d" % part for part in range(6)}


def test_a_broker_that_goes_away_is_waited_for(site: Site, wait_until: Wait) -> None:
    with structlog.testing.capture_logs() as said, site.running():
        site.send(site.sources[0], [request_event(i) for i in range(500)])
        wait_until(site.all_committed, "the first half", 30)
        site.down()
        wait_until(lambda: [s for s in said if s["event"].startswith("Kafka is away")], "the framer to notice", 20)
        site.up()
        site.send(site.sources[0], [request_event(i) for i in range(500, 1000)])
        wait_until(site.all_committed, "the second half", 40)
        wait_until(lambda: [s for s in said if s["event"] == "Kafka is back"], "the framer to notice", 20)
    assert requests_seen(site) == Counter(range(1000))
    events = [s["event"].partition(",")[0] for s in said if s["event"].startswith("Kafka is")]
    assert events == ["Kafka is away", "Kafka is back"]


def test_two_framers_share_the_work_and_hand_it_over_without_doubles(site: Site, wait_until: Wait) -> None:
    one, two = FramerMetrics(CollectorRegistry()), FramerMetrics(CollectorRegistry())
    with site.running(one):
        wait_until(lambda: one.partitions._value.get() == 2 * PARTITIONS, "the first to own everything", 20)
        with site.running(two):
            wait_until(
                lambda: one.partitions._value.get() == two.partitions._value.get() == PARTITIONS, "the second to get its half", 40
            )
            site.send(site.sources[0], [request_event(i) for i in range(1000)])
            wait_until(site.all_committed, "both to commit", 30)
        wait_until(lambda: one.partitions._value.get() == 2 * PARTITIONS, "the first to take over", 40)
        site.send(site.sources[0], [request_event(i) for i in range(1000, 2000)])
        wait_until(site.all_committed, "the first to commit", 30)
    rows = Counter(
        t for m in site.read(site.frames) for f in [decode_frame(m.value())] if not isinstance(f, EventFrame)
        for t in f.batch.prompt_tokens.tolist()
    )  # fmt: skip
    assert rows == Counter(range(2000))  # without dropping anything


def test_an_event_that_breaks_the_decoder_is_a_dead_letter(site: Site, wait_until: Wait, monkeypatch: pytest.MonkeyPatch) -> None:
    real = EventFramer.feed

    def feed(self: EventFramer, raw: list[bytes], offsets: list[int] | None = None) -> Framed:
        framed = real(self, raw, offsets)  # remembers the identifiers first, as the worst bug would
        if any(b"poison" in line for line in raw):
            raise IndexError("a bug")
        return framed

    monkeypatch.setattr(EventFramer, "feed", feed)
    events = [request_event(i) for i in range(100)]
    events[50] = request_event(50, tenant="poison")
    metrics = FramerMetrics(CollectorRegistry())
    with site.running(metrics):
        site.send(site.sources[0], events)
        wait_until(site.all_committed, "the batch", 30)
    assert requests_seen(site) == Counter(i for i in range(100) if i != 50)
    (letter,) = letters(site)
    assert (letter.raw, letter.reason) == (events[50], "internal_error")
    assert metrics.crashes._value.get() == 1


def test_an_event_that_breaks_the_cutting_is_a_dead_letter(site: Site, wait_until: Wait, monkeypatch: pytest.MonkeyPatch) -> None:
    from streams import framer as module

    real = module.cut_frames

    def cut(framed: Framed, topic: str, partition: int) -> Iterator[tuple[str, bytes]]:
        for rows in framed.pools.values():
            if "poison" in rows.batch.tenants:
                raise OverflowError("a bug behind the decoder")
        yield from real(framed, topic, partition)

    monkeypatch.setattr(module, "cut_frames", cut)
    events = [request_event(i) for i in range(100)]
    events[50] = request_event(50, tenant="poison")
    with site.running(FramerMetrics(CollectorRegistry())):
        site.send(site.sources[0], events)
        wait_until(site.all_committed, "the batch", 30)
    assert requests_seen(site) == Counter(i for i in range(100) if i != 50)
    (letter,) = letters(site)
    assert (letter.raw, letter.reason) == (events[50], "internal_error")


def test_output_waits_while_the_broker_is_slow_and_the_buffer_is_full(
    site: Site, wait_until: Wait, monkeypatch: pytest.MonkeyPatch
) -> None:
    from streams import framer as module

    real = module.make_producer
    monkeypatch.setattr(module, "make_producer", lambda *a: real(*a, queue_buffering_max_messages=3))
    site.send(site.sources[0], [request_event(i) for i in range(3000)])
    with site.running():
        wait_until(site.all_committed, "everything through a narrow door", 30)
    assert requests_seen(site) == Counter(range(3000))


@pytest.mark.parametrize("site", [pytest.param("mock", marks=pytest.mark.embedded)], indirect=True)
def test_no_offset_is_committed_before_its_output_is_acknowledged(
    site: Site, embedded_stack: EmbeddedStack, wait_until: Wait
) -> None:
    metrics = FramerMetrics(CollectorRegistry())
    site.send(site.sources[0], [request_event(i) for i in range(300)] + [b"rubbish"])
    embedded_stack.push_errors(PRODUCE, [KafkaError.REQUEST_TIMED_OUT] * 20_000)
    try:
        with site.running(metrics):
            wait_until(lambda: metrics.events.labels(site.sources[0])._value.get() == 301, "everything to be read", 20)
            end = time.monotonic() + 5 * COMMIT_S
            while time.monotonic() < end:
                assert set(site.committed().values()) == {0}
            embedded_stack.clear_errors(PRODUCE)
            wait_until(site.all_committed, "the offsets, at last", 30)
    finally:
        embedded_stack.clear_errors(PRODUCE)
    assert requests_seen(site) == Counter(range(300))
    assert [letter.raw for letter in letters(site)] == [b"rubbish"]

"""A broker with topics of one test's own, and events for the framer."""

import json
import subprocess
import sys
import threading
import uuid
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import stamina
from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition
from prometheus_client import CollectorRegistry

from schemas.deadletter import DeadLetter, from_message
from schemas.frame import EventFrame, decode_frame
from schemas.topics import partition_of
from streams.framer import Framer
from streams.framer_metrics import FramerMetrics
from streams.settings import Settings

T0_S = 1_767_225_600.0
PARTITIONS = 3
COMMIT_S = 0.2
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

"""Where simulated telemetry goes: a JSONL file, or the source topics of a Kafka cluster in real time."""

from __future__ import annotations

import gzip
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO

import msgspec

from schemas.errors import SinkError, SourceError
from schemas.telemetry import Event, GpuEvent, OverrideEvent, RequestEvent
from schemas.topics import TELEMETRY
from streams.kafka import Deliveries, Partitions, make_producer, wait_for_kafka
from streams.settings import Settings
from streams.simulate.faults import Fault
from streams.simulate.fleet import Fleet

__all__ = ["EventProducer", "Pacer", "encode_event", "labels_of", "open_jsonl", "topic_of"]

_encoder = msgspec.json.Encoder()


def encode_event(event: Event) -> bytes:
    """One JSON object, without a newline."""
    return _encoder.encode(event)


def topic_of(event: Event) -> str:
    """Source topic of an event."""
    if isinstance(event, RequestEvent):
        return "telemetry.requests"
    return "telemetry.gpu" if isinstance(event, GpuEvent) else "telemetry.nodes"


@contextmanager
def open_jsonl(path: str) -> Iterator[IO[bytes] | gzip.GzipFile]:
    """A binary file to write lines to: `-` is stdout, a name that ends in `.gz` is compressed.

    Raises:
        SourceError: If it cannot be created.
    """
    if path == "-":
        yield sys.stdout.buffer
        sys.stdout.buffer.flush()
        return
    try:
        # no file name and no time in the header: equal content gives equal bytes
        raw = Path(path).open("wb")  # noqa: SIM115  # closed below, or by gzip's owner
    except OSError as exc:
        raise SourceError(f"{path}: cannot be written: {exc.strerror}") from None
    with raw:
        if path.endswith(".gz"):
            with gzip.GzipFile(filename="", mode="wb", fileobj=raw, mtime=0, compresslevel=6) as packed:
                yield packed
        else:
            yield raw


def labels_of(fleets: Sequence[Fleet], until_s: float) -> bytes:
    """The labels file: which fault was where and when, Unix seconds; `node` is null where it concerned the whole pool."""
    incidents = [
        {
            "pool": fleet.spec.pool, "node": None if fault.node == "*" else fault.node, "fault": fault.name,
            "from": fleet.start_s + fault.from_s, "to": fleet.start_s + min(fault.to_s, until_s),
        }
        for fleet in fleets for fault in sorted(fleet.faults, key=_order)
    ]  # fmt: skip
    return msgspec.json.format(_encoder.encode({"incidents": incidents}), indent=1) + b"\n"


def _order(fault: Fault) -> tuple[float, str]:
    return fault.from_s, fault.node


class EventProducer:
    """Sends events to the source topics, each in its pool's partition.

    Args:
        settings: Where the cluster is.

    Raises:
        SourceError: The cluster does not answer, or lacks a topic.
    """

    def __init__(self, settings: Settings) -> None:
        names = [topic.name for topic in TELEMETRY]
        self._auth = settings.authenticator()
        self._partitions = Partitions(wait_for_kafka(settings, topics=names), names)
        self._deliveries = Deliveries()
        self._producer = make_producer(settings)
        self.sent = 0

    def send(self, events: Sequence[Event]) -> None:
        """Hand `events` to the producer; when its queue is full, wait for room."""
        for event in events:
            topic = topic_of(event)
            partition = self._partitions.of(topic, event.pool)
            while True:
                try:
                    self._producer.produce(
                        topic, self._sealed(event), event.pool.encode(), partition, on_delivery=self._deliveries
                    )
                    break
                except BufferError:
                    self._producer.poll(0.1)
            self.sent += 1
        self._producer.poll(0)

    def _sealed(self, event: Event) -> bytes:
        """As the node itself would send it; what is not about one node comes from a gateway."""
        raw, node = encode_event(event), getattr(event, "node", None)
        if self._auth is None or isinstance(event, OverrideEvent):
            return raw
        return self._auth.writer("gateway/simulate" if node is None else f"node/{node}").seal_event(raw)

    def flush(self, deadline_s: float = 30.0) -> None:
        """Wait until everything was acknowledged.

        Raises:
            SinkError: Not within `deadline_s`, or the cluster refused events.
        """
        left = self._producer.flush(deadline_s)
        if left or self._deliveries.failed:
            why = self._deliveries.last_error or "the broker does not answer"
            raise SinkError(f"{left + self._deliveries.failed} of {self.sent} events were not stored: {why}")


class Pacer:
    """Maps the wall clock to simulation time.

    Args:
        speed: Simulated seconds per second.
    """

    def __init__(self, speed: float) -> None:
        self._speed = speed
        self._began_s = time.monotonic()

    @property
    def elapsed_s(self) -> float:
        """Simulated seconds since the start."""
        return (time.monotonic() - self._began_s) * self._speed

    def sleep_until(self, simulated_s: float) -> None:
        """Return when `simulated_s` has come."""
        time.sleep(max(0.0, (simulated_s - self.elapsed_s) / self._speed))

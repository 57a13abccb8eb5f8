"""Kafka clients of librdkafka with our settings: everything acknowledged by all replicas, nothing committed by itself.

An absent broker is never a traceback: `wait_for_kafka` says so in one sentence, and `BrokerWatch` tells a running process
once that the brokers went away and once that they are back (librdkafka reconnects by itself).
"""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Iterable
from typing import Any

import structlog
from confluent_kafka import Consumer, KafkaError, KafkaException, Message, Producer
from confluent_kafka.admin import AdminClient, ClusterMetadata

from schemas.errors import SourceError
from schemas.topics import partition_of
from streams.settings import Settings

__all__ = [
    "BrokerWatch",
    "Deliveries",
    "Partitions",
    "client_config",
    "make_consumer",
    "make_producer",
    "wait_for_kafka",
]

log = structlog.get_logger(__name__)

_TRY_S = 2.0
_PRODUCER_BUFFER_KIB = 64 * 1024
_SAYS_WHY = {KafkaError._AUTHENTICATION, KafkaError._SSL, KafkaError._RESOLVE, KafkaError._TRANSPORT}


def client_config(settings: Settings) -> dict[str, Any]:
    """What every client needs: addresses, security, and librdkafka's own log lines off (`BrokerWatch` speaks instead)."""
    config: dict[str, Any] = {
        "bootstrap.servers": settings.kafka_bootstrap,
        "security.protocol": settings.kafka_security_protocol,
        "reconnect.backoff.max.ms": 2000,
        "log_level": 0,
    }
    optional = {
        "sasl.mechanism": settings.kafka_sasl_mechanism,
        "sasl.username": settings.kafka_sasl_username,
        "sasl.password": settings.kafka_sasl_password,
        "ssl.ca.location": settings.kafka_tls_ca_file,
        "ssl.certificate.location": settings.kafka_tls_cert_file,
        "ssl.key.location": settings.kafka_tls_key_file,
        "ssl.key.password": settings.kafka_tls_key_password,
    }
    for name, value in optional.items():
        if value is not None:
            config[name] = value.get_secret_value() if hasattr(value, "get_secret_value") else str(value)
    return config


def make_producer(settings: Settings, watch: BrokerWatch | None = None, **extra: Any) -> Producer:
    """An idempotent producer that never gives a message up while the broker is away. `extra`: properties, `_` for `.`."""
    return Producer(
        {
            **client_config(settings),
            "acks": "all",
            "enable.idempotence": True,
            "message.timeout.ms": 0,  # no limit: only a fatal error or a message that can never be stored fails
            "linger.ms": 5,
            "queue.buffering.max.kbytes": _PRODUCER_BUFFER_KIB,
            **({"error_cb": watch.error} if watch else {}),
            **_properties(extra),
        }
    )


def make_consumer(settings: Settings, group: str, watch: BrokerWatch | None = None, **extra: Any) -> Consumer:
    """A member of `group` that commits only what it is told to. `extra`: properties, `_` for `.`."""
    return Consumer(
        {
            **client_config(settings),
            "group.id": group,
            "enable.auto.commit": False,
            "enable.auto.offset.store": False,
            "auto.offset.reset": "earliest",
            "session.timeout.ms": round(settings.kafka_session_timeout_s * 1000),
            "heartbeat.interval.ms": round(settings.kafka_session_timeout_s * 1000 / 6),
            "fetch.wait.max.ms": max(1, round(settings.kafka_fetch_wait_s * 1000)),
            **({"error_cb": watch.error} if watch else {}),
            **_properties(extra),
        }
    )


def _properties(extra: dict[str, Any]) -> dict[str, Any]:
    """Callbacks have underscores in their names, properties of librdkafka have dots."""
    return {name if callable(value) else name.replace("_", "."): value for name, value in extra.items()}


class BrokerWatch:
    """Log lines about the brokers of long-lived clients: one when all are away, one when they are back.

    Attributes:
        away: True in between.
        reason: What librdkafka said last.
    """

    def __init__(self, settings: Settings) -> None:
        self._address = settings.kafka_bootstrap
        self._since = 0.0
        self._probe_at = 0.0
        self.away = False
        self.reason = "connection lost"

    def error(self, error: KafkaError) -> None:
        """`error_cb` of the clients; called from their `poll`."""
        if error.code() in _SAYS_WHY:
            self.reason = _reason(error)
        elif error.code() == KafkaError._ALL_BROKERS_DOWN and not self.away:
            self.away, self._since = True, time.monotonic()
            log.warning("Kafka is away, trying again until it is back", bootstrap=self._address, reason=self.reason)

    def look(self, client: Consumer | Producer) -> None:
        """While the brokers are away, ask about once a second whether they are back; costs nothing otherwise."""
        if not self.away or time.monotonic() < self._probe_at:
            return
        try:
            client.list_topics(timeout=0.5)
        except KafkaException:
            self._probe_at = time.monotonic() + 1.0
        else:
            self.away = False
            log.info("Kafka is back", bootstrap=self._address, away_s=round(time.monotonic() - self._since, 1))


class Deliveries:
    """Delivery reports of a producer, counted; pass it as `on_delivery`."""

    def __init__(self) -> None:
        self.delivered = 0
        self.failed = 0
        self.last_error = ""

    def __call__(self, error: KafkaError | None, message: Message) -> None:
        if error is None:
            self.delivered += 1
        else:
            self.failed += 1
            self.last_error = f"{message.topic()}: {error.str()}"


class Partitions:
    """Partition counts of topics, read once: a pool must not change its partition while processes run.

    Raises:
        SourceError: A topic is not there.
    """

    def __init__(self, metadata: ClusterMetadata, topics: Iterable[str]) -> None:
        names = list(topics)
        missing = [name for name in names if name not in metadata.topics or not metadata.topics[name].partitions]
        if missing:
            raise SourceError(f"no topic {', '.join(missing)} on this Kafka: run `slodrift topics --create` first")
        self._counts = {name: len(metadata.topics[name].partitions) for name in names}
        self._of: dict[tuple[str, str], int] = {}

    def count(self, topic: str) -> int:
        """Number of partitions of `topic`."""
        return self._counts[topic]

    def of(self, topic: str, pool: str) -> int:
        """Partition of `topic` that owns `pool`."""
        key = (topic, pool)
        partition = self._of.get(key)
        if partition is None:
            if len(self._of) > 100_000:
                self._of.clear()
            partition = self._of[key] = partition_of(pool, self._counts[topic])
        return partition


def wait_for_kafka(
    settings: Settings,
    *,
    topics: Iterable[str] = (),
    deadline_s: float | None = 5.0,
    stop: threading.Event | None = None,
) -> ClusterMetadata:
    """Metadata of the cluster, as soon as it answers and has `topics`.

    Args:
        settings: Where it is.
        topics: Must exist, too.
        deadline_s: How long to try; None tries for ever and logs what it waits for when that changes.
        stop: Ends the wait.

    Raises:
        SourceError: Not within `deadline_s`, or `stop` was set; one sentence with the reason and what to do.
    """
    names = list(topics)
    reasons: list[str] = []
    client = AdminClient({**client_config(settings), "error_cb": lambda error: _note(error, reasons)})
    end = None if deadline_s is None else time.monotonic() + deadline_s
    said, pause, stop = "", 0.1, stop or threading.Event()
    while True:
        try:
            left = _TRY_S if end is None else max(0.1, min(_TRY_S, end - time.monotonic()))
            metadata = client.list_topics(timeout=left)
            Partitions(metadata, names)
        except KafkaException as exc:
            client.poll(0)
            why = reasons[-1] if reasons else exc.args[0].str()
            fault = f"Kafka at {settings.kafka_bootstrap} does not answer ({why}): start it, or set SLODRIFT_KAFKA_BOOTSTRAP"
        except SourceError as exc:
            fault = str(exc)
        else:
            if said:
                log.info("Kafka is there", bootstrap=settings.kafka_bootstrap)
            return metadata
        if end is not None and time.monotonic() >= end:
            raise SourceError(fault)
        if end is None and fault != said:
            log.warning("waiting", cause=fault)
            said = fault
        if stop.wait(pause):
            raise SourceError(f"stopped while waiting: {fault}")
        pause = min(2 * pause, 2.0)


def _note(error: KafkaError, reasons: list[str]) -> None:
    if error.code() in _SAYS_WHY:
        reasons[:] = [_reason(error)]


def _reason(error: KafkaError) -> str:
    """What happened, without librdkafka's name of the connection and its age (which would make every message new)."""
    text: str = error.str()
    return re.sub(r"^\S+/(bootstrap|\d+): | \(after \d+ms .*", "", text)

"""Sends an operator's order to the judge of a pool, and waits for the decision that answers it.

The order is an event frame in the pool's partition of `telemetry.frames`: no other process is on its way, and it has an identity,
so sending it twice orders once.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import msgspec
from confluent_kafka import KafkaException

from schemas.errors import SchemaError, SourceError
from schemas.frame import FrameHeader, encode_event_frame
from schemas.results import Decision
from schemas.telemetry import OverrideEvent
from schemas.topics import DECISIONS, FRAMES
from streams.kafka import Deliveries, Partitions, client_config, make_producer, wait_for_kafka
from streams.settings import Settings
from streams.worker.decision_log import LogReader, read_partition
from streams.worker.takeover import log_end

__all__ = ["order_override"]

_SEND_S = 10.0
_LOOK_S = 0.25


def order_override(
    settings: Settings, event: OverrideEvent, wait_s: float, *, pause: Callable[[float], None] = time.sleep
) -> Decision | None:
    """Send `event`; the decision that answers it, or None when there is none after `wait_s`.

    Raises:
        SourceError: Kafka does not answer, or did not acknowledge the order.
    """
    topics = [FRAMES.name, DECISIONS.name]
    counts = Partitions(wait_for_kafka(settings, topics=topics), topics)
    partition = counts.of(DECISIONS.name, event.pool)
    config = client_config(settings)
    position = log_end(config, DECISIONS.name, partition)
    _send(settings, event, counts.of(FRAMES.name, event.pool))
    end = time.monotonic() + wait_s
    while time.monotonic() < end:
        for message in read_partition(config, DECISIONS.name, partition, position, log_end(config, DECISIONS.name, partition)):
            position = message.offset() + 1
            decision = _decision(message.offset(), message.value())
            if decision is not None and decision.evidence.get("operator", {}).get("id") == event.id:
                return decision
        pause(_LOOK_S)
    return None


def _send(settings: Settings, event: OverrideEvent, partition: int) -> None:
    frame = encode_event_frame(FrameHeader(pool=event.pool, node="", boot_id=f"override-{event.id}", seq=1), [event])
    producer, deliveries = make_producer(settings), Deliveries()
    try:
        producer.produce(FRAMES.name, frame, key=event.pool.encode(), partition=partition, on_delivery=deliveries)
        producer.flush(_SEND_S)
    except KafkaException as exc:
        raise SourceError(f"{FRAMES.name}: {exc.args[0].str()}") from None
    if not deliveries.delivered:
        raise SourceError(f"the order was not acknowledged by Kafka: {deliveries.last_error or 'no answer'}; it may yet arrive")


def _decision(offset: int, value: bytes | None) -> Decision | None:
    try:
        return LogReader().read(offset, value)
    except (SchemaError, msgspec.MsgspecError):
        return None

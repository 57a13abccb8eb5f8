"""How the log looks from outside the worker's own consumer: end offsets and committed offsets, by a client of its own.

The watchdog compares them with what the worker says of itself; and as long as they can be read, the worker is in contact.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable

from confluent_kafka import Consumer, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient, OffsetSpec
from faust.types import TP

from streams.kafka import client_config
from streams.settings import Settings

__all__ = ["BrokerView"]

_TIMEOUT_S = 2.0


class BrokerView:
    """Call `refresh` about once a second.

    Args:
        settings: Where Kafka is.
        group: Whose committed offsets.
        partitions: Of which partitions.
        clock_s: Monotonic seconds.

    Attributes:
        ends: Log end offsets; None while the broker does not answer.
        committed: Committed offsets of the group, 0 where there is none.
        contact_s: `clock_s` of the last answer.
    """

    def __init__(
        self, settings: Settings, group: str, partitions: Iterable[TP], clock_s: Callable[[], float] = time.monotonic
    ) -> None:
        config = client_config(settings)
        self._admin = AdminClient(config)
        self._consumer = Consumer({**config, "group.id": group, "enable.auto.commit": False})
        self._partitions = [TopicPartition(tp.topic, tp.partition) for tp in partitions]
        self._clock_s = clock_s
        self._leaders_known = True
        self.ends: dict[TP, int] | None = None
        self.committed: dict[TP, int] = {}
        self.contact_s = clock_s()

    async def refresh(self) -> None:
        """Ask the broker; on failure `ends` becomes None."""
        try:
            ends, committed = await asyncio.to_thread(self._ask)
        except (KafkaException, TimeoutError):
            self.ends, self._leaders_known = None, False
            return
        self.ends, self.committed = ends, committed
        self.contact_s = self._clock_s()

    def silent_s(self) -> float:
        """Seconds since the last answer."""
        return self._clock_s() - self.contact_s

    async def close(self) -> None:
        """Close the clients."""
        await asyncio.to_thread(self._consumer.close)

    def _ask(self) -> tuple[dict[TP, int], dict[TP, int]]:
        if not self._leaders_known:  # the admin client asks with the leader epochs it has: after an election, in vain for ever
            self._admin.list_topics(timeout=_TIMEOUT_S)
            self._leaders_known = True
        latest = {p: OffsetSpec.latest() for p in self._partitions}
        futures = self._admin.list_offsets(latest, request_timeout=_TIMEOUT_S)
        ends = {TP(p.topic, p.partition): future.result(2 * _TIMEOUT_S).offset for p, future in futures.items()}
        answer = self._consumer.committed(self._partitions, timeout=_TIMEOUT_S)
        return ends, {TP(p.topic, p.partition): max(p.offset, 0) for p in answer}

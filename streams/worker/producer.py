"""Appending to Kafka from asyncio with `confluent-kafka`: acks from all replicas, idempotent, in order, retried for ever.

A broker that is away blocks whoever waits for an append; nothing is dropped and nothing overtakes. Only what retrying cannot
cure (a message that is too large, a topic that does not exist, no permission) comes back as `SinkRejected`.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Sequence

from confluent_kafka import KafkaError, KafkaException, Message

from schemas.errors import SinkRejected
from streams.kafka import BrokerWatch, make_producer
from streams.settings import Settings

__all__ = ["LogProducer"]


class LogProducer:
    """A producer whose appends are futures of offsets. Create it inside the running loop; end it with `close`.

    Args:
        settings: Where Kafka is.
        watch: Says when it goes away and when it is back.
    """

    def __init__(self, settings: Settings, watch: BrokerWatch) -> None:
        self._loop = asyncio.get_running_loop()
        self._watch = watch
        self._producer = make_producer(settings, watch, compression_type="lz4", linger_ms=0)  # hosts wait for decisions
        self._outstanding: set[asyncio.Future[int]] = set()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._poll, name="slodrift-producer", daemon=True)
        self._thread.start()

    async def append(
        self,
        topic: str,
        value: bytes | None,
        *,
        key: bytes | None = None,
        partition: int,
        headers: Sequence[tuple[str, bytes]] = (),
    ) -> asyncio.Future[int]:
        """Hand one record over; the returned future is its offset, once every replica has it.

        Waits only while the local queue is full. Appends made one after the other keep their order within a partition.
        The future raises `SinkRejected` when no retry can help.
        """
        future: asyncio.Future[int] = self._loop.create_future()

        def delivered(error: KafkaError | None, message: Message) -> None:
            self._loop.call_soon_threadsafe(self._settle, future, topic, error, message.offset())

        while True:
            try:
                self._producer.produce(topic, value, key, partition, on_delivery=delivered, headers=list(headers) or None)
            except BufferError:
                await asyncio.sleep(0.05)
            except KafkaException as exc:  # larger than a message may be
                self._settle(future, topic, exc.args[0], None)
                return future
            else:
                self._outstanding.add(future)
                return future

    @property
    def outstanding(self) -> int:
        """Appends that are not yet durable."""
        return len(self._outstanding)

    async def settled(self) -> int:
        """Wait until everything appended so far is durable or refused for good; returns how much was refused."""
        results = await asyncio.gather(*self._outstanding, return_exceptions=True)
        return sum(isinstance(r, SinkRejected) for r in results)

    async def close(self, timeout_s: float = 3.0) -> bool:
        """Flush and stop the thread; False if something was still not durable after `timeout_s`."""
        left: int = await asyncio.to_thread(self._producer.flush, timeout_s)
        self._stop.set()
        await asyncio.to_thread(self._thread.join)
        return left == 0

    def _settle(self, future: asyncio.Future[int], topic: str, error: KafkaError | None, offset: int | None) -> None:
        self._outstanding.discard(future)
        if future.cancelled():
            return
        if error is None:
            future.set_result(offset or 0)
        else:
            future.set_exception(SinkRejected(f"cannot append to {topic}: {error.str()}"))
            future.exception()  # whoever waits sees it; one that nobody awaits must not warn at garbage collection

    def _poll(self) -> None:
        while not self._stop.is_set():
            self._producer.poll(0.1)
            self._watch.look(self._producer)

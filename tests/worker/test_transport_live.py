"""The transport against the mock cluster: batches, seeks, the byte budget, commits from the ledger alone."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from faust.types import TP

from streams.embedded import EmbeddedStack
from streams.kafka import client_config
from streams.worker import transport
from streams.worker.app import WorkerApp, make_app
from streams.worker.fetch import FetchBatch
from streams.worker.ledger import CommitLedger

pytestmark = pytest.mark.embedded


class Reader:
    """An app with one agent that keeps what it gets."""

    def __init__(self, app: WorkerApp, topic: str, done: bool) -> None:
        self.app, self.topic = app, topic
        self.batches: list[FetchBatch] = []
        self.arrived = asyncio.Event()

        async def agent(stream: Any) -> None:
            async for event in stream.events():
                self.batches.append(event.value)
                if done:
                    event.value.done()
                self.arrived.set()

        app.agent(app.batches(topic), name="reader")(agent)

    def offsets(self, partition: int, tag: int | None = None) -> list[int]:
        return [r.offset for b in self.batches if b.tp.partition == partition and tag in (None, b.tag) for r in b.records]

    async def until(self, predicate: Any, deadline_s: float = 20) -> None:
        async with asyncio.timeout(deadline_s):
            while not predicate():
                self.arrived.clear()
                await self.arrived.wait()


@asynccontextmanager
async def reading(stack: EmbeddedStack, topic: str, group: str, done: bool = True, **limits: Any) -> AsyncIterator[Reader]:
    app = make_app(stack.settings, group, commit_interval_s=0.1)
    for name, value in limits.items():
        setattr(app.transport, name, value)
    reader = Reader(app, topic, done)
    await app.start()
    try:
        yield reader
    finally:
        await app.stop()


def produce(stack: EmbeddedStack, topic: str, n: int, size: int = 10, partitions: int = 2) -> None:
    stack.create_topic(topic, partitions)
    producer = Producer({**client_config(stack.settings), "linger.ms": 5})
    for i in range(n):
        producer.produce(topic, b"x" * size, partition=i % partitions)
    assert producer.flush(20) == 0


async def test_every_record_once_and_in_order_in_few_batches(embedded_stack: EmbeddedStack) -> None:
    produce(embedded_stack, "t-once", 4000)
    async with reading(embedded_stack, "t-once", "g-once") as reader:
        await reader.until(lambda: sum(len(b.records) for b in reader.batches) >= 4000)
        assert reader.offsets(0) == list(range(2000))
        assert reader.offsets(1) == list(range(2000))
        assert len(reader.batches) < 400
        assert {b.tag for b in reader.batches} == {0}
        known = [reader.app.consumer.complete_until_ms(TP("t-once", p)) for p in (0, 1)]
        assert [end for end, _ in known] == [2000, 2000]


async def test_log_is_read_again_from_where_it_was_asked_and_batches_say_so(embedded_stack: EmbeddedStack) -> None:
    produce(embedded_stack, "t-again", 1000)
    async with reading(embedded_stack, "t-again", "g-again") as reader:
        await reader.until(lambda: len(reader.offsets(0)) >= 500)
        assert reader.app.consumer.read_again_from(TP("t-again", 0), 450) == 1
        await reader.until(lambda: len(reader.offsets(0, tag=1)) >= 50)
        assert reader.offsets(0, tag=1) == list(range(450, 500))
        assert reader.offsets(1, tag=0) == list(range(500)), "the other partition goes on"


async def test_no_more_is_fetched_than_the_budget_allows_and_it_goes_on_when_handled(embedded_stack: EmbeddedStack) -> None:
    produce(embedded_stack, "t-budget", 300, size=10_000)
    limit = 500_000
    async with reading(embedded_stack, "t-budget", "g-budget", done=False, max_in_flight_bytes=limit) as reader:
        await reader.until(lambda: sum(b.size_bytes for b in reader.batches) >= limit)
        with pytest.raises(TimeoutError):
            await reader.until(lambda: sum(b.size_bytes for b in reader.batches) >= 3_000_000, deadline_s=0.3)
        released = 0
        while len(reader.offsets(0)) + len(reader.offsets(1)) < 300:
            for batch in reader.batches[released:]:
                batch.done()
                batch.done()
            released = len(reader.batches)
            seen = released
            await reader.until(lambda seen=seen: len(reader.batches) > seen or sum(len(b.records) for b in reader.batches) >= 300)
        assert reader.offsets(0) == list(range(150))


async def test_only_what_the_ledger_calls_durable_is_committed_with_its_note(embedded_stack: EmbeddedStack) -> None:
    produce(embedded_stack, "t-commit", 200)
    async with reading(embedded_stack, "t-commit", "g-commit") as reader:
        await reader.until(lambda: len(reader.offsets(0)) + len(reader.offsets(1)) >= 200)
        reader.app.ledger.durable(TP("t-commit", 0), 40, note="until 77")
        await reader.app.consumer.commit()
        assert reader.app.ledger.is_committed(TP("t-commit", 0))
    consumer = Consumer({**client_config(embedded_stack.settings), "group.id": "g-commit"})
    found = consumer.committed([TopicPartition("t-commit", p) for p in (0, 1)], timeout=10)
    consumer.close()
    assert [(p.offset, p.metadata) for p in found] == [(40, "until 77"), (-1001, None)]


async def test_next_member_goes_on_at_the_commit(embedded_stack: EmbeddedStack) -> None:
    produce(embedded_stack, "t-next", 200)
    async with reading(embedded_stack, "t-next", "g-next") as reader:
        await reader.until(lambda: len(reader.offsets(0)) + len(reader.offsets(1)) >= 200)
        reader.app.ledger.durable(TP("t-next", 0), 40)
        reader.app.ledger.durable(TP("t-next", 1), 100)
        await reader.app.consumer.commit()
    async with reading(embedded_stack, "t-next", "g-next") as reader:
        await reader.until(lambda: len(reader.offsets(0)) >= 60)
        assert reader.offsets(0) == list(range(40, 100))
        assert reader.offsets(1) == []


def test_durable_offset_never_goes_back() -> None:
    ledger, tp = CommitLedger(), TP("t", 0)
    ledger.durable(tp, 10)
    with pytest.raises(ValueError, match="back from 10 to 9"):
        ledger.durable(tp, 9)
    ledger.committed({tp: 10}, {tp: ""})
    assert ledger.committable([tp]) == {}
    ledger.durable(tp, 10, note="n")
    assert ledger.committable([tp]) == {tp: 10}, "a new note is worth a commit"
    ledger.forget([tp])
    ledger.durable(tp, 3)
    assert ledger.committable([tp, TP("t", 1)]) == {tp: 3}


def test_budget_forgets_what_a_rebalance_dropped() -> None:
    async def run() -> None:
        budget = transport.ByteBudget(100)
        release = budget.take(120)
        assert not budget.room.is_set()
        budget.reset()
        assert budget.room.is_set()
        release(120)
        assert budget.used_bytes == 0

    asyncio.run(run())

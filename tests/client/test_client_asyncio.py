"""The asyncio client against a real server."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from slodrift_client import AsyncBreakerClient, Decision

from schemas.contract import Entry
from sinks.redis_decisions import DecisionSink, connect
from streams.embedded.redis_server import RedisServer

pytestmark = pytest.mark.embedded

DEADLINE_S = 20.0
FLEETS = (f"async{i}" for i in range(10_000))


def wait_for_file(folder: Path) -> None:
    deadline, pause = time.monotonic() + DEADLINE_S, threading.Event()
    while not any(folder.glob("*.slodrift")):
        assert time.monotonic() < deadline
        pause.wait(0.01)


@pytest.fixture
async def sink(redis_server: RedisServer) -> AsyncIterator[DecisionSink]:
    sink = DecisionSink(connect(redis_server.url), next(FLEETS))
    yield sink
    await sink.close()


async def write(sink: DecisionSink, seq: int, *subjects: str) -> None:
    entries = [
        Entry(
            scope="node", subject=s, state="OPEN", version=(1, 5, seq), tx="t", opened_ms=0,
            not_after_ms=sink.now_ms() + 30_000,
        )
        for s in subjects
    ]  # fmt: skip
    await sink.assert_state("p", entries, version=(1, 5, seq), n_eligible=100, cap=10, mode="enforce")


async def test_decisions_become_visible_and_go_again(redis_server: RedisServer, sink: DecisionSink) -> None:
    changes: asyncio.Queue[Decision] = asyncio.Queue()
    async with AsyncBreakerClient(redis_server.url, sink._fleet, ["p"]) as client:
        client.on_change(changes.put_nowait)
        assert client.allow("n1")
        await write(sink, 1, "n1")
        assert (await asyncio.wait_for(changes.get(), DEADLINE_S)).state == "OPEN"
        assert not client.allow("n1")
        await write(sink, 2)
        assert (await asyncio.wait_for(changes.get(), DEADLINE_S)).state == "CLOSED"
        assert client.allow("n1")
        assert await client.wait(DEADLINE_S)
        assert client.status().errors == 0


async def test_redis_that_never_answers_blocks_nobody(silent_url: str) -> None:
    async with AsyncBreakerClient(silent_url, "f", ["p"], timeout_s=0.05) as client:
        assert client.allow("n1")
        assert not await client.wait(0.3)
        assert client.status().errors >= 1


async def test_file_serves_a_start_without_redis(own_server: RedisServer, tmp_path: Path) -> None:
    sink = DecisionSink(connect(own_server.url), "lkg")
    await write(sink, 1, "n1")
    changes: asyncio.Queue[Decision] = asyncio.Queue()
    async with AsyncBreakerClient(own_server.url, "lkg", ["p"], state_dir=tmp_path) as client:
        client.on_change(changes.put_nowait)
        await asyncio.wait_for(changes.get(), DEADLINE_S)
        await asyncio.to_thread(wait_for_file, tmp_path)
    await sink.close()
    own_server.stop()
    async with AsyncBreakerClient(own_server.url, "lkg", ["p"], state_dir=tmp_path) as client:
        assert not client.allow("n1")
        assert client.decide("n1").source == "lkg"

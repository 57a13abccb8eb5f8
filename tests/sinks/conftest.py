"""A Redis server and the embedded ClickHouse engine for the tests of the sinks."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
from redis.asyncio import Redis

from schemas.errors import ConfigError
from sinks.redis_decisions import connect
from streams.embedded.redis_server import RedisServer


@pytest.fixture(scope="session")
def redis_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    """One server for the session; use a fleet of your own, it is not emptied between tests."""
    folder: Path = tmp_path_factory.mktemp("redis")
    try:
        server = RedisServer(folder)
    except ConfigError as exc:
        pytest.skip(str(exc))
    server.start()
    yield server
    server.stop()


@pytest.fixture
async def redis(redis_server: RedisServer) -> AsyncIterator[Redis]:
    client = connect(redis_server.url)
    await client.flushall()
    yield client
    await client.aclose()

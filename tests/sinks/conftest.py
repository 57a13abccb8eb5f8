"""A client of Redis, and databases in the embedded ClickHouse engine, for the tests of the sinks."""

from __future__ import annotations

import itertools
from collections.abc import AsyncIterator, Iterator

import pytest
from redis.asyncio import Redis

from sinks.clickhouse import TABLES, ClickHouse, open_client
from sinks.migrate import migrate
from sinks.redis_decisions import connect
from streams.embedded import EmbeddedStack
from streams.embedded.redis_server import RedisServer

_numbers = itertools.count()


@pytest.fixture
async def redis(redis_server: RedisServer) -> AsyncIterator[Redis]:
    client = connect(redis_server.url)
    await client.flushall()
    yield client
    await client.aclose()


@pytest.fixture
def empty_dsn(embedded_stack: EmbeddedStack) -> str:
    """DSN of a database that does not exist yet (a process has one engine, so tests differ by database)."""
    return f"{embedded_stack.clickhouse_dsn}?database=sinks_{next(_numbers)}"


@pytest.fixture(scope="session")
def migrated_dsn(embedded_stack: EmbeddedStack) -> str:
    dsn = f"{embedded_stack.clickhouse_dsn}?database=sinks"
    migrate(dsn)
    return dsn


@pytest.fixture
def clickhouse(migrated_dsn: str) -> Iterator[ClickHouse]:
    """Empty tables; with them go the tokens of earlier inserts."""
    client = open_client(migrated_dsn)
    for table in sorted(TABLES):
        client.command(f"TRUNCATE TABLE {table}")
    client.close()
    connection = ClickHouse(migrated_dsn)
    yield connection
    connection.close()

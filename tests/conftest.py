"""Fixtures that several folders of tests share."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator
from typing import TypeVar

import pytest
from local_kafka import Broker, KafkaUnavailable, local_kafka

from schemas.errors import ConfigError
from streams.embedded import EmbeddedStack
from streams.embedded.redis_server import RedisServer

T = TypeVar("T")


@pytest.fixture(scope="session")
def embedded_stack() -> Iterator[EmbeddedStack]:
    """One stack for all tests: use topics, groups, pools and databases of your own."""
    with EmbeddedStack() as stack:
        yield stack


@pytest.fixture(scope="session")
def redis_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    """A Redis for all tests that do not stop it: flush it, or use keys of your own."""
    try:
        server = RedisServer(tmp_path_factory.mktemp("redis"))
    except ConfigError as exc:
        pytest.skip(str(exc))
    server.start()
    yield server
    server.stop()


@pytest.fixture(scope="session")
def kafka_broker() -> Iterator[Broker]:
    """A real Kafka of ours that a test may kill, if it starts it again."""
    if os.environ.get("SLODRIFT_TEST_KAFKA"):
        pytest.skip("needs a broker that it may kill; SLODRIFT_TEST_KAFKA names one that is not ours")
    try:
        with local_kafka() as broker:
            yield broker
    except KafkaUnavailable as exc:
        pytest.skip(f"no real Kafka here: {exc}")


@pytest.fixture(scope="session")
def kafka_bootstrap(request: pytest.FixtureRequest) -> str:
    """Address of a real Kafka: SLODRIFT_TEST_KAFKA, else a container, else the JVM, else the test is skipped."""
    if address := os.environ.get("SLODRIFT_TEST_KAFKA"):
        return address
    broker: Broker = request.getfixturevalue("kafka_broker")
    return broker.bootstrap


@pytest.fixture(scope="session")
def wait_until() -> Callable[..., T]:
    """`wait_until(look, "what is awaited", deadline_s=10)` calls `look` until it gives something true, and returns that."""
    pause = threading.Event()  # never set

    def wait(look: Callable[[], T], what: str, deadline_s: float = 10.0) -> T:
        end = time.monotonic() + deadline_s
        while not (seen := look()):
            if time.monotonic() > end:
                pytest.fail(f"not within {deadline_s:g} s: {what}")
            pause.wait(0.01)
        return seen

    return wait

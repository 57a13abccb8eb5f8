"""A Redis server that a test may stop, and an address that never answers, for the tests of the client."""

from __future__ import annotations

import socket
from collections.abc import Iterator

import pytest

from streams.embedded.redis_server import RedisServer


@pytest.fixture
def own_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    """One that the test may stop."""
    server = RedisServer(tmp_path_factory.mktemp("redis"))
    server.start()
    yield server
    server.stop()


@pytest.fixture
def silent_url() -> Iterator[str]:
    with socket.create_server(("127.0.0.1", 0)) as server:  # the kernel accepts, nobody answers
        yield f"redis://127.0.0.1:{server.getsockname()[1]}/0"

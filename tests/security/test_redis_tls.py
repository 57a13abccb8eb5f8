"""Redis over TLS: the certificate is verified, by the judge's connection and by the hosts'."""

from __future__ import annotations

import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from slodrift_client import BreakerClient
from tls_authority import Authority

from schemas.errors import SinkBackpressure
from sinks.redis_decisions import DecisionSink, connect
from streams.embedded.redis_server import RedisServer


class Terminator:
    """TLS in front of a server without it, as a sidecar does."""

    def __init__(self, authority: Authority, port: int) -> None:
        self._context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self._context.load_cert_chain(authority.cert, authority.key)
        self._to = port
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                raw, _ = self._listener.accept()
                threading.Thread(target=self._serve, args=(raw,), daemon=True).start()

    def _serve(self, raw: socket.socket) -> None:
        with suppress(OSError), socket.create_connection(("127.0.0.1", self._to)) as far, raw:
            near = self._context.wrap_socket(raw, server_side=True)
            back = threading.Thread(target=_pump, args=(far, near), daemon=True)
            back.start()
            _pump(near, far)
            back.join(5)
            near.close()

    def close(self) -> None:
        self._listener.close()


def _pump(source: socket.socket, target: socket.socket) -> None:
    with suppress(OSError):
        while data := source.recv(65536):
            target.sendall(data)
        target.shutdown(socket.SHUT_WR)


@pytest.fixture
def ours(tmp_path: Path) -> Authority:
    return Authority(tmp_path, "ours")


@pytest.fixture
def tls(redis_server: RedisServer, ours: Authority) -> Iterator[Terminator]:
    terminator = Terminator(ours, redis_server.port)
    yield terminator
    terminator.close()


async def state(url: str) -> None:
    sink = DecisionSink(connect(url), "tls")
    try:
        await sink.assert_state("p", [], version=(1, 1, 1), n_eligible=9, cap=1, mode="enforce")
    finally:
        await sink.close()


async def test_judge_and_host_speak_tls_with_a_verified_server(tls: Terminator, ours: Authority) -> None:
    url = f"rediss://127.0.0.1:{tls.port}/0?ssl_ca_certs={ours.ca}"
    await state(url)
    with BreakerClient(url, "tls", ["p"], timeout_s=2.0) as client:
        assert client.wait(10)


@pytest.mark.parametrize("wrong", ["authority", "address", "plain"])
async def test_a_server_that_cannot_prove_who_it_is_gets_nothing(
    redis_server: RedisServer, tmp_path: Path, ours: Authority, wait_until: Callable[..., Any], wrong: str
) -> None:
    stranger = Authority(tmp_path, "stranger", "10.1.2.3" if wrong == "address" else "127.0.0.1")
    terminator = Terminator(stranger, redis_server.port)
    port = redis_server.port if wrong == "plain" else terminator.port
    ca = stranger.ca if wrong == "address" else ours.ca
    url = f"rediss://someone:canary-secret@127.0.0.1:{port}/0?ssl_ca_certs={ca}"
    with pytest.raises(SinkBackpressure) as caught:
        await state(url)
    assert "canary" not in str(caught.value)
    with BreakerClient(url, "tls", ["p"], timeout_s=0.3) as client:
        wait_until(lambda: client.status().errors, "a refusal")
        assert client.status().pools["p"].source == "default"
        assert client.allow("n1")
        assert "canary" not in client.status().last_error
    terminator.close()

"""ClickHouse over TLS: nothing, least of all a password, goes to a server whose certificate is not verified."""

from __future__ import annotations

import ssl
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from tls_authority import Authority

from schemas.errors import SlodriftError
from sinks.clickhouse import open_client


class Server(ThreadingHTTPServer):
    """Speaks TLS, notes who asks and answers nonsense."""

    daemon_threads = True

    def __init__(self, authority: Authority) -> None:
        self.asked: list[str] = []
        super().__init__(("127.0.0.1", 0), Handler)
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(authority.cert, authority.key)
        self.socket = context.wrap_socket(self.socket, server_side=True)

    def handle_error(self, request: object, client_address: object) -> None:
        """A client that hangs up is what is tested."""


class Handler(BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        server = self.server
        assert isinstance(server, Server)
        server.asked.append(str(self.headers["Authorization"]))
        self.send_response(500)
        self.end_headers()

    do_GET = do_POST  # noqa: N815 - its name there

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - its name there
        """Quiet."""


@pytest.fixture
def ours(tmp_path: Path) -> Authority:
    return Authority(tmp_path, "ours")


@pytest.fixture
def server(ours: Authority) -> Iterator[Server]:
    server = Server(ours)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield server
    server.shutdown()
    server.server_close()
    thread.join()


def test_a_stranger_gets_nothing(server: Server) -> None:
    with pytest.raises(SlodriftError) as caught:
        open_client(f"clickhouses://archive:canary-secret@127.0.0.1:{server.server_port}/slodrift", timeout_s=2.0)
    assert "certificate" in str(caught.value).lower()
    assert "canary" not in str(caught.value)
    assert server.asked == []


def test_an_authority_of_ones_own_is_named_in_the_address(server: Server, ours: Authority) -> None:
    with pytest.raises(SlodriftError) as caught:  # it is asked, and is no ClickHouse
        open_client(
            f"clickhouses://archive:canary-secret@127.0.0.1:{server.server_port}/slodrift?ca_cert={ours.ca}", timeout_s=2.0
        )
    assert "canary" not in str(caught.value)
    assert server.asked[0].startswith("Basic ")

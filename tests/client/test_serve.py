"""The HTTP service: as an application, behind uvicorn, behind a real NGINX, and as a process on a real Redis."""

from __future__ import annotations

import http.client
import http.server
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import uvicorn
from slodrift_client import BreakerClient
from slodrift_client.cli import main
from slodrift_client.offline import OfflineClient
from slodrift_client.serve import make_app

POOL = "llama3-70b/eu/h100"
DEPLOY = Path(__file__).parents[2] / "deploy"


def get(port: int, path: str, headers: dict[str, str] | None = None, method: str = "GET") -> tuple[int, dict[str, str], bytes]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
    connection.request(method, path, headers=headers or {})
    response = connection.getresponse()
    body = response.read()
    connection.close()
    return response.status, {name.lower(): value for name, value in response.getheaders()}, body


@pytest.fixture
def client() -> OfflineClient:
    return BreakerClient.offline({"gpu-001": "OPEN"}, pool=POOL)


@pytest.fixture
def port(client: OfflineClient, wait_until: Callable[..., Any]) -> Iterator[int]:
    with serving(client, wait_until) as number:
        yield number


class serving:  # noqa: N801 - reads as a function
    """uvicorn in a thread."""

    def __init__(self, client: OfflineClient, wait_until: Callable[..., Any]) -> None:
        self._server = uvicorn.Server(uvicorn.Config(make_app(client), port=0, log_level="error", access_log=False))
        self._socket = socket.create_server(("127.0.0.1", 0))
        self._thread = threading.Thread(target=self._server.run, kwargs={"sockets": [self._socket]})
        self._wait = wait_until

    def __enter__(self) -> int:
        self._thread.start()
        self._wait(lambda: self._server.started, "uvicorn is up")
        return int(self._socket.getsockname()[1])

    def __exit__(self, *exc_info: object) -> None:
        self._server.should_exit = True
        self._thread.join(10)
        self._socket.close()


def test_envoy(port: int) -> None:
    """Envoy appends the caller's path and query, and keeps the caller's method."""
    for method in ("GET", "POST", "DELETE", "PROPFIND", "HEAD", "OPTIONS"):
        for path in ("/check", "/check/v1/chat/completions?pool=x&deny=403", "/check/a%2f/../../healthz"):
            status, headers, _ = get(port, path, {"X-Slodrift-Subject": "gpu-001", "X-Slodrift-Pool": POOL}, method)
            assert status == 503
            assert headers["x-slodrift-state"] == "OPEN"
            assert headers["x-slodrift-version"] == "0-0-1"
            assert 1 <= int(headers["retry-after"]) <= 5
            assert get(port, path, {"X-Slodrift-Subject": "gpu-000", "X-Slodrift-Pool": POOL}, method)[0] == 200
    assert get(port, "/check/v1", {"X-Slodrift-Subject": "gpu-001", "X-Slodrift-Pool": "other"})[0] == 200
    assert get(port, "/check/v1")[0] == 200


def test_nginx_gets_the_refusal_that_it_understands(port: int) -> None:
    assert get(port, "/nginx", {"X-Slodrift-Subject": "gpu-001"})[0] == 403
    assert get(port, "/nginx", {"X-Slodrift-Subject": "gpu-000"})[0] == 200


def test_subject_in_the_path(port: int) -> None:
    assert get(port, "/subject/gpu-001")[0] == 503
    assert get(port, "/subject/gpu-001?deny=403")[0] == 403
    assert get(port, "/subject/gpu-001?deny=200")[0] == 503
    assert get(port, "/subject/gpu-001?pool=llama3-70b%2Feu%2Fh100")[0] == 503
    assert get(port, "/subject/gpu-001?pool=other")[0] == 200
    assert get(port, "/subject/a%2Fb/c")[0] == 200


def test_half_open_is_probed_at_the_rate_of_the_plan(port: int, client: OfflineClient) -> None:
    client.set("gpu-001", "HALF_OPEN", probe_per_s=0.01)
    status, headers, _ = get(port, "/check", {"X-Slodrift-Subject": "gpu-001"})
    assert (status, headers["x-slodrift-probe"]) == (200, "true")
    status, headers, _ = get(port, "/check", {"X-Slodrift-Subject": "gpu-001"})
    assert status == 503
    assert "x-slodrift-probe" not in headers


def test_health_and_metrics(port: int) -> None:
    get(port, "/check", {"X-Slodrift-Subject": "gpu-001"})
    status, _, body = get(port, "/healthz")
    assert status == 200
    assert json.loads(body)["pools"][POOL]["blocked"] == 1
    text = get(port, "/metrics")[2].decode()
    assert 'slodrift_client_checks_total{answer="refused"} 1' in text
    assert f'slodrift_client_blocked{{pool="{POOL}"}} 1' in text


# -- a real NGINX ----------------------------------------------------------------------------------------------------------------


class Node(http.server.BaseHTTPRequestHandler):
    """Answers with its name and what NGINX says about probes."""

    def do_GET(self) -> None:
        body = json.dumps({"node": self.server.server_address[1], "probe": self.headers.get("X-Slodrift-Probe")}).encode()
        self.send_response(403 if self.path == "/forbidden" else 200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    do_POST = do_GET  # noqa: N815

    def log_message(self, *args: Any) -> None:
        """Quiet."""


@pytest.fixture
def node() -> Iterator[int]:
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Node)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    yield server.server_address[1]
    server.shutdown()
    thread.join()
    server.server_close()


class Nginx:
    """The committed configuration with other ports."""

    def __init__(self, folder: Path, checker: int, node: int) -> None:
        program = shutil.which("nginx") or shutil.which("nginx", path="/usr/sbin:/usr/local/sbin")
        if program is None:
            pytest.skip("there is no nginx here (Debian: nginx-light)")
        self.port = free_port()
        text = (DEPLOY / "nginx/nginx.conf").read_text()
        for written, real in (
            ("127.0.0.1:9127", checker),
            ("127.0.0.1:8000", node),
            ("127.0.0.1:8001", node),
            ("127.0.0.1:8080", self.port),
        ):
            assert written in text
            text = re.sub(rf"(?m)^(?!#)(.*){re.escape(written)}", rf"\g<1>127.0.0.1:{real}", text)
        text = text.replace(
            "http {",
            "http {\n    access_log off;\n"
            + "".join(
                f"    {kind}_temp_path {folder}/{kind};\n" for kind in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
            ),
            1,
        )
        conf = folder / "nginx.conf"
        conf.write_text(text)
        globals_ = f"daemon off; master_process off; pid {folder}/pid; error_log {folder}/error.log;"
        command = [program, "-p", str(folder), "-c", str(conf), "-g", globals_]
        checked = subprocess.run([*command[:-2], "-t", "-g", globals_], capture_output=True, text=True, check=False)
        assert checked.returncode == 0, checked.stderr
        self.process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

    def answers(self) -> bool:
        try:
            socket.create_connection(("127.0.0.1", self.port), timeout=1).close()
        except OSError:
            return False
        return True

    def stop(self) -> None:
        self.process.terminate()
        self.process.wait(10)


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


def node_of(port: int, session: str) -> int:
    return get(port, "/", {"X-Session": session})[0]


def test_nginx_configuration(client: OfflineClient, node: int, tmp_path: Path, wait_until: Callable[..., Any]) -> None:
    with serving(client, wait_until) as checker:
        nginx = Nginx(tmp_path, checker, node)
        try:
            wait_until(nginx.answers, "nginx is up")
            sessions = {str(i): node_of(nginx.port, str(i)) for i in range(40)}
            assert set(sessions.values()) == {200, 503}  # half of them belong to the node that is open
            refused = next(s for s, status in sessions.items() if status == 503)
            passed = next(s for s, status in sessions.items() if status == 200)
            status, headers, _ = get(nginx.port, "/v1/x", {"X-Session": refused, "X-Slodrift-Subject": "gpu-000"}, "POST")
            assert status == 503  # what the caller says about the subject is not heard
            assert 1 <= int(headers["retry-after"]) <= 5
            assert not [name for name in headers if name.startswith("x-slodrift")]
            assert get(nginx.port, "/forbidden", {"X-Session": passed})[0] == 403  # the node's own 403 stays one
            assert json.loads(get(nginx.port, "/", {"X-Session": passed, "X-Slodrift-Probe": "true"})[2])["probe"] is None
            client.set("gpu-001", "HALF_OPEN", probe_per_s=0.01)
            status, _, body = get(nginx.port, "/", {"X-Session": refused})
            assert (status, json.loads(body)["probe"]) == (200, "true")
            assert get(nginx.port, "/", {"X-Session": refused})[0] == 503
        except BaseException:
            nginx.stop()
            raise
    try:  # the checker is gone: nothing is refused
        assert {node_of(nginx.port, session) for session in sessions} == {200}
    finally:
        nginx.stop()


def test_envoy_configuration_is_what_envoy_reads() -> None:
    bootstrap = pytest.importorskip("envoy.config.bootstrap.v3.bootstrap_pb2", reason="needs xds-protos, Envoy's schema")
    from envoy.extensions.filters.http.ext_authz.v3 import ext_authz_pb2  # noqa: F401 - registers the type
    from envoy.extensions.filters.http.header_mutation.v3 import header_mutation_pb2  # noqa: F401
    from envoy.extensions.filters.http.router.v3 import router_pb2  # noqa: F401
    from envoy.extensions.filters.network.http_connection_manager.v3 import http_connection_manager_pb2  # noqa: F401
    from google.protobuf import json_format

    json_format.ParseDict(envoy(), bootstrap.Bootstrap())


def test_envoy_configuration_fails_open_and_overwrites_what_callers_say() -> None:
    (listener,) = envoy()["static_resources"]["listeners"]
    manager = listener["filter_chains"][0]["filters"][0]["typed_config"]
    mutation, authz, _ = (f["typed_config"] for f in manager["http_filters"])
    assert authz["failure_mode_allow"] is True
    assert authz["http_service"]["path_prefix"] == "/check"
    steps = mutation["mutations"]["request_mutations"]
    written = {
        step["append"]["header"]["key"]
        for step in steps
        if step.get("append", {}).get("append_action") == "OVERWRITE_IF_EXISTS_OR_ADD"
    }
    assert {pattern["exact"] for pattern in authz["allowed_headers"]["patterns"]} == written
    assert {"remove": "x-slodrift-probe"} in steps


def envoy() -> Any:
    from ruamel.yaml import YAML

    return YAML(typ="safe").load((DEPLOY / "envoy/envoy.yaml").read_text())


# -- the process -----------------------------------------------------------------------------------------------------------------


def test_process_answers_without_redis_and_ends_on_sigterm(wait_until: Callable[..., Any], tmp_path: Path) -> None:
    number = free_port()
    command = [sys.executable, "-c", "from slodrift_client.cli import main; main()", "serve", "--pool", POOL, "--fleet", "f"]
    environ = {**os.environ, "SLODRIFT_REDIS_URL": f"redis://:secret-word@127.0.0.1:{free_port()}/0"}
    process = subprocess.Popen(
        [*command, "--bind", f"127.0.0.1:{number}", "--state-dir", str(tmp_path)], env=environ, stderr=subprocess.PIPE, text=True
    )

    def up() -> bool:
        try:
            return get(number, "/check", {"X-Slodrift-Subject": "gpu-001"})[0] == 200
        except OSError:
            return False

    try:
        wait_until(up, "the service answers", 20)
        assert json.loads(get(number, "/healthz")[2])["degraded"] is True
    finally:
        process.terminate()
        _, said = process.communicate(timeout=15)
    assert process.returncode in (0, -signal.SIGTERM)  # uvicorn closes everything, then dies of the signal
    assert "secret-word" not in said


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (["serve"], "--pool"),
        (["serve", "--pool", "p", "--bind", "9127"], "write HOST:PORT"),
        (["serve", "--pool", "p", "--pool-size", "p"], "write POOL=N"),
        (["serve", "--pool", "p", "--pool", "p"], "distinct"),
        (["serve", "--pool", "p", "--redis-url-file", "/nowhere/url"], "No such file"),
    ],
)
def test_usage(args: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as left:
        main(args)
    assert left.value.code == 2
    assert said in capsys.readouterr().err

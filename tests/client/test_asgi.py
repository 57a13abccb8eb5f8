"""The middleware: what passes, what is refused, and probes that come back whatever the application does."""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
from collections.abc import Iterable
from typing import Any

import pytest
from slodrift_client import BreakerClient
from slodrift_client.asgi import BreakerMiddleware
from slodrift_client.checks import MAX_SUBJECTS, check, split_subjects
from slodrift_client.metrics import exposition
from slodrift_client.offline import OfflineClient

Sent = list[dict[str, Any]]


class App:
    """Answers 200 and remembers the scopes it saw."""

    def __init__(self, error: BaseException | None = None) -> None:
        self.scopes: list[dict[str, Any]] = []
        self.error = error

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        self.scopes.append(scope)
        if self.error is not None:
            raise self.error
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"ok"})


def scope_of(headers: Iterable[tuple[str, str]] = (), kind: str = "http", method: str = "GET") -> dict[str, Any]:
    raw = [(name.lower().encode(), value.encode("latin-1")) for name, value in headers]
    return {"type": kind, "method": method, "path": "/", "query_string": b"", "headers": raw}


async def ask(app: Any, scope: dict[str, Any]) -> Sent:
    sent: Sent = []

    async def send(message: Any) -> None:
        sent.append(message)

    async def receive() -> Any:
        raise AssertionError("nobody reads the body")

    await app(scope, receive, send)
    return sent


def headers_of(sent: Sent) -> dict[str, str]:
    return {name.decode(): value.decode() for name, value in sent[0]["headers"]}


@pytest.fixture
def client() -> OfflineClient:
    return BreakerClient.offline({"gpu-1": "OPEN", "gpu-2": "HALF_OPEN", "gpu-3": "DISABLED"}, pool="p")


async def test_healthy_passes_and_open_is_refused(client: OfflineClient) -> None:
    app = App()
    guarded = BreakerMiddleware(app, client)
    assert (await ask(guarded, scope_of([("X-Slodrift-Subject", "gpu-0")])))[0]["status"] == 200
    sent = await ask(guarded, scope_of([("X-Slodrift-Subject", "gpu-1")]))
    assert sent[0]["status"] == 503
    headers = headers_of(sent)
    assert headers["x-slodrift-state"] == "OPEN"
    assert headers["x-slodrift-scope"] == "node"
    assert headers["x-slodrift-subject"] == "gpu-1"
    assert headers["x-slodrift-version"] == "0-0-1"
    assert 1 <= int(headers["retry-after"]) <= 5
    assert json.loads(sent[1]["body"])["error"]["subject"] == "gpu-1"
    assert int(headers["content-length"]) == len(sent[1]["body"])
    assert len(app.scopes) == 1


@pytest.mark.parametrize(
    ("subjects", "status"),
    [
        ([], 200), ([("X-Slodrift-Subject", "")], 200), ([("X-Slodrift-Subject", "gpu-0, gpu-3")], 200),
        ([("X-Slodrift-Subject", "gpu-0,gpu-1")], 503),
        ([("X-Slodrift-Subject", "gpu-0"), ("x-slodrift-subject", " gpu-1 ")], 503),
        ([("X-Slodrift-Subject", "n\xe9\x00")], 200),
    ],
)  # fmt: skip
async def test_every_subject_counts(client: OfflineClient, subjects: list[tuple[str, str]], status: int) -> None:
    assert (await ask(BreakerMiddleware(App(), client), scope_of(subjects)))[0]["status"] == status


async def test_shadow_refuses_nobody_and_says_what_it_would() -> None:
    client = BreakerClient.offline({"gpu-1": "OPEN"})
    client._views["default"].head = None  # as before the first word of a judge
    client._rebuild()
    app = App()
    assert (await ask(BreakerMiddleware(app, client), scope_of([("X-Slodrift-Subject", "gpu-1")])))[0]["status"] == 200
    answer = app.scopes[0]["slodrift"]
    assert answer.allowed
    assert dict(answer.headers)["x-slodrift-state"] == "OPEN"


@pytest.mark.parametrize("error", [None, ValueError("theirs"), asyncio.CancelledError()])
async def test_a_probe_comes_back_however_the_request_ends(client: OfflineClient, error: BaseException | None) -> None:
    app = App(error)
    guarded = BreakerMiddleware(app, client)
    now = client._clock()
    with contextlib.suppress(ValueError, asyncio.CancelledError):
        await ask(guarded, scope_of([("X-Slodrift-Subject", "gpu-2")]))
    assert app.scopes[0]["slodrift"].probe
    assert dict(app.scopes[0]["slodrift"].headers)["x-slodrift-probe"] == "true"
    assert client._slots.in_flight(now) == 0
    assert (await ask(guarded, scope_of([("X-Slodrift-Subject", "gpu-2")])))[0]["status"] == 503  # one a second


async def test_a_probe_is_not_spent_on_a_request_that_another_subject_refuses(client: OfflineClient) -> None:
    answer = check(client, ["gpu-2", "gpu-1"], None, random.Random(1))
    assert not answer.allowed
    assert not answer.probe
    assert client._slots.in_flight(client._clock()) == 0


async def test_fallback_is_tried_instead_and_once(client: OfflineClient) -> None:
    app, fallback = App(), App()
    client.set("gpu-1", "OPEN", action="fallback", fallback="small-model")
    await ask(BreakerMiddleware(app, client, fallback=fallback), scope_of([("X-Slodrift-Subject", "gpu-1")]))
    assert app.scopes == []
    (seen,) = fallback.scopes
    assert seen["slodrift"].decision.fallback == "small-model"
    assert dict(seen["slodrift"].headers)["x-slodrift-fallback"] == "small-model"


async def test_other_kinds_of_connections(client: OfflineClient) -> None:
    app = App()
    guarded = BreakerMiddleware(app, client, subjects=lambda scope: ["gpu-1"])
    await ask(guarded, {"type": "lifespan"})
    assert len(app.scopes) == 1
    assert (await ask(guarded, scope_of(kind="websocket")))[0]["type"] == "websocket.close"
    assert (await ask(guarded, scope_of(method="HEAD")))[1]["body"] == b""
    pools = BreakerMiddleware(app, client, subjects=lambda scope: ["gpu-1"], pool=lambda scope: "another")
    assert (await ask(pools, scope_of()))[0]["status"] == 200


def test_headers_never_hold_what_a_header_must_not() -> None:
    client = BreakerClient.offline({"gpu\r\nSet-Cookie: x=1\xff\u20ac": "OPEN"})
    answer = check(client, ["gpu\r\nSet-Cookie: x=1\xff\u20ac"], None, random.Random(1))
    assert not answer.allowed
    assert all(" " <= c <= "~" for _, value in answer.headers for c in value)


def test_subjects_of_a_request_are_bounded() -> None:
    assert split_subjects(["a" * 300, ",, b ,"]) == ["b"]
    assert len(split_subjects([",".join(map(str, range(10_000)))])) == MAX_SUBJECTS


def test_metrics_cannot_be_injected() -> None:
    client = BreakerClient.offline(pool='p"}\nevil 1\\')
    text = exposition(client.status(), {"allowed": 3})
    assert 'slodrift_client_checks_total{answer="allowed"} 3' in text.splitlines()
    assert "evil" not in {line.split()[0] for line in text.splitlines()}
    assert 'pool="p\\"}\\nevil 1\\\\"' in text

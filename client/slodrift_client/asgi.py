"""Middleware for gateways built on ASGI (Starlette, FastAPI, Litestar, plain): refuses what an open breaker covers.

    from slodrift_client.asgi import BreakerMiddleware

    app.add_middleware(BreakerMiddleware, client=client, subjects=lambda scope: [scope["path_params"]["node"]])

Answered from memory. The lease of a probe is held until the response has ended. Needs nothing but this package.
"""

from __future__ import annotations

import json
import random
from collections.abc import Awaitable, Callable, Iterable, MutableMapping
from typing import Any

from slodrift_client.answers import Decision
from slodrift_client.checks import MAX_SUBJECTS, PREFIX, Answer, check, split_subjects
from slodrift_client.gate import Gate
from slodrift_client.subjects import POOL_SUBJECT, covering

__all__ = ["HOP", "BreakerMiddleware", "header_key", "header_subjects", "header_values", "refuse"]

HOP = f"{PREFIX}hop"
"""A request that was refused elsewhere and comes as a fallback; set by gateways, never taken from callers."""

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]


class BreakerMiddleware:
    """Wraps an ASGI application.

    Args:
        app: What is protected.
        client: Any client; it must be started and closed by whoever made it.
        subjects: What covers a request, from its ASGI scope; by default the header `X-Slodrift-Subject`, which an edge must set
            itself and never take from its callers.
        pool: Name of the pool, or how to find it from the scope; None where the client follows one.
        fallback: Application that gets a refused request instead, once; it finds the answer in `scope["slodrift"]`. A request
            with the header `X-Slodrift-Hop` is a fallback already and gets no other.
        key: What decides whether a request is shed where a share of them is; by default the header `X-Slodrift-Key`, else
            `X-Request-Id`. The key of its session keeps a session whole.
        status: Of a refusal.
        rng: Spreads Retry-After.

    The application finds an `Answer` in `scope["slodrift"]`; `probe` says that the telemetry of the request must.
    """

    def __init__(
        self,
        app: App,
        client: Gate,
        *,
        subjects: Callable[[Scope], Iterable[str]] | None = None,
        pool: str | Callable[[Scope], str | None] | None = None,
        fallback: App | None = None,
        key: Callable[[Scope], str | None] | None = None,
        status: int = 503,
        rng: random.Random | None = None,
    ) -> None:
        self._app = app
        self._client = client
        self._subjects = subjects or header_subjects
        self._pool = pool
        self._fallback = fallback
        self._key = key or header_key
        self._status = status
        self._rng = rng or random.Random()  # noqa: S311 - spreads load, keeps no secret

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One connection."""
        if scope["type"] not in ("http", "websocket"):
            await self._app(scope, receive, send)
            return
        pool = self._pool(scope) if callable(self._pool) else self._pool
        answer = check(
            self._client, self._subjects(scope), pool, self._rng, key=self._key(scope), hopped=bool(header_values(scope, HOP)),
            elsewhere=self._fallback is not None,
        )  # fmt: skip
        scope["slodrift"] = answer
        try:
            if answer.allowed:
                await self._app(scope, receive, send)
            elif self._fallback is not None and answer.retry:
                await self._fallback(scope, receive, send)
            else:
                await refuse(scope, send, answer, self._status)
        finally:
            answer.leases.release()


def header_key(scope: Scope) -> str | None:
    """What a gateway says decides about shedding: `X-Slodrift-Key`, else `X-Request-Id`."""
    return next((value for name in (f"{PREFIX}key", "x-request-id") for value in header_values(scope, name) if value), None)


def header_subjects(scope: Scope) -> list[str]:
    """Subjects of a request by its headers: `X-Slodrift-Subject` names them (the node, mostly), and `X-Slodrift-Session`,
    `-Adapter`, `-Tenant` and `-Prompt-Tokens` say what else covers it, as the telemetry does. Its pool covers it too.
    """
    named = split_subjects(header_values(scope, f"{PREFIX}subject"))
    session, adapter, tenant, prompt = (_said_of(scope, name) for name in ("session", "adapter", "tenant", "prompt-tokens"))
    tokens = int(prompt) if prompt is not None and prompt.isascii() and prompt.isdigit() and len(prompt) < 10 else None
    others = covering(session=session, adapter=adapter, tenant=tenant, prompt_tokens=tokens, pool=False)
    if not named and not others:
        return []
    return [*named[:MAX_SUBJECTS], *others, POOL_SUBJECT]


def _said_of(scope: Scope, name: str) -> str | None:
    """Value of one of our headers; what proxies write for a value that is not there counts as none."""
    value = next(iter(header_values(scope, f"{PREFIX}{name}")), "").strip()
    return None if value in ("", "-") else value


def header_values(scope: Scope, name: str) -> list[str]:
    """Values of all headers `name` (in lower case)."""
    wanted = name.encode()
    return [value.decode("latin-1") for key, value in scope["headers"] if key == wanted]


async def refuse(scope: Scope, send: Send, answer: Answer, status: int) -> None:
    """Send a refusal: a response with headers that say why, or a closed handshake."""
    if scope["type"] == "websocket":
        await send({"type": "websocket.close", "code": 1013, "reason": "try again later"})
        return
    body = json.dumps({"error": _said(answer.decision)}).encode()
    headers = [(name.encode(), value.encode()) for name, value in answer.headers]
    headers += [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": b"" if scope["method"] == "HEAD" else body})


def _said(decision: Decision | None) -> dict[str, str]:
    if decision is None:
        return {"type": "circuit_open"}
    return {"type": "circuit_open", "scope": decision.scope, "subject": decision.subject, "state": decision.state}

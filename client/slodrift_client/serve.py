"""HTTP answers for gateways that cannot import Python: Envoy's ext_authz filter (HTTP), NGINX's auth_request.

    /check, /check/...    200 or 503; subjects in X-Slodrift-Subject (a list with commas), the pool in X-Slodrift-Pool; session,
                          adapter, tenant and prompt length in X-Slodrift-Session, -Adapter, -Tenant, -Prompt-Tokens
    /nginx, /nginx/...    the same with 200 or 403, the one refusal that auth_request passes on
    /subject/NAME         200 or 503 for one subject named in the path; ?pool=NAME, and ?deny=403 for NGINX
    /healthz              200 while the process lives; `degraded` says how good its knowledge is
    /metrics              Prometheus text

A refusal names scope, version and, where the decision has one, the fallback in headers X-Slodrift-...; a request that comes with
X-Slodrift-Hop is a fallback already and is told of no other. X-Slodrift-Key (else X-Request-Id) decides which requests are shed.
An answer of 200 may name a cheaper profile in X-Slodrift-Profile.

What follows /check and /nginx is the path of the caller's request, which Envoy appends: it is not looked at, nor is its query.
A request is answered from memory, without I/O. A half-open subject is answered 200 with X-Slodrift-Probe: true at the rate of
its probe plan; the service does not see the request end, so the lease goes back at once and only the rate bounds probes.
"""

from __future__ import annotations

import contextlib
import random
from collections.abc import AsyncIterator
from urllib.parse import parse_qs

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse
from starlette.routing import Route

from slodrift_client.aio import AsyncBreakerClient
from slodrift_client.asgi import HOP, Receive, Scope, Send, header_key, header_subjects, header_values, refuse
from slodrift_client.checks import PREFIX, check
from slodrift_client.gate import Gate
from slodrift_client.metrics import exposition

__all__ = ["make_app"]


class _Check:
    """Endpoint for any method; a class, because Starlette lets a function answer GET alone."""

    def __init__(self, gate: Gate, counts: dict[str, int], rng: random.Random, status: int) -> None:
        self._gate, self._counts, self._rng, self._status = gate, counts, rng, status

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        subjects, pool, status = self._asked(scope)
        hopped = bool(header_values(scope, HOP))
        answer = check(self._gate, subjects, pool, self._rng, key=header_key(scope), hopped=hopped)
        answer.leases.release()
        outcome = "no_subject" if not subjects else "probe" if answer.probe else "allowed" if answer.allowed else "refused"
        self._counts[outcome] += 1
        if not answer.allowed:
            await refuse(scope, send, answer, status)
            return
        headers = [(name.encode(), value.encode()) for name, value in (*answer.headers, ("content-length", "0"))]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": b""})

    def _asked(self, scope: Scope) -> tuple[list[str], str | None, int]:
        return header_subjects(scope), next(iter(header_values(scope, f"{PREFIX}pool")), None), self._status


class _CheckPath(_Check):
    """The gateway builds this whole address itself, so its query may be believed."""

    def _asked(self, scope: Scope) -> tuple[list[str], str | None, int]:
        query = parse_qs(scope["query_string"].decode("latin-1"))
        status = 403 if query.get("deny") == ["403"] else self._status
        return [scope["path_params"]["subject"]], next(iter(query.get("pool", [])), None), status


def make_app(client: Gate, *, rng: random.Random | None = None) -> Starlette:
    """The application.

    Args:
        client: Answers. An `AsyncBreakerClient` is started and closed with the application.
        rng: Spreads Retry-After.
    """
    counts = dict.fromkeys(("allowed", "refused", "probe", "no_subject"), 0)
    rng = rng or random.Random()  # noqa: S311 - spreads load, keeps no secret

    async def healthz(request: Request) -> JSONResponse:
        status = client.status()
        pools = {
            p.pool: {"source": p.source, "mode": p.mode, "panic": p.panic, "blocked": p.n_blocked} for p in status.pools.values()
        }
        return JSONResponse({"degraded": status.degraded, "pools": pools})

    async def metrics(request: Request) -> PlainTextResponse:
        return PlainTextResponse(exposition(client.status(), counts), media_type="text/plain; version=0.0.4")

    @contextlib.asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        async with contextlib.AsyncExitStack() as stack:
            if isinstance(client, AsyncBreakerClient):
                await stack.enter_async_context(client)
            yield

    routes = [
        Route("/healthz", healthz),
        Route("/metrics", metrics),
        Route("/subject/{subject:path}", _CheckPath(client, counts, rng, 503)),
    ]
    for prefix, status in (("/check", 503), ("/nginx", 403)):
        endpoint = _Check(client, counts, rng, status)
        routes += [Route(prefix, endpoint), Route(prefix + "/{rest:path}", endpoint)]
    return Starlette(routes=routes, lifespan=lifespan)

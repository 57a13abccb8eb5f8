"""Writes each pool's breaker state to Redis, for the serving hosts.

Redis is a projection of the decision log and may lose everything at any moment: so the whole state is asserted again every
second, by one function call that checks version and cap (schemas/redis/slodrift.lua). When Redis is away only the newest state
is kept, never a queue of old ones.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import msgspec
from redis.asyncio import Redis
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import NoPermissionError, OutOfMemoryError, ReadOnlyError, RedisError, ResponseError

from schemas.contract import Entry, Head, build, decode_head, encode
from schemas.errors import ConfigError, SchemaError, SinkBackpressure, SinkRejected
from schemas.redis_keys import PoolKeys
from schemas.results import Decision, Mode, encode_line
from schemas.signing import Signer
from sinks.redis_library import check_library, ensure_library

__all__ = ["DecisionSink", "Fenced", "OverCap", "connect"]

_MISSING = "Function not found"

MAX_PENDING = 1000
"""Decisions kept for the Redis stream of a pool while Redis is away; the Kafka topic has them all."""


class Fenced(SinkRejected):
    """Redis holds a newer state of this pool: another judge owns it now, this one must stop deciding for it."""


class OverCap(SinkRejected):
    """The state takes away more nodes than its own cap allows; nothing was written."""


@dataclass(slots=True)
class _Pool:
    keys: PoolKeys
    head: Head
    snapshot: bytes
    subjects: list[str]
    pending: deque[tuple[str, bytes]] = field(default_factory=lambda: deque(maxlen=MAX_PENDING))
    written: set[str] = field(default_factory=set)
    """Subjects whose hash may be in Redis."""


def connect(url: str, *, timeout_s: float = 1.0) -> Redis:
    """A client that fails fast; trying again is the business of the next heartbeat."""
    return Redis.from_url(
        url, socket_timeout=timeout_s, socket_connect_timeout=timeout_s, retry=Retry(NoBackoff(), 0), client_name="slodrift-judge"
    )


class DecisionSink:
    """The only writer of its pools' decisions in Redis.

    Args:
        redis: Client with short timeouts, see `connect`.
        fleet: Name of the fleet, part of every key.
        load_library: Load the function library when it is missing; needs a user with the right to. False leaves that to an
            administrator (`slodrift migrate`).
        now_ms: The writer's clock, Unix milliseconds; the default starts at the wall clock and never jumps.
        signer: Signs heads, for hosts that trust signed ones alone.

    Attributes:
        now_ms: The same; entries must be dated with it.
        refused: Asserts that the function refused, by answer.
    """

    def __init__(
        self,
        redis: Redis,
        fleet: str,
        *,
        load_library: bool = True,
        now_ms: Callable[[], int] | None = None,
        signer: Signer | None = None,
    ) -> None:
        self._redis = redis
        self._fleet = fleet
        self._load_library = load_library
        self._signer = signer
        self.now_ms = now_ms or _steady_ms()
        self._pools: dict[str, _Pool] = {}
        self._locks: dict[str, asyncio.Lock] = {}
        self.refused: dict[str, int] = {}

    async def setup(self) -> None:
        """Make sure that the function library is there and fits. Optional: the first write finds out as well.

        Raises:
            SinkBackpressure: Redis is away.
            ConfigError: It must be loaded first.
        """
        await (ensure_library if self._load_library else check_library)(self._redis)

    async def assert_state(
        self,
        pool: str,
        entries: Sequence[Entry],
        *,
        version: tuple[int, int, int],
        n_eligible: int,
        cap: int,
        mode: Mode,
        decisions: Iterable[Decision] = (),
    ) -> None:
        """Make this the pool's state. It is remembered first, so after `SinkBackpressure` the next heartbeat writes it.

        Args:
            pool: Name of the pool.
            entries: Every subject that is not closed (`Projection.entries`).
            version: Of the newest decision in it.
            n_eligible: Nodes with fresh telemetry.
            cap: Nodes that automation may take away.
            mode: Whether hosts obey.
            decisions: What is new since the last call, for the Redis stream.

        Raises:
            SinkBackpressure: Redis is away or full; nothing is lost.
            Fenced: A newer judge owns the pool.
            OverCap: The state breaks its cap.
            SinkRejected: The function refuses for another reason, or the state breaks the contract.
        """
        async with self._lock(pool):
            before = self._pools.get(pool)
            repeated = before is not None and before.head.version == version
            hb = before.head.hb + 1 if before is not None and repeated else 0
            try:
                head, snapshot = build(
                    fleet=self._fleet, pool=pool, version=version, entries=entries,
                    n_eligible=n_eligible, cap=cap, mode=mode, issued_ms=self.now_ms(), hb=hb,
                )  # fmt: skip
            except (ValueError, SchemaError) as exc:
                raise SinkRejected(f"pool {pool}: {exc}") from None
            subjects = [subject for _, subject in sorted((e.scope, e.subject) for e in entries)]
            state = _Pool(PoolKeys(self._fleet, pool), head, snapshot, subjects)
            if before is not None:
                state.pending, state.written = before.pending, before.written
            state.pending.extend((f"{d.version[1]}-{d.version[2]}", encode_line(d)) for d in decisions)
            self._pools[pool] = state
            await self._write(state)

    async def heartbeat(self, pool: str) -> None:
        """Assert the newest state again with the next heartbeat number; call it every second. Unknown pools are passed over.

        Raises:
            SinkBackpressure, Fenced, OverCap, SinkRejected: As `assert_state`.
        """
        async with self._lock(pool):
            state = self._pools.get(pool)
            if state is not None:
                state.head = msgspec.structs.replace(state.head, hb=state.head.hb + 1, issued_ms=self.now_ms())
                await self._write(state)

    async def clear_forged(self, pool: str) -> bool:
        """Remove a head that our key did not sign for this pool, and what lies beside it; the next write puts ours in its place.

        For an owner that is fenced although the log says that nobody replaced it. Without a signer nothing can be told apart:
        then nothing is removed, and a forged head goes when its key expires.

        Returns:
            Whether there was such a head.

        Raises:
            SinkBackpressure: Redis is away.
        """
        if self._signer is None:
            return False
        keys = PoolKeys(self._fleet, pool)
        try:
            raw = await self._redis.get(keys.head)
            if raw is None or _is_genuine(raw.encode() if isinstance(raw, str) else raw, self._fleet, pool, self._signer):
                return False
            await self._redis.delete(keys.head, keys.snap, keys.log)
        except (RedisError, OSError) as exc:
            raise SinkBackpressure(f"Redis is away: {exc}") from None
        return True

    def forget(self, pool: str) -> None:
        """Another process owns the pool now: no more heartbeats for it from here."""
        self._pools.pop(pool, None)
        self._locks.pop(pool, None)

    async def close(self) -> None:
        """Close the connections."""
        await self._redis.aclose()

    async def _call(self, *arguments: str | bytes | int) -> Any:
        call = partial(self._redis.execute_command, "FCALL", "slodrift_assert")
        try:
            return await call(*arguments)
        except ResponseError as exc:
            if _MISSING not in str(exc) or not self._load_library:
                raise
        await ensure_library(self._redis)  # a restart without persistence forgets functions too
        return await call(*arguments)

    def _lock(self, pool: str) -> asyncio.Lock:
        # Two writes of one pool in flight could overtake each other, and the later one would look fenced.
        return self._locks.setdefault(pool, asyncio.Lock())

    async def _write(self, state: _Pool) -> None:
        keys = state.keys
        gone = sorted(state.written.difference(state.subjects))
        key_list = [keys.head, keys.snap, keys.log, *map(keys.subject, (*state.subjects, *gone))]
        pending = list(state.pending)
        head = encode(state.head)
        if self._signer is not None:
            head = self._signer.sign("slodrift-head-v1", head)
        args = [head, state.snapshot, keys.doorbell, *(part for pair in pending for part in pair)]
        try:
            reply = await self._call(len(key_list), *key_list, *args)
        except NoPermissionError as exc:
            raise SinkRejected(f"this Redis user may not write decisions: {exc}") from None
        except (OutOfMemoryError, ReadOnlyError) as exc:
            raise SinkBackpressure(f"Redis does not take writes: {exc}", retry_after_s=1.0) from None
        except ResponseError as exc:
            raise _refusal(exc) from None
        except ConfigError as exc:
            raise SinkBackpressure(str(exc), retry_after_s=1.0) from None
        except (RedisError, OSError) as exc:
            raise SinkBackpressure(f"Redis is away: {exc}") from None
        answer, *detail = [part.decode() if isinstance(part, bytes) else str(part) for part in reply]
        if answer in ("OK", "SAME"):
            for _ in pending:
                state.pending.popleft()
            state.written = set(state.subjects)
            return
        self.refused[answer] = self.refused.get(answer, 0) + 1
        what = f"pool {state.head.pool}, version {state.head.version}: {answer} {' '.join(detail)}".rstrip()
        if answer in ("STALE", "CONFLICT"):
            raise Fenced(what)
        if answer == "OVER_CAP":
            raise OverCap(what)
        raise SinkRejected(what)


def _is_genuine(raw: bytes, fleet: str, pool: str, signer: Signer) -> bool:
    try:
        signer.keyring().verify("slodrift-head-v1", raw)
        head = decode_head(raw)
    except SchemaError:
        return False
    return (head.fleet, head.pool) == (fleet, pool)


def _steady_ms() -> Callable[[], int]:
    """Unix milliseconds that go on evenly when somebody sets the wall clock."""
    offset_ns = time.time_ns() - time.monotonic_ns()
    return lambda: (offset_ns + time.monotonic_ns()) // 1_000_000


_PASSING = ("LOADING", "BUSY", "CLUSTERDOWN", "TRYAGAIN", "MASTERDOWN", "NOREPLICAS", "MISCONF", "READONLY", "OOM")


def _refusal(exc: ResponseError) -> SinkBackpressure | SinkRejected:
    """An error reply that time cures, or one that it does not."""
    said = str(exc)
    if said.startswith(_PASSING):
        return SinkBackpressure(f"Redis does not take writes: {said}", retry_after_s=1.0)
    if _MISSING in said:
        return SinkBackpressure("Redis has lost the function library; load it with: slodrift migrate", retry_after_s=1.0)
    return SinkRejected(f"Redis refuses: {said}")

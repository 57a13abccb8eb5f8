"""Keeps Redis equal to the decision log: asserts every owned pool at once when it decides, and all of them every second.

Redis never holds anybody up: decisions are in the log before they come here, and while Redis is away only the newest state of
a pool is kept. Heartbeats stop while the judge itself is cut off from Kafka: hosts must not take a blind judge for a live one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, field
from time import perf_counter

import structlog

from schemas.contract import Probe
from schemas.errors import ConfigError, SinkBackpressure, SinkRejected
from schemas.results import Decision, Mode
from sinks.projection import Projection
from sinks.redis_decisions import DecisionSink, Fenced
from streams.worker import metrics

__all__ = ["PoolHead", "Projector"]

log = structlog.get_logger(__name__)

_BEAT_S = 1.0
_MAX_PAUSE_S = 5.0
_LOOK_MS = 500


@dataclass(slots=True)
class PoolHead:
    """What the head of a pool says besides its entries.

    Attributes:
        version: At least (generation, epoch, 0), so that a new owner is newer than the one before.
        n_eligible: Nodes with fresh telemetry.
        cap: Nodes that automation may take away.
        mode: Whether hosts obey.
        clock_s: The pool's event time, Unix seconds; None before the first.
    """

    version: tuple[int, int, int]
    n_eligible: int
    cap: int
    mode: Mode
    clock_s: float | None


@dataclass(slots=True)
class _Pool:
    projection: Projection
    head: PoolHead
    news: list[Decision] = field(default_factory=list)
    since_s: float = 0.0
    """When the oldest of `news` came."""
    changed: bool = True
    """Must be asserted whole; a heartbeat is not enough."""
    fenced: bool = False
    """Redis refused the last state as older than its own."""
    looked_ms: int = 0
    """When the log was last asked whether that can be true."""


class Projector:
    """One task of the worker.

    Args:
        sink: Redis.
        may_speak: Whether the judge is in contact with Kafka.
        owns: Whether a pool is ours by the decision log; None: that cannot be asked.

    Attributes:
        failures: Asserts that did not succeed.
    """

    def __init__(
        self, sink: DecisionSink, *, may_speak: Callable[[], bool], owns: Callable[[str], Awaitable[bool]] | None = None
    ) -> None:
        self._sink = sink
        self._may_speak = may_speak
        self._owns = owns
        self._now_ms = sink.now_ms
        self._pools: dict[str, _Pool] = {}
        self._wake = asyncio.Event()
        self._away_since_ms: int | None = None
        self._checked = False
        self.failures = 0

    def update(self, pool: str, head: PoolHead, decisions: Iterable[Decision], probe: Probe) -> None:
        """New state of a pool: its head, and the decisions since the last call, oldest first."""
        known = self._pools.get(pool)
        if known is None:
            known = self._pools[pool] = _Pool(Projection(probe), head)
        news = list(decisions)
        now_ms = self._now_ms()
        for decision in news:
            known.projection.apply(decision, clock_s=decision.t if head.clock_s is None else head.clock_s, now_ms=now_ms)
        same = (head.version, head.n_eligible, head.cap, head.mode)
        before = (known.head.version, known.head.n_eligible, known.head.cap, known.head.mode)
        known.changed = known.changed or bool(news) or same != before
        known.head = head
        if news and not known.news:
            known.since_s = perf_counter()
        known.news.extend(news)
        if news:
            self._wake.set()

    def forget(self, pools: Iterable[str]) -> None:
        """These pools are not ours any more."""
        for pool in list(pools):
            self._pools.pop(pool, None)
            self._sink.forget(pool)

    async def run(self) -> None:
        """Assert until cancelled."""
        pause_s = _BEAT_S
        loop = asyncio.get_running_loop()
        beat_at = loop.time()
        while True:
            self._wake.clear()
            ok = await self._assert_all(beat=loop.time() >= beat_at)
            if loop.time() >= beat_at:
                pause_s = _BEAT_S if ok else min(2 * pause_s, _MAX_PAUSE_S)
                beat_at = loop.time() + pause_s
            try:
                async with asyncio.timeout(max(0.0, beat_at - loop.time())):
                    await self._wake.wait()
            except TimeoutError:
                pass

    async def _assert_all(self, *, beat: bool) -> bool:
        if not self._may_speak():
            return True
        try:
            if not self._checked:
                await self._sink.setup()
                self._checked = True
            told = await self._assert_changed()
            for name in list(self._pools) if beat else ():
                if self._wake.is_set():  # what is decided during a round of heartbeats does not wait for its end
                    self._wake.clear()
                    told |= await self._assert_changed()
                if name not in told and (pool := self._pools.get(name)) is not None:
                    await self._assert(name, pool)
        except (SinkBackpressure, ConfigError) as exc:
            self.failures += 1
            self._checked = False  # a Redis that lost its data lost the function library, too
            if self._away_since_ms is None:
                self._away_since_ms = self._now_ms()
                log.warning("Redis does not take decisions; they are in the log, and the newest state is written when it is back",
                            cause=str(exc))  # fmt: skip
            return False
        if self._away_since_ms is not None:
            log.info("Redis takes decisions again", away_s=(self._now_ms() - self._away_since_ms) / 1000)
            self._away_since_ms = None
        return True

    async def _assert_changed(self) -> set[str]:
        changed = [(name, pool) for name, pool in self._pools.items() if pool.changed]
        for name, pool in changed:
            await self._assert(name, pool)
        return {name for name, _ in changed}

    async def _assert(self, name: str, pool: _Pool) -> None:
        news, head = list(pool.news), pool.head
        try:
            if pool.changed:
                # The sink keeps what it was given, so after a failure the same is written by a heartbeat.
                pool.news.clear()
                pool.changed = False
                await self._sink.assert_state(
                    name, pool.projection.entries, version=max(head.version, pool.projection.version),
                    n_eligible=head.n_eligible, cap=head.cap, mode=head.mode, decisions=news,
                )  # fmt: skip
                if news:
                    metrics.STAGE_S.labels("redis").observe(perf_counter() - pool.since_s)
            else:
                await self._sink.heartbeat(name)
            pool.fenced = False
        except Fenced as exc:
            self.failures += 1
            if not pool.fenced:
                log.warning("Redis holds a newer state of this pool: another judge owns it, or somebody forged one; trying again",
                            pool=name, cause=str(exc))  # fmt: skip
            pool.fenced = True  # what Redis says is no reason to forget the log: a forged head goes, a rebalance tells us
            await self._clear_forged(name, pool)
        except SinkRejected as exc:
            self.failures += 1
            log.error("Redis refuses the state of a pool", pool=name, cause=str(exc))

    async def _clear_forged(self, name: str, pool: _Pool) -> None:
        """The log decides who owns a pool. If that is us, a state in Redis that is newer and not signed by us is nobody's."""
        if self._owns is None or self._now_ms() - pool.looked_ms < _LOOK_MS:
            return
        pool.looked_ms = self._now_ms()
        if await self._owns(name) and await self._sink.clear_forged(name):
            metrics.FORGED_HEADS.inc()
            log.error("Redis held a forged state of this pool; it was removed: who may write there?", pool=name)
            pool.changed = True
            self._wake.set()

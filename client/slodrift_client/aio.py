"""The client for asyncio serving hosts: a task reads Redis, `allow` answers from memory and is a plain call."""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Self

from redis.asyncio import Redis
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import RedisError

from slodrift_client.gate import Gate
from slodrift_client.reader import MAX_DRAIN, MIN_GAP_S, Reader
from slodrift_client.view import Limits

__all__ = ["AsyncBreakerClient"]


class AsyncBreakerClient(Gate):
    """As `BreakerClient`, for one event loop: `async with AsyncBreakerClient(...) as client: ... client.allow(node)`.

    Arguments as `BreakerClient`, with a `redis.asyncio.Redis` where a client is given.
    """

    def __init__(
        self,
        redis_or_url: str | Redis,
        fleet: str,
        pools: Sequence[str],
        *,
        cells: Mapping[str, int] | None = None,
        state_dir: str | os.PathLike[str] | None = None,
        timeout_s: float = 0.2,
        limits: Limits | None = None,
        pool_sizes: Mapping[str, int] | None = None,
        host: str | None = None,
        hosts: Sequence[str] | None = None,
        public_keys: Sequence[bytes | str | os.PathLike[str]] | None = None,
        clock: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
        rng: random.Random | None = None,
    ) -> None:
        super().__init__(
            fleet,
            pools,
            cells=cells,
            limits=limits,
            pool_sizes=pool_sizes,
            host=host,
            hosts=hosts,
            public_keys=public_keys,
            clock=clock,
            rng=rng,
        )
        folder = None if state_dir is None else Path(state_dir)
        self._reader = Reader(self._views, self._counters, state_dir=folder, clock=clock, wall=wall, rng=self._rng)
        self._own = isinstance(redis_or_url, str)
        self._redis = _connect(redis_or_url, timeout_s) if isinstance(redis_or_url, str) else redis_or_url
        self._doorbell: Any = None
        self._task: asyncio.Task[None] | None = None
        self._complete = asyncio.Event()

    async def start(self) -> None:
        """Begin to read, in a task; returns at once."""
        if self._task is None:
            await asyncio.to_thread(self._reader.load_files)
            self._rebuild()
            self._task = asyncio.create_task(self._run(), name="slodrift-client")

    async def close(self) -> None:
        """Stop reading; answers stay what they are and grow old."""
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
        await self._hang_up()
        if self._own:
            await self._redis.aclose()

    async def wait(self, timeout_s: float) -> bool:
        """Wait until the state of every pool has been read."""
        try:
            await asyncio.wait_for(self._complete.wait(), timeout_s)
        except TimeoutError:
            return False
        return True

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        await self.close()

    async def _run(self) -> None:
        while True:
            try:
                await self._poll()
                self._reader.succeeded()
            except Exception as exc:  # the one place: whatever a driver throws, the answers must go on growing old
                await self._failed(exc)
            self._rebuild()
            self._report()
            if self._reader.keeps_files:
                await asyncio.to_thread(self._reader.save_files)
            await self._wait(self._reader.delay_s())

    async def _poll(self) -> None:
        reader = self._reader
        if self._doorbell is None:
            self._doorbell = self._redis.pubsub(ignore_subscribe_messages=True)
            await self._doorbell.subscribe(*reader.doorbells)
        async with self._redis.pipeline(transaction=False) as pipeline:
            for key in reader.head_keys:
                pipeline.get(key)
            raws = await pipeline.execute(raise_on_error=False)
        for pool in reader.take_heads([raw if isinstance(raw, (bytes, str)) else None for raw in raws]):
            keys = reader.keys[pool]
            raw_head, raw_snapshot = await self._redis.mget(keys.head, keys.snap)
            reader.take_pair(pool, raw_head, raw_snapshot)
        for raw in raws:
            if isinstance(raw, RedisError):
                raise raw
        if all(view.source(self._clock()) == "fresh" for view in self._views.values()):
            self._complete.set()

    async def _wait(self, delay_s: float) -> None:
        loop = asyncio.get_running_loop()
        started = loop.time()
        while (left_s := started + delay_s - loop.time()) > 0:
            if self._doorbell is None:
                await asyncio.sleep(left_s)
                return
            try:
                rang = await self._doorbell.get_message(timeout=left_s) is not None
            except (RedisError, OSError) as exc:
                await self._failed(exc)
                continue
            if rang:
                await asyncio.sleep(max(0.0, MIN_GAP_S - (loop.time() - started)))
                await self._drain()
                return

    async def _drain(self) -> None:
        """Forget what rang meanwhile: one look answers it all."""
        try:
            for _ in range(MAX_DRAIN):
                if self._doorbell is None or await self._doorbell.get_message(timeout=0.0) is None:
                    return
        except (RedisError, OSError) as exc:
            await self._failed(exc)

    async def _failed(self, exc: Exception) -> None:
        self._reader.failed(exc)
        await self._hang_up()

    async def _hang_up(self) -> None:
        doorbell, self._doorbell = self._doorbell, None
        if doorbell is not None:
            with contextlib.suppress(RedisError, OSError):  # it is gone already
                await doorbell.aclose()


def _connect(url: str, timeout_s: float) -> Redis:
    return Redis.from_url(
        url,
        socket_timeout=timeout_s,
        socket_connect_timeout=timeout_s,
        retry=Retry(NoBackoff(), 0),  # the next look is the retry
        client_name="slodrift-client",
    )

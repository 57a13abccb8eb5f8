"""The client for threaded serving hosts: a daemon thread reads Redis, `allow` answers from memory."""

from __future__ import annotations

import contextlib
import os
import random
import threading
import time
import weakref
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import redis
from redis.backoff import NoBackoff
from redis.exceptions import RedisError
from redis.retry import Retry

from slodrift_client.contract import State
from slodrift_client.gate import Gate
from slodrift_client.probes import ProbeSlots
from slodrift_client.reader import MAX_DRAIN, MIN_GAP_S, Reader
from slodrift_client.view import Limits

if TYPE_CHECKING:
    from slodrift_client.offline import OfflineClient

__all__ = ["BreakerClient"]

_SLICE_S = 0.25  # the longest the thread sleeps before it looks whether it should stop


class BreakerClient(Gate):
    """Follows the breakers of some pools; see `Gate` for what it answers. Also a context manager.

    It never blocks: until Redis is read for the first time everything is allowed (or what the last-known-good file says).

    Args:
        redis_or_url: `redis://..`, `rediss://..`, or a client of your own (give it a socket timeout, and leave it to this).
        fleet: Name of the fleet.
        pools: Pools to follow.
        cells: How many cells some of the pools have, as the policy says, for example `{"chat/eu/h100": 4}`.
        state_dir: Folder for last-known-good files; None keeps none.
        timeout_s: Of one Redis command.
        limits: What this host lets automation take away, see `Limits`.
        pool_sizes: Nodes of a pool by this host's own configuration; a population that claims more widens no cap.
        host: Name of this host, for the choice of probing hosts.
        hosts: All hosts of the pools; None lets every host probe at the plan's rate.
        public_keys: PEM (bytes, or paths of files) of the keys that heads must be signed with, the current one first and then
            the next; None takes unsigned ones. Needs the extra `signing`.
        clock: Monotonic seconds.
        wall: Unix seconds.
        rng: For jitter.
    """

    def __init__(
        self,
        redis_or_url: str | redis.Redis,
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
        self._reader.load_files()
        self._rebuild()
        self._stop = threading.Event()
        self._start()
        after_fork = weakref.WeakMethod(self._forked)
        os.register_at_fork(after_in_child=lambda: _call(after_fork))  # threads do not survive a fork, a prefork server forks

    @classmethod
    def offline(cls, decisions: Mapping[str, State] | None = None, *, pool: str = "default") -> OfflineClient:
        """A client without Redis, for tests and dry runs: `decisions` maps subjects to states, all of them enforced."""
        from slodrift_client.offline import OfflineClient

        return OfflineClient(decisions, pool=pool)

    def close(self) -> None:
        """Stop reading; answers stay what they are and grow old."""
        self._stop.set()
        if self._thread is not threading.current_thread():
            self._thread.join(5.0)
        if self._own:
            self._redis.close()

    def wait(self, timeout_s: float) -> bool:
        """Block until the state of every pool has been read. For tests and start-up checks; serving need not wait."""
        return self._complete.wait(timeout_s)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def _forked(self) -> None:
        if not self._stop.is_set():
            self._stop = threading.Event()  # locks of the parent may be held by threads that are not here
            self._slots = ProbeSlots()
            self._start()

    def _start(self) -> None:
        self._complete = threading.Event()
        self._doorbell = None
        self._thread = threading.Thread(target=self._run, name="slodrift-client", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while not self._stop.is_set():
            self._look()
            self._wait(self._reader.delay_s())
        self._hang_up()

    def _look(self) -> None:
        """Read once, believe what passes every check, and swap the answers."""
        try:
            self._poll()
            self._reader.succeeded()
        except (RedisError, OSError) as exc:
            self._failed(exc)
        except Exception as exc:  # the one place: whatever a driver throws, the answers must go on growing old
            self._failed(exc)
        self._rebuild()
        self._report()
        self._reader.save_files()

    def _poll(self) -> None:
        """Subscribe first, then read: what changes in between rings."""
        reader = self._reader
        if self._doorbell is None:
            self._doorbell = self._redis.pubsub(ignore_subscribe_messages=True)  # type: ignore[no-untyped-call]
            self._doorbell.subscribe(*reader.doorbells)
        with self._redis.pipeline(transaction=False) as pipeline:
            for key in reader.head_keys:
                pipeline.get(key)
            raws = pipeline.execute(raise_on_error=False)
        for pool in reader.take_heads([raw if isinstance(raw, (bytes, str)) else None for raw in raws]):
            keys = reader.keys[pool]
            raw_head, raw_snapshot = self._redis.mget(keys.head, keys.snap)
            reader.take_pair(pool, raw_head, raw_snapshot)
        for raw in raws:
            if isinstance(raw, RedisError):
                raise raw
        if all(view.source(self._clock()) == "fresh" for view in self._views.values()):
            self._complete.set()

    def _wait(self, delay_s: float) -> None:
        """Until the doorbell rings, the time is up, or `close`."""
        started = time.monotonic()
        while not self._stop.is_set() and (left_s := started + delay_s - time.monotonic()) > 0:
            if self._doorbell is None:
                self._stop.wait(min(left_s, _SLICE_S))
                continue
            try:
                rang = self._doorbell.get_message(timeout=min(left_s, _SLICE_S)) is not None
            except (RedisError, OSError) as exc:
                self._failed(exc)
                continue
            if rang:
                self._stop.wait(max(0.0, MIN_GAP_S - (time.monotonic() - started)))
                self._drain()
                return

    def _drain(self) -> None:
        """Forget what rang meanwhile: one look answers it all."""
        try:
            for _ in range(MAX_DRAIN):
                if self._doorbell is None or self._doorbell.get_message(timeout=0.0) is None:
                    return
        except (RedisError, OSError) as exc:
            self._failed(exc)

    def _failed(self, exc: Exception) -> None:
        self._reader.failed(exc)
        self._hang_up()

    def _hang_up(self) -> None:
        doorbell, self._doorbell = self._doorbell, None
        if doorbell is not None:
            with contextlib.suppress(RedisError, OSError):  # it is gone already
                doorbell.close()


def _connect(url: str, timeout_s: float) -> redis.Redis:
    return redis.Redis.from_url(
        url,
        socket_timeout=timeout_s,
        socket_connect_timeout=timeout_s,
        retry=Retry(NoBackoff(), 0),  # the next look is the retry
        client_name="slodrift-client",
    )


def _call(method: weakref.WeakMethod[Callable[[], None]]) -> None:
    bound = method()
    if bound is not None:
        bound()

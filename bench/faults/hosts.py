"""Simulated serving hosts: real clients, each behind a proxy of its own, and somebody who writes down what they see."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from slodrift_client import BreakerClient

from bench.faults.proxy import Proxy
from bench.faults.workload import NODES

__all__ = ["FLEET", "LOOK_S", "Host", "Hosts", "ProxiedHost", "Sighting"]

FLEET = "faults"
LOOK_S = 0.2


@dataclass(frozen=True)
class Sighting:
    """A change that a host saw."""

    at_s: float
    pool: str
    subject: str
    state: str
    version: tuple[int, int, int]
    tx: str


@dataclass
class Host:
    """One serving host.

    Attributes:
        name: Of the host.
        port: Of Redis, or of what is before it, on the loopback.
        seen: Every change it was told of.
        reached: When it was first found at a version: (time, pool, version). `on_change` tells changes of state alone, and a host
            that passes over HALF_OPEN between two polls has none to tell.
        faults: What it should never have seen: more open than the cap, a version that went back.
    """

    name: str
    port: int
    pools: Sequence[str]
    folder: Path
    public_key: bytes | None
    names: Sequence[str] = ()
    seen: list[Sighting] = field(default_factory=list)
    reached: list[tuple[float, str, tuple[int, int, int]]] = field(default_factory=list)
    faults: list[str] = field(default_factory=list)
    client: BreakerClient | None = None
    _newest: dict[str, tuple[Any, int]] = field(default_factory=dict)

    def start(self, **more: Any) -> None:
        """A new client, as after a start of the host's process."""
        self._newest = {}
        self.client = BreakerClient(
            f"redis://127.0.0.1:{self.port}/0",
            FLEET,
            self.pools,
            state_dir=self.folder,
            host=self.name,
            hosts=self.names,
            pool_sizes=dict.fromkeys(self.pools, NODES),
            public_keys=None if self.public_key is None else [self.public_key],
            **more,
        )
        self.client.on_change(self._note)

    def stop(self) -> None:
        """The end of the host's process, without a last word."""
        if self.client is not None:
            client, self.client = self.client, None
            client.close()

    def _note(self, change: Any) -> None:
        self.seen.append(Sighting(time.time(), change.pool, change.subject, change.state, change.version, change.tx))

    def look(self) -> None:
        """Check what it believes now."""
        client = self.client
        if client is None:
            return
        for name, pool in client.status().pools.items():
            if pool.n_blocked > 1:  # a tenth of ten
                self.faults.append(f"{self.name}: {pool.n_blocked} nodes of {name} blocked at once")
            if pool.version is None:
                continue
            version, before = (pool.version, pool.hb), self._newest.get(name, ((0, 0, 0), -1))
            if version < before:
                self.faults.append(f"{self.name}: {name} went back from {before} to {version}")
            if version[0] > before[0]:
                self.reached.append((time.time(), name, version[0]))
            self._newest[name] = version

    def believes(self, pool: str) -> dict[str, str]:
        """Subject to identity of the decision it holds."""
        assert self.client is not None
        held = (self.client.decide(f"gpu-{n:03d}", pool) for n in range(NODES))
        return {d.subject: d.tx for d in held if d.tx}


@dataclass
class ProxiedHost(Host):
    """A host with a proxy between it and Redis."""

    proxy: Proxy = field(kw_only=True)


class Hosts:
    """All of them, and the thread that looks.

    Args:
        make_proxy: A proxy before Redis.
        pools: What they follow.
        folder: For last-known-good files.
        n: How many.
        public_key: Of the judge's signatures.
    """

    def __init__(
        self, make_proxy: Callable[[], Proxy], pools: Sequence[str], folder: Path, n: int, public_key: bytes | None
    ) -> None:
        names = [f"host-{i:02d}" for i in range(n)]
        self.all = [
            ProxiedHost(name, proxy.port, pools, folder / name, public_key, names, proxy=proxy)
            for name, proxy in ((name, make_proxy()) for name in names)
        ]
        for host in self.all:
            host.start()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="watch-hosts", daemon=True)
        self._thread.start()

    def __iter__(self) -> Any:
        return iter(self.all)

    def faults(self) -> list[str]:
        """What was wrong anywhere since the last call."""
        found = []
        for host in self.all:
            found += host.faults[:3]
            host.faults.clear()
        return found

    def equal_to(self, pools: dict[str, dict[str, str]]) -> list[str]:
        """Hosts that do not believe exactly this, with what they believe."""
        wrong = []
        for host in self.all:
            for pool, live in pools.items():
                if host.client is not None and (held := host.believes(pool)) != live:
                    wrong.append(f"{host.name} believes {held} of {pool}, the log says {live}")
        return wrong

    def opens_seen(self, pools: Iterable[str], since_s: float) -> set[tuple[str, str, str]]:
        """(pool, subject, tx) of everything that some host saw open."""
        wanted = set(pools)
        return {
            (s.pool, s.subject, s.tx)
            for host in self.all
            for s in list(host.seen)
            if s.pool in wanted and s.at_s >= since_s and s.state != "CLOSED"
        }

    def close(self) -> None:
        """End the clients."""
        self._stop.set()
        self._thread.join(5)
        closing = [threading.Thread(target=host.stop) for host in self.all]
        for thread in closing:
            thread.start()
        for thread in closing:
            thread.join(10)

    def _watch(self) -> None:
        while not self._stop.wait(LOOK_S):
            for host in self.all:
                with contextlib.suppress(AssertionError):
                    host.look()

"""Serving hosts of the protocol model: the threaded client without its thread, and what a host must never do."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable
from pathlib import Path

from model_redis import HostLink
from model_scopes import FLEET, LIMITS, POOL, Traffic
from model_seen import SEEN
from slodrift_client import BreakerClient
from slodrift_client.probes import Lease
from slodrift_client.view import PoolView

from schemas.scopes import scope_of

__all__ = ["Host", "allowed_open"]


class _Client(BreakerClient):
    """Looks when it is told to."""

    def _start(self) -> None:
        self._complete = threading.Event()
        self._doorbell = None
        self._thread = threading.current_thread()

    def look(self) -> None:
        self._look()

    @property
    def view(self) -> PoolView:
        return self._views[POOL]


def allowed_open(n_claimed: int, cap: int, pool_size: int | None) -> int:
    """Nodes that automation may keep from users on a host, as the safety policy puts it (not as the code does)."""
    n = n_claimed if pool_size is None else min(n_claimed, pool_size * 11 // 10)
    if n < 3:
        return 0
    return min(cap, 20, 1 if n < 10 else n // 10)


class Host:
    """One host; `restart` is a new process with the same disk.

    Attributes:
        offset_s: Between the world's time and its monotonic clock; `wall_jump_s` of its wall clock.
        leases: Probes on their way, by subject.
        advanced_s: World time at which the heartbeat that it believes last grew.
    """

    def __init__(
        self, name: str, hosts: list[str], link: HostLink, now_s: Callable[[], float], *, key: bytes, pool_size: int | None,
        folder: Path | None, seed: int,
    ) -> None:  # fmt: skip
        self.name, self.hosts, self.link, self.now_s, self.key = name, hosts, link, now_s, key
        self.pool_size, self.folder, self.seed = pool_size, folder, seed
        self.offset_s, self.wall_jump_s = 1000.0 * seed, 0.0
        self.restart()

    def restart(self) -> None:
        self.leases: list[tuple[str, tuple[int, int, int], float, Lease]] = []
        self.client = _Client(
            self.link, FLEET, [POOL], state_dir=self.folder, host=self.name, hosts=self.hosts, public_keys=[self.key],  # type: ignore[arg-type]
            pool_sizes={} if self.pool_size is None else {POOL: self.pool_size}, clock=self.clock, wall=self.wall,
            rng=random.Random(self.seed), limits=LIMITS,
        )  # fmt: skip
        self.order = self.order_now()
        self.versions: dict[str, tuple[int, int, int]] = {}
        self.traffic = Traffic()
        # What a file says counts as stale from the start: 5 s old.
        self.advanced_s = self.now_s() - 5.0

    def clock(self) -> float:
        return self.now_s() + self.offset_s

    def wall(self) -> float:
        return 1_800_000_000.0 + self.now_s() + self.wall_jump_s

    @property
    def view(self) -> PoolView:
        return self.client.view

    def order_now(self) -> tuple[int, ...]:
        head = self.view.head
        return (-1,) if head is None else (*head.version, head.hb)

    def refused(self) -> set[str]:
        """Subjects that one and the same request is refused because of now; the bound on refusals is `Traffic`'s business."""
        return {subject for subject in self.view.held if not self.client.passes(subject, POOL, "k")}

    def not_closed(self) -> dict[str, str]:
        """Effective states."""
        now = self.clock()
        return {s: state for s, held in self.view.held.items() if (state := held.state_at(now)) != "CLOSED"}

    def automatic(self) -> set[str]:
        """Subjects that automation took away, by effective state."""
        held = self.view.held
        return {s for s, state in self.not_closed().items() if state in ("OPEN", "HALF_OPEN") and not held[s].entry.latched}

    def nodes(self) -> set[str]:
        """Nodes that automation took away."""
        return {s for s in self.automatic() if scope_of(s) == "node"}

    def away(self) -> set[str]:
        """Nodes that are not in full use, whoever did it; one whose latch ends is half-open, and nothing new."""
        return {s for s, state in self.not_closed().items() if state != "DISABLED" and scope_of(s) == "node"}

    def look(self) -> int:
        """One look at Redis, and everything that must hold of it; returns how many nodes it took away."""
        before_away, before_order = self.away(), self.order
        blocked = self.refused()
        shown_nothing = self.link.up and self.link.server.up and self.link._pair()[0] is None
        self.client.look()
        self.order = self.order_now()
        assert self.order >= before_order, f"I1: {self.name} went back from {before_order} to {self.order}"
        if self.order > before_order:
            self.advanced_s = self.now_s()
        for subject, held in self.view.held.items():
            assert held.entry.version >= self.versions.get(subject, (0, 0, 0)), f"I1: {subject} went back on {self.name}"
            self.versions[subject] = held.entry.version
        head = self.view.head
        if added := self.nodes() - before_away:
            assert head is not None
            allowed = allowed_open(head.n_eligible, head.cap, self.pool_size)
            assert len(self.nodes()) <= allowed, f"I2: {self.name} took {sorted(added)} away, {allowed} are allowed"
        if head is not None:
            n = head.n_eligible if self.pool_size is None else min(head.n_eligible, self.pool_size * 11 // 10)
            kept = {s for s in self.refused() if scope_of(s) == "node"}
            assert len(kept) <= max(1, n * 3 // 10), f"{self.name} keeps {sorted(kept)} of {n} nodes away and does not panic"
            SEEN["panic"] += self.view.panic
        if shown_nothing:
            SEEN["nothing shown while something is refused"] += bool(blocked)
            assert self.refused() == blocked, "I18: an empty Redis opened or closed something"
        return len(added)

    def probe(self, subject: str) -> bool:
        """Ask for a probe that stays on its way."""
        lease = self.client.probe(subject)
        if lease:
            entry = self.view.held[subject].entry
            self.leases.append((subject, entry.version, self.now_s() + entry.probe_timeout_s, lease))
        return bool(lease)

    def in_flight(self) -> int:
        return self.client._slots.in_flight(self.clock())

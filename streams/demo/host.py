"""The serving host of the demo: a router that asks `slodrift_client` before it uses a node."""

from __future__ import annotations

import threading
from collections.abc import Iterable

from slodrift_client import BreakerClient, Lease

from schemas.telemetry import Event, RequestEvent
from streams.simulate.router import Verdict

__all__ = ["HostGate"]


class HostGate:
    """Answers the simulated router from a `BreakerClient`, and gives the slot of a probe back when its request ended.

    Args:
        client: Follows the pool.
        pool: Name of the pool.
    """

    def __init__(self, client: BreakerClient, pool: str) -> None:
        self._client = client
        self._pool = pool
        self._leases: dict[str, Lease] = {}
        self._lock = threading.Lock()
        self.probes = 0
        """Half-open probes sent so far."""

    def __call__(self, node: str) -> Verdict:
        """See `streams.simulate.router.Gate`."""
        if self._client.allow(node, self._pool):
            return "allow"
        lease = self._client.probe(node, self._pool)
        if not lease:
            return "deny"
        with self._lock:
            self._leases[node] = lease
            self.probes += 1
        return "probe"

    def ended(self, events: Iterable[Event]) -> None:
        """Requests ended: free the slots of those that were probes."""
        for event in events:
            if isinstance(event, RequestEvent) and event.probe:
                with self._lock:
                    lease = self._leases.pop(event.node, None)
                if lease is not None:
                    lease.release()

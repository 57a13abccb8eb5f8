"""State events of a pool, waiting by tick; when their tick closes they become health, XIDs, deploys and orders."""

from __future__ import annotations

import zlib
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from detectors.health import Health, NodeSamples
from schemas.policy import Health as HealthPolicy
from schemas.telemetry import DeployEvent, GpuEvent, NodeEvent, OverrideEvent, StateEvent
from streams.judge.clock import FUTURE_NS
from streams.judge.deploys import Deploy, Deploys
from streams.judge.overrides import Overrides

__all__ = ["EventSlots", "StateEvent"]

MAX_WAITING = 200_000

_decode = msgspec.msgpack.Decoder(list[StateEvent]).decode


def _order(waiting: tuple[int, int, StateEvent]) -> tuple[int, str, str]:
    _, ts_ns, event = waiting
    return ts_ns, event.node or "", event.gpu if isinstance(event, GpuEvent) else ""


class EventSlots:
    """Waiting state events of one pool.

    Args:
        tick_ns: Length of a tick.
        rules: For fatal XIDs.
    """

    def __init__(self, tick_ns: int, rules: HealthPolicy) -> None:
        self.tick_ns = tick_ns
        self.fatal = frozenset(rules.fatal_xids)
        self.open: dict[int, list[tuple[int, int, StateEvent]]] = {}  # tick to (node number, ts_ns, event)
        self.n_waiting = 0
        self.far_since: dict[int, int] = {}  # tick far ahead to the clock when it was first seen to be
        self.xid: dict[tuple[int, str], int] = {}
        self._boot: dict[str, int] = {}

    def add(self, node: int, ts_ns: int, event: StateEvent) -> bool:
        """Put an event into its tick; False when too many wait already. `node` is -1 for the pool."""
        if self.n_waiting >= MAX_WAITING:
            return False
        self.open.setdefault(ts_ns // self.tick_ns, []).append((node, ts_ns, event))
        self.n_waiting += 1
        return True

    def carry_orders(self, first: int) -> None:
        """The first tick of all is `first`: orders for ticks before it take effect in it."""
        for slot in sorted(s for s in self.open if s < first):
            orders = [waiting for waiting in self.open[slot] if isinstance(waiting[2], OverrideEvent)]
            if orders:
                self.open[slot] = [waiting for waiting in self.open[slot] if not isinstance(waiting[2], OverrideEvent)]
                self.open.setdefault(first, []).extend(orders)

    def drop_wild(self, now_ns: int) -> list[StateEvent]:
        """Refuse and return events far ahead of a clock that moved on while they waited."""
        far = [slot for slot in self.open if slot * self.tick_ns > now_ns + FUTURE_NS]
        since = self.far_since
        self.far_since = {slot: since.get(slot, now_ns) for slot in far}
        refused: list[StateEvent] = []
        for slot in far:
            if since.get(slot, now_ns) < now_ns:
                refused += [event for _, _, event in self.open.pop(slot)]
                del self.far_since[slot]
        self.n_waiting -= len(refused)
        return refused

    def numbers_in(self, slot: int) -> list[int]:
        """Numbers of the nodes that have events in a tick."""
        return [number for number, _, event in self.open.get(slot, ()) if number >= 0 and type(event) is not DeployEvent]

    def close(self, slot: int, seat: NDArray[np.int64], health: Health, deploys: Deploys, overrides: Overrides) -> None:
        """Take in the events of a tick; `seat` is the seat of each node number."""
        waiting = self.open.pop(slot, None)
        if waiting is None:
            return
        self.n_waiting -= len(waiting)
        seats = seat.tolist()
        states = [(seats[number], ts_ns, e) for number, ts_ns, e in waiting if type(e) is NodeEvent]
        if states:
            health.observe(self._samples(states))
        for number, ts_ns, e in sorted((w for w in waiting if type(w[2]) is not NodeEvent), key=_order):
            if isinstance(e, GpuEvent):
                node = seats[number]
                health.heard_s[node] = np.fmax(health.heard_s[node], ts_ns / 1e9)
                self._xid(node, ts_ns, e, health)
            elif isinstance(e, DeployEvent):
                deploys.add(Deploy(ts_ns / 1e9, e.node, e.what[:256]))
            elif isinstance(e, OverrideEvent):
                overrides.add(e)

    def _samples(self, states: list[tuple[int, int, Any]]) -> NodeSamples:
        events = [e for _, _, e in states]
        return NodeSamples(
            node=np.array([node for node, _, _ in states], np.intp),
            ts_s=np.array([ts_ns for _, ts_ns, _ in states], np.int64) / 1e9,
            boot=np.array([self._hash(e.boot_id) for e in events], np.int64),
            running=np.array([-1.0 if e.running is None else e.running for e in events]),
            tokens=np.array([-1.0 if e.generated_tokens_total is None else e.generated_tokens_total for e in events]),
        )

    def _hash(self, boot_id: str | None) -> int:
        if not boot_id:
            return 0
        known = self._boot.get(boot_id)
        if known is None:
            if len(self._boot) > 100_000:
                self._boot.clear()
            known = self._boot[boot_id] = zlib.crc32(boot_id.encode()) or 1
        return known

    def _xid(self, node: int, ts_ns: int, event: GpuEvent, health: Health) -> None:
        """A fatal XID counts when it appears; exporters go on reporting the last one for ever."""
        key = (node, event.gpu)
        before = self.xid.get(key, 0)
        now = before if event.xid is None else event.xid
        if now != before:
            if len(self.xid) > MAX_WAITING:  # names of GPUs without end: an attack or a bug
                self.xid.clear()
            self.xid[key] = now
            if now in self.fatal:
                health.fatal_s[node] = np.fmax(health.fatal_s[node], ts_ns / 1e9)

    def dump(self) -> dict[str, Any]:
        """State for a snapshot."""
        encode = msgspec.msgpack.encode
        return {
            "open": [
                [slot, [node for node, _, _ in waiting], [ts_ns for _, ts_ns, _ in waiting], encode([e for _, _, e in waiting])]
                for slot, waiting in sorted(self.open.items())
            ],
            "far": list(self.far_since.items()),
            "xid": [[node, gpu, xid] for (node, gpu), xid in sorted(self.xid.items())],
        }

    def load(self, raw: dict[str, Any]) -> None:
        """What `dump` wrote."""
        self.open = {slot: list(zip(nodes, times, _decode(events), strict=True)) for slot, nodes, times, events in raw["open"]}
        self.n_waiting = sum(len(waiting) for waiting in self.open.values())
        self.far_since = dict(raw["far"])
        self.xid = {(node, gpu): xid for node, gpu, xid in raw["xid"]}

"""Hard faults decided when their event arrives, not when its tick closes (policy `health.immediate`).

A tick waits for late events, ten seconds by default, because a histogram needs its last requests. A fatal XID needs nothing
more, and a node that has generated no token for 20 s will not be excused by a request that is late. So the state event that
says so closes the case at its own time: the decision's `t` and identity are the event's alone, the caps are asked in the state
that the pool is in after everything before the event in the log. Live and replayed, the same records in the same order give the
same decisions. What may not open now (caps, a node not seated yet) is left to the tick.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from schemas.policy import Health
from schemas.telemetry import GpuEvent, NodeEvent

__all__ = ["Urgent"]

_MAX_REMEMBERED = 200_000


class Urgent:
    """What was last heard of each node, in order of arrival.

    Args:
        rules: Of the pool.
    """

    def __init__(self, rules: Health) -> None:
        self.fatal = frozenset(rules.fatal_xids)
        self.stalled_after_ns = round(rules.stalled_after_s * 1e9)
        self.xid: dict[tuple[int, str], int] = {}
        self.progress: dict[int, tuple[int, int | None, str | None]] = {}  # since when nothing moved, tokens, boot

    def look(
        self, number: int, ts_ns: int, event: GpuEvent | NodeEvent, served_ns: Callable[[int], int]
    ) -> dict[str, Any] | None:
        """Evidence of a hard fault that this event proves, or None.

        Args:
            number: Of the node.
            ts_ns: Time of the event.
            event: Next in order.
            served_ns: Last request that a node answered well, Unix ns; asked only when nothing else says that it lives.
        """
        if isinstance(event, GpuEvent):
            return self._xid(number, event)
        before = self.progress.get(number)
        moved = before is None or event.generated_tokens_total is None or event.generated_tokens_total != before[1]
        if before is None or moved or not event.running or event.boot_id != before[2]:
            if len(self.progress) > _MAX_REMEMBERED:
                self.progress.clear()
            self.progress[number] = ts_ns, event.generated_tokens_total, event.boot_id
            return None
        since_ns = before[0]
        if ts_ns - since_ns < self.stalled_after_ns:
            return None
        since_ns = max(since_ns, served_ns(number))
        if ts_ns - since_ns < self.stalled_after_ns:
            return None
        return {"hard_fault": ["stalled"], "running": event.running, "silent_s": round((ts_ns - since_ns) / 1e9, 3)}

    def _xid(self, number: int, event: GpuEvent) -> dict[str, Any] | None:
        if event.xid is None or self.xid.get((number, event.gpu)) == event.xid:
            return None  # exporters go on reporting the last one for ever
        if len(self.xid) > _MAX_REMEMBERED:
            self.xid.clear()
        self.xid[number, event.gpu] = event.xid
        if event.xid not in self.fatal:
            return None
        return {"hard_fault": ["fatal_xid"], "xid": event.xid, "gpu": event.gpu}

    def dump(self) -> list[Any]:
        """State for a snapshot."""
        return [[[*key, xid] for key, xid in self.xid.items()], [[n, *state] for n, state in self.progress.items()]]

    def load(self, raw: list[Any] | None) -> None:
        """What `dump` wrote; None from a version without it."""
        xids, progress = raw or ([], [])
        self.xid = {(number, gpu): xid for number, gpu, xid in xids}
        self.progress = {number: (since_ns, tokens, boot) for number, since_ns, tokens, boot in progress}

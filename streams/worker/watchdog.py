"""Notices that a worker has stopped getting on, so that its process can end and be started anew.

aiokafka and Faust can end up alive and useless: no assignment after a failed SyncGroup, a fetch loop that is stuck, a handler
that never returns. Health pages do not see that. Progress does: an end offset that moves while ours does not, or no assignment
while messages wait that nobody commits, for two session timeouts. A worker that catches up serves its partitions in turn, so
there a single partition has ten times as long. While the broker does not answer there is nothing to judge by.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Set
from dataclasses import dataclass

__all__ = ["Observation", "Watchdog"]

_PATIENCE = 10


@dataclass(frozen=True)
class Observation:
    """What is known at one moment, by "topic[partition]".

    Attributes:
        assigned: Partitions that are ours.
        ends: Log end offsets, as a client of its own sees them; None when the broker does not answer.
        done: Our next offset of each of our partitions.
        committed: The group's committed offsets, of all partitions.
        waiting: Partitions that wait for a destination that is away: they are meant to stand still.
    """

    assigned: Set[str]
    ends: Mapping[str, int] | None
    done: Mapping[str, int]
    committed: Mapping[str, int]
    waiting: Set[str] = frozenset()


@dataclass(slots=True)
class _Standing:
    """A partition with messages waiting: its offset, since when it has that, and since when nothing excuses it."""

    offset: int
    since_s: float
    alone_since_s: float


class Watchdog:
    """Call `look` about once a second.

    Args:
        session_timeout_s: Of the consumer group, seconds.
        commit_every_s: How seldom an owner may commit (the snapshot interval), seconds.
        clock_s: Monotonic seconds.
    """

    def __init__(self, session_timeout_s: float, commit_every_s: float, clock_s: Callable[[], float]) -> None:
        self._stuck_s = max(2 * session_timeout_s, 5.0)
        self._idle_s = self._stuck_s + 2 * commit_every_s + 10.0  # others may be joining, restoring, or new
        self._clock_s = clock_s
        self._own: dict[str, _Standing] = {}
        self._group: dict[str, _Standing] = {}
        self._moved_s = clock_s()
        self._before: dict[str, int] = {}

    def look(self, seen: Observation) -> str | None:
        """Why the process should end now, or None."""
        now = self._clock_s()
        if seen.ends is None:
            self._own.clear()
            self._group.clear()
            return None
        own = {p: seen.done.get(p, 0) for p in seen.assigned if p not in seen.waiting}
        if own != self._before:
            self._moved_s, self._before = now, own
        _update(self._own, own, seen.ends, now)
        catching_up = now - self._moved_s < self._stuck_s and len(self._own) > 1
        for partition, standing in self._own.items():
            if catching_up:
                standing.alone_since_s = now
            if now - standing.alone_since_s >= self._stuck_s or now - standing.since_s >= _PATIENCE * self._stuck_s:
                return (
                    f"{partition} stands at offset {standing.offset} while its end is {seen.ends[partition]}, "
                    f"for {now - standing.since_s:.0f} s"
                )
        if seen.assigned:
            self._group.clear()
            return None
        _update(self._group, seen.committed, seen.ends, now)
        for partition, standing in self._group.items():
            if now - standing.since_s >= self._idle_s:
                return (
                    f"no partition is assigned to this worker and nobody commits {partition}, for {now - standing.since_s:.0f} s"
                )
        return None


def _update(memory: dict[str, _Standing], offsets: Mapping[str, int], ends: Mapping[str, int], now: float) -> None:
    """Keep in `memory` the partitions where messages wait; one whose offset moved begins anew."""
    for gone in [p for p in memory if p not in offsets or offsets[p] >= ends.get(p, 0)]:
        del memory[gone]
    for partition, offset in offsets.items():
        if offset < ends.get(partition, 0) and (partition not in memory or memory[partition].offset != offset):
            memory[partition] = _Standing(offset, now, now)

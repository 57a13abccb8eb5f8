"""Notices that a worker has stopped getting on, so that its process can end and be started anew.

aiokafka and Faust can end up alive and useless: no assignment after a failed SyncGroup, a fetch loop that is stuck, a handler
that never returns. Health pages do not see that. Progress does: an end offset that moves while ours does not, or no assignment
while messages wait that nobody commits. Both for two session timeouts. While the broker does not answer there is nothing to
judge by.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Set
from dataclasses import dataclass
from typing import TypeVar

__all__ = ["Observation", "Watchdog"]

P = TypeVar("P")


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


class Watchdog:
    """Call `look` about once a second.

    Args:
        session_timeout_s: Of the consumer group, seconds.
        commit_every_s: How seldom an owner may commit (the snapshot interval), seconds.
        clock_s: Monotonic seconds.
    """

    def __init__(self, session_timeout_s: float, commit_every_s: float, clock_s: Callable[[], float]) -> None:
        self._stuck_s = max(2 * session_timeout_s, 5.0)
        self._idle_s = self._stuck_s + 2 * commit_every_s
        self._clock_s = clock_s
        self._own: dict[str, tuple[int, float]] = {}  # partition: (our offset, since when it stands with messages waiting)
        self._group: dict[str, tuple[int, float]] = {}

    def look(self, seen: Observation) -> str | None:
        """Why the process should end now, or None."""
        now = self._clock_s()
        if seen.ends is None:
            self._own.clear()
            self._group.clear()
            return None
        own = {p: seen.done.get(p, 0) for p in seen.assigned if p not in seen.waiting}
        for partition, since in _standing(self._own, own, seen.ends, now).items():
            if now - since >= self._stuck_s:
                return (
                    f"{partition} stands at offset {own[partition]} while its end is {seen.ends[partition]}, "
                    f"for {now - since:.0f} s"
                )
        if seen.assigned:
            self._group.clear()
            return None
        for partition, since in _standing(self._group, dict(seen.committed), seen.ends, now).items():
            if now - since >= self._idle_s:
                return f"no partition is assigned to this worker and nobody commits {partition}, for {now - since:.0f} s"
        return None


def _standing(
    memory: dict[str, tuple[int, float]], offsets: Mapping[str, int], ends: Mapping[str, int], now: float
) -> dict[str, float]:
    """Since when each partition stands still although messages wait; updates `memory`."""
    for gone in memory.keys() - offsets.keys():
        del memory[gone]
    standing = {}
    for partition, offset in offsets.items():
        before = memory.get(partition)
        if offset >= ends.get(partition, 0) or before is None or before[0] != offset:
            memory[partition] = (offset, now)
        else:
            standing[partition] = before[1]
    return standing

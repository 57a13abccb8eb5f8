"""Keeps the framer's sources in step by the time of their records, so that after a long absence none runs far ahead.

Topics are not equally busy: minutes of node states fit one read, the requests of these minutes need many. Sent as they are read,
the states would move the judge's clock on and the requests would count as late. So what a source has read beyond the slowest
one that still has something to give waits here, and that source is not read meanwhile. A source that gives nothing for
`patience_s` although it should (its broker is away) holds up nobody. Pure: no consumer, no clock.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping
from typing import Generic, Protocol, TypeVar

from streams.framer_offsets import Source

__all__ = ["Aligner"]

BOUND_MS = 2000
"""How far ahead of the slowest source one may be, milliseconds; a part of any pool's lateness."""
PATIENCE_S = 5.0


class _Stamped(Protocol):
    def timestamp(self) -> tuple[int, int]: ...


M = TypeVar("M", bound=_Stamped)


class Aligner(Generic[M]):
    """Messages on their way from the consumer to the decoder.

    Args:
        bound_ms: See `BOUND_MS`.
        patience_s: See `PATIENCE_S`.
    """

    def __init__(self, bound_ms: int = BOUND_MS, patience_s: float = PATIENCE_S) -> None:
        self._bound_ms, self._patience_s = bound_ms, patience_s
        self._held: dict[Source, deque[tuple[int, M]]] = {}
        self._front: dict[Source, int] = {}
        self._heard_s: dict[Source, float] = {}

    @property
    def holding(self) -> set[Source]:
        """Sources that must not be read now: some of what they gave still waits."""
        return {source for source, held in self._held.items() if held}

    def front_ms(self, source: Source) -> int:
        """Record time that a source has reached, Unix milliseconds; 0 before its first record."""
        return self._front.get(source, 0)

    def assigned(self, sources: Iterable[Source], now_s: float) -> None:
        """These are read from now on; they may have something to give."""
        for source in sources:
            self._heard_s[source] = now_s

    def forget(self, sources: Iterable[Source]) -> None:
        """These are somebody else's now, who reads again what waits here."""
        for source in sources:
            for known in (self._held, self._front, self._heard_s):
                known.pop(source, None)

    def take(
        self, read: Mapping[Source, list[M]], behind: Callable[[Source], bool], now_s: float, wall_ms: int
    ) -> dict[Source, list[M]]:
        """What may go on now, by source, in its order: at most `bound_ms` of all of them. Call again at once while `holding`.

        Args:
            read: What was just read.
            behind: Whether a source has much more in the log than was read of it, or that is not known yet.
            now_s: Monotonic seconds.
            wall_ms: Unix milliseconds; a record from the future counts as one of now, it must not wait for that time.
        """
        if not self.holding and self._in_step(read, behind, now_s, wall_ms):
            return {source: messages for source, messages in read.items() if messages}
        for source, messages in read.items():
            self._heard_s[source] = now_s
            front, held = self._front.get(source, 0), self._held.setdefault(source, deque())
            for message in messages:
                front = max(front, min(message.timestamp()[1], wall_ms))  # a source's own order is kept whatever its clocks did
                held.append((front, message))
            self._front[source] = front
        fronts = [held[0][0] for held in self._held.values() if held]
        if not fronts:
            return {}
        fronts += [
            self._front.get(source, 0)
            for source, heard_s in self._heard_s.items()
            if not self._held.get(source) and now_s - heard_s < self._patience_s and behind(source)
        ]
        limit = min(fronts) + self._bound_ms
        ready: dict[Source, list[M]] = {}
        for source, held in self._held.items():
            some: list[M] = []
            while held and held[0][0] <= limit:
                some.append(held.popleft()[1])
            if some:
                ready[source] = some
        return ready

    def _in_step(self, read: Mapping[Source, list[M]], behind: Callable[[Source], bool], now_s: float, wall_ms: int) -> bool:
        """Whether all of `read` may go on as it is, which is how a live stream looks; told without a look at each message."""
        stamps = {source: [message.timestamp()[1] for message in messages] for source, messages in read.items() if messages}
        if not stamps:
            return False
        newest = {source: max(self._front.get(source, 0), min(max(some), wall_ms)) for source, some in stamps.items()}
        if max(newest.values()) - min(map(min, stamps.values())) > self._bound_ms:
            return False
        silent = (source for source in self._heard_s if source not in stamps)
        if any(now_s - self._heard_s[source] < self._patience_s and behind(source) for source in silent):
            return False
        self._front.update(newest)
        self._heard_s.update(dict.fromkeys(stamps, now_s))
        return True

"""How much of a pool's requests this host refuses because automation said so, and the bound on it.

In the last `WINDOW_S` at most a share of the requests is refused, whatever sessions, classes and pool are open and however many
of them; the share of the nodes that are away is taken off it before. Above that nothing is refused, and the newest opens are ignored
here, one more with each refusal too many, until a window has passed without one. Operators' orders are not automation. Counting
begins when something but a node is blocked, so the usual path costs nothing.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable

from slodrift_client.contract import Version

__all__ = ["LEAST", "WINDOW_S", "Refusals"]

WINDOW_S = 10.0
LEAST = 5
"""Refusals in a window that are allowed whatever their share: of a handful of requests a share means nothing."""
_SLICE_S = 0.1


class Refusals:
    """Requests and refusals of one pool.

    Requests are counted by what is asked about: whoever asks about session, class and pool of one request asks three times, so
    there were as many requests as were asked about in the kind that most were.

    Args:
        most: Share of the requests that may be refused.

    Attributes:
        overruled: Refusals that were not made.
    """

    def __init__(self, most: float) -> None:
        self.most = most
        self.overruled = 0
        self._slices: deque[_Slice] = deque()
        self._asked: dict[str, int] = {}
        self._refused = 0
        self._ignored: dict[str, Version] = {}
        self._ignored_until = float("-inf")

    def asked(self, now: float, kind: str = "") -> None:
        """One request more, or one question about a subject of this kind."""
        counts = self._turn(now).asked
        counts[kind] = counts.get(kind, 0) + 1
        self._asked[kind] = self._asked.get(kind, 0) + 1

    def may_refuse(self, now: float, subject: str, version: Version, opens: Callable[[], Iterable[tuple[Version, str]]]) -> bool:
        """Whether the request may be refused because of `subject`; it is counted as refused then.

        Args:
            now: Monotonic seconds.
            subject: That covers it.
            version: Of its decision.
            opens: Version and subject of everything that automation blocks here.
        """
        current = self._turn(now)
        if self._ignored and now >= self._ignored_until:
            self._ignored.clear()
        if self._ignored.get(subject) == version:
            self.overruled += 1
            return False
        if self._refused + 1 > max(LEAST, self.most * max(self._asked.values(), default=0)):
            newest = max(((v, s) for v, s in opens() if self._ignored.get(s) != v), default=None)
            if newest is not None:
                self._ignored[newest[1]] = newest[0]
            self._ignored_until = now + WINDOW_S
            self.overruled += 1
            return False
        current.refused += 1
        self._refused += 1
        return True

    def _turn(self, now: float) -> _Slice:
        slices = self._slices
        while slices and slices[0].start <= now - WINDOW_S:
            old = slices.popleft()
            self._refused -= old.refused
            for kind, n in old.asked.items():
                self._asked[kind] -= n
        if not slices or now - slices[-1].start >= _SLICE_S:
            slices.append(_Slice(now))
        return slices[-1]


class _Slice:
    __slots__ = ("asked", "refused", "start")

    def __init__(self, start: float) -> None:
        self.start = start
        self.asked: dict[str, int] = {}
        self.refused = 0

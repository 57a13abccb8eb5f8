"""How much of a pool's requests this host refuses because automation said so, and the bound on it.

In the last `WINDOW_S` at most a share of the requests is refused, whatever sessions, classes and pool are open and however many
of them; the share of the nodes that are away is taken off it before. Where open breakers would refuse more, the newest opens are
ignored here: those whose refusals, with those of all older ones, would pass the bound. Operators' orders are not automation.
Counting begins when something but a node is blocked, so the usual path costs nothing.
"""

from __future__ import annotations

from collections import deque

from slodrift_client.contract import Version

__all__ = ["LEAST", "SLICE_S", "WINDOW_S", "Refusals"]

WINDOW_S = 10.0
LEAST = 5
"""Refusals (and retries) in a window that are allowed whatever their share: of a handful of requests a share means nothing."""
SLICE_S = 0.1
"""The window moves on in steps of this."""


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
        self._wanted: dict[str, int] = {}
        self._opened: dict[str, Version] = {}

    def asked(self, now: float, kind: str = "") -> None:
        """One request more, or one question about a subject of this kind."""
        _add(self._turn(now).asked, self._asked, kind)

    def may_refuse(self, now: float, subject: str, version: Version) -> bool:
        """Whether the request may be refused because of `subject`, open by the decision `version`; it is counted then."""
        current = self._turn(now)
        _add(current.wanted, self._wanted, subject)
        self._opened[subject] = version
        budget = max(LEAST, self.most * max(self._asked.values(), default=0))
        wanted = sum(n for other, n in self._wanted.items() if other == subject or self._opened[other] < version)
        if wanted > budget or self._refused + 1 > budget:
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
            _take(old.asked, self._asked)
            _take(old.wanted, self._wanted)
            if not self._wanted:
                self._opened.clear()
        if not slices or now - slices[-1].start >= SLICE_S:
            slices.append(_Slice(now))
        return slices[-1]


class _Slice:
    __slots__ = ("asked", "refused", "start", "wanted")

    def __init__(self, start: float) -> None:
        self.start = start
        self.asked: dict[str, int] = {}
        self.wanted: dict[str, int] = {}
        self.refused = 0


def _add(part: dict[str, int], total: dict[str, int], name: str) -> None:
    part[name] = part.get(name, 0) + 1
    total[name] = total.get(name, 0) + 1


def _take(part: dict[str, int], total: dict[str, int]) -> None:
    for name, n in part.items():
        total[name] -= n
        if not total[name]:
            del total[name]

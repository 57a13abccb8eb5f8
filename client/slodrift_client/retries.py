"""How many refused requests may be tried at their fallback: a bounded share, so that an outage here is no storm there.

A fallback is named once for each request (`X-Slodrift-Hop`), and to at most this share of the requests in the last `WINDOW_S`.
Whoever is refused beyond it is told when to come back, and of no other place (the retry budget of Finagle and Envoy).
"""

from __future__ import annotations

from collections import deque

from slodrift_client.refusals import LEAST, SLICE_S, WINDOW_S

__all__ = ["RetryBudget"]


class RetryBudget:
    """Requests and retries of one pool on this host.

    Args:
        most: Share of the requests that may be retried.

    Attributes:
        denied: Retries that were not allowed.
    """

    def __init__(self, most: float) -> None:
        self.most = most
        self.denied = 0
        self._slices: deque[list[float]] = deque()  # start, requests, retries
        self._asked = self._taken = 0

    def asked(self, now: float) -> None:
        """One request more."""
        self._turn(now)[1] += 1
        self._asked += 1

    def take(self, now: float) -> bool:
        """Whether one more refused request may be tried elsewhere; it is counted then."""
        current = self._turn(now)
        if self._taken + 1 > max(LEAST, self.most * self._asked):
            self.denied += 1
            return False
        current[2] += 1
        self._taken += 1
        return True

    def _turn(self, now: float) -> list[float]:
        slices = self._slices
        while slices and slices[0][0] <= now - WINDOW_S:
            _, asked, taken = slices.popleft()
            self._asked -= int(asked)
            self._taken -= int(taken)
        if not slices or now - slices[-1][0] >= SLICE_S:
            slices.append([now, 0, 0])
        return slices[-1]

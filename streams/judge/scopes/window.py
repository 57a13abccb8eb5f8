"""Sums over the failure window by request class and node, and by session bucket."""

from __future__ import annotations

from collections import deque
from typing import Any

import numpy as np
from numpy.typing import NDArray

from detectors.weights import Weight, count
from schemas.scopes import MAX_CLASSES, SESSION_BUCKETS

__all__ = ["ALL", "ERRORS", "FAILED", "MAX_COUNT", "MAX_GROUPS", "TOTAL", "ClassWindow", "SessionWindow"]

Ints = NDArray[np.int64]

TOTAL, ERRORS, FAILED = range(3)
ALL = MAX_CLASSES
"""Row behind the classes: all requests of the node."""
MAX_GROUPS = 256
"""Nodes are told apart up to this many; more share groups by seat."""

MAX_COUNT = np.iinfo(np.int32).max
"""Most requests of a class on a node in a tick that are told apart."""


class ClassWindow:
    """Requests, errors and failures of the last `length` ticks, by class (and `ALL`) and node group.

    Args:
        length: Ticks.
    """

    def __init__(self, length: int) -> None:
        self.length, self.at = length, 0
        self.ring = np.zeros((length, 3, ALL + 1, 0), np.int32)
        self.sums = np.zeros((3, ALL + 1, 0), np.int64)
        self.last = np.zeros((3, ALL + 1), np.int64)
        """Of the last tick, over all nodes."""

    @property
    def groups(self) -> int:
        """Node groups."""
        return self.sums.shape[-1]

    def grow(self, n: int) -> None:
        """Make room for `n` nodes."""
        more = min(n, MAX_GROUPS) - self.groups
        if more > 0:
            self.ring = np.concatenate([self.ring, np.zeros((*self.ring.shape[:3], more), np.int32)], axis=3)
            self.sums = np.concatenate([self.sums, np.zeros((*self.sums.shape[:2], more), np.int64)], axis=2)

    def add(self, counts: Ints) -> None:
        """The counts of one tick, (3, ALL + 1, G)."""
        self.sums += counts - self.ring[self.at]
        self.ring[self.at] = counts
        self.at = (self.at + 1) % self.length
        self.last = counts.sum(axis=2)

    def recent(self, ticks: int) -> Ints:
        """Sums of the last `ticks` ticks over all nodes, (3, ALL + 1)."""
        rows = [(self.at - 1 - back) % self.length for back in range(min(ticks, self.length))]
        return np.asarray(self.ring[rows].sum(axis=(0, 3), dtype=np.int64))

    def forget(self, classes: list[int] | slice = slice(None)) -> None:
        """Drop what is known of some classes, or of all."""
        self.ring[:, :, classes] = 0
        self.sums[:, classes] = 0

    def dump(self) -> dict[str, Any]:
        """State for a snapshot."""
        return {"g": self.groups, "ring": self.ring.tobytes(), "at": self.at}

    def load(self, raw: dict[str, Any]) -> None:
        """What `dump` wrote, of a window of the same length."""
        self.ring = np.frombuffer(raw["ring"], np.int32).reshape(self.length, 3, ALL + 1, raw["g"]).copy()
        self.sums = self.ring.sum(axis=0, dtype=np.int64)
        self.at = raw["at"]


class SessionWindow:
    """Requests and errors of the last `length` ticks by session bucket; errors by node too.

    Args:
        length: Ticks.
    """

    def __init__(self, length: int) -> None:
        self.length = length
        self.ticks: deque[tuple[Ints, Ints, Ints]] = deque(maxlen=length)  # requests by bucket; pairs and their counts
        self.requests = np.zeros(SESSION_BUCKETS, np.int64)

    def add(self, requests: Ints, bucket: Ints, node: Ints, weight: Weight = None) -> None:
        """One tick: requests by bucket, and bucket, node and weight of each error."""
        if len(self.ticks) == self.length:
            self.requests -= self.ticks[0][0]
        self.requests += requests
        if len(bucket):
            pairs, at = np.unique(bucket << 32 | node, return_inverse=True)
            counts = count(at, weight)
        else:
            pairs = counts = np.zeros(0, np.int64)
        self.ticks.append((requests, pairs, counts.astype(np.int64)))

    def errors(self) -> tuple[Ints, Ints, Ints]:
        """Bucket, node and number of the errors of the window, every pair once."""
        if not self.ticks:
            none = np.zeros(0, np.int64)
            return none, none, none
        pairs, at = np.unique(np.concatenate([p for _, p, _ in self.ticks]), return_inverse=True)
        counts = np.bincount(at, weights=np.concatenate([c for _, _, c in self.ticks]), minlength=len(pairs)).astype(np.int64)
        return pairs >> 32, pairs & 0xFFFFFFFF, counts

    def forget(self) -> None:
        """Drop everything."""
        self.ticks.clear()
        self.requests[:] = 0

    def dump(self) -> list[list[bytes]]:
        """State for a snapshot."""
        return [[part.tobytes() for part in tick] for tick in self.ticks]

    def load(self, raw: list[list[bytes]]) -> None:
        """What `dump` wrote, of a window of the same length."""
        self.forget()
        for tick in raw:
            requests, pairs, counts = (np.frombuffer(part, np.int64) for part in tick)
            self.ticks.append((requests, pairs, counts))
            self.requests += requests

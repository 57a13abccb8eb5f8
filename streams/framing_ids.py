"""Recently seen request identifiers, so that an event delivered twice counts once.

Identifiers are kept as 64-bit hashes in sets per minute of *event* time: a copy carries the time of its original, whenever it
arrives. A reported request is compared with its own minute and the neighbouring ones. Two different identifiers share a
hash about once in 3e7 windows of a million requests.
"""

from __future__ import annotations

from collections import OrderedDict

import numpy as np
from numpy.typing import NDArray

__all__ = ["RecentIds"]


class RecentIds:
    """Bounded memory of identifiers.

    Args:
        window_s: Length of a slot of event time, seconds.
        max_ids: Identifiers kept in all (about 100 bytes each); the slots that were not used for longest go first.
        max_slots: Slots kept, so that scattered timestamps cannot fill the memory with near-empty sets.
    """

    def __init__(self, window_s: float = 60.0, max_ids: int = 1_000_000, max_slots: int = 64) -> None:
        self._window_ns = round(window_s * 1e9)
        self._max_ids = max_ids
        self._max_slots = max_slots
        self._slots: OrderedDict[int, set[int]] = OrderedDict()
        self._n_ids = 0

    def __len__(self) -> int:
        return self._n_ids

    def fresh(self, key: NDArray[np.uint64], ts_ns: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Which rows are seen for the first time; remembers them.

        Args:
            key: 64-bit hash of (pool, node, request), (n,).
            ts_ns: Event time, Unix nanoseconds, (n,).
        """
        fresh = np.ones(len(key), np.bool_)
        slot = ts_ns // self._window_ns
        if len(slot) == 0:
            return fresh
        if slot[0] == slot[-1] and (slot == slot[0]).all():
            self._one_slot(int(slot[0]), key, fresh, None)
        else:
            order = np.argsort(slot, kind="stable")
            cuts = np.flatnonzero(np.diff(slot[order])) + 1
            for rows in np.split(order, cuts):
                self._one_slot(int(slot[rows[0]]), key[rows], fresh, rows)
        self._forget()
        return fresh

    def _one_slot(self, slot: int, key: NDArray[np.uint64], fresh: NDArray[np.bool_], rows: NDArray[np.intp] | None) -> None:
        known = self._slots.setdefault(slot, set())
        self._slots.move_to_end(slot)
        around = [known] + [s for s in (self._slots.get(slot - 1), self._slots.get(slot + 1)) if s]
        keys = key.tolist()
        new = set(keys)
        if len(new) == len(keys) and all(s.isdisjoint(new) for s in around):
            known |= new
            self._n_ids += len(new)
            return
        for i, k in enumerate(keys):
            if any(k in s for s in around):
                fresh[i if rows is None else rows[i]] = False
            else:
                known.add(k)
                self._n_ids += 1

    def _forget(self) -> None:
        while len(self._slots) > 1 and (self._n_ids > self._max_ids or len(self._slots) > self._max_slots):
            _, gone = self._slots.popitem(last=False)
            self._n_ids -= len(gone)

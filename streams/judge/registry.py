"""Names, numbers and seats of the nodes of one pool, bounded.

A node has a *number* from the moment it is heard of, in order of arrival. It gets a *seat*, its place in every array of the
pool, when the first tick that holds anything of it is closed; new nodes of a tick are seated by name. Seats therefore depend on
event time and names alone, and nothing computed over them depends on how the events were framed.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from schemas.scopes import scope_of
from streams.judge.columns import constant

__all__ = ["MAX_NODES", "UNKNOWN", "Registry"]

MAX_NODES = 20_000
UNKNOWN = 0xFFFFFFFF
"""Number of a node that the pool does not know: outside the inventory, one too many, or named like a class, a session bucket or a
pool. Hosts go by the name, so opening a node `pool:` would take the whole pool away."""


class Registry:
    """Nodes of one pool.

    Args:
        inventory: Nodes that exist, or None when any may appear.
        max_nodes: Bound of the number of nodes.

    Attributes:
        numbers: Number of each name.
        seat: Seat by number, -1 while a node has none, int64 (numbers,).
        names: Names by seat.
        seats: Seat of each seated name.
        rank: Place of each seat among the sorted names, (seats,).
    """

    def __init__(self, inventory: Sequence[str] | None, max_nodes: int = MAX_NODES) -> None:
        self.allowed = None if inventory is None else frozenset(inventory)
        self.max_nodes = max_nodes
        self.numbers: dict[str, int] = {}
        self.seat = np.empty(0, np.int64)
        self.names: list[str] = []
        self.seats: dict[str, int] = {}
        self.rank = np.empty(0, np.intp)

    def number(self, name: str) -> int:
        """Number of a node, a new one if it may be known; else `UNKNOWN`."""
        number = self.numbers.get(name)
        if number is None:
            outside = self.allowed is not None and name not in self.allowed
            if outside or len(self.numbers) >= self.max_nodes or scope_of(name) != "node":
                return UNKNOWN
            number = self.numbers[name] = len(self.numbers)
        return number

    def of_rows(self, names: Sequence[str], node: NDArray[np.uint32]) -> NDArray[np.uint32]:
        """Numbers of rows: `node` indexes `names`."""
        if len(names) == 1:
            return constant(np.uint32(self.number(names[0])), len(node))
        table = np.array([self.number(name) for name in names], np.uint32)
        return table[node]

    def grow(self) -> int:
        """Extend `seat` to all numbers; how many there are."""
        more = len(self.numbers) - len(self.seat)
        if more:
            self.seat = np.append(self.seat, np.full(more, -1))
        return len(self.seat)

    def all_seated(self) -> bool:
        """True when every numbered node has a seat."""
        return len(self.names) == len(self.numbers)

    def give_seats(self, numbers: Iterable[int]) -> bool:
        """Seat the nodes among `numbers` that have none, by name; True when there were any."""
        missing = {number for number in numbers if self.seat[number] < 0}
        if not missing:
            return False
        for name, number in sorted((name, number) for name, number in self.numbers.items() if number in missing):
            self.seat[number] = self.seats[name] = len(self.names)
            self.names.append(name)
        self._sort()
        return True

    def _sort(self) -> None:
        self.rank = np.empty(len(self.names), np.intp)
        self.rank[sorted(range(len(self.names)), key=self.names.__getitem__)] = np.arange(len(self.names))

    def dump(self) -> list[Any]:
        """State for a snapshot."""
        return [list(self.numbers), self.names]

    def load(self, raw: list[Any]) -> None:
        """What `dump` wrote."""
        by_number, self.names = raw
        self.numbers = {name: i for i, name in enumerate(by_number)}
        self.seats = {name: i for i, name in enumerate(self.names)}
        self.grow()
        for name, seat in self.seats.items():
            self.seat[self.numbers[name]] = seat
        self._sort()

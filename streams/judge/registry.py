"""Names and numbers of the nodes of one pool, bounded."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["MAX_NODES", "UNKNOWN", "Registry"]

MAX_NODES = 20_000
UNKNOWN = 0xFFFFFFFF
"""Number of a node that the pool does not know: outside the inventory, or one too many."""


class Registry:
    """Nodes in the order they were first seen.

    Args:
        inventory: Nodes that exist, or None when any may appear.
        max_nodes: Bound of the number of nodes.

    Attributes:
        names: By number.
        rank: Place of each node among the sorted names, (N,).
    """

    def __init__(self, inventory: Sequence[str] | None, max_nodes: int = MAX_NODES) -> None:
        self.allowed = None if inventory is None else frozenset(inventory)
        self.max_nodes = max_nodes
        self.names: list[str] = []
        self.index: dict[str, int] = {}
        self.rank = np.empty(0, np.intp)

    def number(self, name: str) -> int:
        """Number of a node, a new one if it may be known; else `UNKNOWN`."""
        number = self.index.get(name)
        if number is None:
            if len(self.names) >= self.max_nodes or (self.allowed is not None and name not in self.allowed):
                return UNKNOWN
            number = self.index[name] = len(self.names)
            self.names.append(name)
        return number

    def numbers(self, names: Sequence[str], node: NDArray[np.uint32]) -> NDArray[np.uint32]:
        """Numbers of rows: `node` indexes `names`."""
        table = np.array([self.number(name) for name in names], np.uint32)
        return table[node]

    def sort(self) -> None:
        """Recompute `rank` after names were added."""
        self.rank = np.empty(len(self.names), np.intp)
        self.rank[sorted(range(len(self.names)), key=self.names.__getitem__)] = np.arange(len(self.names))

    def dump(self) -> list[str]:
        """State for a snapshot."""
        return self.names

    def load(self, raw: list[Any]) -> None:
        """What `dump` wrote."""
        self.names = list(raw)
        self.index = {name: i for i, name in enumerate(self.names)}
        self.sort()

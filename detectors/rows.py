"""Requests of a pool as columns, waiting for their tick to close or for their node to have a baseline."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from detectors.state import SLIS
from detectors.weights import Weight, count, joined, picked

__all__ = ["Rows"]


@dataclass(slots=True)
class Rows:
    """`n` requests.

    Attributes:
        node: Index of the node, uint32 (n,).
        latency_s: Seconds, float32 (4, n), NaN where unknown.
        tokens: Prompt tokens that had to be computed, uint32 (n,), or uint16 where all are known and fit.
        output: Output tokens, the same.
        stratum: uint8 (n,).
        slot: Tick, int64 (n,).
        weight: Requests that each row stands for, uint32 (n,); None where all stand for one (`detectors.weights`).
    """

    node: NDArray[np.uint32]
    latency_s: NDArray[np.float32]
    tokens: NDArray[np.unsignedinteger[Any]]
    output: NDArray[np.unsignedinteger[Any]]
    stratum: NDArray[np.uint8]
    slot: NDArray[np.int64]
    weight: Weight = None

    def __len__(self) -> int:
        return len(self.node)

    @classmethod
    def none(cls) -> Rows:
        """No rows."""
        u32 = np.zeros(0, np.uint32)
        return cls(u32, np.zeros((SLIS, 0), np.float32), u32, u32, np.zeros(0, np.uint8), np.zeros(0, np.int64))

    @classmethod
    def join(cls, parts: list[Rows]) -> Rows:
        """All rows of the parts, in their order."""
        if len(parts) == 1:
            return parts[0]
        if not parts:
            return cls.none()
        return cls(
            np.concatenate([p.node for p in parts]),
            np.concatenate([p.latency_s for p in parts], axis=1),
            np.concatenate([p.tokens for p in parts]),
            np.concatenate([p.output for p in parts]),
            np.concatenate([p.stratum for p in parts]),
            np.concatenate([p.slot for p in parts]),
            joined((p, p.weight) for p in parts),
        )

    def arrays(self) -> dict[str, NDArray[Any]]:
        """Columns by name, as `Rows(**arrays)` takes them; no weights where there are none."""
        return {f.name: column for f in fields(self) if (column := getattr(self, f.name)) is not None}

    def take(self, keep: slice | NDArray[np.bool_] | NDArray[np.intp]) -> Rows:
        """The chosen rows."""
        return Rows(
            self.node[keep], self.latency_s[:, keep], self.tokens[keep], self.output[keep], self.stratum[keep],
            self.slot[keep], picked(self.weight, keep),
        )  # fmt: skip

    def canonical(self) -> Rows:
        """The same rows in an order that does not depend on how they arrived."""
        if len(self) == 0:
            return self
        first, nodes = int(self.slot.min()), int(self.node.max()) + 1
        major = ((self.slot - first) * nodes + self.node) << 32 | self.tokens
        return self.take(_order(major, (*self.latency_s.view(np.int32), self.output, self.tokens, self.node, self.slot)))

    def thinned(self, most: int) -> Rows:
        """At most about `most` requests of each node, evenly over its latencies; independent of the order of arrival.

        The result has no weights: a row that stands for several requests is there as often as they are.
        """
        counts = count(self.node, self.weight)
        if len(counts) == 0 or int(counts.max()) <= most:
            return self if self.weight is None else self._repeated(np.arange(len(self)), self.weight)
        bits = self.latency_s.view(np.int32)
        varies = [sli for sli in range(SLIS) if bits[sli].min() != bits[sli].max()]
        major = self.node.astype(np.int64) << 32
        if varies:
            major += bits[varies[-1]].astype(np.int64) + 2**31
        order = _order(major, (self.output, self.tokens, *bits, self.node))
        start = np.cumsum(counts) - counts
        node = self.node[order]
        every: NDArray[np.int64] = (-(-counts // most))[node]
        if self.weight is not None:  # how many multiples of `every` lie in each row's places
            weight: NDArray[Any] = self.weight[order].astype(np.int64)
            first = np.cumsum(weight) - weight - start[node]
            last = first + weight - 1
            return self._repeated(order, last // every - (first - 1) // every)
        place = np.arange(len(order)) - start[node]
        return self.take(order[place % every == 0])

    def _repeated(self, rows: NDArray[np.intp], times: NDArray[np.integer[Any]]) -> Rows:
        return replace(self, weight=None).take(np.repeat(rows, times))


def _order(major: NDArray[np.int64], keys: tuple[NDArray[Any], ...]) -> NDArray[np.intp]:
    """What `np.lexsort(keys)` gives, by way of one fast sort.

    Args:
        major: A number that grows with the most significant keys, (n,); where it is equal the keys decide.
        keys: As `np.lexsort` takes them.
    """
    order = np.argsort(major)
    ordered = major[order]
    same = ordered[1:] == ordered[:-1]
    if same.any():
        tied = np.flatnonzero(np.append(same, False) | np.append(False, same))
        rows = np.sort(order[tied])  # lexsort keeps the order of arrival of what is equal throughout
        order[tied] = rows[np.lexsort([key[rows] for key in keys])]
    return order

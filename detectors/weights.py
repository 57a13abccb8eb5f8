"""Rows that stand for more than one request: counts by group, with or without weights.

A column of weights is None where every row stands for one request, which is nearly always: then nothing is multiplied, and
nothing is slower than without weights. A weighted row counts as that many equal rows would: every function that takes weights
gives what it gives for the rows repeated.
"""

from __future__ import annotations

from collections.abc import Iterable, Sized
from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["Weight", "count", "joined", "picked", "total"]

Weight = NDArray[np.uint32] | None
"""Requests that each row stands for, from 1, uint32 (n,); None where all stand for one."""


def count(group: NDArray[Any], weight: Weight, minlength: int = 0) -> NDArray[np.int64]:
    """Requests of each group, int64 (at least `minlength`,); exact up to 2**53.

    >>> import numpy as np
    >>> count(np.array([0, 2]), None, 3).tolist(), count(np.array([0, 2]), np.array([5, 7], np.uint32), 3).tolist()
    ([1, 0, 1], [5, 0, 7])
    """
    if weight is None:
        return np.bincount(group, minlength=minlength)
    return np.bincount(group, weights=weight, minlength=minlength).astype(np.int64)


def total(mask: NDArray[np.bool_], weight: Weight) -> int:
    """Requests of the rows that `mask` (n,) chooses."""
    return int(mask.sum()) if weight is None else int(weight[mask].sum(dtype=np.int64))


def picked(weight: Weight, rows: slice | NDArray[Any]) -> Weight:
    """Weights of the chosen rows."""
    return None if weight is None else weight[rows]


def joined(parts: Iterable[tuple[Sized, Weight]]) -> Weight:
    """Weights of parts put together, each given by its rows and its weights."""
    all_parts = list(parts)
    if all(weight is None for _, weight in all_parts):
        return None
    return np.concatenate([np.ones(len(rows), np.uint32) if weight is None else weight for rows, weight in all_parts])

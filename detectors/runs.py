"""Rows that come in runs: a frame holds the requests of one node, so the same node stands many times in a row.

Sums and maxima by node are then taken once for each run; where there are no runs, row by row. The results are the same.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["LONG", "raise_to", "run_starts", "sum_into"]

LONG = 8
"""Rows of a run, on average, from which on runs are worth it."""


def run_starts(group: NDArray[np.integer]) -> NDArray[np.intp] | None:
    """First row of each run of equal groups, or None when there are too many.

    >>> import numpy as np
    >>> run_starts(np.repeat([3, 1, 3], 10)), run_starts(np.arange(10))
    (array([ 0, 10, 20]), None)
    """
    if len(group) == 0:
        return None
    starts = np.flatnonzero(group[1:] != group[:-1])
    if (len(starts) + 1) * LONG > len(group):
        return None
    return np.concatenate([_FIRST, starts + 1])


_FIRST = np.zeros(1, np.intp)


def sum_into(
    out: NDArray[np.int64], group: NDArray[np.integer], values: NDArray[np.integer], starts: NDArray[np.intp] | None
) -> None:
    """Add integers to the sums of their groups, in place.

    Args:
        out: (G,).
        group: Index into `out`, (n,).
        values: (n,); their sums must be exact in float64.
        starts: `run_starts(group)`.
    """
    weights: NDArray[Any] = values
    if starts is not None:
        group, weights = group[starts], np.add.reduceat(values, starts, dtype=np.int64)
    out += np.bincount(group, weights=weights, minlength=len(out)).astype(np.int64)


def raise_to(
    out: NDArray[np.int64], group: NDArray[np.integer], values: NDArray[np.int64], starts: NDArray[np.intp] | None
) -> None:
    """Raise each group's entry of `out` (G,) to the largest of its values, in place; arguments as in `sum_into`."""
    if starts is not None:
        group, values = group[starts], np.maximum.reduceat(values, starts)
    np.maximum.at(out, group, values)

"""A node against the rest of its pool: what all nodes share is the workload's or the deploy's doing, what one shows alone
is its own.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

__all__ = ["shift_against_peers"]


def shift_against_peers(shift_nats: NDArray[np.float64], usable: NDArray[np.bool_]) -> NDArray[np.float64]:
    """Each node's shift less the median of the *other* usable nodes, (slis, nodes); NaN where unusable or alone.

    The median ignores up to half of the peers, so a minority of bad nodes does not hide behind each other.

    Args:
        shift_nats: Shift of log-latency of each node against its own baseline, (slis, nodes).
        usable: Nodes whose shift means something, (slis, nodes).

    >>> import numpy as np
    >>> shift_against_peers(np.array([[1.1, 0.0, 0.1, -0.1]]), np.ones((1, 4), bool)).round(2).tolist()
    [[1.1, -0.1, 0.1, -0.2]]
    """
    usable = usable & np.isfinite(shift_nats)
    values = np.where(usable, shift_nats, np.inf)
    order = np.argsort(values, axis=-1, kind="stable")
    ordered = np.take_along_axis(values, order, axis=-1)
    place = np.empty_like(order)
    np.put_along_axis(place, order, np.broadcast_to(np.arange(order.shape[-1]), order.shape).copy(), axis=-1)
    others = usable.sum(axis=-1, keepdims=True) - 1
    # The r-th smallest of the others is the r-th of all, or the next one when the node itself comes before it.
    low, high = np.maximum(others - 1, 0) // 2, others // 2

    def pick(rank: NDArray[np.intp]) -> NDArray[np.float64]:
        at = np.minimum(rank + (place <= rank), ordered.shape[-1] - 1)
        return np.take_along_axis(ordered, at, axis=-1)

    with np.errstate(invalid="ignore"):
        median = (pick(low) + pick(high)) / 2
        return np.where(usable & (others > 0), shift_nats - median, np.nan)

"""A node against the rest of its pool: what all nodes show is the workload's or the deploy's doing, what one shows alone is its
own.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

__all__ = ["has_left", "shift_against_peers"]

_LEFT_SD = 4.0
_FEWEST = 4


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
    out = np.full(shift_nats.shape, np.nan)
    for row, values, some in zip(out, shift_nats, usable & np.isfinite(shift_nats), strict=True):
        mine = values[some]
        others = len(mine) - 1
        if others < 1:
            continue
        low, high = (others - 1) // 2, others // 2
        ordered = np.partition(mine, sorted({low, low + 1, high, min(high + 1, others)}))
        # The r-th smallest of the others is the r-th of all, or the next one when the node itself comes before it.
        median = (
            np.where(mine <= ordered[low], ordered[low + 1], ordered[low])
            + np.where(mine <= ordered[high], ordered[min(high + 1, others)], ordered[high])
        ) / 2
        row[some] = mine - median
    return out


def has_left(peer_shift_nats: NDArray[np.float64], known: NDArray[np.bool_], least_nats: float) -> NDArray[np.bool_]:
    """Series that are slower than their peers by more than these differ among themselves, bool (nodes, slis).

    The measure is four robust standard deviations (median absolute deviation) and at least `least_nats`, in pools of four and
    more. A series' own baseline is no part of it: it goes along with a slow drift, and its tolerance grows with it.

    Args:
        peer_shift_nats: Of `shift_against_peers`, (nodes, slis).
        known: Entries that can be compared, (nodes, slis).
        least_nats: Less than this is no news, nats.

    >>> import numpy as np
    >>> has_left(np.array([[0.4, 0.02, -0.05, 0.03, 0.0]]).T, np.ones((5, 1), bool), 0.25)[:, 0].tolist()
    [True, False, False, False, False]
    """
    usable = known & np.isfinite(peer_shift_nats)
    enough = usable.sum(axis=0) >= _FEWEST
    out = usable & enough & (np.where(usable, peer_shift_nats, 0.0) > least_nats)
    if out.any():
        for sli in np.flatnonzero(out.any(axis=0)):
            spread = 1.4826 * float(np.median(np.abs(peer_shift_nats[usable[:, sli], sli])))
            out[:, sli] &= peer_shift_nats[:, sli] > _LEFT_SD * spread
    return np.asarray(out)

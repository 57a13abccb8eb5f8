"""One node against its peers in the same tick: is it the node, or is it everybody?

A node whose latency moved as the others' did is not at fault, however far it moved: the cause is shared (workload, deploy,
network, time of day). The comparison is with the median of the *other* nodes, so a bad node cannot hide itself.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

__all__ = ["median_of_others", "ratio_of_others", "stands_out"]

Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]


def median_of_others(values: Floats, known: Bools) -> Floats:
    """Median over the other nodes for each node, NaN where there is none.

    Args:
        values: (N, S).
        known: (N, S), entries that may be used.

    Returns:
        (N, S). For unknown entries it is the median of all known ones.
    """
    n = len(values)
    out = np.full(values.shape, np.nan)
    for s in range(values.shape[1]):
        at = np.flatnonzero(known[:, s])
        m = len(at)
        if m == 0:
            continue
        order = np.argsort(values[at, s], kind="stable")
        ordered = values[at[order], s]
        out[:, s] = 0.5 * (ordered[(m - 1) // 2] + ordered[m // 2])
        if m == 1:
            out[at, s] = np.nan
            continue
        rank = np.empty(m, np.intp)
        rank[order] = np.arange(m)
        # without entry `rank`, positions from it on move down by one
        low, high = (m - 2) // 2, (m - 1) // 2
        out[at, s] = 0.5 * (ordered[low + (rank <= low)] + ordered[high + (rank <= high)])
    return out if n else values.astype(np.float64)


def stands_out(shift: Floats, known: Bools, alarm: Bools, *, shared_ratio: float, wobble_nats: float) -> Bools:
    """Nodes whose drift is theirs alone.

    Args:
        shift: Mean log-latency shift against the node's own baseline, nats (N, S); above 0 is slower.
        known: (N, S), entries with enough samples.
        alarm: (N, S), series in alarm.
        shared_ratio: Share of the others in alarm above which the cause is shared.
        wobble_nats: Shift of the others that is ordinary wobble.

    Returns:
        bool (N, S): in alarm, with at least one comparable peer, and peers neither in alarm nor shifted half as far.
    """
    peers = known.sum(axis=0) - known
    alarmed = (alarm & known).sum(axis=0) - (alarm & known)
    others = median_of_others(shift, known)
    with np.errstate(invalid="ignore"):
        calm = others < np.maximum(0.5 * shift, wobble_nats)
        few = alarmed <= shared_ratio * peers
    out: Bools = alarm & (peers > 0) & few & calm
    return out


def ratio_of_others(failed: NDArray[np.int64], total: NDArray[np.int64], use: Bools) -> Floats:
    """Failed share of all other usable nodes together, (N,); NaN where they answered nothing."""
    all_failed, all_total = int(failed[use].sum()), int(total[use].sum())
    rest = all_total - np.where(use, total, 0)
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.where(rest > 0, (all_failed - np.where(use, failed, 0)) / rest, np.nan)

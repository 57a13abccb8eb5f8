"""Is a drift a node's own, or everybody's? A node that moved as its peers did is not at fault, however far it moved.

The cause is then shared: workload, deploy, network, time of day; and opening a breaker would take away a node that is as good
as the others.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from detectors.peers import shift_against_peers

__all__ = ["peers_calm", "rare", "ratio_of_others", "stands_out"]

Bools = NDArray[np.bool_]


def peers_calm(shift: NDArray[np.float64], known: Bools, wobble_nats: NDArray[np.floating] | float) -> Bools:
    """Series whose peers, by their median, did not move half as far, bool (N, S); False where there is none to compare with.

    Args:
        shift: Mean log-latency shift against the node's own baseline, nats (N, S); above 0 is slower.
        known: (N, S), entries with enough samples.
        wobble_nats: Shift of the others that is ordinary wobble, (N, S) or one for all.
    """
    others = shift - shift_against_peers(shift.T, known.T).T
    with np.errstate(invalid="ignore"):
        out: Bools = others < np.maximum(0.5 * shift, wobble_nats)  # the NaN of a series without peers compares False
    return out


def stands_out(alarm: Bools, known: Bools, calm: Bools, shared_ratio: float, stirred: Bools | None = None) -> Bools:
    """Series whose drift is their node's alone.

    Args:
        alarm: (N, S), series in alarm.
        known: (N, S), entries with enough samples.
        calm: (N, S), of `peers_calm`.
        shared_ratio: Share of the others in alarm above which the cause is shared.
        stirred: (N, S), series whose evidence rises, though not to an alarm yet; they count among the others as if it had.

    Returns:
        bool (N, S): in alarm, with at least one comparable peer, and peers neither in alarm nor shifted half as far.
    """
    peers = known.sum(axis=0) - known
    moved = alarm if stirred is None else alarm | stirred
    out: Bools = alarm & (peers > 0) & rare(moved & known, known, shared_ratio) & calm
    return out


def rare(flag: Bools, known: Bools, shared_ratio: float) -> Bools:
    """Whether at most `shared_ratio` of the other comparable series of an SLI have a flag, (N, S)."""
    out: Bools = flag.sum(axis=0) - flag <= shared_ratio * (known.sum(axis=0) - known)
    return out


def ratio_of_others(failed: NDArray[np.int64], total: NDArray[np.int64], use: Bools) -> NDArray[np.float64]:
    """Failed share of all other usable nodes together, (N,); NaN where they answered nothing."""
    all_failed, all_total = int(failed[use].sum()), int(total[use].sum())
    rest = all_total - np.where(use, total, 0)
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.where(rest > 0, (all_failed - np.where(use, failed, 0)) / rest, np.nan)

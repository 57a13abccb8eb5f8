"""Evidence that the mix of requests has moved: more long prompts, fewer cache hits, other adapters. It accuses the
workload, never a node.

Counts by stratum are held against a ball of mixes around the usual one, {p: KL(p || usual) <= radius}, because mixes of
real traffic are never still. Near the usual mix KL behaves as a squared distance, so the best likelihood inside the ball
falls short of the unrestricted one by about n (sqrt(KL) - sqrt(radius))^2. The alternative is the mix of the last few
ticks: known before the tick that it is tried on.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["RECENT_KEEP", "log_e", "radius_nats"]

RECENT_KEEP = 0.8
"""What remains of recent counts after a tick."""
_FLOOR_NATS = 0.03
_RECENT_PRIOR = 2.0


def radius_nats(wobble: NDArray[np.float64], n_baseline: NDArray[Any], strata: int) -> NDArray[np.float64]:
    """Radius of the ball of tolerated mixes, nats (...): a floor, the mix's own block-to-block wobble, the error of the
    baseline.

    Args:
        wobble: (..., 2): sum of bias-corrected KLs of past blocks, and their number.
        n_baseline: Samples in the baseline (...).
        strata: Number of strata.
    """
    usual = np.maximum(wobble[..., 0], 0.0) / np.maximum(wobble[..., 1], 1.0)
    error = (strata - 1) / (2 * np.maximum(n_baseline, 1.0))
    return np.asarray(np.square(np.sqrt(_FLOOR_NATS) + 2 * np.sqrt(usual) + np.sqrt(error)))


def log_e(tick: NDArray[Any], baseline: NDArray[Any], recent: NDArray[Any], radius: NDArray[np.float64]) -> NDArray[np.float32]:
    """Log e of a tick's counts by stratum: the mix of the recent past against the best mix in the ball, (...).

    Args:
        tick: Counts (..., S).
        baseline: Usual counts.
        recent: Counts of the last ticks, without this one.
        radius: (...), nats.
    """
    c = tick.astype(np.float64)
    usual = baseline.astype(np.float64) + 0.5
    usual /= usual.sum(axis=-1, keepdims=True)
    alternative = recent + _RECENT_PRIOR * usual + 1e-3
    alternative /= alternative.sum(axis=-1, keepdims=True)
    n = c.sum(axis=-1)
    share = c / np.maximum(n, 1.0)[..., None]
    log_share = np.log(np.where(c > 0, share, 1.0))
    kl = np.maximum((share * (log_share - np.log(usual))).sum(axis=-1), 0.0)
    short = np.square(np.maximum(np.sqrt(kl) - np.sqrt(radius), 0.0))
    return np.asarray(n * (short - (share * (log_share - np.log(alternative))).sum(axis=-1)), np.float32)

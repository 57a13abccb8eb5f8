"""The published rule, to the letter, so that it can be compared: KL > 0.12 in 3 consecutive periods, P99.9 above mean +
1.82 sd of the windows' P99.9s, and more than 3 recent failures. It knows neither sample sizes nor direction nor mix; what
that costs is measured in `slodrift bench`.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["KAPPA", "KL_NATS", "MIN_FAILURES", "PERIODS", "count_periods", "kl_nats", "tail_threshold_s", "trips"]

KL_NATS = 0.12
PERIODS = 3
KAPPA = 1.82
MIN_FAILURES = 3
_EPSILON = 1e-10


def kl_nats(baseline: NDArray[Any], current: NDArray[Any]) -> NDArray[np.float64]:
    """KL(baseline || current) of plain shares with 1e-10 in empty cells, nats (...): the published direction and smoothing.

    Args:
        baseline: Counts (..., K).
        current: Counts (..., K).
    """
    p = baseline / np.maximum(baseline.sum(axis=-1, keepdims=True), 1) + _EPSILON
    q = current / np.maximum(current.sum(axis=-1, keepdims=True), 1) + _EPSILON
    value: NDArray[np.float64] = (p * np.log(p / q)).sum(axis=-1)
    return np.where(current.sum(axis=-1) > 0, value, 0.0)


def count_periods(periods: NDArray[np.integer], kl: NDArray[np.float64], threshold: float = KL_NATS) -> NDArray[np.int64]:
    """Consecutive periods above the threshold, after one more period (...).

    >>> import numpy as np
    >>> count_periods(np.array([2, 2, 0]), np.array([0.2, 0.1, 0.3])).tolist()
    [3, 0, 1]
    """
    return np.where(kl > threshold, periods + 1, 0)


def tail_threshold_s(mean_s: NDArray[np.float64], sd_s: NDArray[np.float64], kappa: float = KAPPA) -> NDArray[np.float64]:
    """Mean + kappa * sd of past windows' P99.9s, seconds."""
    return mean_s + kappa * sd_s


def trips(
    periods: NDArray[np.int64], p999_s: NDArray[np.float64], threshold_s: NDArray[np.float64], failures: NDArray[np.int64],
) -> NDArray[np.bool_]:  # fmt: skip
    """Whether the published breaker opens (...)."""
    return (periods >= PERIODS) & (p999_s > threshold_s) & (failures > MIN_FAILURES)

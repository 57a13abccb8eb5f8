"""What request classes at fault have in common: root causes that follow from their counts.

`lora_switch`: adapters cost too much to switch. It is not one adapter that is slow: most of those that are used are, requests
without one on the same nodes are well, and successive requests of a node often ask for another adapter than the one before.
So adapters are compared with requests without any, not with all others: where most of the traffic has an adapter, the others
of each adapter are the other adapters.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from detectors.class_fault import contrast
from detectors.residuals import STEP_NATS
from schemas.policy import PoolPolicy
from streams.judge.reasons import digits
from streams.judge.scopes.classes import ADAPTERS, CLASS_SHIFT_NATS, ClassCase
from streams.judge.scopes.window import ALL, FAILED, TOTAL, ClassWindow

__all__ = ["lora_switch"]

_MOST = 0.5
_LEAST_TIMED = 5  # latencies before a shift is believed
_LEAST_SWITCHES = 0.4  # two adapters that take turns by chance switch in half the cases
Timed = tuple[NDArray[np.int64], NDArray[np.int64]]
Floats = NDArray[np.float64]


def lora_switch(
    case: ClassCase, window: ClassWindow, timed: Timed | None, slis: Sequence[int], policy: PoolPolicy
) -> dict[str, float | int | None] | None:
    """Evidence that switching adapters is the cause, with its score; None when it is not.

    Args:
        case: Of the classes.
        window: Their counts by node.
        timed: Sums of residuals and their counts, (SLI, class, node group), since suspicion began.
        slis: Latencies with an SLO.
        policy: Of the pool.
    """
    rules = policy.breaker
    total, failed = window.sums[TOTAL, ADAPTERS], window.sums[FAILED, ADAPTERS]
    used = total.sum(axis=1) >= rules.min_requests // 2
    if (case.alarm[ADAPTERS] & used).sum() < 2 or timed is None or not slis:
        return None
    plain = window.sums[TOTAL, ALL] - total.sum(axis=0)
    plain_failed = window.sums[FAILED, ALL] - failed.sum(axis=0)
    if plain.sum() < rules.min_requests:
        return None  # nothing to compare with
    c = contrast(total, failed, total + plain, failed + plain_failed)
    margin = rules.min_failure_ratio * c.requests
    fails = (c.failed > 0) & (c.failed >= policy.caps.own_fault_ratio * c.expected) & (c.failed >= c.expected + margin)
    slow, plain_slow = _slowdowns(timed, slis)
    with np.errstate(invalid="ignore"):
        late = (slow >= CLASS_SHIFT_NATS) & ~(plain_slow >= np.maximum(CLASS_SHIFT_NATS, 0.5 * slow))
    at_fault = used & fails & late
    n, bad = int(used.sum()), int(at_fault.sum())
    if bad < 2 or bad < _MOST * n:
        return None
    of_node = total.sum(axis=0)
    repeats = np.square(total.astype(np.float64)).sum(axis=0)[of_node > 0] / of_node[of_node > 0]  # of their own adapter
    switches = 1.0 - float(repeats.sum()) / max(float(of_node.sum()), 1.0)
    if switches < _LEAST_SWITCHES:
        return None
    return {
        "score": digits(bad / n * switches),
        "adapters": n,
        "adapters_at_fault": bad,
        "switch_ratio": digits(switches),
        "slowdown": digits(math.exp(min(float(np.median(slow[at_fault])), 20.0))),
        "failed_with_adapter_ratio": digits(int(failed.sum()) / max(int(total.sum()), 1)),
        "failed_without_ratio": digits(int(plain_failed.sum()) / int(plain.sum())),
    }


def _slowdowns(timed: Timed, slis: Sequence[int]) -> tuple[Floats, Floats]:
    """Mean shift of log-latency of each adapter in its worst SLI, and of requests without one in the same, nats (A,)."""
    sums, counts = timed[0].sum(axis=2)[list(slis)] * STEP_NATS, timed[1].sum(axis=2)[list(slis)]
    with np.errstate(invalid="ignore", divide="ignore"):
        mine = np.where(counts[:, ADAPTERS] >= _LEAST_TIMED, sums[:, ADAPTERS] / counts[:, ADAPTERS], np.nan)
        rest = (sums[:, ALL] - sums[:, ADAPTERS].sum(axis=1)) / (counts[:, ALL] - counts[:, ADAPTERS].sum(axis=1))
    worst = np.argmax(np.nan_to_num(mine, nan=-np.inf), axis=0)
    return mine[worst, np.arange(mine.shape[1])], rest[worst]

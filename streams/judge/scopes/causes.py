"""What request classes at fault have in common: root causes that follow from their counts.

`lora_switch`: adapters cost too much to switch. It is not one adapter that is slow: most of those that are used are, requests
without one on the same nodes are well, and successive requests of a node often ask for another adapter than the one before.
"""

from __future__ import annotations

import math

import numpy as np

from schemas.policy import PoolPolicy
from streams.judge.reasons import digits
from streams.judge.scopes.classes import ADAPTERS, ClassCase
from streams.judge.scopes.window import ALL, FAILED, TOTAL, ClassWindow

__all__ = ["lora_switch"]

_MOST = 0.5
_LEAST_SWITCHES = 0.4  # two adapters that take turns by chance switch in half the cases


def lora_switch(case: ClassCase, window: ClassWindow, policy: PoolPolicy) -> dict[str, float | int | None] | None:
    """Evidence that switching adapters is the cause, with its score; None when it is not."""
    used = case.counts[TOTAL, ADAPTERS] >= policy.breaker.min_requests // 2
    at_fault = case.suspect[ADAPTERS] & used
    n, bad = int(used.sum()), int(at_fault.sum())
    if bad < 2 or bad < _MOST * n:
        return None
    total, failed = (int(case.counts[row, ADAPTERS].sum()) for row in (TOTAL, FAILED))
    plain = int(case.counts[TOTAL, ALL]) - total
    plain_failed = int(case.counts[FAILED, ALL]) - failed
    if plain < policy.breaker.min_requests or plain_failed * total * policy.caps.own_fault_ratio > failed * plain:
        return None  # requests without an adapter fail as well, or there are none to compare with
    by_node = window.sums[TOTAL, ADAPTERS].astype(np.float64)
    of_node = by_node.sum(axis=0)
    repeats = np.square(by_node).sum(axis=0)[of_node > 0] / of_node[of_node > 0]  # of requests that find their own adapter
    switches = 1.0 - float(repeats.sum()) / max(float(of_node.sum()), 1.0)
    if switches < _LEAST_SWITCHES:
        return None
    shift = case.shift[ADAPTERS][at_fault]
    slowdown = digits(math.exp(min(float(np.nanmedian(shift)), 20.0))) if np.isfinite(shift).any() else None
    return {
        "score": digits(bad / n * switches),
        "adapters": n,
        "adapters_at_fault": bad,
        "switch_ratio": digits(switches),
        "slowdown": slowdown,
        "failed_with_adapter_ratio": digits(failed / max(total, 1)),
        "failed_without_ratio": digits(plain_failed / plain),
    }

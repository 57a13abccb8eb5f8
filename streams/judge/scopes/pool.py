"""The pool as a whole: when so many nodes are degraded that no node can be blamed, load is taken off.

It never opens for telemetry that is missing, for a unit or a clock that changed, or for another mix of requests: those are
nobody's overload. And it never refuses everything: its action leaves at least half of the traffic (`schemas.policy_scopes`).
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from detectors.bank import BankTick
from schemas.policy import PoolPolicy
from schemas.scopes import POOL_SUBJECT
from streams.judge.findings import UNIT_JUMP_NATS
from streams.judge.rules import Case
from streams.judge.scopes.breakers import Wanted

__all__ = ["pool_wanted"]

Bools = NDArray[np.bool_]


def pool_wanted(case: Case, tick: BankTick, eligible: Bools, explained: Bools, policy: PoolPolicy) -> Wanted | None:
    """The pool's own breaker, if it should open.

    Args:
        case: Of the nodes.
        tick: Of the bank.
        eligible: Nodes with fresh telemetry, (N,).
        explained: Nodes whose failures are those of request classes at fault, (N,).
        policy: Of the pool.
    """
    bad = case.bad & eligible & ~explained
    n_bad, n = int(bad.sum()), int(eligible.sum())
    if n_bad < max(policy.caps.pool_min_nodes, policy.caps.pool_share * n):
        return None
    if not case.error_alarm[bad].any():  # late, not failing
        s = int(case.series_alarm[bad].sum(axis=0).argmax())
        if _leapt(tick, case.known[:, s], s) or _mixed(tick, s):
            return None
    total, failures = int(case.total[eligible].sum()), int(case.failures[eligible].sum())
    reason = f"{n_bad} of {n} nodes are degraded and users are hurt; {failures} of {total} requests failed or missed their SLO"
    evidence = {"nodes": n, "bad": n_bad, "requests": total, "failures": failures, "window_s": policy.breaker.failure_window_s}
    return Wanted(POOL_SUBJECT, 1.0, reason, evidence)


def _mixed(tick: BankTick, s: int) -> bool:
    """Another mix of requests explains more of the pool's drift than the service does."""
    pool = tick if tick.pool is None else tick.pool
    return bool(pool.mix_alarm[0, s]) and not bool(pool.kl_service_nats[0, s] > pool.kl_mix_nats[0, s])


def _leapt(tick: BankTick, known: Bools, s: int) -> bool:
    """The tails of most nodes are far beyond anything a slow service does."""
    with np.errstate(invalid="ignore", divide="ignore"):
        leap = np.log(tick.p999_s[known, s] / tick.threshold_s[known, s])
    return bool(len(leap)) and bool(np.median(np.nan_to_num(leap)) > UNIT_JUMP_NATS)

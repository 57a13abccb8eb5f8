"""Session buckets of a pool: sessions that break requests wherever they go, found by hash bucket.

A session is judged by errors alone. How long its requests take depends on its history (its context grows, its cache is warm),
so a slow session says nothing about the service. The rules are otherwise those of request classes; a bucket that fails on one
node only is at fault if the others on that node do well.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from detectors.class_fault import session_expected
from detectors.error_rate import ErrorRates
from detectors.weights import count, picked
from schemas.policy import PoolPolicy
from schemas.scopes import SESSION_BUCKETS
from streams.judge.scopes.covered import Covered
from streams.judge.scopes.window import SessionWindow

__all__ = ["SessionCase", "Sessions"]

Bools = NDArray[np.bool_]
Ints = NDArray[np.int64]


@dataclass(slots=True)
class SessionCase:
    """What speaks for opening buckets at the end of a tick; arrays (SESSION_BUCKETS,).

    Attributes:
        requests, errors: Of the window.
        expected: Errors that the nodes explain.
        suspect: In alarm, and by its own fault. `wanted`: should be opened.
    """

    requests: Ints
    errors: Ints
    expected: NDArray[np.float64]
    suspect: Bools
    wanted: Bools


class Sessions:
    """Session buckets of one pool.

    Args:
        policy: Of the pool.
    """

    def __init__(self, policy: PoolPolicy) -> None:
        self.policy = policy
        detection = policy.detection
        self.window = SessionWindow(max(1, round(policy.breaker.failure_window_s / policy.tick_s)))
        self.rates = ErrorRates(policy.tick_s, detection.false_alarms_per_day, detection.half_life_s)
        self.rates.grow(SESSION_BUCKETS)
        self.breach = np.zeros(SESSION_BUCKETS, np.int64)
        self.requests = np.zeros(SESSION_BUCKETS, np.int64)
        self.errors = np.zeros(SESSION_BUCKETS, np.int64)
        self.silent = np.zeros(SESSION_BUCKETS, np.int64)  # requests of ticks without an error, not learnt yet

    def take(self, covered: Covered) -> None:
        """The requests of a tick."""
        session = covered.session.astype(np.int64)
        self.requests = count(session, covered.weight, SESSION_BUCKETS + 1)[:SESSION_BUCKETS]
        wrong = covered.error & (covered.session < SESSION_BUCKETS)
        bucket, node = session[wrong], covered.node[wrong].astype(np.int64)
        weight = picked(covered.weight, wrong)
        self.errors = count(bucket, weight, SESSION_BUCKETS)
        self.window.add(self.requests, bucket, node, weight)

    def judge(self, node_total: Ints, node_errors: Ints, hold_all: bool, away: Bools) -> SessionCase | None:
        """The case of every bucket, None when nothing speaks against any.

        Args:
            node_total: Requests of each node in the window.
            node_errors: Of these, those that ended in an error.
            hold_all: The pool has another trouble: learn nothing.
            away: Buckets that are not closed.
        """
        rules, caps = self.policy.breaker, self.policy.caps
        if not self.errors.any() and not self.breach.any() and self.rates.log_sr.max() < 0.0:
            self.silent += self.requests
            return None
        self.rates.requests += np.where(away | (self.breach > 0) | hold_all, 0, self.silent)
        self.silent[:] = 0
        alarm = self.rates.update(self.requests, self.errors, away | (self.breach > 0) | hold_all)
        if not alarm.any():
            self.breach[:] = 0
            return None
        bucket, node, count = self.window.errors()
        requests = self.window.requests
        errors = np.bincount(bucket, weights=count, minlength=SESSION_BUCKETS).astype(np.int64)
        expected = session_expected(bucket, node, count, requests, node_total, node_errors, SESSION_BUCKETS)
        own = (errors >= caps.own_fault_ratio * expected) & (errors >= expected + rules.min_failure_ratio * requests)
        self.breach = np.where(alarm, self.breach + 1, 0)
        hurt = (errors > rules.min_failures) & (errors >= rules.min_failure_ratio * requests) & (requests >= rules.min_requests)
        suspect = alarm & own & ~away
        wanted = suspect & hurt & (self.breach >= rules.breach_ticks) & (self.errors > 0)
        return SessionCase(requests.copy(), errors, expected, suspect, wanted)

    def close(self, bucket: int) -> None:
        """The breaker of a bucket closed: its evidence is over."""
        chosen = np.zeros(SESSION_BUCKETS, np.bool_)
        chosen[bucket] = True
        self.rates.forget(chosen, baseline=False)
        self.breach[bucket] = 0

    def skip(self) -> None:
        """Ticks without events are skipped."""
        self.window.forget()
        self.breach[:] = 0

    def dump(self) -> dict[str, Any]:
        """State for a snapshot, between two ticks."""
        return {
            "window": self.window.dump(),
            "rates": self.rates.dump(),
            "breach": self.breach.tobytes(),
            "silent": self.silent.tobytes(),
        }

    def load(self, raw: dict[str, Any]) -> None:
        """What `dump` wrote."""
        self.window.load(raw["window"])
        self.rates.load(raw["rates"])
        self.breach = np.frombuffer(raw["breach"], np.int64).copy()
        self.silent = np.frombuffer(raw["silent"], np.int64).copy()

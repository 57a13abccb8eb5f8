"""Request classes, session buckets and the pool, once per tick: who is at fault, what opens, what it explains about the nodes."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from detectors import caps
from detectors.bank import BankTick, SeriesBank
from schemas.policy import PoolPolicy
from schemas.results import Decision
from schemas.scopes import MAX_CLASSES, POOL_SUBJECT, SESSION_BUCKETS, scope_of
from schemas.telemetry import OverrideEvent
from streams.judge.reasons import digits
from streams.judge.rules import Case
from streams.judge.scopes.breakers import Issue, ScopeBreakers, Wanted
from streams.judge.scopes.causes import lora_switch
from streams.judge.scopes.classes import ADAPTERS, KINDS, NO_TICK, ClassCase, Classes
from streams.judge.scopes.covered import Covered
from streams.judge.scopes.pool import pool_wanted
from streams.judge.scopes.sessions import SessionCase, Sessions
from streams.judge.scopes.window import ALL, ERRORS, FAILED, MAX_GROUPS, TOTAL

__all__ = ["ScopeActed", "Scopes"]

Bools = NDArray[np.bool_]

_MILLE = 1000
_NONE: frozenset[str] = frozenset()


@dataclass(slots=True)
class ScopeActed:
    """Result of a tick: decisions in order, what caps held back (subject to why), freezes by scope, root causes with evidence."""

    decisions: list[Decision] = field(default_factory=list)
    capped: dict[str, str] = field(default_factory=dict)
    frozen: list[str] = field(default_factory=list)
    causes: dict[str, dict[str, Any]] = field(default_factory=dict)


class Scopes:
    """All scopes of one pool but its nodes.

    Args:
        policy: Of the pool.
        issue: Makes decisions with the pool's next version.
    """

    def __init__(self, policy: PoolPolicy, issue: Issue) -> None:
        self.policy = policy
        self.classes, self.sessions = Classes(policy), Sessions(policy)
        self.adapters, self.tenants = self.classes.adapters, self.classes.tenants
        limits = policy.caps
        self.breakers = {
            "session": ScopeBreakers("session", policy, issue, limits.session_share, "the session buckets", 1 / SESSION_BUCKETS),
            "request": ScopeBreakers("request", policy, issue, limits.request_share, "the traffic"),
            "pool": ScopeBreakers("pool", policy, issue, 1.0, "the pool"),
        }
        self.pool_breach = 0
        self.refused: Counter[str] = Counter()
        self._case: tuple[ClassCase, SessionCase | None] | None = None

    def take(self, t_s: float, covered: list[Covered], n_nodes: int, bank: SeriesBank, slot: int) -> None:
        """The requests of a tick, before the bank closes it."""
        rows = Covered.concat(covered)
        self.classes.take(t_s, rows, n_nodes, bank, slot, self._away("request"))
        self.sessions.take(rows)

    def judge(self, case: Case, node_errors: NDArray[np.int64], hold: bool) -> Bools:
        """Judge classes and sessions.

        Args:
            case: Of the nodes, in the same tick.
            node_errors: Outcomes against each node in the failure window, (N,).
            hold: The pool has another trouble: learn nothing.

        Returns:
            Nodes whose failures are those of classes at fault, (N,): their breakers stay closed.
        """
        away = self._away("session")
        buckets = np.zeros(SESSION_BUCKETS, np.bool_)
        buckets[[int(subject.partition(":")[2]) for subject in away]] = True
        classes = self.classes.judge(hold, self._away("request"))
        self._case = classes, self.sessions.judge(case.total, node_errors, hold, buckets)
        explained = np.zeros(len(case.total), np.bool_)
        sessions = self._case[1]
        if sessions is not None:
            buckets |= sessions.suspect
        if classes.suspect.any() or self._away("request") or buckets.any():
            explained = self._explained(classes, buckets, len(explained))
        return explained

    def act(self, t_s: float, case: Case, tick: BankTick, eligible: Bools, n_known: int, explained: Bools, cause: str | None,
            orders: list[OverrideEvent]) -> ScopeActed:  # fmt: skip
        """Step and open breakers; `cause` is why opens of nodes are frozen, `orders` those of operators for these scopes."""
        acted = ScopeActed()
        assert self._case is not None  # noqa: S101 - `judge` comes first
        classes, sessions = self._case
        for order in orders:
            self._obey(t_s, order, acted)
        index = self.classes.index() if self.breakers["request"].records else {}
        acted.decisions += self.breakers["request"].step(t_s, lambda s: self.classes.answers(index[s]) if s in index else (0, 0))
        acted.decisions += self.breakers["session"].step(t_s, self._session_answers)
        acted.decisions += self.breakers["pool"].step(t_s, lambda s: self._pool_answers())
        for decision in acted.decisions:
            if decision.state == "CLOSED":
                self._closed(decision.subject, index)
        scopes = self.policy.breaker.scopes
        n, fresh = int(eligible.sum()), int(eligible.sum())
        in_class = self._in_class(classes) if classes.suspect.any() or sessions is not None else np.zeros(0, np.bool_)
        if "session" in scopes and sessions is not None:
            wanted = self._sessions_wanted(sessions, in_class, n)
            self._open("session", t_s, wanted, float(sessions.suspect.sum()) / SESSION_BUCKETS, fresh, n_known, acted)
        elif self.breakers["session"].caps.frozen_since_s is not None:
            self._open("session", t_s, [], 0.0, fresh, n_known, acted)
        if "request" in scopes:
            wanted = self._classes_wanted(classes, sessions, cause)
            bad = max(float(classes.share[kind][classes.suspect[kind]].sum()) for kind in KINDS)
            self._open("request", t_s, wanted, bad, fresh, n_known, acted)
            evidence = None
            if classes.alarm[ADAPTERS].any():
                evidence = lora_switch(classes, self.classes.window, self.classes.timed, self.classes.slis, self.policy)
            if evidence is not None:
                acted.causes["lora_switch"] = evidence
        pool = pool_wanted(case, tick, eligible, explained, self.policy) if case.bad.any() and cause != "telemetry" else None
        self.pool_breach = self.pool_breach + 1 if pool is not None else 0
        if (
            "pool" in scopes
            and pool is not None
            and self.pool_breach >= self.policy.breaker.breach_ticks
            and not classes.suspect.any()
        ):
            opened, held = self.breakers["pool"].open(t_s, [] if self.breakers["pool"].away(POOL_SUBJECT) else [pool])
            acted.decisions += opened
            acted.capped |= held
        self.classes.tick = NO_TICK  # as many rows as the tick had requests
        return acted

    def skip(self) -> None:
        """Ticks without events are skipped."""
        self.classes.skip()
        self.sessions.skip()
        self.pool_breach = 0

    def _away(self, scope: str) -> frozenset[str]:
        breakers = self.breakers[scope]
        return frozenset(s for s in breakers.records if breakers.away(s)) if breakers.records else _NONE

    def _obey(self, t_s: float, order: OverrideEvent, acted: ScopeActed) -> None:
        breakers = self.breakers[scope_of(order.subject)]
        if order.subject not in breakers.records and len(breakers.records) >= MAX_CLASSES:
            self.refused["too_many_overrides"] += 1
            return
        if breakers.over(order):
            self.refused["override_over_cap"] += 1
            return
        decision = breakers.obey(t_s, order)
        if decision is None:
            self.refused["needless_override"] += 1
        else:
            acted.decisions.append(decision)

    def _closed(self, subject: str, index: dict[str, int]) -> None:
        scope = scope_of(subject)
        if scope == "session":
            self.sessions.close(int(subject.partition(":")[2]))
        elif subject in index:
            self.classes.close(index[subject])

    def _open(
        self, scope: str, t_s: float, wanted: list[Wanted], bad: float, fresh: int, n_known: int, acted: ScopeActed
    ) -> None:
        breakers = self.breakers[scope]
        breakers.caps = caps.step_freeze(breakers.caps, t_s, _MILLE, round(bad * _MILLE), fresh, n_known, self.policy.caps)
        if breakers.caps.cause is not None:
            acted.frozen.append(f"{scope}:{breakers.caps.cause}")
        opened, held = breakers.open(t_s, wanted)
        acted.decisions += opened
        acted.capped |= held

    def _session_answers(self, subject: str) -> tuple[int, int]:
        bucket = int(subject.partition(":")[2])
        bad = int(self.sessions.errors[bucket])
        return int(self.sessions.requests[bucket]) - bad, bad

    def _pool_answers(self) -> tuple[int, int]:
        """Of the whole pool; failures up to the objective are what the contract allows."""
        now = self.classes.window.last
        total, failed = int(now[TOTAL, ALL]), int(now[FAILED, ALL])
        allowed = max((1.0 - slo.objective for slo in self.policy.slo.values()), default=0.0)
        bad = max(0, failed - int(max(allowed, 0.005) * total))
        return total - bad, bad

    def _in_class(self, classes: ClassCase) -> Bools:
        """Which failed requests of the tick belong to a class that is at fault, (n,)."""
        covered, of = self.classes.tick
        blamed = np.append(classes.suspect & classes.wanted, False)
        for subject, i in self.classes.index().items():
            blamed[i] |= self.breakers["request"].away(subject)
        return np.asarray(blamed[of].any(axis=0) & covered.failed)

    def _sessions_wanted(self, case: SessionCase, in_class: Bools, n_nodes: int) -> list[Wanted]:
        """Buckets at fault, worst first; not those whose errors are a class's that others share."""
        covered, of = self.classes.tick
        out = []
        for bucket in np.flatnonzero(case.wanted).tolist():
            mine = (covered.session == bucket) & covered.error
            shared = mine & in_class
            if 2 * covered.many(shared) > covered.many(mine):
                kin = np.isin(of, np.setdiff1d(of[:, shared], [ALL])).any(axis=0) & covered.failed & (covered.session != bucket)
                if covered.many(kin) >= covered.many(mine):
                    continue
            errors, requests, expected = int(case.errors[bucket]), int(case.requests[bucket]), float(case.expected[bucket])
            reason = (
                f"session:{bucket}: {errors} of {requests} requests ended in an error, {expected:.3g} were to be expected of "
                f"their nodes in {self.policy.breaker.failure_window_s:g} s"
            )
            evidence = {"requests": requests, "errors": errors, "expected_errors": digits(expected), "nodes": n_nodes}
            out.append((errors - expected, Wanted(f"session:{bucket}", 1 / SESSION_BUCKETS, reason, evidence)))
        return [want for _, want in sorted(out, key=lambda pair: (-pair[0], pair[1].subject))]

    def _classes_wanted(self, case: ClassCase, sessions: SessionCase | None, cause: str | None) -> list[Wanted]:
        """Classes at fault, worst first; each only as far as those before it, and open ones, do not explain its failures."""
        if not case.wanted.any():
            return []
        covered, of = self.classes.tick
        failed = covered.failed.copy()
        for subject, i in self.classes.index().items():
            if self.breakers["request"].away(subject):
                failed &= ~(of == i).any(axis=0)
        away = self._away("session")
        buckets = [int(subject.partition(":")[2]) for subject in away]
        if sessions is not None:
            buckets += np.flatnonzero(sessions.suspect).tolist()
        of_bucket = np.isin(covered.session, buckets)
        excess = np.where(case.wanted, case.failures.failed - case.failures.expected, -1.0)
        out: list[Wanted] = []
        for i in sorted(np.flatnonzero(case.wanted).tolist(), key=lambda c: (-excess[c], self.classes.subject(c))):
            mine = (of == i).any(axis=0)
            left, before = covered.many(failed & mine), covered.many(covered.failed & mine)
            if 2 * left <= before or 2 * covered.many(covered.failed & mine & of_bucket) > before:
                continue
            if cause == "correlated" and not self._rest_is_well(case, i):
                continue
            failed &= ~mine
            out.append(self._wanted(case, i))
        return out

    def _rest_is_well(self, case: ClassCase, i: int) -> bool:
        """Whether requests outside the classes at fault, of the same kind as class `i`, hardly fail."""
        kind = next(kind for kind in KINDS if kind.start <= i < kind.stop)
        blamed = np.flatnonzero(case.suspect[kind]) + kind.start
        total = int(case.counts[TOTAL, ALL] - case.counts[TOTAL, blamed].sum())
        failed = int(case.counts[FAILED, ALL] - case.counts[FAILED, blamed].sum())
        return failed <= max(2.0 * self.policy.breaker.min_failure_ratio * total, self.policy.breaker.min_failures)

    def _wanted(self, case: ClassCase, i: int) -> Wanted:
        subject, c = self.classes.subject(i), case.failures
        total, failed, errors = (int(case.counts[row, i]) for row in (TOTAL, FAILED, ERRORS))
        reason = (
            f"{subject}: {failed} of {total} requests failed or missed their SLO in {self.policy.breaker.failure_window_s:g} s, "
            f"{100 * float(c.others_ratio[i]):.3g} % of the others on its {int(c.served[i])} nodes did"
        )
        evidence: dict[str, Any] = {
            "window_s": self.policy.breaker.failure_window_s, "requests": total, "failures": failed, "errors": errors,
            "expected_failures": digits(float(c.expected[i])), "others_ratio": digits(float(c.others_ratio[i])),
            "nodes": int(c.served[i]), "nodes_hit": int(c.hit[i]), "traffic_ratio": digits(float(case.share[i])),
        }  # fmt: skip
        if np.isfinite(case.shift[i]):
            evidence["slowdown"] = digits(float(np.exp(min(case.shift[i], 20.0))))
        return Wanted(subject, float(case.share[i]), reason, evidence)

    def _explained(self, case: ClassCase, buckets: Bools, n: int) -> Bools:
        """Nodes that do well once the requests of classes, or of session buckets, at fault are left out, (n,)."""
        sums, rules = self.classes.window.sums, self.policy.breaker
        blamed = case.suspect.copy()
        for subject, i in self.classes.index().items():
            blamed[i] |= self.breakers["request"].away(subject)
        out = np.zeros(sums.shape[2], np.bool_)
        theirs = [sums[FAILED, np.flatnonzero(blamed[kind]) + kind.start].sum(axis=0) for kind in KINDS]
        if buckets.any():
            bucket, node, count = self.sessions.window.errors()
            mine = buckets[bucket]
            theirs.append(np.bincount(node[mine] % MAX_GROUPS, count[mine], minlength=len(out)).astype(np.int64)[: len(out)])
        for blamed_failures in theirs:
            failed = sums[FAILED, ALL] - blamed_failures
            well = (failed <= rules.min_failures) | (failed < rules.min_failure_ratio * sums[TOTAL, ALL])
            out |= (blamed_failures > failed) & well
        return np.asarray(out[np.arange(n) % MAX_GROUPS])

    def dump(self) -> dict[str, Any]:
        """State for a snapshot, between two ticks."""
        return {
            "classes": self.classes.dump(), "sessions": self.sessions.dump(), "pool": self.pool_breach,
            "breakers": {scope: breakers.dump() for scope, breakers in self.breakers.items()},
        }  # fmt: skip

    def load(self, raw: dict[str, Any], *, with_windows: bool) -> None:
        """What `dump` wrote; names and breakers alone where the failure window has another length now."""
        for scope, state in raw["breakers"].items():
            self.breakers[scope].load(state)
        if with_windows:
            self.classes.load(raw["classes"])
            self.sessions.load(raw["sessions"])
            self.pool_breach = raw["pool"]
        else:
            self.adapters.load(raw["classes"]["adapters"])
            self.tenants.load(raw["classes"]["tenants"])

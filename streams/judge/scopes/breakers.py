"""Breakers of one scope, by subject: the same state machine, dwell, back-off, latch and half-open as a node's.

What a subject weighs against its cap is the scope's: its share of the traffic, of all session buckets, or nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Protocol

import msgspec

from detectors import breaker, caps
from detectors.breaker import BreakerRecord
from detectors.caps import CapState
from schemas.policy import PoolPolicy
from schemas.results import Decision, Scope
from schemas.scopes import MAX_CLASSES, SESSION_BUCKETS
from schemas.telemetry import OverrideEvent
from streams.judge.inherit import is_news, record_of, with_open
from streams.judge.overrides import CAUSES, operator_evidence
from streams.judge.reasons import tx_of, why_moved

__all__ = ["GONE_S", "Issue", "ScopeBreakers", "Wanted"]

GONE_S = 600.0
"""A half-open subject that nobody asked for this long closes, so that it does not use up a cap for ever."""


class Issue(Protocol):
    """Makes a decision with the pool's next version."""

    def __call__(
        self, scope: Scope, record: BreakerRecord, t_s: float, reason: str, evidence: dict[str, Any], tx: str = ""
    ) -> Decision: ...


@dataclass(slots=True)
class Wanted:
    """A subject that should open: what it weighs against the cap (0 to 1), and why."""

    subject: str
    weight: float
    reason: str
    evidence: dict[str, Any] = field(default_factory=dict)


class ScopeBreakers:
    """All breakers of one scope of a pool.

    Args:
        scope: Which.
        policy: Of the pool.
        issue: Makes decisions.
        limit: Most that open subjects may weigh together.
        what: What the weight is a share of, in words.
        unit: What every subject weighs, where all weigh the same; what an order opens is then counted, too.
    """

    def __init__(self, scope: Scope, policy: PoolPolicy, issue: Issue, limit: float, what: str, unit: float = 0.0) -> None:
        self.scope, self.policy, self.limit, self.what, self.unit = scope, policy, limit, what, unit
        self.records: dict[str, BreakerRecord] = {}
        self.weight: dict[str, float] = {}
        self.asked_s: dict[str, float] = {}
        self.caps = CapState()
        self.grace_s = policy.lateness_s + 2 * policy.tick_s
        self.ramps = getattr(policy.breaker.actions, scope).action != "degrade"  # a degraded subject never lost its requests
        self._issue = issue
        self._most = MAX_CLASSES if scope == "request" else SESSION_BUCKETS

    def away(self, subject: str) -> bool:
        """Whether a subject is open, half-open or forced open."""
        record = self.records.get(subject)
        return record is not None and record.state not in breaker.CLOSED_STATES

    @property
    def taken(self) -> float:
        """What all open subjects weigh together."""
        return sum(self.weight.get(subject, 0.0) for subject in self.records if self.away(subject))

    def step(self, t_s: float, answers: Callable[[str], tuple[int, int]]) -> list[Decision]:
        """Moves that are due; `answers` says how many requests of a subject in the tick were good and bad."""
        rules, out = self.policy.breaker, []
        for subject in sorted(self.records):
            record = self.records[subject]
            if record.state == "CLOSED":
                if record.since_s is not None and t_s - record.since_s >= max(rules.reset_after_s, rules.flap_window_s):
                    del self.records[subject]  # as if it had never opened
                    self.weight.pop(subject, None)
                    self.asked_s.pop(subject, None)
                continue
            good, bad = answers(subject)
            if good + bad or subject not in self.asked_s:
                self.asked_s[subject] = t_s
            budget = max(1, round(rules.probes_per_s * rules.probe_hosts * self.policy.tick_s))
            # The first ones: which they were does not matter, so their share decides, bad rounded up.
            if good + bad > budget and not record.ramp:
                bad = -(-bad * budget // (good + bad))
                good = budget - bad
            # Its requests come through every gateway and name none, so hosts are not told apart here.
            record, cause = breaker.step(record, t_s, good, bad, rules, ramps=self.ramps)
            self.records[subject] = record
            if cause == "no_verdict" and t_s - self.asked_s[subject] >= GONE_S:
                cause = "gone"
            if cause is None:
                continue
            reason, evidence = why_moved(record, cause)
            out.append(self._move(t_s, breaker.move(record, cause, t_s, rules, grace_s=self.grace_s), reason, evidence))
        return out

    def open(self, t_s: float, wanted: list[Wanted]) -> tuple[list[Decision], dict[str, str]]:
        """Open subjects, the first ones first, as far as the caps allow.

        Returns:
            Decisions, and the subjects that a cap held back with the reason.
        """
        out, held = [], {}
        for want in wanted:
            record = self.records.get(want.subject) or BreakerRecord(subject=want.subject)
            if not breaker.may_trip(record, t_s, self.policy.breaker):
                continue
            why = caps.may_take(self.caps, t_s, self.taken, want.weight, self.limit, self.what, self.policy.caps)
            why = why or (f"{self._most} are open already, hosts take no more" if self._n_away() >= self._most else "")
            if why:
                held[want.subject] = why
                continue
            record = breaker.move(record, "trip", t_s, self.policy.breaker, grace_s=self.grace_s)
            self.caps = caps.after_open(self.caps, t_s, self.policy.caps.velocity_window_s)
            self.weight[want.subject] = want.weight
            self.asked_s[want.subject] = t_s
            reason = want.reason
            if record.latched:
                n, window_s = len(record.trips_s), self.policy.breaker.flap_window_s
                reason += f"; open for the {n}th time in {window_s:g} s, kept open for {self.policy.breaker.latch_s:g} s"
            out.append(self._move(t_s, record, reason, {"cause": "trip", **want.evidence}))
        return out, held

    def over(self, order: OverrideEvent) -> bool:
        """Whether an order would open more than the limit: hosts refuse a state with more than their own."""
        if order.state != "FORCED_OPEN" or self.away(order.subject):
            return False
        return self._n_away() >= self._most or (self.unit > 0.0 and self.taken + self.unit > self.limit + 1e-9)

    def obey(self, t_s: float, order: OverrideEvent) -> Decision | None:
        """Follow an operator's order; None when the breaker is in that state already."""
        record = self.records.get(order.subject) or BreakerRecord(subject=order.subject)
        cause = CAUSES[order.state]
        if (record.state, cause) not in breaker.MOVES:
            return None
        until_s = None if order.state == "CLOSED" else order.end
        record = breaker.move(record, cause, t_s, self.policy.breaker, grace_s=self.grace_s, until_s=until_s)
        evidence: dict[str, Any] = {"cause": cause, "operator": operator_evidence(order)}
        if record.state == "FORCED_OPEN":
            evidence["over_cap"] = self.taken > self.limit + 1e-9
            if self.unit:
                self.weight[order.subject] = self.unit
        reason = f"{order.subject}: {order.operator} ordered {order.state}: {order.reason}"
        tx = tx_of(order.pool, self.scope, order.subject, record.state, order.start, "", {"override": order.id})
        return self._move(t_s, record, reason, evidence, tx)

    def adopt(self, decision: Decision) -> None:
        """Take over what the decision log says of a subject, see `streams.judge.inherit`."""
        if is_news(self.records.get(decision.subject), decision):
            self.records[decision.subject] = record_of(decision, self.grace_s)
            weight = decision.evidence.get("weight_ratio", self.unit)
            self.weight[decision.subject] = float(weight) if isinstance(weight, int | float) else self.unit
            self.asked_s[decision.subject] = decision.t
            self.caps = with_open(self.caps, decision, self.policy.caps.velocity_window_s)

    def _n_away(self) -> int:
        return sum(map(self.away, self.records))

    def _move(self, t_s: float, record: BreakerRecord, reason: str, evidence: dict[str, Any], tx: str = "") -> Decision:
        self.records[record.subject] = record
        if self.limit < 1 and record.state in ("OPEN", "HALF_OPEN"):
            evidence["weight_ratio"] = round(self.weight.get(record.subject, 0.0), 6)
        return self._issue(self.scope, record, t_s, reason, evidence, tx)

    def dump(self) -> dict[str, Any]:
        """State for a snapshot."""
        records = [msgspec.structs.asdict(record) for _, record in sorted(self.records.items())]
        return {"records": records, "weight": self.weight, "asked": self.asked_s, "caps": msgspec.structs.asdict(self.caps)}

    def load(self, raw: dict[str, Any]) -> None:
        """What `dump` wrote."""
        self.records = {record["subject"]: msgspec.convert(record, BreakerRecord) for record in raw["records"]}
        self.weight, self.asked_s = dict(raw["weight"]), dict(raw["asked"])
        self.caps = msgspec.convert(raw["caps"], CapState)

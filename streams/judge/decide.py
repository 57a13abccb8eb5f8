"""Breakers of one pool's nodes: steps those that are not closed, and opens others as far as the caps allow."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from detectors import breaker, caps
from detectors.bank import BankTick
from detectors.breaker import BreakerRecord
from detectors.caps import CapState
from detectors.health import HealthTick
from schemas.policy import PoolPolicy
from schemas.results import Decision, Scope
from schemas.scopes import scope_of
from schemas.telemetry import OverrideEvent
from streams.judge.inherit import is_news, record_of, with_open
from streams.judge.overrides import CAUSES, Overrides, operator_evidence
from streams.judge.reasons import evidence_of, reason_of, tx_of, urgent_reason, why_moved
from streams.judge.rules import Case
from streams.judge.slots import FAILURES, KV, TOTAL, Slot

__all__ = ["Acted", "Breakers"]

HOST_MEMORY_S = 600.0
"""A host whose last probe is older is not waited for."""


def _beyond_usual(slot: Slot, node: int, peers: NDArray[np.bool_]) -> tuple[int, int]:
    """Good and bad answers of a node that gets ordinary requests again; as many failures as its peers have are not its own."""
    total, failed = int(slot.counts[TOTAL, node]), int(slot.counts[FAILURES, node])
    of_peers = peers[: slot.counts.shape[1]]
    asked = int(slot.counts[TOTAL, of_peers].sum())
    usual = int(slot.counts[FAILURES, of_peers].sum()) / asked if asked else 0.0
    bad = max(0, failed - int(usual * total))
    return total - bad, bad


@dataclass(slots=True)
class Acted:
    """Result of a tick: decisions in the order taken, nodes that closed, and opens that the caps held back (node to why)."""

    decisions: list[Decision] = field(default_factory=list)
    closed: list[int] = field(default_factory=list)
    capped: dict[int, str] = field(default_factory=dict)
    orders: list[OverrideEvent] = field(default_factory=list)
    """Orders that are due for other scopes."""


class Breakers:
    """All breakers of a pool.

    Args:
        pool: Name.
        policy: Of the pool.
        policy_version: For the decisions.
        epoch, generation: First parts of the version of each decision.

    Attributes:
        away: Nodes that are open, half-open or forced open, bool (N,).
    """

    def __init__(self, pool: str, policy: PoolPolicy, policy_version: str, epoch: int, generation: int) -> None:
        self.pool, self.policy, self.policy_version = pool, policy, policy_version
        self.epoch, self.generation, self.seq = epoch, generation, 0
        self.records: dict[int, BreakerRecord] = {}
        self.caps = CapState()
        self.overrides = Overrides(policy)
        self.away = np.empty(0, np.bool_)
        self.marked_probes = False
        self.hosts_s: dict[int, float] = {}  # host of a probe, as a number, to when one last came
        # Hosts must hear of the next state before the entry lapses: what a tick waits for lateness, and two ticks on the way.
        self.grace_s = policy.lateness_s + 2 * policy.tick_s
        self.probe_budget = max(1, round(policy.breaker.probes_per_s * policy.breaker.probe_hosts))

    def grow(self, n: int) -> None:
        """Make room for `n` nodes."""
        self.away = np.append(self.away, np.zeros(n - len(self.away), np.bool_))

    def act(
        self, t_s: float, case: Case, slot: Slot, tick: BankTick, fatal_s: NDArray[np.float64], state: HealthTick,
        n_known: int, names: list[str], rank: NDArray[np.intp], seats: dict[str, int],
    ) -> Acted:  # fmt: skip
        """One tick. `rank` orders nodes by name, so that ties do not depend on who came first."""
        acted = Acted()
        eligible = state.expected & state.fresh
        n_eligible = int(eligible.sum())
        for order in self.overrides.due(t_s, seats):
            if scope_of(order.subject) != "node":
                acted.orders.append(order)
                continue
            self._obey(t_s, order, seats.get(order.subject), n_eligible, acted)
        self.hosts_s = {host: heard_s for host, heard_s in self.hosts_s.items() if t_s - heard_s < HOST_MEMORY_S}
        for node in sorted(self.records, key=lambda i: rank[i]):
            self._step(t_s, node, case, slot, bool(state.expected[node]), float(fatal_s[node]), acted)
        n_bad = int((case.bad & eligible).sum())
        self.caps = caps.step_freeze(self.caps, t_s, n_eligible, n_bad, n_eligible, n_known, self.policy.caps)
        if case.wanted.any():
            self._open(t_s, case, tick, n_eligible, names, rank, acted)
        return acted

    def _obey(self, t_s: float, order: OverrideEvent, node: int | None, n_eligible: int, acted: Acted) -> None:
        """Follow an operator's order, whatever the caps say."""
        record = None if node is None else self.records.get(node) or BreakerRecord(subject=order.subject)
        cause = CAUSES[order.state]
        if node is None or record is None:
            self.overrides.refused["unknown_override_subject"] += 1
            return
        if (record.state, cause) not in breaker.MOVES:  # closed already
            self.overrides.refused["needless_override"] += 1
            return
        if cause == "force_open" and (fault := self._over_latched(node, n_eligible)):
            self.overrides.refused[fault] += 1
            return
        until_s = None if order.state == "CLOSED" else order.end
        record = breaker.move(record, cause, t_s, self.policy.breaker, grace_s=self.grace_s, until_s=until_s)
        evidence: dict[str, Any] = {"cause": cause, "operator": operator_evidence(order), "nodes": n_eligible}
        if record.state == "FORCED_OPEN":
            taken = int(self.away.sum()) + (0 if self.away[node] else 1)
            evidence["over_cap"] = taken > caps.open_limit(n_eligible, self.policy.caps)
        reason = f"{order.subject}: {order.operator} ordered {order.state}: {order.reason}"
        # Its identity is the order's, whichever tick it takes effect in.
        tx = tx_of(self.pool, "node", order.subject, record.state, order.start, self.policy_version, {"override": order.id})
        self._commit(t_s, node, record, reason, evidence, acted, tx)
        if record.state == "CLOSED":
            acted.closed.append(node)

    def _over_latched(self, node: int, n_eligible: int) -> str:
        """Why one more node may not be held by an order, or ""."""
        limits = self.policy.caps
        if 1 + self._held(node) > caps.latch_limit(n_eligible, limits.latched_share):
            return "override_over_cap"
        ordered = 1 + sum(r.state == "FORCED_OPEN" and seat != node for seat, r in self.records.items())
        if not self.policy.override.keys and ordered > caps.latch_limit(n_eligible, limits.latched_unsigned_share):
            return "unsigned_override_over_cap"
        return ""

    def _held(self, but: int | None = None) -> int:
        """Nodes that orders or the flap latch hold, as hosts count them: they refuse a state with more than their own cap."""
        return sum((r.latched or r.state == "FORCED_OPEN") and seat != but for seat, r in self.records.items())

    def _within_latched(self, record: BreakerRecord, n_eligible: int) -> BreakerRecord:
        """A record that opens; it is not latched where the latch holds its share of nodes already, or orders leave it no place,
        and counts in the cap.
        """
        limits = self.policy.caps
        latched = 1 + sum(r.latched for r in self.records.values())
        if record.latched and (
            latched > caps.latch_limit(n_eligible, limits.latched_unsigned_share)
            or 1 + self._held() > caps.latch_limit(n_eligible, limits.latched_share)
        ):
            return msgspec.structs.replace(record, latched=False)
        return record

    def _step(self, t_s: float, node: int, case: Case, slot: Slot, expected: bool, fatal_s: float, acted: Acted) -> None:
        record = self.records[node]
        if record.state == "CLOSED":
            calm_s = max(self.policy.breaker.reset_after_s, self.policy.breaker.flap_window_s)
            if record.since_s is not None and t_s - record.since_s >= calm_s:
                del self.records[node]  # as if it had never opened
            return
        good = bad = 0
        hosts: dict[int, int] = {}
        hard = False
        if record.state == "HALF_OPEN":
            if record.ramp:
                good, bad = _beyond_usual(slot, node, ~self.away)
            else:
                good, bad, hosts = slot.probes(node, self.probe_budget, self.marked_probes)
                self.hosts_s |= dict.fromkeys(sorted(hosts), t_s)
            since_s = record.since_s if record.since_s is not None else t_s
            hard = bool(case.stalled[node] or slot.counts[KV, node]) or fatal_s > since_s
        ramps = self.policy.breaker.actions.node.action != "degrade"
        record, cause = breaker.step(
            record,
            t_s,
            good,
            bad,
            self.policy.breaker,
            hosts_ok=[host for host, well in hosts.items() if well],
            n_hosts=len(self.hosts_s),
            ramps=ramps,
        )
        self.records[node] = record
        if hard:  # a hard fault is no matter of a ratio
            cause = "relapse" if record.ramp else "probes_bad"
        if record.state == "HALF_OPEN" and not expected:
            cause = "gone"
        if cause is None:
            return
        reason, evidence = why_moved(record, cause, len(self.hosts_s))
        record = breaker.move(record, cause, t_s, self.policy.breaker, grace_s=self.grace_s)
        self._commit(t_s, node, record, reason, evidence, acted)
        if record.state == "CLOSED":
            acted.closed.append(node)

    def _open(
        self, t_s: float, case: Case, tick: BankTick, n_eligible: int, names: list[str], rank: NDArray[np.intp], acted: Acted
    ) -> None:
        wanted = np.flatnonzero(case.wanted & ~self.away)
        share = case.failures[wanted] / np.maximum(case.total[wanted], 1)
        worst_first = wanted[np.lexsort((rank[wanted], -share, ~case.hard[wanted]))]
        for node in worst_first.tolist():
            record = self.records.get(node) or BreakerRecord(subject=names[node])
            if not breaker.may_trip(record, t_s, self.policy.breaker):
                continue
            held = caps.may_open(self.caps, t_s, n_eligible, int(self.away.sum()), self.policy.caps)
            if held:
                acted.capped[node] = held
                continue
            record = self._within_latched(
                breaker.move(record, "trip", t_s, self.policy.breaker, grace_s=self.grace_s), n_eligible
            )
            self.caps = caps.after_open(self.caps, t_s, self.policy.caps.velocity_window_s)
            reason = reason_of(case, tick, node, names[node], self.policy)
            if record.latched:
                n, window_s = len(record.trips_s), self.policy.breaker.flap_window_s
                reason += f"; open for the {n}th time in {window_s:g} s, kept open for {self.policy.breaker.latch_s:g} s"
            evidence = {"cause": "trip", **evidence_of(case, tick, node, self.policy), "nodes": n_eligible}
            self._commit(t_s, node, record, reason, evidence, acted)

    def open_now(self, t_s: float, node: int, name: str, n_eligible: int, evidence: dict[str, Any]) -> Decision | None:
        """Open a node for a hard fault at the time of its event; None when it may not open now, which the tick will tell."""
        record = self.records.get(node) or BreakerRecord(subject=name)
        if self.away[node] or not breaker.may_trip(record, t_s, self.policy.breaker):
            return None
        if caps.may_open(self.caps, t_s, n_eligible, int(self.away.sum()), self.policy.caps):
            return None
        record = self._within_latched(breaker.move(record, "trip", t_s, self.policy.breaker, grace_s=self.grace_s), n_eligible)
        self.caps = caps.after_open(self.caps, t_s, self.policy.caps.velocity_window_s)
        # Its identity is the event's: what else was known when it came does not matter.
        tx = tx_of(self.pool, "node", name, record.state, t_s, self.policy_version, evidence)
        acted = Acted()
        self._commit(
            t_s, node, record, urgent_reason(name, evidence), {"cause": "trip", **evidence, "nodes": n_eligible}, acted, tx
        )
        return acted.decisions[0]

    def _commit(
        self, t_s: float, node: int, record: BreakerRecord, reason: str, evidence: dict[str, Any], acted: Acted, tx: str = ""
    ) -> None:
        self.records[node] = record
        self.away[node] = record.state not in breaker.CLOSED_STATES
        acted.decisions.append(self.issue("node", record, t_s, reason, evidence, tx))

    def issue(
        self, scope: Scope, record: BreakerRecord, t_s: float, reason: str, evidence: dict[str, Any], tx: str = ""
    ) -> Decision:
        """A decision of any scope, with the pool's next version."""
        self.seq += 1
        serves = record.state in breaker.CLOSED_STATES
        rule = getattr(self.policy.breaker.actions, scope)
        action, admit_ratio = rule.action, 0.0 if rule.action == "eject" else rule.admit_ratio
        if record.state in ("OPEN", "HALF_OPEN"):
            evidence["streak"] = record.streak
        if record.ramp:
            action = "shed" if action == "eject" else action
            admit_ratio = round(breaker.admitted(record, admit_ratio, self.policy.breaker), 6)
            evidence["ramp"] = record.ramp
            reason += f"; {100 * admit_ratio:.3g} % of its requests go there again"
        if not serves:
            evidence |= {name: word for name in ("fallback", "profile") if (word := getattr(rule, name)) is not None}
        decision = Decision(
            t=t_s,
            pool=self.pool,
            scope=scope,
            subject=record.subject,
            state=record.state,
            version=(self.generation, self.epoch, self.seq),
            tx=tx or tx_of(self.pool, scope, record.subject, record.state, t_s, self.policy_version, evidence),
            action="none" if serves else action,
            admit_ratio=1.0 if serves or action == "degrade" else admit_ratio,
            reason=reason,
            mode=self.policy.mode,
            latched=record.latched,
            not_after=breaker.not_after_s(record, self.policy.breaker, self.grace_s),
            policy_version=self.policy_version,
            window_end=t_s,
            evidence=evidence,
        )
        if not serves:
            decision.fallback = rule.fallback or msgspec.UNSET
            decision.profile = rule.profile or msgspec.UNSET
        return decision

    def adopt(self, node: int, decision: Decision) -> None:
        """Take over what the decision log says of a node, see `streams.judge.inherit`."""
        if is_news(self.records.get(node), decision):
            record = self.records[node] = record_of(decision, self.grace_s)
            self.away[node] = record.state not in breaker.CLOSED_STATES
            self.caps = with_open(self.caps, decision, self.policy.caps.velocity_window_s)

    def dump(self) -> dict[str, Any]:
        """State for a snapshot."""
        records = [[node, msgspec.structs.asdict(record)] for node, record in sorted(self.records.items())]
        return {
            "seq": self.seq, "records": records, "caps": msgspec.structs.asdict(self.caps), "n": len(self.away),
            "marked": self.marked_probes, "overrides": self.overrides.dump(), "hosts": list(self.hosts_s.items()),
        }  # fmt: skip

    def load(self, raw: dict[str, Any]) -> None:
        """What `dump` wrote."""
        self.seq, self.marked_probes = raw["seq"], raw["marked"]
        self.records = {node: msgspec.convert(record, BreakerRecord) for node, record in raw["records"]}
        self.caps = msgspec.convert(raw["caps"], CapState)
        self.overrides.load(raw.get("overrides"))
        self.hosts_s = dict(raw.get("hosts", ()))
        self.away = np.zeros(raw["n"], np.bool_)
        for node, record in self.records.items():
            self.away[node] = record.state not in breaker.CLOSED_STATES

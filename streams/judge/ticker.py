"""One closed tick of a pool: health, histograms, evidence, breakers, findings and verdicts, in this order."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from detectors.bank import BankTick, SeriesBank
from detectors.burn import BurnMeter
from detectors.error_rate import ErrorRates
from detectors.extra import waiting
from detectors.health import OK, Health, HealthTick
from schemas.policy import PoolPolicy
from schemas.results import Decision
from streams.judge.decide import Breakers
from streams.judge.deploys import Deploys
from streams.judge.dynamic import dynamic_slo_s
from streams.judge.extra import ExtraDetectors
from streams.judge.findings import Findings
from streams.judge.registry import Registry
from streams.judge.results import TickOutput
from streams.judge.rows import Rows
from streams.judge.rules import Case, Rules
from streams.judge.scopes.scopes import Scopes
from streams.judge.slots import ASKED, CONTRARY, EMPTY, ERRORS, FAILURES, KV, PROBES_EXPLICIT, TOTAL, Slot
from streams.judge.status import TickWindows, Voice, status_codes
from streams.judge.units import Units

__all__ = ["Ticker"]

_NEVER = np.iinfo(np.int64).min
EMPTY_RATIO = 0.02  # answers without a token that are nobody's concern
MIN_REFUSED = 20  # events a minute, and more than half of a node's, before its clock is called wrong
CONTRARY_SHARE = 0.1  # of a node's requests, and 20 a minute, whose first token came after their end: what it says is wrong


class Ticker:
    """Everything of a pool that moves once per tick; arrays over nodes.

    Args:
        pool: Name.
        policy: Of the pool.
        policy_version, epoch, generation: For decisions.
        registry: Names of the nodes.
    """

    def __init__(
        self, pool: str, policy: PoolPolicy, policy_version: str, epoch: int, generation: int, registry: Registry
    ) -> None:
        self.pool, self.policy, self.registry = pool, policy, registry
        self.tick_ns = round(policy.tick_s * 1e9)
        detection = policy.detection
        # The judge holds the open ticks; the bank sees a tick early only when much waits.
        self.bank = SeriesBank(detection, policy.tick_s, open_slots=int(policy.lateness_s // policy.tick_s) + 4)
        self.errors = ErrorRates(policy.tick_s, detection.false_alarms_per_day, detection.half_life_s)
        budget = min((1.0 - slo.objective for slo in policy.slo.values()), default=1.0)
        self.contract = ErrorRates(policy.tick_s, detection.false_alarms_per_day, detection.half_life_s, 0.5 * budget)
        # By design some models answer with nothing: their usual share is learnt, whatever it is.
        self.empties = ErrorRates(policy.tick_s, detection.false_alarms_per_day, detection.half_life_s, EMPTY_RATIO, 0.95)
        self.slis = [name for name, _ in sorted(policy.slo.items())]
        objectives = np.array([policy.slo[name].objective for name in self.slis])
        self.burn = BurnMeter(objectives, policy.budget.min_events)
        self.health = Health.empty()
        self.deploys = Deploys()
        self.rules = Rules(policy)
        self.breakers = Breakers(pool, policy, policy_version, epoch, generation)
        self.scopes = Scopes(policy, self.breakers.issue)
        self.findings = Findings(pool, policy)
        self.units = Units(policy.tick_s)
        self.voice = Voice(pool, policy)
        self.extra = ExtraDetectors(policy) if detection.extra else None
        self.seen = np.empty((0, 4), np.bool_)
        self.few = np.empty(0, np.bool_)
        self.refused = np.empty(0, np.int64)
        self.accepted = np.empty(0, np.int64)
        self.contrary = np.empty(0, np.int64)
        self.eligible = np.empty(0, np.bool_)  # nodes with fresh telemetry at the last tick

    def grow(self, n: int) -> None:
        """Make room for `n` nodes."""
        more = n - len(self.few)
        for _ in range(more):
            self.bank.add_node()
        for part in (self.errors, self.contract, self.empties, self.health, self.rules, self.breakers, self.units, self.voice):
            part.grow(n)
        if self.extra is not None:
            self.extra.grow(n)
        self.seen = np.concatenate([self.seen, np.zeros((more, 4), np.bool_)])
        self.few = np.append(self.few, np.ones(more, np.bool_))
        self.refused = np.append(self.refused, np.zeros(more, np.int64))
        self.accepted = np.append(self.accepted, np.zeros(more, np.int64))
        self.contrary = np.append(self.contrary, np.zeros(more, np.int64))

    def ingest(self, slot: int, rows: Rows) -> None:
        """Requests answered well, for the histograms of a tick."""
        if len(rows):
            self.bank.ingest(
                slot, rows.node, rows.latency_s, rows.prompt_tokens, rows.cached_tokens, rows.adapter_key, rows.output_tokens,
                rows.weight,
            )  # fmt: skip

    def skip(self) -> None:
        """Ticks without events are skipped: what was counted per tick is over."""
        self.rules.window.forget()
        self.rules.breach[:] = 0
        self.scopes.skip()

    def open_now(self, t_s: float, seat: int, evidence: dict[str, Any]) -> Decision | None:
        """Open a node for a hard fault between two ticks, if it is eligible and the caps allow it."""
        if seat >= len(self.eligible) or not self.eligible[seat]:
            return None
        return self.breakers.open_now(t_s, seat, self.registry.names[seat], self.n_eligible, evidence)

    @property
    def n_eligible(self) -> int:
        """Nodes with fresh telemetry at the last tick."""
        return int(self.eligible.sum())

    def close(self, slot_number: int, slot: Slot) -> TickOutput:
        """Close a tick."""
        t_s = (slot_number + 1) * self.tick_ns / 1e9
        policy, breakers = self.policy, self.breakers
        names, rank = self.registry.names, self.registry.rank
        slot.grow(len(names))
        if slot.counts[ASKED].any():
            self.health.requests(_seconds(slot.asked_ns), _seconds(slot.served_ns))
        state = self.health.judge(t_s, policy.health, policy.breaker.failure_window_s)
        eligible = self.eligible = state.expected & state.fresh
        hold = breakers.away | (state.code != OK) | state.fatal
        if breakers.caps.cause == "correlated":
            hold[:] = True  # a shared cause is no new normal either
        error_alarm = self.errors.update(slot.counts[TOTAL], slot.counts[ERRORS], hold)
        contract_alarm = self.contract.update(slot.counts[TOTAL], slot.counts[FAILURES], hold)
        young = ~self.bank.has_baseline
        empty_alarm = self.empties.update(slot.counts[TOTAL], slot.counts[EMPTY], hold, young)
        if 2 * empty_alarm.sum() <= len(hold):  # more than that is another workload
            hold = hold | empty_alarm
        # No baseline is learnt from requests that fail, except the first where a node has missed its SLO from the start: without
        # one it could never be judged.
        hold |= error_alarm | (contract_alarm & ~young)
        if self.extra is not None:
            self.extra.tick(slot, waiting(self.bank, slot_number))
        self.scopes.take(t_s, slot.covered, len(names), self.bank, slot_number)
        medians_s = self.units.medians_s(t_s, self.bank, slot_number, self.rules.breach)
        tick = self.bank.close(slot_number, hold)
        case = self.rules.judge(slot, tick, error_alarm, contract_alarm, empty_alarm, state, eligible)
        if slot.counts[PROBES_EXPLICIT].any():
            breakers.marked_probes = True
        n_fresh, n_known = int(eligible.sum()), int(state.expected.sum())
        if policy.inventory is not None:
            n_known = max(n_known, len(policy.inventory))
        explained = self.scopes.judge(case, case.errors, breakers.caps.cause == "correlated")
        odd = self.units.judge(t_s, tick, np.asarray(case.series_alarm.any(axis=1)), medians_s)
        case.wanted &= ~(explained | odd) | case.hard
        case.bad &= ~odd | case.hard
        slot.settle(self.empties.base_ratio() <= 2 * EMPTY_RATIO)
        acted = breakers.act(t_s, case, slot, tick, self.health.fatal_s, state, n_known, names, rank, self.registry.seats)
        more = self.scopes.act(t_s, case, tick, eligible, n_known, explained, breakers.caps.cause, acted.orders)
        self._tell(t_s, slot, tick, case, acted.capped, (n_fresh, n_known))
        self.findings.scopes(t_s, more.capped, more.frozen, more.causes)
        self._forget(t_s, case, acted.closed)
        codes = self._codes(tick, case, state)
        tightening = case.series_alarm | breakers.away[:, None]
        dynamic_s = dynamic_slo_s(self.bank, tick, self.voice.slo_s, tightening, policy.detection)
        verdicts = self.voice.speak(t_s, codes, tick, case.total, self.errors.log_sr, names, rank, dynamic_s)
        if self.extra is not None:
            self.extra.show(verdicts, self.registry.seats)
        windows = TickWindows.of(t_s, self.pool, names, codes, tick, case.total, self.voice.slo_s, dynamic_s)
        decisions = acted.decisions + more.decisions
        return TickOutput(t_s, self.pool, verdicts, windows, self.findings.close(t_s), decisions, n_eligible=n_fresh)

    def _codes(self, tick: BankTick, case: Case, state: HealthTick) -> NDArray[np.uint8]:
        """Status of every series."""
        self.seen |= tick.n_tick > 0
        low = self.policy.breaker.min_requests
        self.few = case.total < np.where(self.few, low, 0.5 * low)  # two levels: no flicker between them
        asked = ~np.isnan(self.health.asked_s)
        known = state.expected & ~np.isnan(self.health.heard_s)
        return status_codes(tick, case.series_alarm, self.seen, state.code, case.error_alarm, self.few, asked, known)

    def _forget(self, t_s: float, case: Case, closed: list[int]) -> None:
        """After a breaker closed its evidence is over; some time after a deploy, so is the old baseline."""
        if closed:
            nodes = np.zeros(len(self.few), np.bool_)
            nodes[closed] = True
            self.bank.reset_evidence(nodes)
            for rates in (self.errors, self.contract, self.empties):
                rates.forget(nodes, baseline=False)
            self.rules.forget(nodes)
        rebased = self.deploys.due(t_s, self.registry.seats, case.hurt)
        if rebased is not None and rebased.any():
            self.bank.rebase(rebased)
            for rates in (self.errors, self.contract, self.empties):
                rates.forget(rebased, baseline=True)
            if self.extra is not None:
                self.extra.forget(rebased)

    def _tell(self, t_s: float, slot: Slot, tick: BankTick, case: Case, capped: dict[int, str], fresh: tuple[int, int]) -> None:
        findings, names, rank = self.findings, self.registry.names, self.registry.rank
        if self.units.odd.any():
            findings.odd_units(t_s, tick, self.units.odd, names)
            case.own &= ~self.units.odd[:, None]
            case.worse &= ~self.units.odd
            case.shared |= self.units.odd[:, None]  # not told as the node's drift
        findings.drift(t_s, tick, case, self.deploys, names, rank, fresh[0])
        findings.long_drifts(t_s, tick, case, names)
        cause = self.breakers.caps.cause
        if cause is not None or capped:
            evidence = {"bad": int(case.bad.sum()), "fresh": fresh[0], "known": fresh[1]}
            findings.actions(t_s, cause, evidence, capped, names)
        if slot.counts[KV].any():
            findings.foreign_kv(t_s, np.flatnonzero(slot.counts[KV]), slot.counts[KV], names)
        if self.slis and self.burn.add(t_s, slot.slo_total, slot.slo_bad):
            findings.burn(t_s, self.burn.rates(), self.slis)
        self.accepted += slot.counts[ASKED]
        self.contrary += slot.counts[CONTRARY]
        if round(t_s * 1e9) // self.tick_ns % self.rules.window.length == 0:
            wrong = (self.refused >= MIN_REFUSED) & (self.refused > self.accepted)
            if wrong.any():
                findings.clocks(t_s, {names[i]: int(self.refused[i]) for i in np.flatnonzero(wrong)}, self.registry.seats)
            odd = (self.contrary >= MIN_REFUSED) & (self.contrary >= CONTRARY_SHARE * self.accepted)
            for i in np.flatnonzero(odd).tolist():
                findings.contrary(t_s, i, names[i], int(self.contrary[i]), int(self.accepted[i]))
            self.refused[:] = 0
            self.accepted[:] = 0
            self.contrary[:] = 0


def _seconds(ns: NDArray[np.int64]) -> NDArray[np.float64]:
    return np.where(ns == _NEVER, np.nan, ns / 1e9)

"""When a node should lose its traffic: evidence, hurt users, and a fault that is the node's own. Caps come after this.

All three must hold, for latency and for error ratios alike:

* *evidence*: a calibrated alarm for `breach_ticks` ticks in a row: of a latency against its baseline, of the error ratio, or
  of the ratio of requests that miss their SLO where latency, given the requests' sizes, is up as well. The last is the absolute
  ceiling: a drift so slow that the baseline goes with it meets the contract in the end;
* *hurt*: more than `min_failures` failures in the failure window, and `min_failure_ratio` of at least `min_requests` requests
  (a failure is an outcome against the node, or a request beyond its contractual SLO). A quarter of that ratio will do while the
  node is *suddenly* slower, in alarm against its own last half minute: a node that had been faster than usual, and is now twice
  as slow, hurts fewer users than one that wandered there, but nothing wanders so fast. Answers without a token are failures
  while a node gives more of them than it used to and twice as many as its peers;
* *own fault*: its peers do not drift with it.

With the method `seed` the published rule stands alone: its alarm, and more than `min_failures` failures. Hard faults (a stall,
a fatal XID, a foreign KV slot) need no statistics.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from detectors import health
from detectors.bank import LEARNING, BankTick
from detectors.health import HealthTick
from detectors.own_fault import peers_calm, rare, ratio_of_others, stands_out
from schemas.batch import LATENCY_SLIS
from schemas.policy import PoolPolicy
from streams.judge.slots import EMPTY, ERRORS, FAILURES, KV, TOTAL, Slot

__all__ = ["CONTRACT_SHIFT_NATS", "Case", "FailureWindow", "Rules"]

Bools = NDArray[np.bool_]
Ints = NDArray[np.int64]

CONTRACT_SHIFT_NATS = 0.1  # 10 % slower than its baseline: the node had a part in it when its requests miss their SLO

SUDDEN_SHARE = 0.25
"""Of `min_failure_ratio`, that is enough at a node whose drift is its own and sudden."""

_SE = 2.0  # standard errors that are chance when the failures of two nodes are compared

_KEPT = (TOTAL, ERRORS, FAILURES, KV, EMPTY)
_TOTAL, _ERRORS, _FAILURES, _KV, _EMPTY = range(5)


class FailureWindow:
    """Sums over the last `failure_window_s`: requests that count, outcomes against the node, failures, foreign KV slots, answers
    without a token.
    """

    def __init__(self, policy: PoolPolicy) -> None:
        self.length = max(1, round(policy.breaker.failure_window_s / policy.tick_s))
        self.ring = np.zeros((self.length, len(_KEPT), 0), np.int64)
        self.sums = np.zeros((len(_KEPT), 0), np.int64)
        self.at = 0

    def grow(self, n: int) -> None:
        """Make room for `n` nodes."""
        more = n - self.sums.shape[1]
        self.ring = np.concatenate([self.ring, np.zeros((*self.ring.shape[:2], more), np.int64)], axis=2)
        self.sums = np.concatenate([self.sums, np.zeros((len(_KEPT), more), np.int64)], axis=1)

    def add(self, counts: Ints) -> None:
        """The counts of one tick, (8, N)."""
        new = counts[_KEPT, :]
        self.sums += new - self.ring[self.at]
        self.ring[self.at] = new
        self.at = (self.at + 1) % self.length

    def recent(self, ticks: int) -> tuple[Ints, Ints, Ints]:
        """(requests that count, failures, answers without a token) of the last `ticks` ticks, (N,) each."""
        rows = [(self.at - 1 - back) % self.length for back in range(min(ticks, self.length))]
        sums = self.ring[rows].sum(axis=0)
        return sums[_TOTAL], sums[_FAILURES], sums[_EMPTY]

    def forget(self, nodes: Bools | None = None) -> None:
        """Drop what is known of `nodes`, or of all."""
        which = slice(None) if nodes is None else nodes
        self.ring[:, :, which] = 0
        self.sums[:, which] = 0


@dataclass(slots=True)
class Case:
    """What speaks for opening, at the end of one tick; arrays (N,) unless said.

    Attributes:
        total, errors, failures: Of the failure window.
        known: Latency series that can be compared: enough samples, a baseline, telemetry, (N, 4).
        series_alarm: Latency series in alarm, by the bank or by the contract, (N, 4).
        own: Those of them whose peers do not drift with them, (N, 4).
        shared: Those whose peers moved too, whether these are in alarm yet or not, (N, 4).
        error_alarm: The error ratio rose; `error_own`: that of the peers did not. The same for answers without a token.
        empty: Answers without a token in the failure window, at nodes where they are failures; 0 elsewhere.
        worse: Its users are hurt, and more often than those of its peers: the contract says so, whatever is usual, (N,).
        evidence: Evidence held long enough. `hurt`: users are hurt. `hard`: a hard fault.
        bad: Meets the open condition, whoever's fault it is. `wanted`: should be opened.
    """

    total: Ints
    errors: Ints
    failures: Ints
    known: Bools
    series_alarm: Bools
    own: Bools
    shared: Bools
    error_alarm: Bools
    error_own: Bools
    empty: Ints
    worse: Bools
    evidence: Bools
    hurt: Bools
    stalled: Bools
    fatal: Bools
    foreign_kv: Bools
    hard: Bools
    bad: Bools
    wanted: Bools


class Rules:
    """The open condition of one pool, tick after tick.

    Args:
        policy: Of the pool.
    """

    def __init__(self, policy: PoolPolicy) -> None:
        self.policy = policy
        self.window = FailureWindow(policy)
        self.breach = np.empty(0, np.int64)
        self.has_slo = np.array([name in policy.slo for name in LATENCY_SLIS])

    def grow(self, n: int) -> None:
        """Make room for `n` nodes."""
        self.window.grow(n)
        self.breach = np.append(self.breach, np.zeros(n - len(self.breach), np.int64))

    def judge(
        self, slot: Slot, tick: BankTick, error_alarm: Bools, contract_alarm: Bools, empty_alarm: Bools, node_health: HealthTick,
        eligible: Bools,
    ) -> Case:  # fmt: skip
        """The case of every node at the end of a tick.

        Args:
            slot: Counts of the tick.
            tick: Of the bank.
            error_alarm: The ratio of outcomes against the node rose, (N,).
            contract_alarm: The ratio of requests that failed or missed their SLO rose, (N,).
            empty_alarm: The ratio of answers without a token rose, (N,).
            node_health: At the end of the tick.
            eligible: Nodes with fresh telemetry, (N,).
        """
        rules, caps = self.policy.breaker, self.policy.caps
        self.window.add(slot.counts)
        total, errors, failures, kv, empty = self.window.sums
        lately, failed_lately, empty_lately = self.window.recent(rules.breach_ticks)
        known = tick.enough & (tick.baseline != LEARNING) & eligible[:, None]
        own, shared, alarm = tick.alarm, np.zeros_like(tick.alarm), tick.alarm
        if self.policy.detection.method == "seed":  # the published rule knows neither peers nor ratios
            error_alarm, more, empty_alarm = np.zeros_like(error_alarm), np.ones_like(eligible), np.zeros_like(error_alarm)
            least = np.full(len(total), rules.min_failure_ratio)
        else:
            if contract_alarm.any():
                with np.errstate(invalid="ignore"):
                    slower = np.fmin(tick.shift_nats, tick.peer_shift_nats) >= CONTRACT_SHIFT_NATS
                    # Longer prompts and answers make tails, too: of P99.9, and where a mix is new even given the sizes.
                    heavy = tick.heavy & known & ~(tick.kl_mix_nats > tick.kl_service_nats)
                    slower |= heavy & rare(heavy, known, caps.freeze_share)
                    alarm = alarm | (contract_alarm[:, None] & known & slower & self.has_slo)
            if alarm.any():
                wobble = np.maximum(tick.band_nats / 3, self.policy.detection.wobble_floor_ratio)
                calm = peers_calm(tick.shift_nats, known, wobble)
                stirred = tick.log_evidence > 0.5 * tick.log_threshold
                own = stands_out(alarm, known, calm, caps.freeze_share, stirred)
                shared = alarm & ~calm & (known.sum(axis=0) - known > 0)
        error_own = error_alarm
        if error_alarm.any():
            others = ratio_of_others(errors, total, eligible)
            error_own = error_alarm & (others < 0.5 * errors / np.maximum(total, 1))
        if empty_alarm.any():
            own_empty = empty_alarm & (ratio_of_others(empty, total, eligible) < 0.5 * empty / np.maximum(total, 1))
            error_alarm, error_own = error_alarm | empty_alarm, error_own | own_empty
            empty, empty_lately = empty * own_empty, empty_lately * own_empty
            failures, failed_lately = np.minimum(failures + empty, total), np.minimum(failed_lately + empty_lately, lately)
        else:
            empty = np.zeros_like(total)
        if self.policy.detection.method != "seed":
            accused = (own & tick.alarm).any(axis=1) | error_own
            sudden = (own & tick.sudden).any(axis=1)
            least = rules.min_failure_ratio * np.where(sudden, SUDDEN_SHARE, 1.0)
            more = self._more_than_others(((failures, total), (failed_lately, lately)), eligible, accused, least)
            own = own & (tick.alarm | more[:, None])  # the contract alone accuses only whose users fare worse than others'
        alarmed = alarm.any(axis=1) | error_alarm
        self.breach = np.where(alarmed, self.breach + 1, 0)
        evidence = self.breach >= rules.breach_ticks
        young = (self.breach < self.window.length) & (lately >= rules.min_requests)  # it is diluted in the whole window
        share = (failures >= least * total) | ((failed_lately >= least * lately) & young)
        hurt = (failures > rules.min_failures) & share & (total >= rules.min_requests)
        stalled, foreign_kv = node_health.code == health.STALLED, kv > 0
        hard = (stalled | node_health.fatal | foreign_kv) & eligible
        meets = evidence & hurt & eligible
        worse = contract_alarm & hurt & more & eligible
        wanted = hard | (meets & more & (own.any(axis=1) | error_own))
        return Case(
            total.copy(), errors.copy(), failures.copy(), known, alarm, own, shared, error_alarm, error_own, empty, worse,
            evidence, hurt, stalled, node_health.fatal, foreign_kv, hard, hard | meets, wanted,
        )  # fmt: skip

    def _more_than_others(
        self, spans: tuple[tuple[Ints, Ints], ...], eligible: Bools, accused: Bools, margin: NDArray[np.float64]
    ) -> Bools:
        """Whether twice the share of its peers' requests fails at a node and more by a `margin` (N,), beyond chance, (N,).

        One of the `spans` (failures, requests) is enough.

        When the whole pool misses its SLO, a node that is also a little slower than usual is not why. Peers that are accused
        themselves are no measure, unless most are.
        """
        more = np.zeros(len(eligible), np.bool_)
        peers = eligible & ~accused
        if 2 * peers.sum() < eligible.sum():
            peers = eligible
        for failed, answered in spans:
            others = np.nan_to_num(ratio_of_others(failed, answered, peers))  # nobody else answered: nothing to compare with
            usual = np.maximum(2.0 * others, others + margin) * answered
            more |= (failed > 0) & (failed >= usual + _SE * np.sqrt(2.0 * others * answered))
        return more

    def forget(self, nodes: Bools) -> None:
        """A breaker closed: what went before counts no more."""
        self.window.forget(nodes)
        self.breach[nodes] = 0

    def dump(self) -> dict[str, Any]:
        """State for a snapshot."""
        w = self.window
        return {
            "n": len(self.breach),
            "breach": self.breach.tobytes(),
            "ring": w.ring.tobytes(),
            "sums": w.sums.tobytes(),
            "at": w.at,
        }

    def load(self, raw: dict[str, Any]) -> None:
        """What `dump` wrote."""
        n, w = raw["n"], self.window
        self.breach = np.frombuffer(raw["breach"], np.int64).copy()
        w.ring = np.frombuffer(raw["ring"], np.int64).reshape(w.length, len(_KEPT), n).copy()
        w.sums = np.frombuffer(raw["sums"], np.int64).reshape(len(_KEPT), n).copy()
        w.at = raw["at"]

"""Findings: what a person should hear about a pool, once per episode.

An episode begins when its condition holds for `breach_ticks` ticks and ends when it did not for `unfreeze_s`; only its
beginning is told. Who drifted decides the word: one node alone is its own fault; half the pool together is the fleet's, or the
deploy's that came just before, or the workload's when another mix of requests explains more than the service does.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from detectors import dynamic_slo
from detectors.bank import BankTick
from detectors.burn import PAIRS, BurnRates
from detectors.peers import has_left
from schemas.batch import LATENCY_SLIS
from schemas.policy import PoolPolicy
from schemas.results import Finding
from streams.judge.deploys import Deploys
from streams.judge.reasons import digits, evidence_of
from streams.judge.rules import Case

__all__ = ["Findings"]

FLEET_SHARE = 0.5  # of the comparable nodes in alarm: it is not the nodes
PEER_DRIFT_NATS = math.log(1.3)  # a node that is so much slower against its peers than it used to be
PEER_PLACE_NATS = math.log(1.5)  # a node that is so much slower than its peers, and always was
UNIT_JUMP_NATS = math.log(100.0)  # tails of most nodes so far above their thresholds at once: a unit or a clock, no service
Key = tuple[str, int, str]  # finding, node (-1: the pool), detail


class Findings:
    """Episodes of one pool.

    Args:
        pool: Name.
        policy: Of the pool.
    """

    def __init__(self, pool: str, policy: PoolPolicy) -> None:
        self.pool, self.policy = pool, policy
        self.streak: dict[Key, int] = {}
        self.told: dict[Key, float] = {}  # key to when its condition last held
        self._out: list[tuple[Key, Finding]] = []
        self._held: set[Key] = set()
        self._shared = np.zeros(len(LATENCY_SLIS), np.bool_)  # of the tick: SLIs that the fleet drifts in

    def drift(
        self, t_s: float, tick: BankTick, case: Case, deploys: Deploys, names: list[str],
        rank: NDArray[np.intp], n_fresh: int,
    ) -> None:  # fmt: skip
        """Findings from drift and errors: of nodes, of the fleet (`n_fresh` are heard), of the workload."""
        pool = tick if tick.pool is None else tick.pool
        known, alarm = case.known, case.series_alarm
        fleet = np.zeros(alarm.shape[1], np.bool_)
        if alarm.any():
            fleet = self._most(alarm, known) | self._together(alarm & known, case.shared & known)
        elif pool.alarm.any():  # many quiet nodes: together they say what none can alone
            fleet = pool.alarm[0] & (known.sum(axis=0) < 2)
        if pool.mix_alarm.any() or tick.mix_alarm.any():
            self._mixes(t_s, tick, pool, known, names)
        self._shared = fleet
        if fleet.any():
            self._fleet(t_s, tick, alarm, known, fleet, deploys, names)
        if case.error_alarm.sum() >= max(2.0, FLEET_SHARE * n_fresh) and not case.error_own.all():
            self._failing(t_s, case, deploys, names)
        if alarm.any() or case.error_own.any() or case.hard.any():
            self._nodes(t_s, tick, case, fleet, deploys, names, rank)
        if case.worse.any():
            self._from_birth(t_s, tick, case, names)
        if tick.improved.any():
            improved = tick.improved & (case.empty == 0)[:, None]  # to answer nothing is quick
            self._improved(t_s, improved, known, names)

    def _mixes(self, t_s: float, tick: BankTick, pool: BankTick, known: NDArray[np.bool_], names: list[str]) -> None:
        """Other requests than usual, at a few nodes of many (a router that sends long prompts one way) or everywhere."""
        there = known.any(axis=1)
        moved = tick.mix_alarm[:, 0] & there
        if 0 < moved.sum() <= self.policy.caps.freeze_share * there.sum():
            subjects: list[tuple[int, str | None, BankTick, int]] = [
                (node, names[node], tick, node) for node in np.flatnonzero(moved).tolist()
            ]
        elif pool.mix_alarm.any():
            subjects = [(-1, None, pool, 0)]
        else:
            return
        for key, name, of, row in subjects:
            s = int(np.argmax(np.nan_to_num(of.kl_mix_nats[row], nan=-1.0)))
            evidence = {"kl_mix_nats": _digits(of.kl_mix_nats[row, s]), "kl_service_nats": _digits(of.kl_service_nats[row, s])}
            self._hold(t_s, ("workload_shift", key, ""), "workload_shift", name, evidence)

    def _improved(self, t_s: float, improved: NDArray[np.bool_], known: NDArray[np.bool_], names: list[str]) -> None:
        faster = self._most(improved, known)
        if faster.any():
            self._hold(t_s, ("improvement", -1, ""), "improvement", None, {"series": _names(faster)})
        for node in np.flatnonzero((improved & ~faster).any(axis=1)).tolist():
            mine = {"series": _names(improved[node] & ~faster)}
            self._hold(t_s, ("improvement", node, ""), "improvement", names[node], mine)

    def long_drifts(self, t_s: float, tick: BankTick, case: Case, names: list[str]) -> None:
        """Drifts that lasted, timed against the frozen baseline: what the search for a cause starts from.

        A node that has left its peers for as long has drifted too, whether its own baseline went along or not.

        Beside a fleet that drifts, nodes get no lines of their own, whenever each of them began, unless the drift is theirs.
        """
        long_s = self.policy.detection.long_drift_s
        old = dynamic_slo.wants_root_cause(tick.drift_s, long_s)
        left = has_left(tick.peer_shift_nats, case.known, PEER_DRIFT_NATS) & ~self._shared
        for node in np.flatnonzero(left.any(axis=1) & ~old.any(axis=1)).tolist():
            s = int(np.where(left[node], tick.peer_shift_nats[node], -np.inf).argmax())
            slowdown = _digits(math.exp(min(float(tick.peer_shift_nats[node, s]), 20.0)))
            evidence = {"series": _names(left[node]), "drift_s": long_s, "slowdown": slowdown, "against": "peers"}
            ticks = math.ceil(long_s / self.policy.tick_s)
            self._hold(t_s, ("long_drift", node, ""), "long_drift", names[node], evidence, ticks=ticks)
        if not old.any():
            return
        told = any((word, -1, "") in self.told for word in ("fleet_degradation", "deploy_regression"))
        fleet = self._most(old, case.known) | self._shared | told
        mine_alone = case.own & (told | self._shared)
        both = old & fleet & ~mine_alone
        if both.any():
            evidence = {
                "series": _names(np.asarray(both.any(axis=0))),
                "nodes": int(both.any(axis=1).sum()),
                "drift_s": _digits(tick.drift_s[both].max()),
            }
            self._hold(t_s, ("long_drift", -1, ""), "long_drift", None, evidence, ticks=1)
        for node in np.flatnonzero((old & ~both).any(axis=1)).tolist():
            mine = np.where(old[node] & ~both[node], tick.drift_s[node], -1.0)
            s = int(mine.argmax())
            slowdown = _digits(math.exp(min(float(tick.shift_nats[node, s]), 20.0)))
            evidence = {"series": _names(mine >= 0), "drift_s": _digits(mine[s]), "slowdown": slowdown}
            self._hold(t_s, ("long_drift", node, ""), "long_drift", names[node], evidence, ticks=1)

    def actions(
        self, t_s: float, frozen: str | None, frozen_evidence: dict[str, Any], capped: dict[int, str], names: list[str]
    ) -> None:
        """Findings about what was not done: opens frozen or capped."""
        if frozen is not None:
            self._hold(t_s, ("frozen", -1, frozen), "frozen", None, {"cause": frozen, **frozen_evidence}, ticks=1)
            return
        for node, why in capped.items():
            self._hold(t_s, ("capped", node, ""), "capped", names[node], {"why": why}, ticks=1)

    def scopes(self, t_s: float, capped: dict[str, str], frozen: list[str], causes: dict[str, dict[str, Any]]) -> None:
        """Findings about request classes, sessions and the pool: what was not done, and what classes at fault have in common."""
        for subject, why in capped.items():
            self._hold(t_s, ("capped", -1, subject), "capped", None, {"subject": subject, "why": why}, ticks=1)
        for which in frozen:
            scope, _, cause = which.partition(":")
            self._hold(t_s, ("frozen", -1, which), "frozen", None, {"cause": cause, "scope": scope}, ticks=1)
        for cause, evidence in causes.items():
            rest = {name: value for name, value in evidence.items() if name != "score"}
            self._hold(t_s, ("root_cause", -1, cause), "root_cause", None, rest, cause=cause, score=evidence["score"])

    def foreign_kv(self, t_s: float, nodes: NDArray[np.intp], counts: NDArray[np.int64], names: list[str]) -> None:
        """Zero tolerance: a request answered from a KV slot that was not its own."""
        for node in nodes.tolist():
            evidence = {"requests": int(counts[node])}
            key = ("root_cause", node, "kv")
            self._hold(t_s, key, "root_cause", names[node], evidence, ticks=1, cause="kv_cache_contamination", score=1.0)

    def burn(self, t_s: float, rates: BurnRates, slis: Sequence[str]) -> None:
        """Error budgets that are spent too fast; the fastest pair that fires speaks for its SLO."""
        for s, sli in enumerate(slis):
            firing = np.flatnonzero(rates.fires[:, s])
            if len(firing) == 0:
                continue
            p = int(firing[0])
            pair = PAIRS[p]
            evidence = {
                "sli": sli, "factor": pair.factor, "long_s": pair.long_s, "short_s": pair.short_s,
                "burn_long": digits(float(rates.long[p, s])), "burn_short": digits(float(rates.short[p, s])),
                "requests": int(rates.total[p, s]), "bad": int(rates.bad[p, s]),
            }  # fmt: skip
            for k in firing.tolist():
                key = ("slo_burn", -1, f"{sli}/{PAIRS[k].factor:g}")
                self._hold(t_s, key, "slo_burn", None, evidence, ticks=1, quiet=k != p)

    def clocks(self, t_s: float, nodes: dict[str, int], index: dict[str, int]) -> None:
        """Nodes most of whose events are refused for their time: their clock is wrong, not their service."""
        for name, refused in sorted(nodes.items()):
            key = ("telemetry_fault", index[name], "clock")
            self._hold(t_s, key, "telemetry_fault", name, {"why": "timestamps late or ahead", "refused": refused}, ticks=1)

    def odd_units(self, t_s: float, tick: BankTick, odd: NDArray[np.bool_], names: list[str]) -> None:
        """Nodes whose latencies cannot be true: their unit changed, not their service."""
        for node in np.flatnonzero(odd).tolist():
            s = int(np.nan_to_num(tick.p999_s[node] / tick.threshold_s[node], nan=-1.0).argmax())
            evidence = {
                "why": "unit or clock", "series": LATENCY_SLIS[s], "p999_s": _digits(tick.p999_s[node, s]),
                "threshold_s": _digits(tick.threshold_s[node, s]),
            }  # fmt: skip
            self._hold(t_s, ("telemetry_fault", node, "unit"), "telemetry_fault", names[node], evidence, ticks=1)

    def contrary(self, t_s: float, node: int, name: str, requests: int, of: int) -> None:
        """A node that says of many requests that their first token came after their end: units or clocks are mixed up."""
        evidence = {"why": "ttft_s above e2e_s", "requests": requests, "of": of}
        self._hold(t_s, ("telemetry_fault", node, "contrary"), "telemetry_fault", name, evidence, ticks=1)

    def close(self, t_s: float) -> list[Finding]:
        """Findings of this tick, sorted; conditions that did not hold lose their streak."""
        if not self.streak and not self.told:
            return []
        self.streak = {key: n for key, n in self.streak.items() if key in self._held}
        over_s = t_s - self.policy.caps.unfreeze_s
        self.told = {key: last for key, last in self.told.items() if last > over_s}
        out = [f for _, f in sorted(self._out, key=lambda kf: (kf[1].finding, kf[1].node or "", kf[0][2]))]
        self._out, self._held = [], set()
        return out

    def _most(self, alarm: NDArray[np.bool_], known: NDArray[np.bool_]) -> NDArray[np.bool_]:
        """SLIs in which at least half of the comparable nodes, and two of them, are in alarm, (4,)."""
        hit = (alarm & known).sum(axis=0)
        shared: NDArray[np.bool_] = (hit >= 2) & (hit >= FLEET_SHARE * known.sum(axis=0))
        return shared

    def _together(self, alarm: NDArray[np.bool_], shared: NDArray[np.bool_]) -> NDArray[np.bool_]:
        """SLIs in which at least two nodes are in alarm and most of them moved as their peers did, (4,)."""
        hit = alarm.sum(axis=0)
        together: NDArray[np.bool_] = (hit >= 2) & (shared.sum(axis=0) > FLEET_SHARE * hit)
        return together

    def _fleet(
        self, t_s: float, tick: BankTick, alarm: NDArray[np.bool_], known: NDArray[np.bool_], fleet: NDArray[np.bool_],
        deploys: Deploys, names: list[str],
    ) -> None:  # fmt: skip
        s, pool = int(np.flatnonzero(fleet)[0]), tick if tick.pool is None else tick.pool
        shift = float(np.median(tick.shift_nats[known[:, s], s])) if known[:, s].any() else float(pool.shift_nats[0, s])
        evidence: dict[str, Any] = {
            "series": _names(fleet), "nodes": int(known[:, s].sum()), "in_alarm": int((alarm & known)[:, s].sum()),
            "median_slowdown": _digits(math.exp(min(shift, 20.0))),
        }  # fmt: skip
        if _leapt(tick, known[:, s], s):
            evidence["p999_s"] = _digits(np.median(tick.p999_s[known[:, s], s]))
            self._hold(t_s, ("telemetry_fault", -1, "unit"), "telemetry_fault", None, {"why": "unit or clock", **evidence})
            return
        if pool.mix_alarm[0, s] and not pool.kl_service_nats[0, s] > pool.kl_mix_nats[0, s]:
            return  # the mix explains it, and that was said
        deploy = deploys.across(t_s, [names[node] for node in np.flatnonzero((alarm & known)[:, s])])
        word = self._word("fleet_degradation", -1, deploy is not None)
        if deploy is not None:
            evidence |= {"deploy": deploy.what, "deployed_s_ago": digits(t_s - deploy.t_s)}
        self._hold(t_s, (word, -1, ""), word, None, evidence)

    def _failing(self, t_s: float, case: Case, deploys: Deploys, names: list[str]) -> None:
        """Most nodes fail together, fast or slow."""
        hit = np.flatnonzero(case.error_alarm)
        errors, total = int(case.errors[hit].sum()), int(case.total[hit].sum())
        evidence: dict[str, Any] = {"series": ["errors"], "in_alarm": len(hit), "errors": errors, "requests": total}
        deploy = deploys.across(t_s, [names[node] for node in hit])
        if deploy is not None:
            evidence |= {"deploy": deploy.what, "deployed_s_ago": digits(t_s - deploy.t_s)}
        word = self._word("fleet_degradation", -1, deploy is not None)
        self._hold(t_s, (word, -1, ""), word, None, evidence)

    def _nodes(
        self, t_s: float, tick: BankTick, case: Case, fleet: NDArray[np.bool_], deploys: Deploys, names: list[str],
        rank: NDArray[np.intp],
    ) -> None:  # fmt: skip
        # Alarms of a shared cause do not all begin at once: one that is not clearly the node's own waits whether others follow.
        # The contract alone (a pool that misses its SLO together) accuses no node whose users fare as everybody's.
        peers = case.known.sum(axis=0) - case.known
        waited = (peers == 0) | (tick.drift_s >= self.policy.breaker.failure_window_s)
        alone = case.own | (tick.alarm & waited & ~case.shared & ~fleet)
        hard = case.stalled | case.fatal  # a foreign KV slot has a finding of its own
        nodes = np.flatnonzero(alone.any(axis=1) | case.error_own | hard)
        for node in nodes[np.argsort(rank[nodes])].tolist():
            deploy = deploys.before(t_s, names[node])
            word = self._word("node_degradation", node, deploy is not None)
            key = (word, node, "")
            if key in self.told:  # an episode under way: spare the sentence
                self._hold(t_s, key, word, names[node], {})
                continue
            evidence = evidence_of(case, tick, node, self.policy)
            if deploy is not None:
                evidence |= {"deploy": deploy.what, "deployed_s_ago": digits(t_s - deploy.t_s)}
            self._hold(t_s, key, word, names[node], evidence, ticks=1 if hard[node] else None)

    def _from_birth(self, t_s: float, tick: BankTick, case: Case, names: list[str]) -> None:
        """A node that was never better has learnt that, and its peers and the contract have not. It is told, not opened."""
        with np.errstate(invalid="ignore"):
            slow = case.known & (tick.peer_place_nats >= PEER_PLACE_NATS) & case.worse[:, None]
        ticks = math.ceil(self.policy.detection.long_drift_s / self.policy.tick_s)
        for node in np.flatnonzero(slow.any(axis=1)).tolist():
            if any((word, node, "") in self._held for word in ("node_degradation", "deploy_regression")):
                continue  # it is told, or about to be, for what it is accused of
            s = int(np.where(slow[node], tick.peer_place_nats[node], -np.inf).argmax())
            evidence = {
                "requests": int(case.total[node]), "failures": int(case.failures[node]), "series": _names(slow[node]),
                "slowdown": _digits(math.exp(min(float(tick.peer_place_nats[node, s]), 20.0))), "against": "peers",
            }  # fmt: skip
            self._hold(t_s, ("node_degradation", node, "peers"), "node_degradation", names[node], evidence, ticks=ticks)

    def _word(self, word: str, node: int, deployed: bool) -> str:
        """What began as a deploy's regression stays one when its watch is over."""
        return "deploy_regression" if deployed or ("deploy_regression", node, "") in self.told else word

    def _hold(
        self, t_s: float, key: Key, word: str, node: str | None, evidence: dict[str, Any], *, ticks: int | None = None,
        quiet: bool = False, cause: str | None = None, score: float | None = None,
    ) -> None:  # fmt: skip
        """The condition of `key` holds in this tick."""
        self._held.add(key)
        n = self.streak[key] = self.streak.get(key, 0) + 1
        if key in self.told:
            self.told[key] = t_s
        elif n >= (self.policy.breaker.breach_ticks if ticks is None else ticks):
            self.told[key] = t_s
            if not quiet:
                finding = Finding(t=t_s, pool=self.pool, finding=word, node=node, cause=cause, score=score, evidence=evidence)
                self._out.append((key, finding))

    def dump(self) -> dict[str, Any]:
        """State for a snapshot."""
        return {"streak": list(self.streak.items()), "told": list(self.told.items())}

    def load(self, raw: dict[str, Any]) -> None:
        """What `dump` wrote."""
        self.streak = {_key(key): n for key, n in raw["streak"]}
        self.told = {_key(key): last for key, last in raw["told"]}


def _key(raw: list[Any]) -> Key:
    return (raw[0], raw[1], raw[2])


def _names(series: NDArray[np.bool_]) -> list[str]:
    return [LATENCY_SLIS[s] for s in np.flatnonzero(series)]


def _leapt(tick: BankTick, known: NDArray[np.bool_], s: int) -> bool:
    """The tails of most nodes are far beyond anything a slow service does."""
    with np.errstate(invalid="ignore", divide="ignore"):
        leap = np.log(tick.p999_s[known, s] / tick.threshold_s[known, s])
    return bool(len(leap)) and bool(np.median(np.nan_to_num(leap)) > UNIT_JUMP_NATS)


def _digits(value: float) -> float | None:
    return digits(float(value))

"""Why a decision was taken: a sentence with numbers for people, and the same numbers as evidence."""

from __future__ import annotations

import hashlib
import math
from typing import Any

import msgspec
import numpy as np

from detectors.bank import BankTick
from detectors.breaker import BreakerRecord, Cause
from schemas.batch import LATENCY_SLIS
from schemas.policy import PoolPolicy
from streams.judge.rules import CONTRACT_SHIFT_NATS, Case

__all__ = ["digits", "evidence_of", "reason_of", "tx_of", "urgent_reason", "why_moved"]

_GOOD = ("ramp", "probes_good")
_WORDS = {
    "open_over": "the open time is over; probes decide",
    "ramp": "probes succeeded",
    "probes_good": "probes succeeded",
    "probes_bad": "probes failed",
    "relapse": "it failed again while its traffic came back",
    "no_verdict": "too few probes came back to tell",
    "gone": "nothing was heard of it for long",
    "release": "the override ended",
}


def digits(value: float) -> float | None:
    """Six significant digits, None for NaN and infinities: equal evidence is equal bytes."""
    return float(f"{value:.6g}") if math.isfinite(value) else None


def evidence_of(case: Case, tick: BankTick, node: int, policy: PoolPolicy) -> dict[str, Any]:
    """Scores, thresholds, counts and the window behind a decision about a node."""
    out: dict[str, Any] = {
        "window_s": policy.breaker.failure_window_s,
        "requests": int(case.total[node]),
        "failures": int(case.failures[node]),
        "errors": int(case.errors[node]),
    }
    hard = [
        word
        for word, mask in (("stalled", case.stalled), ("fatal_xid", case.fatal), ("kv_mismatch", case.foreign_kv))
        if mask[node]
    ]
    if hard:
        out["hard_fault"] = hard
    series = {}
    for s in np.flatnonzero(case.series_alarm[node]):
        name = LATENCY_SLIS[s]
        series[name] = {
            "log_evidence": digits(float(tick.log_evidence[node, s])),
            "log_threshold": digits(float(tick.log_threshold[node, s])),
            "slowdown": digits(math.exp(float(tick.shift_nats[node, s]))) if math.isfinite(tick.shift_nats[node, s]) else None,
            "kl_service_nats": digits(float(tick.kl_service_nats[node, s])),
            "p999_s": digits(float(tick.p999_s[node, s])),
            "threshold_s": digits(float(tick.threshold_s[node, s])),
            "tail_above": bool(tick.tail_above[node, s]),
            "slo_s": policy.slo[name].threshold if name in policy.slo else None,
            "own_fault": bool(case.own[node, s]),
        }
    if series:
        out["series"] = series
    if case.error_alarm[node]:
        out["error_ratio_alarm"] = True
    if case.empty[node]:
        out["empty_answers"] = int(case.empty[node])
    return out


def reason_of(case: Case, tick: BankTick, node: int, name: str, policy: PoolPolicy) -> str:
    """One sentence that says why the node is at fault."""
    if case.stalled[node]:
        return f"{name} has requests running and generated no token for {policy.health.stalled_after_s:g} s"
    if case.fatal[node]:
        return f"{name} reported a fatal XID"
    if case.foreign_kv[node]:
        return f"{name} answered from a KV slot that was not the request's own"
    parts = []
    own = case.own[node] if case.own[node].any() else case.series_alarm[node]
    if own.any():
        slowdown = np.where(own, np.nan_to_num(tick.shift_nats[node], nan=-9.0), -np.inf)
        s = int(np.argmax(slowdown))
        if slowdown[s] >= CONTRACT_SHIFT_NATS:
            parts.append(f"{LATENCY_SLIS[s]} is {math.exp(min(slowdown[s], 20.0)):.2f} times its baseline and its peers are not")
        else:
            parts.append(f"more of its requests are slow in {LATENCY_SLIS[s]} than its baseline explains, not so at its peers")
    if case.empty[node]:
        parts.append(f"{case.empty[node]} of {case.total[node]} answers had no token")
    elif case.error_alarm[node]:
        parts.append(f"{case.errors[node]} of {case.total[node]} requests ended in an error of the node")
    why = " and ".join(parts) or "evidence holds"
    counts = f"{case.failures[node]} of {case.total[node]} requests"
    return f"{name}: {why}; {counts} failed or missed their SLO in {policy.breaker.failure_window_s:g} s"


def urgent_reason(name: str, evidence: dict[str, Any]) -> str:
    """One sentence for a hard fault that was decided when its event came."""
    if "xid" in evidence:
        return f"{name} reported XID {evidence['xid']} on {evidence['gpu']}, which is fatal"
    return f"{name} has {evidence['running']} requests running and generated no token for {evidence['silent_s']:g} s"


def why_moved(record: BreakerRecord, cause: Cause, n_hosts: int | None = None) -> tuple[str, dict[str, Any]]:
    """Reason and evidence of a move of `record`; `n_hosts` report probes, None where they are not told apart."""
    words = "it does well with the share of its traffic that it had" if record.ramp and cause in _GOOD else _WORDS[cause]
    reason = f"{record.subject}: {words}"
    evidence: dict[str, Any] = {"cause": cause}
    if record.state == "HALF_OPEN":
        reason += f" ({record.probes_ok} good, {record.probes_bad} bad)"
        evidence |= {"probes_ok": record.probes_ok, "probes_bad": record.probes_bad}
        if n_hosts is not None and not record.ramp:
            evidence |= {"hosts_ok": len(record.hosts_ok), "hosts": n_hosts}
    return reason, evidence


def tx_of(
    pool: str, scope: str, subject: str, state: str, window_end_s: float, policy_version: str, evidence: dict[str, Any]
) -> str:
    """Identity of a decision: the same evidence gives the same one, whoever computes it, whenever."""
    digest = hashlib.sha256(msgspec.json.encode(evidence, order="sorted")).hexdigest()
    parts = [pool, scope, subject, state, f"{window_end_s:.3f}", policy_version, digest]
    return hashlib.sha256("\x00".join(parts).encode()).hexdigest()[:32]

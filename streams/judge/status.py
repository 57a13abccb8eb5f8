"""Verdicts: the state of every series (node x SLI) at the end of a tick, said when it changes and once a minute."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from detectors import health
from detectors.bank import BankTick
from schemas.batch import LATENCY_SLIS
from schemas.policy import PoolPolicy
from schemas.results import Direction, Status, Verdict

__all__ = ["REPEAT_S", "SLIS", "STATUS_WORDS", "TickWindows", "Voice", "status_codes"]

SLIS: tuple[str, ...] = (*LATENCY_SLIS, "errors", "throughput")
"""Columns of status arrays: the latencies, then the error ratio, then whether the node serves at all."""
ERRORS, THROUGHPUT = 4, 5
REPEAT_S = 60.0

STATUS_WORDS: tuple[Status, ...] = ("OK", "OK", "LEARNING", "INSUFFICIENT_DATA", "DEGRADED", "STALLED", "IDLE", "STALE")
"""By code; code 0 means that there is no such series."""
NONE, OK, LEARNING, INSUFFICIENT, DEGRADED, STALLED, IDLE, STALE = range(8)

_OF_HEALTH = np.zeros(4, np.uint8)
_OF_HEALTH[[health.IDLE, health.STALE, health.STALLED]] = IDLE, STALE, STALLED
_KINDS = ("empirical", "extrapolated", "censored")
_MOST = np.iinfo(np.int32).max  # requests of a series in a window: the wire has 32 bits
_BASELINES = ("LEARNING", "ACTIVE", "FROZEN")


def status_codes(
    tick: BankTick, alarm: NDArray[np.bool_], seen: NDArray[np.bool_], node_health: NDArray[np.uint8],
    error_alarm: NDArray[np.bool_], few_requests: NDArray[np.bool_], asked: NDArray[np.bool_], known: NDArray[np.bool_],
) -> NDArray[np.uint8]:  # fmt: skip
    """Status code of each series, uint8 (N, 6).

    Args:
        tick: Of the bank.
        alarm: Latencies in alarm, by the bank or by the contract, (N, 4).
        seen: Latencies that ever had data, (N, 4).
        node_health: Codes of `detectors.health`, (N,).
        error_alarm: (N,).
        few_requests: Too few requests lately to speak of an error ratio, (N,).
        asked: Nodes that ever had a request, (N,).
        known: Nodes to speak of, (N,).
    """
    n = len(known)
    codes = np.empty((n, len(SLIS)), np.uint8)
    latency = np.where(tick.enough, OK, INSUFFICIENT)
    latency = np.where(tick.baseline == 0, LEARNING, latency)
    codes[:, :ERRORS] = np.where(seen, np.where(alarm, DEGRADED, latency), NONE)
    codes[:, ERRORS] = np.where(asked, np.where(error_alarm, DEGRADED, np.where(few_requests, INSUFFICIENT, OK)), NONE)
    codes[:, THROUGHPUT] = OK
    body = _OF_HEALTH[node_health][:, None]
    codes = np.where((body != NONE) & (codes != NONE), body, codes)
    codes[~known] = NONE
    return codes


@dataclass(slots=True)
class TickWindows:
    """All series of one tick, for the archive; `columns` makes rows of them."""

    t: float
    pool: str
    nodes: list[str]
    codes: NDArray[np.uint8]
    tick: BankTick
    requests: NDArray[np.int64]
    slo_s: NDArray[np.float64]
    dynamic_s: NDArray[np.float64]

    @classmethod
    def of(
        cls, t: float, pool: str, nodes: list[str], codes: NDArray[np.uint8], tick: BankTick, requests: NDArray[np.int64],
        slo_s: NDArray[np.float64], dynamic_s: NDArray[np.float64],
    ) -> TickWindows:  # fmt: skip
        """Windows that stay as they are when the bank goes on: its tails are views of its state."""
        tails = {name: getattr(tick, name).copy() for name in ("p999_s", "p999_lo_s", "p999_hi_s", "p999_kind")}
        return cls(t, pool, nodes, codes, replace(tick, **tails), requests, slo_s, dynamic_s)

    def columns(self) -> dict[str, Any]:
        """Columns named as in the table `windows` but for `t` and `pool`, one entry per series that exists; NaN and "" where
        unknown.
        """
        node, sli = np.nonzero(self.codes)
        latency = sli < ERRORS
        at = (node, np.minimum(sli, ERRORS - 1))
        k = self.tick

        def real(values: NDArray[Any]) -> NDArray[np.float64]:
            chosen = values[at].astype(np.float64)
            return np.where(latency & np.isfinite(chosen), chosen, np.nan)  # a bound at infinity is no bound

        def flag(values: NDArray[np.bool_]) -> NDArray[np.bool_]:
            return latency & values[at]

        n = np.minimum(np.where(latency, k.n[at], self.requests[node]), _MOST)
        pairs = list(zip(node.tolist(), sli.tolist(), strict=True))
        return {
            "node": [self.nodes[i] for i in node],
            "sli": [SLIS[s] for s in sli],
            "status": [STATUS_WORDS[c] for c in self.codes[node, sli]],
            "baseline": [_BASELINES[b] if known else "" for b, known in zip(k.baseline[at], latency, strict=True)],
            "direction": [_direction(self.codes[i, s] == DEGRADED, k, i, s) if s < ERRORS else "none" for i, s in pairs],
            "n": n,
            "n_tick": np.where(latency, np.minimum(k.n_tick[at], _MOST), 0),
            "kl_nats": real(k.kl_nats),
            "kl_mix_nats": real(k.kl_mix_nats),
            "kl_service_nats": real(k.kl_service_nats),
            "shift_nats": real(k.shift_nats),
            "log_evidence": real(np.maximum(k.log_evidence, -700.0)),
            "log_threshold": real(np.broadcast_to(np.asarray(k.log_threshold, np.float64), k.n.shape)),
            "alarm": flag(k.alarm),
            "improved": flag(k.improved),
            "mix_alarm": flag(k.mix_alarm),
            "tail_above": flag(k.tail_above),
            "p999_s": real(k.p999_s),
            "p999_lo_s": real(k.p999_lo_s),
            "p999_hi_s": real(k.p999_hi_s),
            "p999_kind": [_KINDS[c] if known else "" for c, known in zip(k.p999_kind[at], latency, strict=True)],
            "threshold_s": real(k.threshold_s),
            "slo_s": np.where(latency, self.slo_s[at[1]], np.nan),
            "dynamic_slo_s": real(self.dynamic_s),
        }


class Voice:
    """Remembers what was said of each series and says what is new.

    Args:
        pool: Name.
        policy: Of the pool.
    """

    def __init__(self, pool: str, policy: PoolPolicy) -> None:
        self.pool = pool
        self.slo_s = np.array([policy.slo[s].threshold if s in policy.slo else np.nan for s in LATENCY_SLIS])
        self.said = np.empty((0, len(SLIS)), np.uint8)
        self.said_s = np.empty((0, len(SLIS)))

    def grow(self, n: int) -> None:
        """Make room for `n` nodes."""
        more = n - len(self.said)
        self.said = np.concatenate([self.said, np.zeros((more, len(SLIS)), np.uint8)])
        self.said_s = np.concatenate([self.said_s, np.full((more, len(SLIS)), -np.inf)])

    def speak(
        self, t_s: float, codes: NDArray[np.uint8], tick: BankTick, requests: NDArray[np.int64],
        error_evidence: NDArray[np.float64], names: list[str], rank: NDArray[np.intp], dynamic_s: NDArray[np.float64],
    ) -> list[Verdict]:  # fmt: skip
        """Verdicts that are due: changed, or not said for a minute.

        Args:
            t_s: End of the tick.
            codes: Of `status_codes`.
            tick: Of the bank.
            requests: Requests in the failure window, (N,).
            error_evidence: Log of the statistic of the error ratio, (N,).
            names: Node names.
            rank: Order of the names, (N,): the verdicts of a tick are sorted by name, not by who came first.
            dynamic_s: Dynamic SLO, seconds (N, 4).
        """
        due = (codes != NONE) & ((codes != self.said) | (t_s - self.said_s >= REPEAT_S))
        self.said = codes.copy()
        if not due.any():
            return []
        self.said_s[due] = t_s
        node, sli = np.nonzero(due)
        out = []
        for at in np.lexsort((sli, rank[node])):
            i, s = int(node[at]), int(sli[at])
            verdict = Verdict(
                t=t_s, pool=self.pool, node=names[i], sli=SLIS[s], status=STATUS_WORDS[codes[i, s]], n=int(requests[i])
            )
            if s < ERRORS:
                self._latency(verdict, tick, i, s)
                verdict.dynamic_slo_s = _digits(dynamic_s[i, s])
            elif s == ERRORS:
                verdict.evidence = _exp(error_evidence[i])
            out.append(verdict)
        return out

    def _latency(self, verdict: Verdict, tick: BankTick, i: int, s: int) -> None:
        verdict.n = int(tick.n[i, s])
        slo_s = self.slo_s[s]
        verdict.slo_s = None if math.isnan(slo_s) else float(slo_s)
        verdict.direction = _direction(verdict.status == "DEGRADED", tick, i, s)
        if tick.baseline[i, s] != 0:
            mix, service = _digits(tick.kl_mix_nats[i, s]), _digits(tick.kl_service_nats[i, s])
            verdict.kl_mix_nats, verdict.kl_service_nats = mix, service
            verdict.kl_nats = None if mix is None or service is None else mix + service  # of what is said, so it adds up
            verdict.evidence = _exp(tick.log_evidence[i, s])
            verdict.threshold_s = _digits(tick.threshold_s[i, s])
        verdict.p999_s = _digits(tick.p999_s[i, s])
        if verdict.p999_s is not None:
            verdict.p999_kind = _KINDS[tick.p999_kind[i, s]]  # type: ignore[assignment]


def _direction(degraded: bool, tick: BankTick, i: int, s: int) -> Direction:
    if degraded:
        return "slower"
    return "faster" if tick.improved[i, s] else "none"


def _digits(value: float) -> float | None:
    """Six significant digits: the same text wherever the last bits come from; None for NaN."""
    return None if not math.isfinite(value) else float(f"{value:.6g}")


def _exp(log_value: float) -> float | None:
    return _digits(math.exp(min(float(log_value), 700.0))) if not math.isnan(log_value) else None

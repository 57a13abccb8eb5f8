"""The judge of an aggregated series: recordings with one value a row at a steady cadence, like a dashboard's export.

Such rows are not requests: there are few, they come minutes apart, and each already sums up many requests. Counting them into
histograms of five seconds would learn nothing, so they are judged by `detectors.value_series`, one row after the other. They
open no breaker: nothing says which requests, or how many, were hurt.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from detectors.value_series import ValueBank, ValueTick
from schemas.batch import LATENCY_SLIS, UNKNOWN_TOKENS, RequestBatch
from schemas.outcome import Outcome
from schemas.policy import PoolPolicy
from schemas.results import Decision, Finding, Status, Verdict
from schemas.telemetry import DeployEvent, to_ns
from streams.framing import Framed, StateEvent

__all__ = ["CadenceProbe", "SeriesJudge", "SeriesTick"]

MIN_CADENCE_S = 10.0
"""Rows that come faster than this are taken for requests."""
STEADY_SHARE = 0.8
"""So many of the gaps between a node's rows must be the usual one (within a tenth)."""
MIN_ROWS = 16
_DAY_S = 86400.0
_SPEAK_S = 60.0
_FLOOR_S = 1e-6  # a latency of zero has no logarithm


class CadenceProbe:
    """Tells aggregated series from requests by the first rows of a table.

    A pool is a series when its rows name no tokens and each node's rows come at one steady cadence. Requests, however few,
    come at random times.

    Args:
        rows: So many rows are looked at.
    """

    def __init__(self, rows: int) -> None:
        self._rows = rows
        self._times: dict[str, dict[str, list[NDArray[np.int64]]]] = defaultdict(lambda: defaultdict(list))
        self._requests: set[str] = set()

    def look(self, framed: Framed) -> None:
        """Take note of some rows."""
        for pool, rows in framed.pools.items():
            batch = rows.batch.take(rows.row_offset <= self._rows)
            if (batch.prompt_tokens != UNKNOWN_TOKENS).any() or (batch.output_tokens != UNKNOWN_TOKENS).any():
                self._requests.add(pool)
            for code, name in enumerate(batch.nodes):
                self._times[pool][name].append(batch.ts_ns[batch.node == code])

    def cadences_s(self) -> dict[str, float]:
        """Cadence of each pool that is a series, seconds."""
        found = {}
        for pool, nodes in self._times.items():
            if pool not in self._requests and (cadence_s := _cadence_s(nodes.values())) is not None:
                found[pool] = cadence_s
        return found


def _cadence_s(nodes: Iterable[list[NDArray[np.int64]]]) -> float | None:
    gap_s = np.concatenate([np.empty(0), *(np.diff(np.unique(np.concatenate(times))) / 1e9 for times in nodes)])
    if len(gap_s) < MIN_ROWS - 1:
        return None
    usual = float(np.median(gap_s))
    steady = np.abs(gap_s - usual) <= 0.1 * usual
    return usual if usual >= MIN_CADENCE_S and steady.mean() >= STEADY_SHARE else None


@dataclass(slots=True)
class SeriesTick:
    """Results of the rows of one point in time."""

    t: float
    verdicts: list[Verdict] = field(default_factory=list)
    findings: list[Finding] = field(default_factory=list)
    decisions: list[Decision] = field(default_factory=list)
    rejected: dict[str, int] = field(default_factory=dict)


class SeriesJudge:
    """Judges the rows of one pool in the order of their times.

    Args:
        pool: Name.
        policy: Target of false alarms, rows to learn from, objectives.
        cadence_s: Time between rows of a node, seconds.

    Attributes:
        late: Rows that came after a later one was judged.
    """

    def __init__(self, pool: str, policy: PoolPolicy, cadence_s: float) -> None:
        self.pool, self.policy = pool, policy
        detection = policy.detection
        self._bank = ValueBank(_DAY_S / cadence_s, detection.false_alarms_per_day, detection.learning_samples)
        self._series: dict[tuple[str, str], int] = {}
        self._rows: dict[int, list[tuple[str, str, float]]] = {}
        self._deploys: list[int] = []
        self._done_ns = -1
        self._said: dict[int, tuple[Status, float]] = {}
        self._alarms: set[tuple[int, str]] = set()
        self.late = 0
        self._late_told = 0

    @property
    def clock_ns(self) -> int | None:
        """Time of the last judged row."""
        return None if self._done_ns < 0 else self._done_ns

    def requests(self, batch: RequestBatch) -> None:
        """Rows; those that did not end well carry no usable value."""
        for row in np.flatnonzero(batch.outcome == Outcome.OK):
            ts_ns = int(batch.ts_ns[row])
            if ts_ns <= self._done_ns:
                self.late += 1
                continue
            for sli, name in enumerate(LATENCY_SLIS):
                value = float(batch.latency_s[sli, row])
                if value == value:
                    self._rows.setdefault(ts_ns, []).append((batch.nodes[batch.node[row]], name, value))

    def event(self, event: StateEvent) -> None:
        """After a deploy all series learn anew; other events say nothing about recorded values."""
        if isinstance(event, DeployEvent):
            self._deploys.append(to_ns(event.ts))

    def advance(self) -> list[SeriesTick]:
        """Judge all rows but the newest: one wild timestamp must not make the others late."""
        return self._judge(sorted(self._rows)[:-1])

    def idle(self, now_ns: int) -> list[SeriesTick]:
        """Time alone changes nothing: a recording that ends is not a node that died."""
        return []

    def finish(self) -> list[SeriesTick]:
        """Judge what is left."""
        return self._judge(sorted(self._rows))

    def _judge(self, times: list[int]) -> list[SeriesTick]:
        ticks = []
        for ts_ns in times:
            if any(at <= ts_ns for at in self._deploys):
                self._deploys = [at for at in self._deploys if at > ts_ns]
                self._bank.forget()
                self._alarms.clear()
            ticks.append(self._tick(ts_ns, self._rows.pop(ts_ns)))
            self._done_ns = ts_ns
        return ticks

    def _tick(self, ts_ns: int, rows: list[tuple[str, str, float]]) -> SeriesTick:
        values: dict[int, float] = {}
        names: dict[int, tuple[str, str]] = {}
        for node, sli, value in sorted(rows):  # several values of one series at one time: the largest counts
            if (node, sli) not in self._series:
                self._series[node, sli] = self._bank.add_series()
            index = self._series[node, sli]
            values[index], names[index] = value, (node, sli)
        order = sorted(values, key=lambda index: names[index])
        logs = np.log(np.maximum([values[index] for index in order], _FLOOR_S))
        judged = self._bank.step(np.array(order, np.intp), logs)
        tick = SeriesTick(ts_ns / 1e9)
        for k, index in enumerate(order):
            self._speak(tick, judged, k, index, *names[index])
        if self.late > self._late_told:
            tick.rejected["late"] = self.late - self._late_told
            self._late_told = self.late
        return tick

    def _speak(self, tick: SeriesTick, judged: ValueTick, k: int, index: int, node: str, sli: str) -> None:
        slower, faster = bool(judged.slower[k]), bool(judged.faster[k])
        status: Status = "LEARNING" if judged.learning[k] else "DEGRADED" if slower else "OK"
        said, when = self._said.get(index, ("", -_DAY_S))
        if status != said or tick.t - when >= _SPEAK_S:
            self._said[index] = status, tick.t
            tick.verdicts.append(self._verdict(tick.t, judged, k, status, node, sli))
        for finding, alarm in (("node_degradation", slower), ("improvement", faster)):
            if not alarm:
                self._alarms.discard((index, finding))
            elif (index, finding) not in self._alarms:
                self._alarms.add((index, finding))
                evidence = {"sli": sli, "threshold_s": _seconds(judged.threshold[k])}
                tick.findings.append(Finding(t=tick.t, pool=self.pool, finding=finding, node=node, evidence=evidence))

    def _verdict(self, t: float, judged: ValueTick, k: int, status: Status, node: str, sli: str) -> Verdict:
        slo = self.policy.slo.get(sli)  # type: ignore[call-overload]  # LATENCY_SLIS are the keys
        learned = not judged.learning[k]
        return Verdict(
            t=t, pool=self.pool, node=node, sli=sli, status=status, n=int(judged.n[k]),
            direction="slower" if judged.slower[k] else "faster" if judged.faster[k] else "none",
            evidence=float(np.exp(judged.log_evidence[k])) if learned else None,
            threshold_s=_seconds(judged.threshold[k]) if learned else None, slo_s=slo.threshold if slo else None,
        )  # fmt: skip


def _seconds(log_s: float) -> float | None:
    return float(np.exp(min(log_s, 50.0))) if np.isfinite(log_s) else None

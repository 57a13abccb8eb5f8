"""The judge of an aggregated series: recordings with one value a row at a steady cadence, like a dashboard's export.

Such rows are not requests: there are few, they come minutes apart, and each already sums up many requests. Counting them into
histograms of five seconds would learn nothing, so they are judged one after the other by `detectors.series`, in steps of their
cadence (at least a minute; rows that come faster are averaged). They open no breaker: nothing says which requests, or how many,
were hurt.

Both directions count as DEGRADED here, with the direction said: a recording without outcomes cannot tell a service that became
faster from one whose requests fail fast, and a mean that drops by a third within one row is far more often the second.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import groupby
from statistics import fmean

import numpy as np
from numpy.typing import NDArray

from detectors.series import VIEWS, SeriesDetector, SeriesSettings, SeriesTick
from schemas.batch import LATENCY_SLIS, UNKNOWN_TOKENS, RequestBatch
from schemas.outcome import Outcome
from schemas.policy import PoolPolicy
from schemas.results import Decision, Direction, Finding, Status, Verdict
from schemas.telemetry import DeployEvent, to_ns
from streams.framing import Framed, StateEvent

__all__ = ["CadenceProbe", "SeriesJudge", "SeriesResults"]

MIN_CADENCE_S = 10.0
"""Rows that come faster than this are taken for requests."""
STEADY_SHARE = 0.8
"""So many of the gaps between a node's rows must be the usual one (within a tenth)."""
MIN_ROWS = 16
MIN_STEP_S = 60.0
SPEAK_S = 60.0
"""A status that does not change is repeated after this long, if there is a row to repeat it at."""


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
class SeriesResults:
    """Results of one step of a pool."""

    t: float
    verdicts: list[Verdict] = field(default_factory=list)
    findings: list[Finding] = field(default_factory=list)
    decisions: list[Decision] = field(default_factory=list)
    rejected: dict[str, int] = field(default_factory=dict)
    refused: list[tuple[str, bytes]] = field(default_factory=list)


@dataclass(slots=True)
class _Series:
    detector: SeriesDetector
    rows: int = 0
    status: Status | None = None
    said_s: float = 0.0


class SeriesJudge:
    """Judges the rows of one pool, step by step.

    Args:
        pool: Name.
        policy: Settings of the detector, and objectives to show with the verdicts.
        cadence_s: Time between rows of a node, seconds.

    Attributes:
        late: Rows that came after a later step was judged.
    """

    def __init__(self, pool: str, policy: PoolPolicy, cadence_s: float) -> None:
        self.pool, self.policy = pool, policy
        self.step_s = max(cadence_s, MIN_STEP_S)
        self.settings = SeriesSettings(**policy.series.model_dump())
        self._step_ns = round(self.step_s * 1e9)
        self._series: dict[tuple[str, str], _Series] = {}
        self._waiting: dict[int, list[tuple[str, str, int, float]]] = {}
        self._deploys: list[int] = []
        self._done = -1
        self._done_ns: int | None = None
        self.late = 0
        self._late_told = 0

    @property
    def clock_ns(self) -> int | None:
        """Time of the last judged row."""
        return self._done_ns

    def requests(self, batch: RequestBatch) -> None:
        """Rows; those that did not end well carry no usable value."""
        for row in np.flatnonzero(batch.outcome == Outcome.OK):
            ts_ns = int(batch.ts_ns[row])
            slot = ts_ns // self._step_ns
            if slot <= self._done:
                self.late += 1
                continue
            for sli, name in enumerate(LATENCY_SLIS):
                value = float(batch.latency_s[sli, row])
                if value == value:
                    self._waiting.setdefault(slot, []).append((batch.nodes[batch.node[row]], name, ts_ns, value))

    def event(self, event: StateEvent) -> None:
        """After a deploy all series learn anew; other events say nothing about recorded values."""
        if isinstance(event, DeployEvent):
            self._deploys.append(to_ns(event.ts) // self._step_ns)

    def advance(self) -> list[SeriesResults]:
        """Judge all steps but the newest: it may not be complete, and one wild timestamp must not make the others late."""
        return [self._step(slot) for slot in sorted(self._waiting)[:-1]]

    def idle(self, now_ns: int) -> list[SeriesResults]:
        """Time alone changes nothing: a recording that ends is not a node that died."""
        return []

    def finish(self) -> list[SeriesResults]:
        """Judge what is left."""
        return [self._step(slot) for slot in sorted(self._waiting)]

    def _step(self, slot: int) -> SeriesResults:
        if any(at <= slot for at in self._deploys):
            self._deploys = [at for at in self._deploys if at > slot]
            self._series.clear()
        rows = sorted(self._waiting.pop(slot))
        self._done, self._done_ns = slot, max(ts_ns for _, _, ts_ns, _ in rows)
        results = SeriesResults(self._done_ns / 1e9)
        for (node, sli), same in groupby(rows, key=lambda row: row[:2]):
            self._judge(results, slot, node, sli, fmean(value for _, _, _, value in same))
        if self.late > self._late_told:
            results.rejected["late"] = self.late - self._late_told
            self._late_told = self.late
        return results

    def _judge(self, results: SeriesResults, slot: int, node: str, sli: str, value: float) -> None:
        series = self._series.get((node, sli))
        if series is None:
            series = self._series[node, sli] = _Series(SeriesDetector(1, self.step_s, self.settings))
        tick = series.detector.update(np.array([slot]), np.array([value]))
        series.rows += 1
        odd = bool(tick.evidence_nats[0] > series.detector.threshold_nats)
        status: Status = "DEGRADED" if odd else "OK" if series.rows > self.settings.min_rows else "LEARNING"
        if status != series.status or results.t - series.said_s >= SPEAK_S:
            series.status, series.said_s = status, results.t
            results.verdicts.append(self._verdict(results.t, node, sli, status, series.rows, tick, odd))
        if tick.alarm[0]:
            surprise = {view: round(float(nats), 3) for view, nats in zip(VIEWS, tick.surprise_nats[0], strict=True)}
            results.findings.append(
                Finding(
                    t=results.t, pool=self.pool, finding="node_degradation", node=node,
                    evidence={"sli": sli, "value_s": value, "direction": _direction(tick), "surprise_nats": surprise},
                )
            )  # fmt: skip

    def _verdict(self, t: float, node: str, sli: str, status: Status, n: int, tick: SeriesTick, odd: bool) -> Verdict:
        slo = self.policy.slo.get(sli)  # type: ignore[call-overload]  # LATENCY_SLIS are the keys
        return Verdict(
            t=t, pool=self.pool, node=node, sli=sli, status=status, n=n,
            direction=_direction(tick) if odd else "none",
            evidence=None if status == "LEARNING" else float(np.exp(tick.evidence_nats[0])), slo_s=slo.threshold if slo else None,
        )  # fmt: skip


def _direction(tick: SeriesTick) -> Direction:
    return "slower" if tick.above[0] else "faster"

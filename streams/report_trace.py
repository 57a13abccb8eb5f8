"""What a report needs of a replay, in memory that does not grow with its length.

Curves hold at most `COLUMNS` points a series: when they are full, neighbours become one point, their maximum. The histograms of
a series are kept at the one tick that says most: while it is in alarm, the one with the largest KL, else the one with the most
evidence.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from detectors.ranks import BINS
from detectors.view import bin_view
from schemas.batch import LATENCY_SLIS, RequestBatch
from schemas.policy import PoolPolicy
from schemas.results import Decision, Finding
from streams.framing import StateEvent
from streams.judge import PoolJudge, TickOutput, TickWindows
from streams.judge.status import DEGRADED
from streams.series import SeriesJudge, SeriesResults

__all__ = ["COLUMNS", "Curves", "PoolTrace", "TracedJudge"]

COLUMNS = 720
MOST_EVENTS = 2000
"""Decisions and findings of a pool that are kept."""


Outputs = list[TickOutput] | list[SeriesResults]


class Curves:
    """Maxima over time of values of many series; arrays (series..., points)."""

    def __init__(self, names: Iterable[str]) -> None:
        self.values: dict[str, NDArray[np.float32]] = {
            name: np.empty((0, len(LATENCY_SLIS), COLUMNS), np.float32) for name in names
        }
        self.end_s: NDArray[np.float64] = np.full(COLUMNS, np.nan)
        self.used = 0
        self._ticks_per_point = 1
        self._ticks = 0

    def add(self, t_s: float, **values: NDArray[np.floating]) -> None:
        """Values at the end of a tick, (nodes, 4) each; more nodes than before may come."""
        if self._ticks == 0 or self._ticks == self._ticks_per_point:
            if self.used == COLUMNS:
                self._halve()
            self._ticks = 0
            self.used += 1
        self._ticks += 1
        self.end_s[self.used - 1] = t_s
        for name, now in values.items():
            kept = self.values[name]
            if len(now) > len(kept):
                blank = np.full((len(now) - len(kept), *kept.shape[1:]), np.nan, np.float32)
                kept = self.values[name] = np.concatenate([kept, blank])
            point = kept[:, :, self.used - 1]
            np.fmax(point, now, out=point)

    def _halve(self) -> None:
        half = COLUMNS // 2
        for name, kept in self.values.items():
            pairs = np.fmax(kept[:, :, 0::2], kept[:, :, 1::2])
            self.values[name] = np.concatenate([pairs, np.full_like(pairs, np.nan)], axis=2)
        self.end_s = np.concatenate([self.end_s[1::2], np.full(half, np.nan)])
        self.used = half
        self._ticks_per_point *= 2


@dataclass
class PoolTrace:
    """What was seen of one pool; arrays over nodes x 4 latencies.

    Attributes:
        curves: `evidence` (log of the statistic), `kl` (service part, nats).
        threshold: Log of the statistic at which a series alarms.
        base, window: Counts by rank bin at the chosen tick, (nodes, 4, BINS); `chosen_s` its end, NaN where there is none.
        degraded: The series was in alarm at some tick.
    """

    pool: str
    policy: PoolPolicy
    nodes: list[str] = field(default_factory=list)
    curves: Curves = field(default_factory=lambda: Curves(("evidence", "kl")))
    threshold: float = float("nan")
    base: NDArray[np.float64] = field(default_factory=lambda: np.empty((0, len(LATENCY_SLIS), BINS)))
    window: NDArray[np.int64] = field(default_factory=lambda: np.empty((0, len(LATENCY_SLIS), BINS), np.int64))
    chosen_s: NDArray[np.float64] = field(default_factory=lambda: np.empty((0, len(LATENCY_SLIS))))
    score: NDArray[np.float64] = field(default_factory=lambda: np.empty((0, len(LATENCY_SLIS))))
    degraded: NDArray[np.bool_] = field(default_factory=lambda: np.empty((0, len(LATENCY_SLIS)), np.bool_))
    edges_ratio: NDArray[np.float64] = field(default_factory=lambda: np.full((len(LATENCY_SLIS), BINS - 1), np.nan))
    decisions: list[Decision] = field(default_factory=list)
    findings: list[Finding] = field(default_factory=list)
    left_out: int = 0

    def grow(self, nodes: list[str]) -> None:
        """Make room for new nodes."""
        more = len(nodes) - len(self.nodes)
        if more <= 0:
            return
        shape = (more, len(LATENCY_SLIS))
        self.base = np.concatenate([self.base, np.zeros((*shape, BINS))])
        self.window = np.concatenate([self.window, np.zeros((*shape, BINS), np.int64)])
        self.chosen_s = np.concatenate([self.chosen_s, np.full(shape, np.nan)])
        self.score = np.concatenate([self.score, np.full(shape, -np.inf)])
        self.degraded = np.concatenate([self.degraded, np.zeros(shape, np.bool_)])
        self.nodes = list(nodes)


class TracedJudge:
    """A pool's judge that leaves a trace.

    Args:
        judge: The judge; its results are passed on unchanged. That of an aggregated series has no histograms and no curves.
        trace: To be filled.
    """

    def __init__(self, judge: PoolJudge | SeriesJudge, trace: PoolTrace) -> None:
        self._judge, self._trace = judge, trace

    @property
    def late(self) -> int:
        """See `PoolJudge`."""
        return self._judge.late

    @property
    def clock_ns(self) -> int | None:
        """See `PoolJudge`."""
        return self._judge.clock_ns

    def requests(self, batch: RequestBatch) -> None:
        """See `PoolJudge`."""
        self._judge.requests(batch)

    def event(self, event: StateEvent) -> None:
        """See `PoolJudge`."""
        self._judge.event(event)

    def advance(self) -> Outputs:
        """See `PoolJudge`."""
        return self._traced(self._judge.advance())

    def idle(self, now_ns: int) -> Outputs:
        """See `PoolJudge`."""
        return self._traced(self._judge.idle(now_ns))

    def finish(self) -> Outputs:
        """See `PoolJudge`."""
        return self._traced(self._judge.finish())

    def _traced(self, outputs: Outputs) -> Outputs:
        trace = self._trace
        for out in outputs:
            for kept, new in ((trace.decisions, out.decisions), (trace.findings, out.findings)):
                room = MOST_EVENTS - len(kept)
                kept.extend(new[:room])  # type: ignore[arg-type]
                trace.left_out += max(len(new) - room, 0)
            if isinstance(out, TickOutput) and out.windows is not None:
                self._curves(out.t, out.windows)
                if out is outputs[-1]:
                    self._histograms(out.t, out.windows)
        return outputs

    def _curves(self, t_s: float, windows: TickWindows) -> None:
        trace, tick, n = self._trace, windows.tick, len(windows.codes)
        trace.grow(windows.nodes[:n])
        trace.degraded[:n] |= windows.codes[:, : len(LATENCY_SLIS)] == DEGRADED
        log = np.where(tick.baseline != 0, np.maximum(tick.log_evidence, 0.0), np.nan)
        trace.curves.add(t_s, evidence=log, kl=tick.kl_service_nats)
        if n:
            trace.threshold = float(np.broadcast_to(tick.log_threshold, log.shape)[0, 0])

    def _histograms(self, t_s: float, windows: TickWindows) -> None:
        """Only the newest tick's histograms can be seen: replay closes one tick at a time but for gaps."""
        trace, tick, n = self._trace, windows.tick, len(windows.codes)
        kl = np.nan_to_num(tick.kl_service_nats, nan=0.0)
        score = np.minimum(tick.log_evidence, trace.threshold) + np.clip(kl, 0.0, 9.0) / 10
        better = (tick.baseline != 0) & tick.enough & (score > trace.score[:n])
        if not better.any():
            return
        view = bin_view(self._judge.ticker.bank)  # type: ignore[union-attr]  # windows come from a PoolJudge
        trace.score[:n][better] = score[better]
        trace.base[:n][better], trace.window[:n][better] = view.base[:n][better], view.window[:n][better]
        trace.chosen_s[:n][better] = t_s
        trace.edges_ratio = view.edges_ratio

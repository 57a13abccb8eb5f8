"""Drives the judge from slices of recorded events: same judge, same events, same results as live, with time from the events.

Pools are independent, so each has a clock of its own; their results are put in order of event time before they leave. A pool
that falls silent while others go on is carried along `SILENT_S` behind, so that its silence is judged too. (A pool that first
appears after others have gone on, as in files that were put one behind the other, is judged; its results come when they come.)
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, Protocol

from schemas.batch import RequestBatch
from schemas.results import Decision, Finding, Rejected, Result, Verdict
from streams.framer_cells import in_cells
from streams.framing import PoolRows, Reject, StateEvent
from streams.sources.merge import Slice

__all__ = ["Judge", "PoolCounts", "Replay", "TickResults"]

SILENT_S = 900.0
"""A pool without events while others went on this long, in event time, is silent."""
HOLD_S = 60.0
"""Results are held at least this long behind the input, in event time: a pool that appears may begin a little in the past."""


class TickResults(Protocol):
    """Results of one closed tick."""

    t: float
    verdicts: list[Verdict]
    findings: list[Finding]
    decisions: list[Decision]
    rejected: dict[str, int]
    refused: list[tuple[str, bytes]]


class Judge(Protocol):
    """What replay needs of a pool's judge."""

    @property
    def late(self) -> int: ...
    @property
    def clock_ns(self) -> int | None: ...
    def requests(self, batch: RequestBatch) -> None: ...
    def event(self, event: StateEvent) -> None: ...
    def advance(self) -> Iterable[TickResults]: ...
    def idle(self, now_ns: int) -> Iterable[TickResults]: ...
    def finish(self) -> Iterable[TickResults]: ...


@dataclass(slots=True)
class PoolCounts:
    """What a replay saw of one pool."""

    requests: int = 0
    state_events: int = 0
    rejected: int = 0
    ticks: int = 0
    nodes: set[str] = field(default_factory=set)
    findings: Counter[str] = field(default_factory=Counter)
    opens: int = 0


class Replay:
    """One policy over one stream of slices.

    Args:
        judge_for: Makes the judge of a pool from its name and its first rows.
        slice_s: Length of a slice, seconds.
        lateness_s: The longest lateness of a judge, seconds.
        on_reject: Called with each event that the framer refused and the name of its input.
        n_cells: How many cells a pool is split into; None splits none.
    """

    def __init__(
        self,
        judge_for: Callable[[str, PoolRows], Judge],
        slice_s: float,
        lateness_s: float = 10.0,
        on_reject: Callable[[str, Reject], None] | None = None,
        n_cells: Callable[[str], int] | None = None,
    ) -> None:
        self._judge_for = judge_for
        self._slice_s = slice_s
        self._hold_s = HOLD_S + lateness_s
        self._on_reject = on_reject
        self._n_cells = n_cells or (lambda pool: 1)
        self.judges: dict[str, Judge] = {}
        self.counts: dict[str, PoolCounts] = {}
        self.rejected = 0
        self._closed_s: dict[str, float] = {}  # per pool: nothing at or before this comes any more
        self._heard: dict[str, tuple[float, float]] = {}  # per pool: time of the others when last heard, how far it was behind
        self._touched: set[str] = set()
        self._refused: Counter[str] = Counter()
        self._number: int | None = None
        self._heap: list[tuple[float, str, int, Result]] = []
        self._sequence = 0

    def run(self, slices: Iterable[Slice]) -> Iterator[Result]:
        """Results in order of event time; pools with equal times by name."""
        for part in slices:
            yield from self.feed(part)
        yield from self.end()

    def feed(self, part: Slice) -> Iterator[Result]:
        """Results that the next slice, or the next part of one, makes final."""
        if part.number != self._number:
            if self._number is not None:
                yield from self._between(self._number)
            self._number = part.number
        self._deliver(part)

    def end(self) -> Iterator[Result]:
        """What is left when the input ends."""
        if self._number is not None:
            yield from self._between(self._number)
        for pool in sorted(self.judges):
            self._collect(pool, self.judges[pool].finish())
        yield from self._release(float("inf"))

    @property
    def ticks(self) -> int:
        """Ticks closed, over all pools."""
        return sum(counts.ticks for counts in self.counts.values())

    def pool_summary(self) -> dict[str, Any]:
        """One entry a pool for the summary line."""
        return {
            pool: {
                "requests": c.requests, "state_events": c.state_events, "late": self.judges[pool].late, "rejected": c.rejected,
                "ticks": c.ticks, "nodes": len(c.nodes), "opens": c.opens, "findings": dict(sorted(c.findings.items())),
            }
            for pool, c in sorted(self.counts.items())
        }  # fmt: skip

    def _deliver(self, part: Slice) -> None:
        for pool, rows in in_cells(part.pools, self._n_cells).items():
            if pool not in self.judges:
                self.judges[pool] = self._judge_for(pool, rows)
                self.counts[pool] = PoolCounts()
                self._closed_s[pool] = part.number * self._slice_s - self._hold_s
            judge, counts = self.judges[pool], self.counts[pool]
            if len(rows.batch):
                judge.requests(rows.batch)
                counts.requests += len(rows.batch)
                counts.nodes.update(rows.batch.nodes)
            for event in rows.events:
                judge.event(event)
                if event.node is not None:
                    counts.nodes.add(event.node)
            counts.state_events += len(rows.events)
            self._touched.add(pool)
        for reject in part.rejects:
            self._refused[reject.reason] += 1
            if self._on_reject is not None:
                self._on_reject(part.source, reject)

    def _between(self, number: int) -> Iterator[Result]:
        """The input has left slice `number`: let the judges it fed go on, then hand out what can no longer be preceded."""
        end_s = (number + 1) * self._slice_s if number else 0.0  # refused events before any time is known
        for reason, count in sorted(self._refused.items()):
            self._push(end_s, "", Rejected(t=end_s, reason=reason, count=count))
            self.rejected += count
        self._refused.clear()
        for pool in sorted(self._touched):
            self._collect(pool, self.judges[pool].advance())
        if self._closed_s:
            now_s = max(self._closed_s.values())
            for pool in self._touched:
                self._heard[pool] = now_s, now_s - self._closed_s[pool]
            self._touched.clear()
            self._carry_along(now_s)
            yield from self._release(min(*self._closed_s.values(), end_s - self._hold_s))

    def _carry_along(self, now_s: float) -> None:
        """Time passes for silent pools as it does for the others, `SILENT_S` later."""
        for pool, (heard_s, behind_s) in sorted(self._heard.items()):
            time_s = now_s - behind_s - SILENT_S
            if now_s - heard_s > SILENT_S and self._closed_s[pool] < time_s - self._hold_s - HOLD_S:
                self._collect(pool, self.judges[pool].idle(round(time_s * 1e9)))
                self._closed_s[pool] = max(self._closed_s[pool], time_s - self._hold_s)

    def _collect(self, pool: str, outputs: Iterable[TickResults]) -> None:
        counts = self.counts[pool]
        for out in outputs:
            counts.ticks += 1
            self._closed_s[pool] = max(self._closed_s[pool], out.t)
            for reason, count in sorted(out.rejected.items()):
                self._push(out.t, pool, Rejected(t=out.t, reason=reason, count=count))
                counts.rejected += count
                self.rejected += count
            if self._on_reject is not None:
                for reason, event in out.refused:
                    self._on_reject(pool, Reject(event, reason, f"refused by the judge of {pool} at {out.t:.3f}", -1))
            results: tuple[Result, ...] = (*out.verdicts, *out.findings, *out.decisions)
            for result in results:
                self._push(out.t, pool, result)
            counts.findings.update(finding.finding for finding in out.findings)
            counts.opens += sum(d.state == "OPEN" and not d.capped for d in out.decisions)

    def _push(self, t: float, pool: str, result: Result) -> None:
        self._sequence += 1
        heapq.heappush(self._heap, (t, pool, self._sequence, result))

    def _release(self, until_s: float) -> Iterator[Result]:
        while self._heap and self._heap[0][0] <= until_s:
            yield heapq.heappop(self._heap)[3]

"""The engine that drives judges: order of results, silent pools, refusals at event time. The judge here only counts ticks."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest

from schemas.batch import RequestBatch
from schemas.results import Decision, Finding, Rejected, Result, Verdict
from schemas.telemetry import to_ns
from streams.framing import EventFramer, Framed, PoolRows, StateEvent
from streams.replay import SILENT_S, Replay
from streams.sources.merge import Slicer

T0 = 1_767_225_600.0
TICK_S = 5.0


@dataclass
class Out:
    t: float
    verdicts: list[Verdict] = field(default_factory=list)
    findings: list[Finding] = field(default_factory=list)
    decisions: list[Decision] = field(default_factory=list)
    rejected: dict[str, int] = field(default_factory=dict)
    refused: list[tuple[str, bytes]] = field(default_factory=list)


class TickCounter:
    """Closes ticks when the newest event is past them; one verdict a tick, with the number of requests so far."""

    def __init__(self, pool: str, rows: PoolRows) -> None:
        self.pool, self.late, self.seen = pool, 0, 0
        times = [*rows.batch.ts_ns.tolist(), *(to_ns(e.ts) for e in rows.events)]
        self.closed = min(times) / 1e9 // TICK_S
        self.now_s = 0.0

    def requests(self, batch: RequestBatch) -> None:
        self.seen += len(batch)
        self.now_s = max(self.now_s, batch.ts_ns.max() / 1e9)

    def event(self, event: StateEvent) -> None:
        self.now_s = max(self.now_s, event.ts)

    def advance(self) -> Iterator[Out]:
        while (self.closed + 1) * TICK_S <= self.now_s:
            self.closed += 1
            t = self.closed * TICK_S
            yield Out(
                t,
                [Verdict(t=t, pool=self.pool, node="n", sli="ttft_s", status="OK", n=0)],
                rejected={"future": 1} if t % 60 == 0 else {},
            )

    def idle(self, now_ns: int) -> Iterator[Out]:
        self.now_s = max(self.now_s, now_ns / 1e9)
        return self.advance()

    finish = advance


def request(ts: float, **fields: Any) -> bytes:
    return json.dumps({"kind": "request", "ts": ts, "pool": "p", "node": "n", "outcome": "ok", "ttft_s": 0.2} | fields).encode()


def chunks(lines: list[bytes], size: int) -> Iterator[Framed]:
    framer = EventFramer()
    for i in range(0, len(lines), size):
        yield framer.feed(lines[i : i + size], range(i, i + len(lines[i : i + size])))


def replayed(lines: list[bytes], size: int = 4096) -> tuple[list[Result], Replay]:
    replay = Replay(TickCounter, TICK_S)
    return list(replay.run(Slicer("x", TICK_S).slices(chunks(lines, size)))), replay


def times(results: list[Result]) -> list[float]:
    return [result.t for result in results if not isinstance(result, Rejected) or result.t]  # type: ignore[union-attr]


LINES = [request(T0 + i / 3, pool=f"p{i % 2 if i < 1500 else 0}") if i % 97 else b"rubbish" for i in range(9000)]


@pytest.mark.parametrize("size", [1, 7, 512])
def test_same_results_however_the_input_is_chunked(size: int) -> None:
    whole, _ = replayed(LINES)
    assert replayed(LINES, size)[0] == whole


def test_results_come_in_order_of_time_and_silent_pools_are_carried_along() -> None:
    results, replay = replayed(LINES)
    assert times(results) == sorted(times(results))
    last = {pool: max(r.t for r in results if isinstance(r, Verdict) and r.pool == pool) for pool in ("p0", "p1")}
    assert last["p0"] == pytest.approx(T0 + 3000, abs=TICK_S)
    assert last["p0"] - SILENT_S - 120 <= last["p1"] < last["p0"]
    assert replay.counts["p1"].requests == sum(b'"p1"' in line for line in LINES)


def both_pools(lines: list[bytes]) -> dict[str, list[float]]:
    results, _ = replayed(lines)
    return {p: [r.t for r in results if isinstance(r, Verdict) and r.pool == p] for p in ("a", "b")}


def test_pools_whose_clocks_are_an_hour_apart_are_both_judged_in_order() -> None:
    """Neither is silent: both are heard all the time."""
    lines = [request(T0 + i - (3600 if i % 2 else 0), pool="ab"[i % 2]) for i in range(6000)]
    told = both_pools(lines)
    assert [len(told["a"]), len(told["b"])] == [1199, 1199]
    assert times(replayed(lines)[0]) == sorted(times(replayed(lines)[0]))


def test_files_put_one_behind_the_other_are_both_judged() -> None:
    lines = [request(T0 + i, pool="a") for i in range(3000)] + [request(T0 + i, pool="b") for i in range(3000)]
    told = both_pools(lines)
    assert told["a"] == told["b"] == sorted(told["b"])


def test_results_leave_before_the_input_ends() -> None:
    read = 0

    def counted() -> Iterator[Framed]:
        nonlocal read
        for chunk in chunks(LINES, 100):
            read += chunk.n_events
            yield chunk

    next(r for r in Replay(TickCounter, TICK_S).run(Slicer("x", TICK_S).slices(counted())) if isinstance(r, Verdict))
    assert read < 1000


def test_refusals_are_counted_at_event_time_by_reason() -> None:
    lines = [request(T0 + i) for i in range(20)] + [b"rubbish", b"rubbish", request(T0 + 20, outcome="no")]
    lines += [request(T0 + 20 + i) for i in range(10)]
    seen: list[tuple[str, int]] = []
    replay = Replay(TickCounter, TICK_S, on_reject=lambda source, reject: seen.append((source, reject.offset)))
    results = list(replay.run(Slicer("x", TICK_S).slices(chunks(lines, 3))))
    refused = [r for r in results if isinstance(r, Rejected) and r.reason != "future"]
    assert refused == [Rejected(t=T0 + 20, reason="bad_json", count=2), Rejected(t=T0 + 20, reason="unknown_outcome", count=1)]
    assert seen == [("x", 20), ("x", 21), ("x", 22)]
    assert replay.rejected == 3 + sum(isinstance(r, Rejected) and r.reason == "future" for r in results)


def test_summary_of_pools() -> None:
    lines = [request(T0 + i, node=f"n{i % 3}") for i in range(31)]
    lines.append(json.dumps({"kind": "node", "ts": T0 + 31, "pool": "p", "node": "n9"}).encode())
    _, replay = replayed(lines)
    assert replay.pool_summary() == {
        "p": {"requests": 31, "state_events": 1, "late": 0, "rejected": 0, "ticks": 6, "nodes": 4, "opens": 0, "findings": {}}
    }
    assert replay.ticks == 6


def test_nothing_but_rubbish_ends_well() -> None:
    results, replay = replayed([b"x"] * 5)
    assert results == [Rejected(t=0.0, reason="bad_json", count=5)]
    assert replay.pool_summary() == {}
    assert replayed([])[0] == []

"""Hard faults decided when their event arrives (`health.immediate`): at once, under the caps, however records are cut."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from schemas.batch import RequestBatch
from schemas.policy import PoolPolicy
from schemas.results import Decision
from schemas.telemetry import GpuEvent, NodeEvent
from streams.judge import PoolJudge

NOW = {"health": {"immediate": True}}


def records(made: Any, t0: int, extra: list[GpuEvent]) -> Iterator[tuple[float, RequestBatch | NodeEvent | GpuEvent]]:
    """(When it arrives, record): the requests of each half second, state events one by one, all in order of time."""
    ts = (made.batch.ts_ns - t0 * 10**9) / 1e9
    found: list[tuple[float, Any]] = [(e.ts - t0, e) for e in sorted([*made.events, *extra], key=lambda e: e.ts)]
    for half in range(int(ts[-1] * 2) + 1):
        rows = (ts >= half / 2) & (ts < (half + 1) / 2)
        if rows.any():
            found.append(((half + 1) / 2, made.batch.take(rows)))
    return iter(sorted(found, key=lambda r: r[0]))


def run(
    policy: PoolPolicy, kit: Any, extra: list[GpuEvent], *, every: int = 1, restart_s: float = np.inf, **traffic: Any
) -> list[tuple[float, Decision]]:
    """(When it was decided, decision); results are asked for after `every` records, and the judge is restored once."""
    judge, out, since = PoolJudge(kit.POOL, policy, policy_version="v1"), [], 0
    for at, record in records(kit.traffic(nodes=12, **traffic), kit.T0, extra):
        if isinstance(record, RequestBatch):
            judge.requests(record)
        else:
            judge.event(record)
        since += 1
        if since >= every:
            since = 0
            out += [(at, d) for o in judge.advance() for d in o.decisions]
            if at > restart_s:
                restart_s = np.inf
                judge = PoolJudge.restore(judge.snapshot(), policy, policy_version="v1")
    out += [(at, d) for o in judge.advance() for d in o.decisions]
    return out


def xid(kit: Any, node: int, at: float, number: int = 79) -> GpuEvent:
    return GpuEvent(ts=kit.T0 + at, pool=kit.POOL, node=kit.name(node), gpu="GPU-0", xid=number)


def test_a_fatal_xid_opens_when_its_event_comes(kit: Any) -> None:
    events = [xid(kit, 3, 100.3), xid(kit, 3, 101.3), xid(kit, 5, 110.0, number=31)]
    ((at, opened),) = [d for d in run(kit.policy(**NOW), kit, events, seconds=120.0) if d[1].state == "OPEN"]
    assert (opened.subject, opened.t, at) == (kit.name(3), kit.T0 + 100.3, pytest.approx(100.3))
    assert opened.reason == "gpu-03 reported XID 79 on GPU-0, which is fatal"
    ((late, _),) = [d for d in run(kit.policy(), kit, events, seconds=120.0) if d[1].state == "OPEN"]
    assert late > 110, "otherwise it waits for the tick and for late events"


def test_a_stall_opens_when_the_event_that_proves_it_comes(kit: Any) -> None:
    stall = [kit.Fault("stall", [2], 80.0)]
    opened = [d for d in run(kit.policy(**NOW), kit, [], seconds=130.0, faults=stall) if d[1].state == "OPEN"]
    assert [d.subject for _, d in opened] == [kit.name(2)]
    at, decision = opened[0]
    assert at == decision.t - kit.T0
    assert 99.0 <= at <= 101.0, "20 s after the last token or answer"
    assert run(kit.policy(**NOW), kit, [], seconds=130.0) == []


@pytest.mark.parametrize(("every", "restart_s"), [(7, np.inf), (64, np.inf), (1, 100.0)])
def test_the_same_records_give_the_same_decisions(kit: Any, every: int, restart_s: float) -> None:
    given: dict[str, Any] = {
        "seconds": 300.0, "rate": 8.0, "seed": 3,
        "faults": [kit.Fault("slow", [7], 150.0, strength=6.0), kit.Fault("stall", [2], 230.0)],
    }  # fmt: skip
    events = [xid(kit, 3, 100.3), xid(kit, 4, 176.1)]
    policy = kit.policy(**NOW, caps={"share": 0.3, "velocity": 5, "velocity_share": 1.0})
    one = [d for _, d in run(policy, kit, events, **given)]
    assert {d.subject for d in one if d.state == "OPEN"} >= {kit.name(2), kit.name(3), kit.name(4), kit.name(7)}
    assert [d for _, d in run(policy, kit, events, every=every, restart_s=restart_s, **given)] == one


def test_caps_hold_and_the_tick_says_so(kit: Any, judged: Callable[..., Any]) -> None:
    events = [xid(kit, node, 100.0 + node / 10) for node in range(3)]
    opened = [d.subject for _, d in run(kit.policy(**NOW), kit, events, seconds=125.0) if d.state == "OPEN"]
    assert opened == [kit.name(0)], "one of twelve is a tenth"
    heard = judged(policy=kit.policy(**NOW), extra=events, seconds=125.0, nodes=12)
    assert heard.opened() == [kit.name(0)]
    assert "capped" in heard.words()


def test_an_event_far_ahead_or_of_an_unknown_node_opens_nothing_at_once(kit: Any) -> None:
    stranger = GpuEvent(ts=kit.T0 + 90.0, pool=kit.POOL, node="never-seen", gpu="GPU-0", xid=79)
    assert run(kit.policy(**NOW), kit, [stranger, xid(kit, 3, 500.0)], seconds=95.0) == []

"""What may not matter to the judge does not: framing, order, restarts. What must be refused is counted."""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import Any

import msgspec
import numpy as np
import pytest

from schemas.results import encode_line
from schemas.telemetry import NodeEvent, RequestEvent
from streams.judge import PoolJudge


def lines(heard: Any) -> list[bytes]:
    """Every result as bytes, in order."""
    return [encode_line(r) for o in heard.outputs for r in (*o.verdicts, *o.findings, *o.decisions)]


def new(kit: Any, **settings: Any) -> PoolJudge:
    return PoolJudge(kit.POOL, kit.policy(**settings), policy_version="v1")


@pytest.fixture(scope="module")
def incident() -> dict[str, Any]:
    return {"nodes": 5, "rate": 4.0, "seconds": 760.0, "seed": 11}


def traffic_of(kit: Any, incident: dict[str, Any]) -> Any:
    faults = [kit.Fault("slow", [1], 500.0, 620.0, strength=5.0), kit.Fault("server_error", [3], 300.0, 420.0, share=0.3)]
    return kit.traffic(**incident, faults=faults)


def test_framing_does_not_matter(kit: Any, incident: dict[str, Any]) -> None:
    traffic = traffic_of(kit, incident)
    whole = lines(kit.feed(new(kit), traffic))
    assert any(b'"OPEN"' in line for line in whole)
    for piece_s in (2.3, 60.0, 1e6):
        assert lines(kit.feed(new(kit), traffic, piece_s)) == whole


def test_frames_of_single_nodes_give_the_same(kit: Any, incident: dict[str, Any]) -> None:
    traffic = traffic_of(kit, incident)
    expected = lines(kit.feed(new(kit), traffic))
    judge, outputs = new(kit), []
    ts = traffic.batch.ts_ns
    rng = np.random.default_rng(3)
    for start in range(int(ts[0]), int(ts[-1]) + 1, 2 * 10**9):
        for node in rng.permutation(incident["nodes"]):
            rows = (ts >= start) & (ts < start + 2 * 10**9) & (traffic.batch.node == node)
            frame = replace(traffic.batch.take(rows), nodes=[kit.name(node)])
            frame.node = np.zeros(len(frame), np.uint32)
            judge.requests(frame)
        for event in traffic.events:
            if start <= event.ts * 1e9 < start + 2 * 10**9:
                judge.event(event)
        outputs += judge.advance()
    outputs += judge.finish()
    assert lines(kit.Heard(outputs)) == expected


def test_order_within_the_lateness_does_not_matter(kit: Any, incident: dict[str, Any]) -> None:
    traffic = traffic_of(kit, incident)
    expected = lines(kit.feed(new(kit), traffic))
    arrival = traffic.batch.ts_ns + np.random.default_rng(4).uniform(0, 8e9, len(traffic.batch)).astype(np.int64)
    order = np.argsort(arrival)
    judge, outputs = new(kit), []
    shuffled, arrival = traffic.batch.take(order), arrival[order]
    for start in range(int(arrival[0]), int(arrival[-1]) + 1, 3 * 10**9):
        judge.requests(shuffled.take((arrival >= start) & (arrival < start + 3 * 10**9)))
        for event in traffic.events:
            if start <= event.ts * 1e9 < start + 3 * 10**9:
                judge.event(event)
        outputs += judge.advance()
    outputs += judge.finish()
    assert judge.late == 0
    assert lines(kit.Heard(outputs)) == expected


@pytest.mark.parametrize("cut_s", [4.0, 60.0, 305.0, 533.0, 560.0])  # 4: before the first tick
def test_a_restored_judge_goes_on_as_if_nothing_had_happened(kit: Any, incident: dict[str, Any], cut_s: float) -> None:
    traffic = traffic_of(kit, incident)
    expected = lines(kit.feed(new(kit), traffic))
    edge = (kit.T0 + cut_s) * 1e9
    early, late = traffic.batch.ts_ns < edge, traffic.batch.ts_ns >= edge
    first = kit.Traffic(traffic.batch.take(early), [e for e in traffic.events if e.ts * 1e9 < edge])
    second = kit.Traffic(traffic.batch.take(late), [e for e in traffic.events if e.ts * 1e9 >= edge])
    judge = new(kit)
    before = kit.feed(judge, first, finish=False)
    raw = judge.snapshot()
    again = PoolJudge.restore(raw, kit.policy(), policy_version="v1")
    assert again.snapshot() == raw
    after = kit.feed(again, second)
    assert lines(before) + lines(after) == expected


def test_a_restored_judge_stamps_its_own_epoch_and_counts_on(kit: Any) -> None:
    slow = [kit.Fault("slow", [1], 300.0, strength=5.0)]
    traffic = kit.traffic(seconds=420.0, faults=slow)
    judge = new(kit)
    edge = (kit.T0 + 345) * 10**9
    early = kit.Traffic(traffic.batch.take(traffic.batch.ts_ns < edge), [e for e in traffic.events if e.ts * 1e9 < edge])
    late = kit.Traffic(traffic.batch.take(traffic.batch.ts_ns >= edge), [e for e in traffic.events if e.ts * 1e9 >= edge])
    first = kit.feed(judge, early, finish=False).decisions
    second = kit.feed(PoolJudge.restore(judge.snapshot(), kit.policy(), policy_version="v1", epoch=7), late).decisions
    assert [d.version for d in first] == [(1, 0, 1)]
    assert [d.version for d in second] == [(1, 7, 2 + i) for i in range(len(second))]
    assert second


def test_a_snapshot_must_not_lose_what_was_staged(kit: Any) -> None:
    judge = new(kit)
    judge.requests(kit.traffic(seconds=10.0).batch)
    with pytest.raises(ValueError, match="before advance"):
        judge.snapshot()


@pytest.mark.parametrize("raw", [b"", b"\xc0", b"nonsense", msgspec.msgpack.encode({"format": 0})])
def test_what_is_no_snapshot_is_refused(kit: Any, raw: bytes) -> None:
    with pytest.raises(ValueError):  # noqa: PT011  # msgspec's errors are of this kind
        PoolJudge.restore(raw, kit.policy(), policy_version="v1")


def test_a_snapshot_with_other_ticks_is_refused_and_other_slos_are_not(kit: Any) -> None:
    judge = new(kit)
    kit.feed(judge, kit.traffic(seconds=300.0), finish=False)
    raw = judge.snapshot()
    with pytest.raises(ValueError, match="ticks of 5 s"):
        PoolJudge.restore(raw, kit.policy(tick_s=10.0), policy_version="v1")
    other = kit.policy(slo={"tpot_s": {"threshold": 0.1}}, breaker={"failure_window_s": 120.0})
    kit.feed(PoolJudge.restore(raw, other, policy_version="v2"), kit.traffic(seconds=400.0))


def test_nodes_outside_the_inventory_are_refused_and_counted(kit: Any) -> None:
    judge = new(kit, inventory=["gpu-00", "gpu-01", "gpu-02"])
    traffic = kit.traffic(nodes=4, seconds=300.0, faults=[kit.Fault("slow", [3], 200.0, strength=50.0)])
    heard = kit.feed(judge, traffic)
    assert judge.rejected["unknown_node"] == int((traffic.batch.node == 3).sum()) + 300
    assert sum(o.rejected.get("unknown_node", 0) for o in heard.outputs) == judge.rejected["unknown_node"]
    assert {v.node for v in heard.verdicts} == {"gpu-00", "gpu-01", "gpu-02"}
    assert heard.decisions == []


@pytest.mark.parametrize("name", ["pool:", "session:7", "request:tenant:a"])
def test_no_node_has_the_name_of_what_requests_share(kit: Any, name: str) -> None:
    """Hosts go by the name: an open node `pool:` would keep every request away."""
    judge = new(kit)
    traffic = kit.traffic(nodes=4, seconds=300.0, faults=[kit.Fault("slow", [3], 200.0, strength=50.0)])
    names = [*traffic.batch.nodes]
    names[3] = name
    heard = kit.feed(judge, kit.Traffic(replace(traffic.batch, nodes=names), traffic.events))
    assert judge.rejected["unknown_node"] == int((traffic.batch.node == 3).sum())
    assert name not in {v.node for v in heard.verdicts}
    assert heard.decisions == []


def test_a_bomb_of_names_takes_bounded_room(kit: Any) -> None:
    judge = new(kit)
    judge.registry.max_nodes = 50
    traffic = kit.traffic(nodes=4, seconds=60.0)
    kit.feed(judge, traffic, finish=False)
    bomb = replace(traffic.batch.take(slice(0, 1000)), nodes=[f"n{i}" for i in range(1000)])
    bomb.node = np.arange(1000, dtype=np.uint32)
    judge.requests(bomb)
    judge.advance()
    assert len(judge.registry.numbers) == 50
    assert judge.rejected["unknown_node"] == 1000 - 46


def test_late_rows_are_counted_and_change_nothing(kit: Any, incident: dict[str, Any]) -> None:
    traffic = traffic_of(kit, incident)
    expected = lines(kit.feed(new(kit), traffic))
    old = traffic.batch.take(slice(0, 40))
    judge, outputs = new(kit), []
    ts = traffic.batch.ts_ns
    for start in range(int(ts[0]), int(ts[-1]) + 1, 5 * 10**9):
        judge.requests(traffic.batch.take((ts >= start) & (ts < start + 5 * 10**9)))
        if start == int(ts[0]) + 600 * 10**9:
            judge.requests(old)
        for event in traffic.events:
            if start <= event.ts * 1e9 < start + 5 * 10**9:
                judge.event(event)
        outputs += judge.advance()
    outputs += judge.finish()
    assert judge.late == 40
    assert lines(kit.Heard(outputs)) == expected


def test_a_wild_timestamp_is_refused_as_future(kit: Any) -> None:
    traffic = kit.traffic(seconds=300.0)
    traffic.batch.ts_ns[700] += 86400 * 10**9
    judge = new(kit)
    traffic.events = []
    heard = kit.feed(judge, traffic, piece_s=1e9)
    assert judge.rejected["future"] == 1
    [(reason, raw)] = [refused for o in heard.outputs for refused in o.refused]
    event, row = msgspec.json.decode(raw, type=RequestEvent), traffic.batch.take(slice(700, 701))
    assert (reason, event.pool, event.node) == ("future", kit.POOL, row.nodes[row.node[0]])
    assert (event.ts, event.ttft_s) == (row.ts_ns[0] / 1e9, pytest.approx(float(row.latency_s[0, 0])))
    assert heard.outputs[-1].t <= kit.T0 + 305


def test_a_state_event_far_ahead_is_refused_as_future(kit: Any) -> None:
    traffic = kit.traffic(seconds=300.0)
    judge = new(kit)
    wild = NodeEvent(ts=kit.T0 + 90_000.0, pool=kit.POOL, node="gpu-00", running=1)
    judge.event(wild)
    heard = kit.feed(judge, traffic)
    assert judge.rejected["future"] == 1
    assert [refused for o in heard.outputs for refused in o.refused] == [("future", msgspec.json.encode(wild))]
    assert heard.outputs[-1].t <= kit.T0 + 305


def test_a_node_whose_clock_is_wrong_is_a_telemetry_fault(kit: Any) -> None:
    traffic = kit.traffic(nodes=4, seconds=400.0)
    traffic.batch.ts_ns[traffic.batch.node == 2] -= 120 * 10**9
    order = np.argsort(traffic.batch.ts_ns + np.where(traffic.batch.node == 2, 120 * 10**9, 0), kind="stable")
    judge = new(kit)
    outputs = []
    for rows in np.array_split(order, 200):
        judge.requests(traffic.batch.take(rows))
        outputs += judge.advance()
    heard = kit.Heard(outputs + judge.finish())
    assert [(f.finding, f.node) for f in heard.findings if f.finding == "telemetry_fault"] == [("telemetry_fault", "gpu-02")]


def test_time_goes_on_without_events_when_told_so(kit: Any) -> None:
    judge = new(kit)
    kit.feed(judge, kit.traffic(seconds=200.0), finish=False)
    heard = kit.Heard(judge.idle((kit.T0 + 260) * 10**9))
    assert heard.outputs[-1].t == kit.T0 + 250
    assert {v.status for v in heard.verdicts if v.t > kit.T0 + 213} == {"STALE"}
    assert heard.decisions == []


def test_state_events_alone_move_time_and_show_a_stall(kit: Any) -> None:
    faults = [kit.Fault("stall", [1], 100.0)]
    traffic = kit.traffic(nodes=3, seconds=400.0, faults=faults)
    traffic.batch = traffic.batch.take(slice(0, 0))
    heard = kit.feed(new(kit), traffic)
    assert {(v.node, v.sli) for v in heard.verdicts} == {(kit.name(i), "throughput") for i in range(3)}
    assert heard.first_open_s("gpu-01") == 120.0


def test_half_open_counts_marked_probes_alone_where_probes_are_marked(kit: Any) -> None:
    slow = [kit.Fault("slow", [1], 300.0, strength=20.0)]
    traffic = kit.traffic(seconds=520.0, faults=slow, marked=True)
    # Once it is half-open, a few probes are sent to the node and answered well; whatever else it gets is no probe.
    probe = (traffic.batch.node == 1) & (traffic.batch.ts_ns > (kit.T0 + 350) * 10**9)
    rows = np.flatnonzero(probe)[::3]
    traffic.batch.probe[rows] = 1
    traffic.batch.latency_s[:, rows] = 0.01
    heard = kit.feed(new(kit), traffic)
    first = heard.decisions[:4]
    assert [(d.state, d.admit_ratio) for d in first] == [("OPEN", 0.0), ("HALF_OPEN", 0.0), ("HALF_OPEN", 0.1), ("OPEN", 0.0)]
    assert first[3].evidence["cause"] == "relapse"  # its ordinary requests are as slow as ever


def probed(kit: Any, hosts: list[int]) -> Any:
    """A node that was slow from 300 to 400 s, with probes from 335 s on by these hosts in turn."""
    traffic = kit.traffic(seconds=700.0, faults=[kit.Fault("slow", [1], 300.0, 400.0, strength=20.0)], marked=True)
    rows = np.flatnonzero((traffic.batch.node == 1) & (traffic.batch.ts_ns > (kit.T0 + 335) * 10**9))[::4]
    traffic.batch.probe[rows] = np.resize(hosts, len(rows))
    return traffic


def test_a_closing_node_gets_its_traffic_back_in_steps_and_the_judge_may_restart_on_the_way(kit: Any) -> None:
    traffic = probed(kit, [7, 9])
    whole = kit.feed(new(kit), traffic)
    closing = [(d.state, d.action, d.admit_ratio) for d in whole.decisions][-4:]
    assert closing == [
        ("HALF_OPEN", "eject", 0.0),
        ("HALF_OPEN", "shed", 0.1),
        ("HALF_OPEN", "shed", 0.5),
        ("CLOSED", "none", 1.0),
    ]
    ramp = whole.decisions[-3:]
    assert [round(b.t - a.t) for a, b in itertools.pairwise(ramp)] == [15, 15]
    assert ramp[0].evidence["hosts_ok"] == ramp[0].evidence["hosts"] == 2
    assert "10 % of its requests go there again" in ramp[0].reason
    judge = new(kit)
    middle_ns = round((ramp[0].t + 12) * 1e9)
    cut = int(np.searchsorted(traffic.batch.ts_ns, middle_ns))
    judge.requests(traffic.batch.take(slice(0, cut)))
    for event in traffic.events:
        if event.ts * 1e9 < middle_ns:
            judge.event(event)
    before = [d for out in judge.advance() for d in out.decisions]
    assert before[-1].evidence["ramp"] == 1
    judge = PoolJudge.restore(judge.snapshot(), judge.policy, policy_version="test")
    judge.requests(traffic.batch.take(slice(cut, None)))
    for event in traffic.events:
        if event.ts * 1e9 >= middle_ns:
            judge.event(event)
    after = [d for out in [*judge.advance(), *judge.finish()] for d in out.decisions]
    assert [(d.t, d.state, d.admit_ratio) for d in before + after] == [(d.t, d.state, d.admit_ratio) for d in whole.decisions]


def test_one_host_alone_does_not_close_where_another_was_heard_of(kit: Any) -> None:
    traffic = probed(kit, [7])
    assert kit.feed(new(kit), traffic).decisions[-1].state == "CLOSED"  # nobody else reports
    half_open_s = next(d.t for d in kit.feed(new(kit), traffic).decisions if d.evidence["cause"] == "ramp") - 10
    other = np.flatnonzero((traffic.batch.probe == 7) & (traffic.batch.ts_ns > half_open_s * 1e9))[0]
    traffic.batch.probe[other] = 9  # another host reports, once, and nothing good
    traffic.batch.latency_s[:, other] = 30.0
    heard = kit.feed(new(kit), traffic)
    assert "CLOSED" not in {d.state for d in heard.decisions}
    assert heard.decisions[-1].evidence["cause"] in ("no_verdict", "open_over")


def test_windows_hold_every_series(kit: Any) -> None:
    heard = kit.feed(new(kit), kit.traffic(nodes=3, seconds=200.0))
    columns = heard.outputs[-1].windows.columns()
    assert {len(values) for values in columns.values()} == {3 * 6}
    assert set(columns["sli"]) == {"ttft_s", "tpot_s", "queue_s", "e2e_s", "errors", "throughput"}


def test_a_long_gap_is_skipped_and_not_ticked_through(kit: Any) -> None:
    traffic = kit.traffic(seconds=600.0)
    later = traffic.batch.ts_ns > (kit.T0 + 300) * 10**9
    traffic.batch.ts_ns[later] += 30 * 86400 * 10**9
    traffic.events = []
    heard = kit.feed(new(kit), traffic, piece_s=1e9)
    assert len(heard.outputs) < 900
    assert heard.outputs[-1].t > kit.T0 + 30 * 86400 + 590
    assert heard.decisions == []


def test_sparse_data_is_judged_to_its_end(kit: Any) -> None:
    traffic = kit.traffic(nodes=1, rate=1.0, seconds=400.0, state_events=False)
    n = len(traffic.batch)
    traffic.batch.ts_ns[:] = (kit.T0 + np.arange(n) * 300) * 10**9
    judge = new(kit, tick_s=60.0)
    heard = kit.feed(judge, traffic, piece_s=1e9)
    assert judge.rejected == {}
    assert heard.outputs[-1].t >= kit.T0 + (n - 1) * 300
    assert heard.decisions == []

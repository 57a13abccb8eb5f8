"""The simulated fleet: same seed same bytes, faults do what their name says, telemetry is in order and adds up."""

from __future__ import annotations

import json
from collections import Counter
from itertools import pairwise

import msgspec
import numpy as np
import pytest

from schemas.errors import ConfigError
from schemas.outcome import OUTCOME_CODES
from schemas.telemetry import DeployEvent, Event, GpuEvent, NodeEvent, RequestEvent
from streams.simulate.faults import FAULTS, parse_fault
from streams.simulate.fleet import Fleet, FleetSpec
from streams.simulate.output import encode_event, labels_of
from streams.simulate.router import Router
from streams.simulate.workload import PoissonWorkload

START_S = 1767225600.0
NODES = tuple(f"gpu-{i:02d}" for i in range(4))


def fleet(*faults: str, seed: int = 7, router: Router | None = None, rate: float = 20.0) -> Fleet:
    arrivals, rng = np.random.default_rng(seed).spawn(2)
    spec = FleetSpec("chat/eu/h100", NODES)
    injected = [parse_fault(f) for f in faults]
    return Fleet(spec, PoissonWorkload(rate, arrivals), rng, start_s=START_S, faults=injected, router=router)


def requests(events: list[Event], node: str | None = None) -> list[RequestEvent]:
    return [e for e in events if isinstance(e, RequestEvent) and node in (None, e.node)]


def ttft_s(events: list[Event], node: str, from_s: float, to_s: float) -> float:
    return float(np.median([e.ttft_s for e in requests(events, node) if e.ttft_s and from_s <= e.ts - START_S < to_s]))


def tpot_s(events: list[Event], node: str, from_s: float, to_s: float) -> float:
    return float(np.median([e.tpot_s for e in requests(events, node) if e.tpot_s and from_s <= e.ts - START_S < to_s]))


def test_same_seed_same_bytes_in_any_step() -> None:
    whole = fleet("slow_node@gpu-01:1m-2m").advance(180.0)
    stepped = fleet("slow_node@gpu-01:1m-2m")
    parts = [e for k in range(1, 181 * 4) for e in stepped.advance(k * 0.25)]
    assert [encode_event(e) for e in whole] == [encode_event(e) for e in parts if e.ts <= START_S + 180.0]
    assert [encode_event(e) for e in whole] != [encode_event(e) for e in fleet("slow_node@gpu-01:1m-2m", seed=8).advance(180.0)]


def test_fault_does_not_change_the_arrivals() -> None:
    def lengths(events: list[Event]) -> dict[str | None, int | None]:
        return {e.request_id: e.prompt_tokens for e in requests(events)}

    healthy, faulty = lengths(fleet().advance(120.0)), lengths(fleet("slow_node@gpu-01:30s-90s").advance(120.0))
    common = healthy.keys() & faulty.keys()
    assert len(common) > 2000
    assert all(healthy[r] == faulty[r] for r in common)


def test_events_are_in_time_order_and_follow_the_vocabulary() -> None:
    events = fleet("stall@gpu-02:20s-50s", "errors@gpu-00:10s-20s").advance(150.0)
    assert all(a.ts <= b.ts for a, b in pairwise(events))
    again = [msgspec.json.decode(encode_event(e), type=RequestEvent | NodeEvent | GpuEvent | DeployEvent) for e in events]
    assert again == events
    assert {e.outcome for e in requests(events)} <= OUTCOME_CODES.keys()
    for e in requests(events):
        for value_s in (e.queue_s, e.ttft_s, e.tpot_s, e.e2e_s):
            assert value_s is None or 0.0 <= value_s < 3600.0
        if e.outcome == "ok":
            assert e.queue_s <= e.ttft_s <= e.e2e_s + 1e-6


def test_every_request_ends_once() -> None:
    simulated = fleet("stall@gpu-02:20s-60s", "crash@gpu-03:30s-50s", "kv_pressure@gpu-01:20s-60s")
    events = simulated.advance(100.0)
    simulated._arrival_s = float("inf")  # no more arrivals: let everything end
    events += simulated.advance(400.0)
    counts = Counter(e.request_id for e in requests(events))
    assert set(counts.values()) == {1}
    assert len(counts) == sum(simulated.sent.values())


def test_healthy_nodes_vary_a_little() -> None:
    events = fleet().advance(600.0)
    medians = [tpot_s(events, n, 0, 600) for n in NODES]
    spread = (max(medians) - min(medians)) / np.mean(medians)
    assert 0.005 < spread < 0.25
    assert {e.outcome for e in requests(events)} == {"ok"}


def test_queueing_makes_the_latency() -> None:
    calm, busy = fleet(rate=8.0).advance(240.0), fleet(rate=40.0).advance(240.0)
    for measure in (ttft_s, tpot_s):
        assert measure(busy, "gpu-00", 60, 240) > 1.2 * measure(calm, "gpu-00", 60, 240)
    queue_s = {k: np.mean([e.queue_s for e in requests(v) if e.queue_s]) for k, v in {"calm": calm, "busy": busy}.items()}
    assert queue_s["busy"] > 2 * queue_s["calm"]


@pytest.mark.parametrize(
    ("name", "measure", "least"),
    [("slow_node", tpot_s, 1.4), ("slow_prefill", ttft_s, 1.5), ("thermal", tpot_s, 1.2), ("pcie_contention", ttft_s, 1.4)],
)
def test_slow_faults_slow_their_node_alone(name: str, measure, least: float) -> None:
    events = fleet(f"{name}@gpu-01:2m-4m", router=Router("round_robin")).advance(240.0)
    assert measure(events, "gpu-01", 150, 240) > least * measure(events, "gpu-01", 0, 120)
    assert measure(events, "gpu-00", 150, 240) < 1.2 * measure(events, "gpu-00", 0, 120)


@pytest.mark.parametrize(
    ("name", "outcome"),
    [
        ("errors", "server_error"),
        ("midstream_errors", "midstream_error"),
        ("empty_answers", "empty"),
        ("client_errors", "client_error"),
    ],
)
def test_outcome_faults_give_their_share(name: str, outcome: str) -> None:
    events = fleet(f"{name}=0.5@gpu-01:1m-3m", router=Router("round_robin")).advance(180.0)
    during = [e for e in requests(events, "gpu-01") if e.ts - START_S > 80.0]
    assert sum(e.outcome == outcome for e in during) / len(during) == pytest.approx(0.5, abs=0.1)
    assert {e.outcome for e in requests(events, "gpu-00")} == {"ok"}


def test_tail_leaves_the_median_alone() -> None:
    events = fleet("tail@gpu-01:0s-10m", router=Router("round_robin")).advance(600.0)
    hit, other = ([e.e2e_s for e in requests(events, n)] for n in ("gpu-01", "gpu-00"))
    assert np.median(hit) == pytest.approx(np.median(other), rel=0.1)
    assert np.quantile(hit, 0.995) > 1.8 * np.quantile(other, 0.995)


def test_stalled_node_has_requests_running_and_makes_no_token() -> None:
    events = fleet("stall@gpu-02:30s-90s").advance(120.0)
    during = [e for e in events if isinstance(e, NodeEvent) and e.node == "gpu-02" and 31 <= e.ts - START_S < 90]
    assert len({e.generated_tokens_total for e in during}) == 1
    assert all(e.running for e in during)
    after = [e for e in events if isinstance(e, NodeEvent) and e.node == "gpu-02" and e.ts - START_S > 91]
    assert after[-1].generated_tokens_total > during[0].generated_tokens_total


def test_silent_node_sends_nothing_and_serves_on() -> None:
    simulated = fleet("silent@gpu-02:30s-60s")
    simulated.advance(30.0)
    before = simulated.sent["gpu-02"]
    assert not [e for e in simulated.advance(59.9) if e.node == "gpu-02" and e.ts - START_S > 30.0]
    assert simulated.sent["gpu-02"] > before + 50
    assert [e for e in simulated.advance(65.0) if e.node == "gpu-02"]


def test_crash_loses_requests_and_counters() -> None:
    events = fleet("crash@gpu-03:30s-40s").advance(60.0)
    assert {"midstream_error", "server_error"} <= {e.outcome for e in requests(events, "gpu-03")}
    node = [e for e in events if isinstance(e, NodeEvent) and e.node == "gpu-03"]
    assert {e.boot_id for e in node if e.ts - START_S < 30} == {"b1"}
    assert not [e for e in node if 30 <= e.ts - START_S < 40]
    assert {e.boot_id for e in node if e.ts - START_S > 41} == {"b2"}
    tokens = [e.generated_tokens_total for e in node]
    assert min(tokens[31:]) < tokens[29]


def test_pool_wide_faults() -> None:
    events = fleet("mix_shift=4@*:1m-2m", "surge=2@*:2m-3m", "deploy_regression@*:4m-5m").advance(300.0)

    def arrived(from_s: float, to_s: float) -> list[RequestEvent]:
        return [e for e in requests(events) if from_s <= e.ts - START_S - (e.e2e_s or 0) < to_s]

    medians = [np.median([e.prompt_tokens for e in arrived(*w)]) for w in ((0, 60), (60, 120))]
    assert medians[1] / medians[0] == pytest.approx(4.0, rel=0.15)
    assert len(arrived(120, 180)) / len(arrived(0, 60)) == pytest.approx(2.0, rel=0.15)
    (deploy,) = [e for e in events if isinstance(e, DeployEvent)]
    assert deploy.ts == START_S + 240.0
    assert tpot_s(events, "gpu-00", 260, 300) > 1.2 * tpot_s(events, "gpu-00", 0, 60)


def test_gpu_events_tell_the_fault() -> None:
    events = fleet("thermal@gpu-01:10s-40s", "gpu_xid@gpu-02:20s-40s").advance(40.0)
    gpu = [e for e in events if isinstance(e, GpuEvent)]
    assert {e.node for e in gpu if e.throttle_reasons} == {"gpu-01"}
    assert {(e.node, e.xid, e.ts - START_S) for e in gpu if e.xid} == {("gpu-02", 79, 20.0)}


def test_router_obeys_the_gate_and_never_loses_the_whole_fleet() -> None:
    denied: set[str] = set()
    router = Router("least_loaded", gate=lambda node: "deny" if node in denied else "allow")
    simulated = fleet(router=router)
    simulated.advance(30.0)
    denied.add("gpu-01")
    before = simulated.sent["gpu-01"]
    simulated.advance(60.0)
    assert simulated.sent["gpu-01"] == before
    denied.update(NODES)
    total = sum(simulated.sent.values())
    simulated.advance(70.0)
    assert router.failed_open == sum(simulated.sent.values()) - total > 0


def test_probes_are_marked() -> None:
    events = fleet(router=Router(gate=lambda node: "probe" if node == "gpu-01" else "allow")).advance(30.0)
    assert {e.node for e in requests(events) if e.probe} == {"gpu-01"}
    assert {e.probe for e in requests(events)} == {True, False}


def test_labels_say_what_was_injected() -> None:
    simulated = fleet("errors@gpu-01:2m-3m", "fleet_slow@*:1m-", "stall@gpu-00:30s-40s")
    labels = json.loads(labels_of([simulated], 300.0))
    assert labels == {
        "incidents": [
            {"pool": "chat/eu/h100", "node": "gpu-00", "fault": "stall", "from": START_S + 30, "to": START_S + 40},
            {"pool": "chat/eu/h100", "node": None, "fault": "fleet_slow", "from": START_S + 60, "to": START_S + 300},
            {"pool": "chat/eu/h100", "node": "gpu-01", "fault": "errors", "from": START_S + 120, "to": START_S + 180},
        ]
    }


@pytest.mark.parametrize("name", sorted(FAULTS))
def test_every_fault_runs(name: str) -> None:
    node = "*" if name in ("surge", "mix_shift", "fleet_slow", "deploy_regression") else "gpu-01"
    events = fleet(f"{name}@{node}:10s-70s").advance(80.0)
    assert len(requests(events)) > 600
    assert [encode_event(e) for e in events] != [encode_event(e) for e in fleet().advance(80.0)]


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("slow_nod@gpu-01:1m-2m", "did you mean slow_node"),
        ("slow_node@gpu-01", "write NAME"),
        ("slow_node@gpu-01:5m-2m", "ends before"),
        ("slow_node@gpu-01:5x-6m", "duration '5x'"),
        ("slow_node=1.2.3@gpu-01:1m-2m", "not a number"),
    ],
)
def test_bad_fault_says_what_to_do(text: str, says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        parse_fault(text)


def test_fault_on_an_unknown_node_or_in_the_past_is_refused() -> None:
    simulated = fleet()
    with pytest.raises(ValueError, match="no node 'gpu-99'"):
        simulated.inject(parse_fault("stall@gpu-99:1m-2m"))
    simulated.advance(120.0)
    with pytest.raises(ValueError, match="it is 120"):
        simulated.inject(parse_fault("stall@gpu-01:1m-2m"))


def test_a_fault_can_be_ended_while_it_lasts() -> None:
    simulated = fleet("slow_node=3@gpu-01:30s-", router=Router("round_robin"), rate=6.0)
    events = simulated.advance(90.0)
    simulated.end(simulated.faults[0])
    events += simulated.advance(180.0)
    assert tpot_s(events, "gpu-01", 60, 90) > 2 * tpot_s(events, "gpu-01", 0, 30)
    assert tpot_s(events, "gpu-01", 120, 180) == pytest.approx(tpot_s(events, "gpu-01", 0, 30), rel=0.2)
    (incident,) = json.loads(labels_of([simulated], 180.0))["incidents"]
    assert incident["to"] == START_S + 90.0

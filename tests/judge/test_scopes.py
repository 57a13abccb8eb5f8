"""Request classes, session buckets and the pool through the whole judge: who opens, who never does, and what is said."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from schemas.batch import NO_CODE
from schemas.outcome import Outcome
from schemas.results import Decision
from schemas.telemetry import OverrideEvent
from streams.framing import stable_key
from streams.judge import PoolJudge

FAULT_AT, END = 600.0, 700.0
ADAPTERS = [f"lora-{i}" for i in range(6)]
TENANTS = [f"t-{i}" for i in range(5)]
HOT = "s-hot"
Mask = NDArray[np.bool_]
Spoil = Callable[[Any, Mask], None]


def decorated(
    kit: Any, spoil: Spoil | None = None, *, hot_ratio: float = 0.0, seconds: float = END, one_of: int = 20, **traffic: Any
) -> Any:
    """Traffic with adapters (6, each one in `one_of` requests), tenants and sessions; `spoil` gets the batch and which rows come
    after the fault.
    """
    made = kit.traffic(seconds=seconds, **{"nodes": 4, "rate": 10.0, **traffic})
    batch, rng = made.batch, np.random.default_rng(99)
    n = len(batch)
    adapter = rng.integers(0, one_of, n)
    batch.adapters, batch.adapter = ADAPTERS, np.where(adapter < 6, adapter, NO_CODE).astype(np.uint32)
    batch.tenants, batch.tenant = TENANTS, rng.integers(0, 5, n).astype(np.uint32)
    keys = np.array([stable_key(f"s-{i}") for i in range(500)], np.uint32)
    batch.session = np.where(rng.uniform(size=n) < hot_ratio, stable_key(HOT), keys[rng.integers(0, 500, n)]).astype(np.uint32)
    if spoil is not None:
        spoil(batch, batch.ts_ns >= int((kit.T0 + FAULT_AT) * 1e9))
    return made


def slower(batch: Any, rows: Mask, times: float = 12.0) -> None:
    batch.latency_s[:, rows] *= np.float32(times)


def failing(batch: Any, rows: Mask, outcome: Outcome = Outcome.SERVER_ERROR) -> None:
    batch.outcome[rows] = int(outcome)
    batch.latency_s[:, rows] = np.nan


def run(kit: Any, made: Any, piece_s: float = 5.0, **settings: Any) -> Any:
    return kit.feed(PoolJudge(kit.POOL, kit.policy(**settings), policy_version="v1"), made, piece_s)


def opened(heard: Any, scope: str) -> list[str]:
    return [d.subject for d in heard.decisions if d.state == "OPEN" and d.scope == scope]


def first(heard: Any, scope: str) -> Decision:
    return next(d for d in heard.decisions if d.scope == scope)


def test_an_adapter_that_is_slow_on_all_nodes_opens_its_class_and_no_node(kit: Any) -> None:
    heard = run(kit, decorated(kit, lambda batch, after: slower(batch, after & (batch.adapter == 2))))
    assert {(d.scope, d.subject) for d in heard.decisions} == {("request", "request:adapter:lora-2")}
    decision = first(heard, "request")
    assert FAULT_AT < decision.t - kit.T0 <= FAULT_AT + 90
    assert (decision.action, decision.admit_ratio, decision.mode) == ("shed", 0.1, "enforce")
    evidence = decision.evidence
    assert evidence["nodes_hit"] >= 2
    assert evidence["failures"] > 2 * evidence["expected_failures"]
    assert evidence["slowdown"] > 3
    assert 0 < evidence["weight_ratio"] < 0.25
    assert "lora_switch" not in {f.cause for f in heard.findings}, "one adapter alone is not switching"


def test_a_tenant_whose_requests_fail_opens_its_class(kit: Any) -> None:
    heard = run(kit, decorated(kit, lambda batch, after: failing(batch, after & (batch.tenant == 1))))
    assert {(d.scope, d.subject) for d in heard.decisions} == {("request", "request:tenant:t-1")}


def test_long_prompts_that_fail_open_the_class_by_length(kit: Any) -> None:
    heard = run(kit, decorated(kit, lambda batch, after: failing(batch, after & (batch.prompt_tokens >= 1024))))
    assert set(opened(heard, "request")) == {"request:prompt:1024"}
    assert opened(heard, "node") == []


def test_a_session_that_breaks_requests_opens_its_bucket_alone(kit: Any) -> None:
    made = decorated(kit, lambda batch, after: failing(batch, after & (batch.session == stable_key(HOT))), hot_ratio=0.05)
    heard = run(kit, made)
    assert {(d.scope, d.subject) for d in heard.decisions} == {("session", f"session:{stable_key(HOT) % 1024}")}
    assert (first(heard, "session").action, first(heard, "session").admit_ratio) == ("shed", 0.0)


@pytest.mark.parametrize("kind", ["slow", "server_error"])
def test_a_node_at_fault_opens_no_class_and_no_session(kit: Any, kind: str) -> None:
    fault = kit.Fault(kind, [1], FAULT_AT, strength=8.0, share=0.8)
    made = decorated(kit, faults=[fault], hot_ratio=0.05)
    made.batch.node[made.batch.session == stable_key(HOT)] = 1  # the busiest session lives on it
    made.batch.node[made.batch.adapter == 0] = 1  # and so does one adapter
    after = made.batch.ts_ns >= int((kit.T0 + FAULT_AT) * 1e9)
    moved = after & (made.batch.node == 1) & ((made.batch.session == stable_key(HOT)) | (made.batch.adapter == 0))
    (slower if kind == "slow" else failing)(made.batch, moved)
    heard = run(kit, made)
    assert set(opened(heard, "node")) == {"gpu-01"}
    assert opened(heard, "request") == opened(heard, "session") == []


def test_a_class_on_one_node_alone_is_at_fault_if_the_others_there_are_well(kit: Any) -> None:
    def spoil(batch: Any, after: Mask) -> None:
        batch.node[batch.adapter == 3] = 2
        failing(batch, after & (batch.adapter == 3))

    heard = run(kit, decorated(kit, spoil))
    assert {(d.scope, d.subject) for d in heard.decisions} == {("request", "request:adapter:lora-3")}


def test_of_classes_that_cover_the_same_failures_one_opens(kit: Any) -> None:
    def spoil(batch: Any, after: Mask) -> None:
        batch.adapter[batch.tenant == 4] = NO_CODE
        batch.tenant[batch.adapter == 5] = 4  # this tenant uses that adapter, and half of its requests do
        failing(batch, after & (batch.adapter == 5))

    assert {d.subject for d in run(kit, decorated(kit, spoil)).decisions} == {"request:adapter:lora-5"}

    def twins(batch: Any, after: Mask) -> None:
        batch.tenant[batch.tenant == 4] = 3
        batch.tenant[batch.adapter == 5] = 4
        failing(batch, after & (batch.adapter == 5))

    assert {d.subject for d in run(kit, decorated(kit, twins)).decisions} == {"request:adapter:lora-5"}


@pytest.mark.parametrize("ttft_s", [1.0, 8.0])
def test_another_mix_of_requests_opens_nothing(kit: Any, ttft_s: float) -> None:
    fault = kit.Fault("long_prompts", range(4), FAULT_AT, strength=7.0)
    heard = kit.feed(PoolJudge(kit.POOL, kit.policy(ttft_s=ttft_s), policy_version="v1"), decorated(kit, faults=[fault]))
    assert heard.decisions == []


@pytest.mark.parametrize(
    "fault", [("slow", 6.0, 1.0), ("server_error", 1.0, 0.3), pytest.param(("timeout", 1.0, 0.3), marks=pytest.mark.slow)]
)
def test_a_fault_of_the_whole_fleet_opens_no_node_no_class_and_no_session(kit: Any, fault: tuple[str, float, float]) -> None:
    kind, strength, share = fault
    injected = kit.Fault(kind, range(4), FAULT_AT, strength=strength, share=share)
    assert run(kit, decorated(kit, faults=[injected], hot_ratio=0.05)).decisions == []


def test_a_healthy_pool_is_left_alone(kit: Any) -> None:
    assert run(kit, decorated(kit, seed=5, hot_ratio=0.1)).decisions == []


@pytest.mark.parametrize(
    "traffic",
    [{}, {"one_of": 7, "nodes": 5, "rate": 6.0}, {"nodes": 16, "rate": 2.0}],
    ids=["few", "most requests", "many nodes"],
)
def test_most_adapters_slow_together_are_the_switching(kit: Any, traffic: dict[str, Any]) -> None:
    made = decorated(kit, lambda batch, after: slower(batch, after & (batch.adapter != NO_CODE)), seconds=730.0, **traffic)
    heard = run(kit, made)
    cause = next(f for f in heard.findings if f.cause == "lora_switch")
    assert cause.finding == "root_cause"
    assert cause.score is not None
    assert cause.evidence["adapters_at_fault"] >= 3
    assert cause.evidence["switch_ratio"] > 0.5
    assert opened(heard, "node") == []


@pytest.mark.slow
def test_open_classes_take_no_more_than_their_share_of_the_traffic(kit: Any) -> None:
    def spoil(batch: Any, after: Mask) -> None:
        batch.tenant = np.random.default_rng(3).choice(5, len(batch), p=[0.1, 0.1, 0.08, 0.02, 0.7]).astype(np.uint32)
        failing(batch, after & (batch.tenant <= 2))

    heard = run(kit, decorated(kit, spoil, seconds=720.0), caps={"freeze_share": 0.9})
    share: dict[str, float] = {}
    for d in heard.decisions:
        if d.scope == "request" and d.state == "OPEN":
            share[d.subject] = d.evidence["weight_ratio"]
    assert 0.15 < sum(share.values()) <= 0.25
    capped = {f.evidence.get("subject") for f in heard.findings if f.finding == "capped"}
    assert capped & {f"request:tenant:t-{i}" for i in range(3)}


@pytest.mark.slow
def test_classes_that_hold_much_of_the_traffic_are_frozen(kit: Any) -> None:
    heard = run(kit, decorated(kit, lambda batch, after: failing(batch, after & (batch.tenant <= 1))))
    assert heard.decisions == []
    assert any(f.finding == "frozen" and f.evidence.get("scope") == "request" for f in heard.findings)


def test_the_pool_sheds_when_asked_to_and_never_all(kit: Any) -> None:
    fault = kit.Fault("slow", range(4), FAULT_AT, strength=6.0)
    made = decorated(kit, faults=[fault])
    heard = run(kit, made, breaker={"scopes": ["node", "request", "session", "pool"]})
    assert {(d.scope, d.subject) for d in heard.decisions} == {("pool", "pool:")}
    decision = first(heard, "pool")
    assert (decision.action, decision.admit_ratio) == ("shed", 0.85)
    assert decision.evidence["bad"] >= 3


@pytest.mark.slow
def test_the_pool_opens_for_no_single_node_and_no_mix(kit: Any) -> None:
    scopes = {"scopes": ["node", "request", "session", "pool"]}
    one = run(kit, decorated(kit, faults=[kit.Fault("slow", [1], FAULT_AT, strength=6.0)]), breaker=scopes)
    mix = run(kit, decorated(kit, faults=[kit.Fault("long_prompts", range(4), FAULT_AT, strength=7.0)]), breaker=scopes)
    assert opened(one, "pool") == opened(mix, "pool") == []


def test_a_class_recovers_by_half_open(kit: Any) -> None:
    def spoil(batch: Any, after: Mask) -> None:
        ends = batch.ts_ns < int((kit.T0 + FAULT_AT + 60) * 1e9)
        failing(batch, after & ends & (batch.tenant == 1))

    heard = run(kit, decorated(kit, spoil, seconds=800.0))
    states = [d.state for d in heard.decisions]
    assert states[0] == "OPEN"
    assert states[-2:] == ["HALF_OPEN", "CLOSED"]
    assert {d.subject for d in heard.decisions} == {"request:tenant:t-1"}


def test_scopes_can_be_switched_off_and_actions_chosen(kit: Any) -> None:
    def spoil(batch: Any, after: Mask) -> None:
        failing(batch, after & (batch.tenant == 1))

    off = run(kit, decorated(kit, spoil), breaker={"scopes": ["node"]})
    assert off.decisions == []
    fallback = {"action": "fallback", "fallback": "chat-8b/eu/l4", "admit_ratio": 0.25}
    chosen = run(kit, decorated(kit, spoil), breaker={"actions": {"request": fallback}}, mode="shadow")
    decision = first(chosen, "request")
    assert (decision.action, decision.admit_ratio, decision.fallback, decision.mode) == (
        "fallback",
        0.25,
        "chat-8b/eu/l4",
        "shadow",
    )
    degrade = run(kit, decorated(kit, spoil), breaker={"actions": {"request": {"action": "degrade", "profile": "short"}}})
    assert (first(degrade, "request").profile, first(degrade, "request").admit_ratio) == ("short", 1.0)


@pytest.mark.parametrize("restart_s", [618.0, *(pytest.param(s, marks=pytest.mark.slow) for s in (603.0, 640.0))])
def test_framing_and_a_restart_change_nothing(kit: Any, restart_s: float) -> None:
    def spoil(batch: Any, after: Mask) -> None:
        slower(batch, after & (batch.adapter == 2))
        failing(batch, after & (batch.session == stable_key(HOT)))

    made = decorated(kit, spoil, hot_ratio=0.05, seconds=680.0)
    whole = run(kit, made).decisions
    assert {d.scope for d in whole} == {"request", "session"}
    judge = PoolJudge(kit.POOL, kit.policy(), policy_version="v1")
    before = kit.Traffic(
        made.batch.take(made.batch.ts_ns < int((kit.T0 + restart_s) * 1e9)), [e for e in made.events if e.ts < kit.T0 + restart_s]
    )
    after = kit.Traffic(
        made.batch.take(made.batch.ts_ns >= int((kit.T0 + restart_s) * 1e9)),
        [e for e in made.events if e.ts >= kit.T0 + restart_s],
    )
    outputs = kit.feed(judge, before, 3.0, finish=False).outputs
    again = PoolJudge.restore(judge.snapshot(), kit.policy(), policy_version="v1")
    outputs += kit.feed(again, after, 7.0).outputs
    assert kit.Heard(outputs).decisions == whole


@pytest.mark.parametrize("subject", ["session:17", "request:tenant:t-1", "request:prompt:4096", "pool:"])
def test_an_operator_orders_any_scope(kit: Any, subject: str) -> None:
    at = float(kit.T0 + 60)
    order = OverrideEvent(
        ts=at,
        pool=kit.POOL,
        subject=subject,
        state="FORCED_OPEN",
        reason="abuse",
        operator="ada",
        id="order-0001",
        start=at,
        end=at + 30,
    )
    made = decorated(kit, seconds=150.0, rate=2.0)
    made.events = sorted([*made.events, order], key=lambda e: e.ts)
    heard = run(kit, made)
    assert [(d.scope, d.subject, d.state) for d in heard.decisions] == [
        (subject.split(":")[0], subject, "FORCED_OPEN"),
        (subject.split(":")[0], subject, "CLOSED"),
    ]
    assert heard.decisions[0].evidence["operator"]["who"] == "ada"
    assert heard.decisions[0].latched is False
    assert heard.decisions[0].action == "shed"


def test_an_order_for_no_subject_is_refused(kit: Any) -> None:
    at = float(kit.T0 + 60)
    for n, subject in enumerate(["session:1024", "session:x", "request:", "request:prompt:7", "pool:x"]):
        judge = PoolJudge(kit.POOL, kit.policy(), policy_version="v1")
        judge.event(OverrideEvent(ts=at, pool=kit.POOL, subject=subject, state="DISABLED", reason="r", operator="ada",
                                  id=f"order-000{n}", start=at, end=at + 30))  # fmt: skip
        judge.advance()
        assert judge.rejected == {"bad_override": 1}, subject

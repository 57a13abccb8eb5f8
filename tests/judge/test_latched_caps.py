"""What the flap latch and orders hold beyond their evidence, nodes and session buckets: never more than hosts take."""

from __future__ import annotations

from typing import Any

import pytest
from slodrift_client.view import Limits

from detectors.breaker import BreakerRecord
from schemas.policy import PoolPolicy
from schemas.results import Decision
from schemas.scopes import SESSION_BUCKETS
from schemas.telemetry import GpuEvent, OverrideEvent
from streams.judge import PoolJudge
from streams.judge.decide import Acted, Breakers
from streams.judge.scopes.breakers import Wanted
from streams.judge.scopes.scopes import ScopeActed, Scopes

T = 1_000_000.0
FLAPPED = (T - 400.0, T - 270.0, T - 140.0)
"""Three opens in ten minutes: the next one latches."""
XID = {"xid": 79, "gpu": "GPU-0"}


def breakers(n: int, **settings: Any) -> Breakers:
    """Of `n` nodes, all of which flapped."""
    policy = PoolPolicy.model_validate(
        {
            "mode": "enforce",
            "caps": {"velocity": n, "velocity_share": 1.0, "share": 0.5, "small_pool": 2, "absolute": n},
            **settings,
        }
    )
    found = Breakers("p", policy, "v1", 1, 1)
    found.grow(n)
    found.records = {i: BreakerRecord(subject=f"n{i}", since_s=T - 70.0, streak=3, trips_s=FLAPPED) for i in range(n)}
    return found


def order(subject: str, state: Any = "FORCED_OPEN", name: str = "order") -> OverrideEvent:
    return OverrideEvent(
        ts=T, pool="p", subject=subject, state=state, reason="r", operator="ada", id=f"{name}-{subject}", start=T, end=T + 600.0
    )


def latched(found: Breakers, nodes: range, n_eligible: int) -> list[bool]:
    """Whether each of the nodes is latched when it opens again."""
    opened = [found.open_now(T, node, f"n{node}", n_eligible, XID) for node in nodes]
    assert all(d is not None and d.state == "OPEN" for d in opened)
    return [d.latched for d in opened if d is not None]


@pytest.mark.parametrize(("n", "allowed"), [(10, 1), (20, 1), (39, 1), (40, 2), (100, 5)])
def test_the_flap_latch_holds_one_node_in_twenty_and_the_others_open_as_usual(n: int, allowed: int) -> None:
    found = breakers(n)
    assert latched(found, range(n // 4), n) == [True] * min(allowed, n // 4) + [False] * (n // 4 - allowed)
    ends = {d.latched: d.until_s for d in found.records.values() if d.state == "OPEN"}
    assert ends[True] == T + found.policy.breaker.latch_s
    assert 0.0 < (ends[False] or 0.0) - T < found.policy.breaker.latch_s + 1e-9
    assert int(found.away.sum()) == n // 4, "what is latched counts in the cap like any other"


def test_a_latched_node_counts_in_the_cap_of_all_nodes() -> None:
    found = breakers(40, caps={"velocity": 40, "velocity_share": 1.0})
    opened = [found.open_now(T, node, f"n{node}", 40, XID) is not None for node in range(6)]
    assert opened == [True] * 4 + [False] * 2


@pytest.mark.parametrize(("n", "orders", "latch"), [(40, 8, 0), (40, 7, 1), (40, 6, 2), (40, 0, 2), (8, 1, 0), (8, 0, 1)])
def test_orders_and_the_latch_together_hold_one_node_in_five(n: int, orders: int, latch: int) -> None:
    """Hosts count both, and refuse a whole state with more."""
    found = breakers(n, override={"keys": ["MCowBQYDK2VwAyEAGb9ECWmEzf6FQbrBZ9w7lshQhqowtrbLDFw4rXAxZuE="]})
    acted = Acted()
    for node in range(orders):
        found._obey(T, order(f"n{node}"), node, n, acted)
    assert len(acted.decisions) == orders
    assert sum(latched(found, range(orders, orders + 3), n)) == latch
    most = Limits().max_latched_ratio
    held = sum(r.latched or r.state == "FORCED_OPEN" for r in found.records.values())
    assert held <= max(1, int(most * n))


def test_an_order_that_the_latch_leaves_no_place_is_refused_and_counted() -> None:
    found = breakers(12)
    assert latched(found, range(1), 12) == [True]
    found._obey(T, order("n5"), 5, 4, Acted())
    assert found.overrides.refused == {"override_over_cap": 1}
    acted = Acted()
    found._obey(T, order("n0"), 0, 4, acted)  # the latched node itself takes no other place
    assert [d.state for d in acted.decisions] == ["FORCED_OPEN"]


def test_through_the_whole_judge(kit: Any) -> None:
    """Four of forty nodes flapped; they open again, two of them latched."""
    at = kit.T0 + 100.0
    policy = kit.policy(caps={"velocity": 5, "velocity_share": 1.0})
    judge = PoolJudge(kit.POOL, policy, policy_version="v1")
    made = kit.traffic(nodes=40, rate=1.0, seconds=150.0)
    events = [GpuEvent(ts=at, pool=kit.POOL, node=kit.name(i), gpu="GPU-0", xid=79) for i in range(4)]
    first = kit.Traffic(made.batch.take(made.batch.ts_ns < int(at * 1e9)), [e for e in made.events if e.ts < at])
    rest = kit.Traffic(
        made.batch.take(made.batch.ts_ns >= int(at * 1e9)),
        sorted([*(e for e in made.events if e.ts >= at), *events], key=lambda e: e.ts),
    )
    kit.feed(judge, first, 5.0, finish=False)
    for i in range(4):
        name = kit.name(i)
        trips = (at - 400.0, at - 270.0, at - 140.0)
        judge.ticker.breakers.records[judge.registry.seats[name]] = BreakerRecord(
            subject=name, since_s=at - 70.0, streak=3, trips_s=trips
        )
    opened = [d for d in kit.feed(judge, rest, 5.0).decisions if d.state == "OPEN" and d.evidence["cause"] == "trip"]
    assert [d.latched for d in opened] == [True, True, False, False]
    assert "open for the 4th time in 600 s, kept open for 300 s" in opened[0].reason
    assert "4th time" not in opened[2].reason


def scopes() -> tuple[Scopes, Breakers]:
    desk = Breakers("p", PoolPolicy(mode="enforce"), "v1", 1, 1)
    return Scopes(desk.policy, desk.issue), desk


def test_orders_open_no_more_session_buckets_than_hosts_take() -> None:
    found, _ = scopes()
    acted = ScopeActed()
    for i in range(60):
        found._obey(T, order(f"session:{i}"), acted)
    assert len(acted.decisions) == Limits().max_sessions == 51
    assert found.refused == {"override_over_cap": 9}
    found._obey(T, order("session:3", name="longer"), acted)
    found._obey(T, order("session:70", "DISABLED"), acted)  # what is disabled takes nothing away
    found._obey(T, order("request:tenant:a"), acted)
    found._obey(T, order("pool:"), acted)
    assert len(acted.decisions) == 55


def test_buckets_that_orders_opened_count_for_automation_and_after_a_restart() -> None:
    found, desk = scopes()
    acted = ScopeActed()
    for i in range(50):
        found._obey(T, order(f"session:{i}"), acted)
    again, _ = scopes()
    for decision in acted.decisions:
        again.breakers["session"].adopt(decision)
    restored = Scopes(desk.policy, desk.issue)
    restored.load(found.dump(), with_windows=False)
    for one in (found, again, restored):
        wanted = [Wanted(f"session:{i}", 1 / SESSION_BUCKETS, "r") for i in (100, 101)]
        opened, held = one.breakers["session"].open(T, wanted)
        assert [d.subject for d in opened] == ["session:100"]
        assert "the cap is 5.0%" in held["session:101"]


def test_a_released_bucket_gives_its_place_back() -> None:
    found, _ = scopes()
    acted = ScopeActed()
    for i in range(51):
        found._obey(T, order(f"session:{i}"), acted)
    release: Decision | None = found.breakers["session"].obey(T + 1, order("session:0", "CLOSED"))
    assert release is not None
    found._obey(T + 2, order("session:60"), acted)
    assert found.refused == {}
    assert len(acted.decisions) == 52


def test_orders_and_automation_together_open_no_more_classes_than_hosts_take() -> None:
    found, _ = scopes()
    acted, classes = ScopeActed(), found.breakers["request"]
    most = Limits().max_requests
    opened, _ = classes.open(T, [Wanted("request:tenant:z", 0.01, "r")])
    for i in range(most):
        found._obey(T, order(f"request:tenant:{i}"), acted)
    assert len(opened) + len(acted.decisions) == most == 64
    opened, held = classes.open(T + 100, [Wanted("request:tenant:y", 0.01, "r")])
    assert opened == []
    assert held == {"request:tenant:y": "64 are open already, hosts take no more"}
    classes.step(T + 700, lambda _: (0, 0))  # the orders end
    assert [d.subject for d in classes.open(T + 700, [Wanted("request:tenant:y", 0.01, "r")])[0]] == ["request:tenant:y"]

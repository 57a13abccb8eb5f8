"""Breakers of classes, sessions and the pool: what they count, when they end, how traffic comes back, whose an order is."""

from __future__ import annotations

from typing import Any

import pytest

from schemas.policy import PoolPolicy
from schemas.results import Decision
from schemas.telemetry import OverrideEvent
from streams.judge.decide import Breakers
from streams.judge.scopes.breakers import GONE_S, ScopeBreakers, Wanted
from streams.judge.scopes.scopes import ScopeActed, Scopes

T = 1_000_000.0
SCOPES = ["node", "request", "session", "pool"]


def scopes(**actions: Any) -> Scopes:
    policy = PoolPolicy.model_validate({"mode": "enforce", "breaker": {"scopes": SCOPES, "actions": actions}})
    return Scopes(policy, Breakers("p", policy, "v1", 1, 1).issue)


def want(subject: str, weight: float) -> Wanted:
    return Wanted(subject, weight, "it fails")


def opened(found: ScopeBreakers, t_s: float, *wanted: Wanted) -> list[str]:
    return [d.subject for d in found.open(t_s, list(wanted))[0]]


def stepped(found: ScopeBreakers, t_s: float, good: int = 0, bad: int = 0) -> list[Decision]:
    return found.step(t_s, lambda _: (good, bad))


def test_open_and_half_open_classes_share_the_cap_by_their_traffic() -> None:
    found = scopes().breakers["request"]
    assert opened(found, T, want("request:tenant:a", 0.15), want("request:tenant:b", 0.11)) == ["request:tenant:a"]
    (half,) = stepped(found, T + 40)
    assert (half.state, half.evidence["weight_ratio"]) == ("HALF_OPEN", 0.15)
    assert opened(found, T + 40, want("request:tenant:b", 0.11), want("request:tenant:c", 0.1)) == ["request:tenant:c"]
    assert found.taken == pytest.approx(0.25)


def test_a_restored_judge_knows_what_is_taken() -> None:
    one, other = scopes(), scopes()
    opened(one.breakers["request"], T, want("request:tenant:a", 0.15))
    other.load(one.dump(), with_windows=False)
    assert opened(other.breakers["request"], T + 5, want("request:tenant:b", 0.11)) == []


@pytest.mark.parametrize(("bad", "fresh", "why"), [(0.31, 40, "correlated"), (0.1, 30, "telemetry")])
def test_a_shared_cause_or_lost_telemetry_freezes_a_scope(bad: float, fresh: int, why: str) -> None:
    found, acted = scopes(), ScopeActed()
    found._open("request", T, [want("request:tenant:a", 0.1)], bad, fresh, 40, acted)
    assert acted.decisions == []
    assert acted.frozen == [f"request:{why}"]
    assert "frozen" in acted.capped["request:tenant:a"]
    found._open("session", T, [want("session:1", 0.001)], 0.0, 40, 40, acted)
    assert [d.subject for d in acted.decisions] == ["session:1"], "the freeze is of one scope"


@pytest.mark.parametrize("scope", ["session", "request", "pool"])
def test_an_open_ends_by_itself_and_whatever_nobody_asks_for_is_given_up(scope: str) -> None:
    found, states, t = scopes().breakers[scope], [], T
    opened(found, T, want(f"{scope}:1", 0.01))
    while t < T + 2 * GONE_S:
        t += 5.0
        states += [(d.state, d.evidence["cause"], t - T) for d in stepped(found, t)]
    assert states[0][:2] == ("HALF_OPEN", "open_over")
    assert 30.0 <= states[0][2] <= 40.0
    assert states[-1][:2] == ("CLOSED", "gone")
    assert GONE_S <= states[-1][2] <= GONE_S + 180.0


def test_it_stays_closed_for_a_while() -> None:
    found = scopes(request={"action": "degrade", "profile": "short"}).breakers["request"]
    opened(found, T, want("request:tenant:a", 0.1))
    stepped(found, T + 40)
    assert [d.state for d in stepped(found, T + 60, good=20)] == ["CLOSED"]
    assert opened(found, T + 119, want("request:tenant:a", 0.1)) == []
    assert opened(found, T + 120, want("request:tenant:a", 0.1)) == ["request:tenant:a"]


@pytest.mark.parametrize(
    ("action", "ratios"),
    [
        ({"action": "shed", "admit_ratio": 0.2}, [0.28, 0.6]),
        ({"action": "fallback", "fallback": "small/eu"}, [0.1, 0.5]),
        ({"action": "degrade", "profile": "short"}, []),
    ],
)
def test_traffic_comes_back_in_steps_of_what_was_taken(action: dict[str, Any], ratios: list[float]) -> None:
    found = scopes(request=action).breakers["request"]
    opened(found, T, want("request:tenant:a", 0.1))
    stepped(found, T + 40)
    moves = [d for k in range(4) for d in stepped(found, T + 60 + 15 * k, good=20)]
    assert [d.admit_ratio for d in moves[:-1]] == pytest.approx(ratios)
    assert all(d.action == action["action"] and d.evidence["ramp"] for d in moves[:-1])
    assert (moves[-1].state, moves[-1].action, moves[-1].admit_ratio) == ("CLOSED", "none", 1.0)


def test_each_scope_has_its_own_action_and_its_own_orders() -> None:
    found, acted = scopes(pool={"action": "degrade", "profile": "short"}), ScopeActed()
    for subject in ("session:1", "request:tenant:a", "pool:"):
        order = OverrideEvent(
            ts=T, pool="p", subject=subject, state="FORCED_OPEN", reason="r", operator="ada", id=f"order-{subject}", start=T,
            end=T + 60.0,
        )  # fmt: skip
        found._obey(T, order, acted)
    assert [(d.scope, d.action, d.admit_ratio) for d in acted.decisions] == [
        ("session", "shed", 0.0), ("request", "shed", 0.1), ("pool", "degrade", 1.0),
    ]  # fmt: skip
    assert {scope: list(b.records) for scope, b in found.breakers.items()} == {
        "session": ["session:1"], "request": ["request:tenant:a"], "pool": ["pool:"],
    }  # fmt: skip

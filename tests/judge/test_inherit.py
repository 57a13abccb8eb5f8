"""A judge without a snapshot takes over what the decision log says: nothing open is forgotten, opened twice, or closed early."""

from __future__ import annotations

from typing import Any

import pytest

from schemas.results import Decision
from streams.judge import PoolJudge

FAULT_AT, OPENED_BY, END = 600.0, 660.0, 780.0


def parts(kit: Any, made: Any, at_s: float) -> tuple[Any, Any]:
    """Traffic before and after a time."""
    at = kit.T0 + at_s
    early = made.batch.ts_ns < int(at * 1e9)
    return (
        kit.Traffic(made.batch.take(early), [e for e in made.events if e.ts < at]),
        kit.Traffic(made.batch.take(~early), [e for e in made.events if e.ts >= at]),
    )


def live(decisions: list[Decision]) -> list[Decision]:
    """As `LogState` keeps them: the newest of each subject that is not closed."""
    newest = {d.subject: d for d in decisions}
    return [d for d in newest.values() if d.state != "CLOSED"]


@pytest.fixture(scope="module")
def story(request: pytest.FixtureRequest) -> dict[str, Any]:
    return {}


def whole(kit: Any, story: dict[str, Any]) -> tuple[Any, list[Decision]]:
    """A node slows down and stays slow: what a judge that never stops decides."""
    if not story:
        story["made"] = kit.traffic(seconds=END, faults=[kit.Fault("slow", [1], FAULT_AT, strength=6.0)])
        judge = PoolJudge(kit.POOL, kit.policy(), policy_version="v1", epoch=3)
        story["decisions"] = kit.feed(judge, story["made"]).decisions
    return story["made"], story["decisions"]


def new(kit: Any, log: list[Decision]) -> PoolJudge:
    judge = PoolJudge(kit.POOL, kit.policy(), policy_version="v1", epoch=9)
    judge.inherit(live(log))
    return judge


def test_an_open_breaker_goes_on_to_its_own_end(kit: Any, story: dict[str, Any]) -> None:
    made, decisions = whole(kit, story)
    assert [d.state for d in decisions[:2]] == ["OPEN", "HALF_OPEN"]
    cut = decisions[0].t - kit.T0 + 12
    _, rest = parts(kit, made, cut)
    judge = new(kit, decisions[:1])
    heard = kit.feed(judge, rest).decisions
    assert [(d.subject, d.state, d.t) for d in heard[:1]] == [("gpu-01", "HALF_OPEN", decisions[1].t)]
    assert heard[0].version == (1, 9, 1)
    assert [d.state for d in heard[1:2]] == ["OPEN"], "it is still slow: the probes fail, with the back-off of a second opening"
    assert heard[1].evidence["streak"] == 2


def test_frames_that_are_read_again_lead_to_the_same_decisions(kit: Any, story: dict[str, Any]) -> None:
    made, decisions = whole(kit, story)
    heard = kit.feed(new(kit, decisions[:2]), made).decisions
    assert [(d.tx, d.t, d.state) for d in heard] == [(d.tx, d.t, d.state) for d in decisions]


def test_half_open_and_latched_keep_what_they_are(kit: Any, story: dict[str, Any]) -> None:
    made, decisions = whole(kit, story)
    _, rest = parts(kit, made, decisions[1].t - kit.T0 + 2)
    half = kit.feed(new(kit, decisions[:2]), rest).decisions
    assert (half[0].subject, half[0].state) == ("gpu-01", "OPEN"), "probes go on being counted"
    forced = Decision(
        t=decisions[0].t, pool=kit.POOL, scope="node", subject="gpu-02", state="FORCED_OPEN", version=(1, 3, 7), tx="x",
        not_after=decisions[0].t + 60, mode="enforce",
    )  # fmt: skip
    _, rest = parts(kit, made, decisions[0].t - kit.T0 + 12)
    judge = new(kit, [forced])
    ends = [d for d in kit.feed(judge, rest).decisions if d.subject == "gpu-02"]
    assert [(d.state, d.t) for d in ends] == [("CLOSED", forced.t + 60)]


def test_a_node_that_is_gone_does_not_stay_open_for_ever(kit: Any, story: dict[str, Any]) -> None:
    made, decisions = whole(kit, story)
    lost = Decision(
        t=decisions[0].t, pool=kit.POOL, scope="node", subject="gpu-99", state="OPEN", version=(1, 3, 7), tx="x",
        not_after=decisions[0].t + 50, mode="enforce",
    )  # fmt: skip
    _, rest = parts(kit, made, decisions[0].t - kit.T0 + 12)
    judge = new(kit, [lost])
    states = [d.state for d in kit.feed(judge, rest).decisions if d.subject == "gpu-99"]
    assert states[0] == "HALF_OPEN"
    assert judge.ticker.breakers.records[judge.registry.seats["gpu-99"]].until_s is not None or states[-1] == "CLOSED"


def test_the_cap_counts_what_was_taken_over(kit: Any, story: dict[str, Any]) -> None:
    made, _ = whole(kit, story)
    other = Decision(
        t=float(kit.T0 + 5), pool=kit.POOL, scope="node", subject="gpu-03", state="FORCED_OPEN", version=(1, 3, 7), tx="x",
        not_after=kit.T0 + 3600.0, mode="enforce",
    )  # fmt: skip
    heard = kit.feed(new(kit, [other]), made)
    assert [d.subject for d in heard.decisions if d.state == "OPEN"] == []
    assert any(f.finding == "capped" and f.node == "gpu-01" for f in heard.findings)


def test_a_class_is_taken_over_and_survives_a_snapshot_taken_before(kit: Any) -> None:
    opened = Decision(
        t=kit.T0 + 100.0, pool=kit.POOL, scope="request", subject="request:tenant:t-1", state="OPEN", version=(1, 3, 7), tx="x",
        not_after=kit.T0 + 150.0, mode="enforce", evidence={"weight_ratio": 0.2, "streak": 2},
    )  # fmt: skip
    early, late = parts(kit, kit.traffic(seconds=240.0), 60.0)
    judge = PoolJudge(kit.POOL, kit.policy(), policy_version="v1", epoch=9)
    judge.inherit([opened])
    kit.feed(judge, early, finish=False)
    judge = PoolJudge.restore(judge.snapshot(), kit.policy(), policy_version="v1", epoch=9)
    first = kit.feed(judge, late).decisions[0]
    assert (first.subject, first.state, first.t) == (
        "request:tenant:t-1",
        "HALF_OPEN",
        opened.not_after - judge.ticker.breakers.grace_s,
    )
    assert first.evidence["weight_ratio"] == 0.2

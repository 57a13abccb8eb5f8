"""A node whose exporter changed its unit is told as a fault of telemetry and keeps its traffic; a hang is no change of unit."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from streams.judge import PoolJudge
from streams.judge.units import Units

FAULT_AT = 600.0


def heard_of(kit: Any, times: float) -> Any:
    made = kit.traffic(nodes=4, rate=10.0, seconds=FAULT_AT + 200)
    batch = made.batch
    sick = (batch.node == 1) & (batch.ts_ns >= int((kit.T0 + FAULT_AT) * 1e9))
    batch.latency_s[:, sick] *= np.float32(times)
    return kit.feed(PoolJudge(kit.POOL, kit.policy(), policy_version="v1"), made, 5.0)


def test_milliseconds_for_seconds_at_one_node_open_nothing(kit: Any) -> None:
    heard = heard_of(kit, 1000.0)
    assert heard.decisions == []
    faults = [f for f in heard.findings if f.finding == "telemetry_fault"]
    assert [(f.node, f.evidence["why"]) for f in faults] == [(kit.name(1), "unit or clock")]
    assert faults[0].t - kit.T0 <= FAULT_AT + 20
    assert not [f for f in heard.findings if f.finding == "node_degradation"]


@pytest.mark.parametrize("times", [6.0, 50.0])
def test_a_slow_node_is_slow(kit: Any, times: float) -> None:
    heard = heard_of(kit, times)
    assert [d.subject for d in heard.decisions if d.state == "OPEN"][:1] == [kit.name(1)]
    assert not [f for f in heard.findings if f.finding == "telemetry_fault"]


def test_what_took_as_long_as_a_hang_lasted_is_true() -> None:
    """Two nodes claim 60 s where one request in a thousand took 4; one of them answered nothing for a minute before."""
    units = Units(5.0)
    units.grow(2)
    ok, alarm = np.zeros(2, np.bool_), np.ones(2, np.bool_)
    answered = SimpleNamespace(n_tick=np.full((2, 4), 9), threshold_s=np.full((2, 4), 4.0))
    hung = SimpleNamespace(n_tick=np.array([[9] * 4, [0] * 4]), threshold_s=answered.threshold_s)
    units.judge(0.0, answered, ok, None)
    for t_s in range(5, 65, 5):
        units.judge(float(t_s), hung, ok, None)
    assert units.judge(70.0, answered, alarm, np.full((2, 4), 60.0)).tolist() == [True, False]
    assert units.judge(400.0, answered, alarm, np.full((2, 4), 60.0)).tolist() == [True, False], "time makes nothing true"
    assert units.judge(405.0, answered, ok, None).tolist() == [False, False]


def test_memory_survives_a_snapshot() -> None:
    units = Units(5.0)
    units.grow(2)
    units.calm_s[:], units.odd[:] = [1.0, 2.0], [True, False]
    again = Units(5.0)
    again.load(units.dump(), 3)
    assert again.odd.tolist() == [True, False, False]
    assert again.calm_s[:2].tolist() == [1.0, 2.0]
    assert np.isnan(again.calm_s[2])

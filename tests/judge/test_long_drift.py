"""The dynamic SLO in what the judge says, and drifts that last."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

AT = 600.0
Judged = Callable[..., Any]


def dynamic(heard: Any, sli: str, after_s: float, t0: float) -> dict[str, np.ndarray]:
    """Of windows after some time: dynamic SLO, threshold and contract of one SLI."""
    found: dict[str, list[float]] = {"dynamic_slo_s": [], "threshold_s": [], "slo_s": [], "status": []}
    for out in heard.outputs:
        if out.windows is None or out.t < t0 + after_s:
            continue
        columns = out.windows.columns()
        rows = [i for i, s in enumerate(columns["sli"]) if s == sli]
        for name, values in found.items():
            values += [columns[name][i] for i in rows]
    return {name: np.array(values) for name, values in found.items()}


def test_it_starts_at_the_threshold_and_ends_under_the_contract(judged: Judged, kit: Any) -> None:
    heard = judged(policy=kit.policy(ttft_s=0.9), seconds=600.0)
    seen = dynamic(heard, "ttft_s", 400.0, kit.T0)
    assert len(seen["slo_s"])
    assert (seen["dynamic_slo_s"] <= seen["slo_s"]).all()
    assert (seen["dynamic_slo_s"] >= np.minimum(seen["threshold_s"], seen["slo_s"]) - 1e-9).all()
    assert np.isnan(dynamic(heard, "tpot_s", 400.0, kit.T0)["dynamic_slo_s"]).all()  # nothing was agreed for it
    said = [v for v in heard.verdicts if v.sli == "ttft_s" and v.dynamic_slo_s is not None]
    assert said
    assert all(v.dynamic_slo_s <= v.slo_s for v in said)


def test_longer_prompts_loosen_it_by_at_most_three_eighths(judged: Judged, kit: Any) -> None:
    faults = [kit.Fault("long_prompts", range(4), AT, strength=7.0)]
    heard = judged(policy=kit.policy(ttft_s=60.0), seconds=900.0, faults=faults)
    seen = dynamic(heard, "ttft_s", AT + 120.0, kit.T0)
    ratio = seen["dynamic_slo_s"] / seen["threshold_s"]
    assert np.median(ratio) == pytest.approx(1.375, abs=0.02)
    assert ratio.max() <= 1.375 + 1e-6


def test_a_slow_service_does_not_loosen_it(judged: Judged, kit: Any) -> None:
    heard = judged(policy=kit.policy(ttft_s=60.0), seconds=900.0, faults=[kit.Fault("slow", [2], AT, strength=3.0)])
    seen = dynamic(heard, "ttft_s", AT + 120.0, kit.T0)
    bad = seen["status"] == "DEGRADED"
    assert bad.any()
    assert seen["dynamic_slo_s"][bad] == pytest.approx(seen["threshold_s"][bad])


def test_the_published_form_loosens_it_whenever_latencies_change(judged: Judged, kit: Any) -> None:
    policy = kit.policy(ttft_s=60.0, detection={"method": "seed", "kappa": 1.82})
    heard = judged(policy=policy, seconds=900.0, faults=[kit.Fault("slow", range(4), AT, strength=3.0)])
    seen = dynamic(heard, "ttft_s", AT + 120.0, kit.T0)
    assert seen["dynamic_slo_s"].max() == pytest.approx(60.0 * 1.375)


def test_a_drift_of_five_minutes_is_told_once_with_its_age(judged: Judged, kit: Any) -> None:
    heard = judged(policy=kit.policy(ttft_s=60.0), seconds=1500.0, faults=[kit.Fault("slow", [2], AT, strength=2.5)])
    told = [f for f in heard.findings if f.finding == "long_drift"]
    assert [f.node for f in told] == ["gpu-02"]
    begun = min(f.t for f in heard.findings if f.finding == "node_degradation")
    assert 280.0 <= told[0].t - begun <= 330.0
    assert told[0].evidence["drift_s"] == pytest.approx(300.0, abs=10.0)
    assert told[0].evidence["slowdown"] == pytest.approx(2.5, rel=0.15)
    assert "ttft_s" in told[0].evidence["series"]


def test_a_drift_of_four_minutes_is_not_told(judged: Judged, kit: Any) -> None:
    heard = judged(policy=kit.policy(ttft_s=60.0), seconds=1200.0, faults=[kit.Fault("slow", [2], AT, AT + 230.0, strength=2.5)])
    assert "node_degradation" in heard.words()
    assert "long_drift" not in heard.words()


def test_the_fleets_long_drift_is_one_finding(judged: Judged, kit: Any) -> None:
    policy = kit.policy(ttft_s=60.0, detection={"long_drift_s": 120.0})
    heard = judged(policy=policy, seconds=900.0, faults=[kit.Fault("slow", range(4), AT, strength=2.5)])
    assert [f.node for f in heard.findings if f.finding == "long_drift"] == [None]


def test_a_fleet_that_slows_down_node_after_node_has_one_long_drift(judged: Judged, kit: Any) -> None:
    faults = [kit.Fault("slow", [i], AT + 4.0 * i, strength=3.0) for i in range(12)]
    heard = judged(policy=kit.policy(ttft_s=60.0), nodes=12, seconds=1100.0, faults=faults)
    told = [f for f in heard.findings if f.finding == "long_drift"]
    assert [f.node for f in told] == [None]
    assert told[0].evidence["drift_s"] >= 300


def test_a_node_that_is_much_slower_than_a_slow_fleet_has_a_line_of_its_own(judged: Judged, kit: Any) -> None:
    faults = [kit.Fault("slow", range(8), AT, strength=1.5), kit.Fault("slow", [3], AT, strength=3.0)]
    heard = judged(policy=kit.policy(ttft_s=60.0), nodes=8, seconds=1000.0, faults=faults)
    assert {f.node for f in heard.findings if f.finding == "long_drift"} == {None, "gpu-03"}

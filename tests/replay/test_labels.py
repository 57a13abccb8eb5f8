"""Labels files and how trips and alarms are met with them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from schemas.errors import ConfigError
from schemas.results import Decision, Verdict
from streams.labels import Incident, LabelScore, load_labels
from streams.simulate.faults import parse_fault
from streams.simulate.fleet import Fleet, FleetSpec
from streams.simulate.output import labels_of


def decision(t: float, node: str, state: Any, capped: bool = False) -> Decision:
    return Decision(t=t, pool="p", scope="node", subject=node, state=state, version=(1, 0, 1), tx="x", capped=capped)


def verdict(t: float, node: str, status: Any, sli: str = "ttft_s") -> Verdict:
    return Verdict(t=t, pool="p", node=node, sli=sli, status=status, n=100)


def test_trips_are_met_by_node_and_time() -> None:
    score = LabelScore([Incident(100, 200, "p", "a"), Incident(300, 400, "p", "b"), Incident(500, 600, "p", None)])
    for result in (
        decision(50, "a", "OPEN"), decision(80, "a", "CLOSED"),  # false
        decision(130, "a", "OPEN"), decision(160, "a", "HALF_OPEN"), decision(170, "a", "OPEN"),  # hit, once
        decision(210, "a", "CLOSED"),
        decision(250, "a", "OPEN"),  # aftermath
        decision(350, "c", "OPEN"),  # false: another node
        decision(360, "b", "OPEN", capped=True),  # took nothing away
        decision(550, "d", "OPEN"),  # pool-wide incident: excused
    ):  # fmt: skip
        score.add(result)
    summary = score.summary()
    assert (summary["incidents"], summary["trips"], summary["false_trips"]) == (3, 5, 2)
    assert summary["false_trip_ratio"] == pytest.approx(0.4)
    assert (summary["intercepted"], summary["interception_ratio"], summary["median_delay_s"]) == (1, 0.5, 30.0)


def test_alarms_are_onsets_over_all_slis() -> None:
    score = LabelScore([Incident(100, 200), Incident(300, 400)])
    for result in (
        verdict(110, "a", "DEGRADED"), verdict(115, "a", "DEGRADED"), verdict(120, "a", "DEGRADED", "e2e_s"),
        verdict(130, "a", "OK"), verdict(140, "a", "OK", "e2e_s"), verdict(800, "a", "DEGRADED"),
    ):  # fmt: skip
        score.add(result)
    alarms = score.summary()["alarms"]
    assert (alarms["count"], alarms["false"], alarms["met_ratio"], alarms["median_delay_s"]) == (2, 1, 0.5, 10.0)


def test_nothing_to_divide_by_is_null() -> None:
    summary = LabelScore([]).summary()
    assert summary["false_trip_ratio"] is summary["interception_ratio"] is summary["median_delay_s"] is None


def test_what_simulate_writes_is_read(tmp_path: Path) -> None:
    import numpy as np

    from streams.simulate.router import Router
    from streams.simulate.workload import PoissonWorkload

    fleet = Fleet(
        FleetSpec("p", ("gpu-00", "gpu-01")), PoissonWorkload(1.0, np.random.default_rng(1)), np.random.default_rng(2),
        start_s=1000.0, faults=[parse_fault("slow_node@gpu-01:1m-2m")], router=Router("round_robin"),
    )  # fmt: skip
    path = tmp_path / "labels.json"
    path.write_bytes(labels_of([fleet], 600.0))
    assert load_labels(str(path), []) == [Incident(1060.0, 1120.0, "p", "gpu-01", "slow_node")]


def test_bare_list_and_nab_windows(tmp_path: Path) -> None:
    path = tmp_path / "labels.json"
    path.write_text(json.dumps([{"pool": None, "from": 1, "to": 2}]))
    assert load_labels(str(path), []) == [Incident(1, 2)]
    path.write_text(json.dumps({"real/a.csv": [["2014-03-14 03:31:00.000000", "2014-03-14 14:41:00"]], "real/b.csv": []}))
    assert load_labels(str(path), ["/data/real/a.csv"]) == [Incident(1394767860.0, 1394808060.0)]
    assert load_labels(str(path), ["x/real/b.csv"]) == []
    with pytest.raises(ConfigError, match=r"no windows for /data/unreal/a.csv; it has real/a.csv"):
        load_labels(str(path), ["/data/unreal/a.csv"])


@pytest.mark.parametrize("text", ["{", "[1]", '{"incidents": 5}', '[{"from": 1}]', '{"a.csv": [["yesterday", "today"]]}'])
def test_broken_labels_are_configuration_errors(tmp_path: Path, text: str) -> None:
    path = tmp_path / "labels.json"
    path.write_text(text)
    with pytest.raises(ConfigError, match=r"labels\.json: not"):
        load_labels(str(path), ["a.csv"])
    with pytest.raises(ConfigError, match="cannot be read"):
        load_labels(str(tmp_path / "none.json"), [])

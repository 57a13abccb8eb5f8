"""Aggregated series: told from requests by their cadence, judged row by row."""

from __future__ import annotations

import csv
import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from detectors.series import SeriesSettings
from schemas.policy import PoolPolicy
from schemas.policy_file import load_policy
from schemas.results import Finding, Result, Verdict, encode_line
from streams.commands.replay import judges_of
from streams.framing import EventFramer
from streams.replay import Replay
from streams.series import CadenceProbe, SeriesJudge
from streams.sources.inputs import Inputs

T0 = 1_767_225_600.0
MAP = ["ts=t,e2e_s=v"]


def values(n: int, seed: int = 1) -> list[float]:
    return (45.0 * np.exp(np.random.default_rng(seed).normal(0, 0.05, n))).tolist()


def table(path: Path, rows: Sequence[tuple[float, float]], header: tuple[str, ...] = ("t", "v")) -> str:
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(header)
        writer.writerows(rows)
    return str(path)


def replayed(path: str, mapping: list[str] = MAP, chunk_rows: int = 4096) -> tuple[list[Result], Replay, Inputs]:
    inputs, policy = Inputs([path], mapping, chunk_rows), load_policy(None)
    replay = Replay(judges_of(policy, inputs), 5.0)
    return list(replay.run(inputs.slices(5.0, 10.0))), replay, inputs


def degraded(results: list[Result]) -> list[float]:
    return [r.t for r in results if isinstance(r, Verdict) and r.status == "DEGRADED"]


def test_a_spike_is_degraded_and_the_rest_is_not(tmp_path: Path) -> None:
    series = values(2000)
    series[1500:1503] = [90.0, 120.0, 100.0]
    results, _, inputs = replayed(table(tmp_path / "a.csv", [(T0 + 300 * i, v) for i, v in enumerate(series)]))
    assert inputs.cadence_s == {"default": 300.0}
    assert T0 + 300 * 1500 in degraded(results)
    outside = [t for t in degraded(results) if not T0 + 300 * 1500 <= t <= T0 + 300 * 1560]
    assert len(outside) <= 3
    learning = [r for r in results if isinstance(r, Verdict) and r.status == "LEARNING"]
    assert len(learning) == 60
    assert any(isinstance(r, Finding) and r.finding == "node_degradation" and r.t == T0 + 300 * 1500 for r in results)


def test_a_drop_is_told_with_its_direction(tmp_path: Path) -> None:
    series = values(2000)
    series[1500:1503] = [20.0, 15.0, 18.0]
    results, _, _ = replayed(table(tmp_path / "a.csv", [(T0 + 300 * i, v) for i, v in enumerate(series)]))
    during = [r for r in results if T0 + 300 * 1500 <= r.t <= T0 + 300 * 1502]  # type: ignore[union-attr]
    assert {r.direction for r in during if isinstance(r, Verdict)} == {"faster"}
    assert "DEGRADED" in {r.status for r in during if isinstance(r, Verdict)}
    assert {r.evidence["direction"] for r in during if isinstance(r, Finding)} == {"faster"}


@pytest.mark.parametrize("chunk_rows", [1, 7])
def test_chunks_of_any_size_give_the_same_results(tmp_path: Path, chunk_rows: int) -> None:
    path = table(tmp_path / "a.csv", [(T0 + 300 * i, v) for i, v in enumerate(values(700))])
    assert [encode_line(r) for r in replayed(path, chunk_rows=chunk_rows)[0]] == [encode_line(r) for r in replayed(path)[0]]


def test_faster_rows_are_averaged_to_a_minute(tmp_path: Path) -> None:
    results, replay, inputs = replayed(table(tmp_path / "a.csv", [(T0 + 15 * i, v) for i, v in enumerate(values(400))]))
    assert inputs.cadence_s == {"default": 15.0}
    assert replay.ticks == 100
    assert sum(isinstance(r, Verdict) for r in results) == 100


def test_rows_at_random_times_are_requests(tmp_path: Path) -> None:
    times = T0 + np.cumsum(np.random.default_rng(1).exponential(30.0, 300))
    _, _, inputs = replayed(table(tmp_path / "a.csv", list(zip(times.tolist(), values(300), strict=True))))
    assert inputs.cadence_s == {}


def test_rows_with_tokens_and_fast_rows_are_requests() -> None:
    def lines(step_s: float, **fields: int) -> list[bytes]:
        event = {"kind": "request", "pool": "p", "node": "n", "outcome": "ok", "e2e_s": 1.0} | fields
        return [json.dumps(event | {"ts": T0 + step_s * i}).encode() for i in range(50)]

    for step_s, fields, expected in ((300, {}, {"p": 300.0}), (300, {"output_tokens": 5}, {}), (1, {}, {})):
        probe = CadenceProbe(50)
        probe.look(EventFramer().feed(lines(step_s, **fields)))
        assert probe.cadences_s() == expected


def test_rows_out_of_order_are_late_and_a_wild_one_hurts_nobody(tmp_path: Path) -> None:
    rows = [(T0 + 300 * i, v) for i, v in enumerate(values(300))]
    rows.insert(200, (T0 + 300 * 100 + 1, 45.0))
    rows.insert(250, (T0 + 1e7, 45.0))
    results, replay, _ = replayed(table(tmp_path / "a.csv", rows))
    assert replay.pool_summary()["default"]["late"] == 1
    assert sum(isinstance(r, Verdict) for r in results) == 301


def test_two_nodes_are_two_series(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    with path.open("w") as file:
        file.write("t,v,host\n")
        for i, (a, b) in enumerate(zip(values(400, 1), values(400, 2), strict=True)):
            file.write(f"{T0 + 300 * i},{a},h1\n{T0 + 300 * i},{b * (3 if i == 350 else 1)},h2\n")
    results, _, _ = replayed(str(path), ["ts=t,e2e_s=v,node=host"])
    bad = {(r.node, r.t) for r in results if isinstance(r, Verdict) and r.status == "DEGRADED"}
    assert ("h2", T0 + 300 * 350) in bad
    assert "h1" not in {node for node, _ in bad}


def test_the_policy_sets_the_detector() -> None:
    default = load_policy(None).for_pool("default")
    assert SeriesSettings(**default.series.model_dump()) == SeriesSettings()
    calm = PoolPolicy.model_validate({"series": {"false_alarms_per_day": 0.001, "min_rows": 100}})
    judge = SeriesJudge("p", calm, 300.0)
    assert judge.settings == SeriesSettings(false_alarms_per_day=0.001, min_rows=100)


def test_a_wanted_rate_of_false_alarms_is_heard_in_the_verdicts(tmp_path: Path) -> None:
    path = table(tmp_path / "a.csv", [(T0 + 300 * i, v) for i, v in enumerate(values(2500))])
    alarms = []
    for rate in (20.0, 0.01):
        policy = tmp_path / f"{rate}.yaml"
        pools = f"{{'*': {{series: {{false_alarms_per_day: {rate}}}}}}}"
        policy.write_text(f"apiVersion: slodrift/v1\nkind: Policy\nextends: default\npools: {pools}\n")
        inputs = Inputs([path], MAP)
        replay = Replay(judges_of(load_policy(str(policy)), inputs), 5.0)
        alarms.append(len(degraded(list(replay.run(inputs.slices(5.0, 10.0))))))
    assert alarms[0] > 30
    assert alarms[1] <= 2

"""Small made-up incidents through the whole replay: what must be said, and what never.

Scenario files of the same format can be run too: SLODRIFT_SCENARIOS names a folder with NAME.jsonl.gz, NAME.policy.yaml and
NAME.expect.json; SLODRIFT_DATA the folder of the public data sets.
"""

from __future__ import annotations

import json
import os
import random
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from schemas.policy_file import Policy, load_policy, parse_policy
from schemas.results import encode_line
from streams.commands.replay import judges_of, lateness_s_of, slice_s_of
from streams.labels import LabelScore, load_labels
from streams.replay import Replay
from streams.sources.inputs import Inputs

T0 = 1_767_225_600.0
WARM_S, END_S = 600.0, 840.0
POOL = "chat-7b/eu/l40s"
POLICY = """\
apiVersion: slodrift/v1
kind: Policy
extends: default
pools:
  "*":
    mode: enforce
    slo:
      ttft_s: {threshold: 1.0, objective: 0.99}
      e2e_s: {threshold: 30.0, objective: 0.99}
"""
Line = dict[str, Any]
Alter = Callable[[Line, float, np.random.Generator], Line | None]


def fleet(alter: Alter, nodes: int = 4, rps: float = 6.0, seed: int = 1, end_s: float = END_S) -> list[bytes]:
    """Requests and node states of a pool, in order of time; `alter` changes or drops each, given the second of the story."""
    rng = np.random.default_rng(seed)
    names = [f"gpu-{i:02d}" for i in range(nodes)]
    events: list[tuple[float, Line]] = []
    for name in names:
        total = 0
        for second in range(int(end_s)):
            total += int(rng.integers(50, 200))
            events.append(
                (
                    second,
                    {
                        "kind": "node",
                        "pool": POOL,
                        "node": name,
                        "boot_id": "b",
                        "running": 3,
                        "waiting": 0,
                        "generated_tokens_total": total,
                    },
                )
            )
        times = np.cumsum(rng.exponential(1 / rps, int(end_s * rps * 1.3)))
        for at in times[times < end_s]:
            prompt, output = int(np.exp(rng.normal(6.2, 0.8))) + 1, int(np.exp(rng.normal(4.6, 0.6))) + 2
            ttft = (0.05 + 1.2e-4 * prompt) * np.exp(rng.normal(0, 0.25))
            tpot = 0.018 * np.exp(rng.normal(0, 0.1))
            events.append((float(at), {
                "kind": "request", "pool": POOL, "node": name, "request_id": f"{name}-{len(events)}", "outcome": "ok",
                "prompt_tokens": prompt, "output_tokens": output, "cached_tokens": 0, "queue_s": 0.004,
                "ttft_s": round(ttft, 6), "tpot_s": round(tpot, 6), "e2e_s": round(ttft + tpot * output, 6),
            }))  # fmt: skip
    lines = []
    for at, event in sorted(events, key=lambda pair: pair[0]):
        altered = alter({**event, "ts": round(T0 + at, 4)}, at, rng)
        if altered is not None:
            lines.append(json.dumps(altered).encode())
    return lines


def slower(event: Line, factor: float) -> Line:
    return event | {name: event[name] * factor for name in ("ttft_s", "tpot_s", "e2e_s") if name in event}


def outputs(folder: Path, lines: Iterable[bytes], policy: Policy | None = None, chunk_rows: int = 4096) -> list[bytes]:
    """Result lines of a replay, without the summary."""
    path = folder / "events.jsonl"
    path.write_bytes(b"\n".join(lines))
    return replayed(Inputs([str(path)], chunk_rows=chunk_rows), policy or parse_policy(POLICY))


def replayed(inputs: Inputs, policy: Policy) -> list[bytes]:
    replay = Replay(judges_of(policy, inputs), slice_s_of(policy), lateness_s_of(policy))
    return [encode_line(result) for result in replay.run(inputs.slices(slice_s_of(policy), lateness_s_of(policy)))]


def decoded(lines: Iterable[bytes]) -> list[Line]:
    return [msgspec.json.decode(line) for line in lines]


def opened(results: Iterable[Line]) -> list[tuple[str, float]]:
    return [(r["subject"], r["t"] - T0) for r in results if r["kind"] == "decision" and r["state"] == "OPEN"]


def statuses(results: Iterable[Line], node: str) -> set[str]:
    return {r["status"] for r in results if r["kind"] == "verdict" and r["node"] == node}


def slow_node(event: Line, at: float, rng: np.random.Generator) -> Line:
    return slower(event, 6.0) if event["node"] == "gpu-02" and at >= WARM_S else event


def test_slow_node_is_opened_alone_and_soon(tmp_path: Path) -> None:
    opens = opened(decoded(outputs(tmp_path, fleet(slow_node))))
    assert {node for node, _ in opens} == {"gpu-02"}
    assert WARM_S < opens[0][1] <= WARM_S + 60


def test_faster_node_is_left_alone(tmp_path: Path) -> None:
    results = decoded(outputs(tmp_path, fleet(lambda e, at, _: slower(e, 0.5) if e["node"] == "gpu-02" and at >= WARM_S else e)))
    assert not opened(results)
    assert "DEGRADED" not in statuses(results, "gpu-02")


@pytest.mark.parametrize("outcome", ["client_error", "cancelled", "backpressure"])
def test_outcomes_that_are_not_the_nodes_fault_open_nothing(tmp_path: Path, outcome: str) -> None:
    def alter(event: Line, at: float, rng: np.random.Generator) -> Line:
        if event["kind"] == "request" and event["node"] == "gpu-01" and at >= WARM_S and rng.random() < 0.5:
            return {name: value for name, value in event.items() if not name.endswith("_s")} | {"outcome": outcome}
        return event

    assert not opened(decoded(outputs(tmp_path, fleet(alter))))


@pytest.mark.parametrize("outcome", ["server_error", "empty"])
def test_failing_node_is_opened(tmp_path: Path, outcome: str) -> None:
    def alter(event: Line, at: float, rng: np.random.Generator) -> Line:
        if event["kind"] == "request" and event["node"] == "gpu-01" and at >= WARM_S and rng.random() < 0.4:
            return {name: value for name, value in event.items() if not name.endswith("_s")} | {"outcome": outcome}
        return event

    opens = opened(decoded(outputs(tmp_path, fleet(alter))))
    assert {node for node, _ in opens} == {"gpu-01"}
    assert WARM_S < opens[0][1] <= WARM_S + 60


def test_slow_fleet_is_a_finding_and_opens_nothing(tmp_path: Path) -> None:
    results = decoded(outputs(tmp_path, fleet(lambda e, at, _: slower(e, 6.0) if at >= WARM_S else e)))
    assert not opened(results)
    found = {r["finding"] for r in results if r["kind"] == "finding" and r["t"] >= T0 + WARM_S}
    assert found & {"fleet_degradation", "deploy_regression"}


def test_never_more_nodes_away_than_the_cap(tmp_path: Path) -> None:
    bad = {"gpu-01", "gpu-04"}
    results = decoded(
        outputs(tmp_path, fleet(lambda e, at, _: slower(e, 6.0) if e["node"] in bad and at >= WARM_S else e, nodes=10, rps=4))
    )
    away: set[str] = set()
    worst = 0
    for result in results:
        if result["kind"] == "decision" and result["scope"] == "node":
            (away.add if result["state"] in ("OPEN", "HALF_OPEN") and not result["capped"] else away.discard)(result["subject"])
            worst = max(worst, len(away))
    assert worst == 1


def test_quiet_node_is_insufficient_data(tmp_path: Path) -> None:
    def alter(event: Line, at: float, rng: np.random.Generator) -> Line | None:
        return None if event["node"] == "gpu-03" and event["kind"] == "request" and rng.random() < 0.99 else event

    results = decoded(outputs(tmp_path, fleet(alter)))
    assert not opened(results)
    assert statuses(results, "gpu-03") & {"INSUFFICIENT_DATA", "LEARNING"}
    assert "DEGRADED" not in statuses(results, "gpu-03")


def test_silent_node_is_stale_and_not_opened(tmp_path: Path) -> None:
    results = decoded(outputs(tmp_path, fleet(lambda e, at, _: None if e["node"] == "gpu-00" and at >= WARM_S else e)))
    assert "STALE" in statuses(results, "gpu-00")
    assert not opened(results)


def test_stalled_node_is_opened_and_idle_node_is_not(tmp_path: Path) -> None:
    frozen: dict[str, int] = {}

    def alter(event: Line, at: float, rng: np.random.Generator) -> Line | None:
        if event["node"] not in ("gpu-01", "gpu-02") or at < WARM_S:
            return event
        if event["kind"] == "request":
            return None
        total = frozen.setdefault(event["node"], event["generated_tokens_total"])
        return event | {"generated_tokens_total": total, "running": 3 if event["node"] == "gpu-01" else 0}

    results = decoded(outputs(tmp_path, fleet(alter)))
    assert "STALLED" in statuses(results, "gpu-01")
    assert "IDLE" in statuses(results, "gpu-02")
    assert {node for node, _ in opened(results)} == {"gpu-01"}


RUBBISH = [
    b'{"kind":"request","ts":1767226800,"pool":"p","node":"n","ttft_s":NaN}', b'{"kind":"request"', b"\xff\xfe\x00", b"[]", b"7",
    json.dumps({"kind": "request", "ts": T0 + 400, "pool": POOL, "node": "gpu-00", "outcome": "ok", "ttft_s": -1}).encode(),
    json.dumps({"kind": "request", "ts": T0 + 400, "pool": POOL, "node": "gpu-00", "outcome": "banana", "ttft_s": 1}).encode(),
    json.dumps({"kind": "request", "ts": T0 + 86400, "pool": POOL, "node": "gpu-00", "outcome": "ok", "ttft_s": 1}).encode(),
]  # fmt: skip


def test_rubbish_is_counted_and_changes_nothing(tmp_path: Path) -> None:
    lines = fleet(slow_node)
    with_rubbish = lines.copy()
    for i, bad in enumerate(RUBBISH * 5):
        with_rubbish.insert(2000 + 311 * i, bad)
    clean, dirty = outputs(tmp_path, lines), outputs(tmp_path, with_rubbish)
    assert [line for line in dirty if b'"kind":"rejected"' not in line] == clean
    refused: dict[str, int] = {}
    for result in decoded(dirty):
        if result["kind"] == "rejected":
            refused[result["reason"]] = refused.get(result["reason"], 0) + result["count"]
    assert refused == {
        "nan_or_inf": 5, "bad_json": 5, "bad_utf8": 5, "bad_type": 10, "negative_latency": 5, "unknown_outcome": 5, "future": 5,
    }  # fmt: skip


@pytest.fixture(scope="module")
def story() -> list[bytes]:
    """A slow node, with rubbish in between."""
    lines = fleet(slow_node, end_s=780.0)
    for i, bad in enumerate(RUBBISH):
        lines.insert(1000 + 1999 * i, bad)
    return lines


def test_same_input_same_bytes(story: list[bytes], tmp_path: Path) -> None:
    first = outputs(tmp_path, story)
    assert any(b'"state":"OPEN"' in line for line in first)
    assert outputs(tmp_path, story) == first


@pytest.mark.parametrize("chunk_rows", [1, 7])
def test_chunks_of_any_size_give_the_same_bytes(story: list[bytes], tmp_path: Path, chunk_rows: int) -> None:
    assert outputs(tmp_path, story, chunk_rows=chunk_rows) == outputs(tmp_path, story)


def test_duplicates_and_order_within_the_lateness_change_nothing(tmp_path: Path) -> None:
    lines = fleet(slow_node, end_s=780.0)
    rng = random.Random(4)
    keyed = [(json.loads(line)["ts"] + rng.uniform(0, 5), line) for line in lines]
    keyed += [(when + rng.uniform(0, 5), line) for when, line in keyed if b"request_id" in line and rng.random() < 0.05]
    shuffled = [line for _, line in sorted(keyed, key=lambda pair: pair[0])]
    assert len(shuffled) > len(lines)
    assert outputs(tmp_path, shuffled) == outputs(tmp_path, lines)


def test_files_of_one_recording_are_merged(story: list[bytes], tmp_path: Path) -> None:
    requests, states = [line for line in story if b'"node",' not in line], [line for line in story if b'"node",' in line]
    whole = outputs(tmp_path, story)
    paths = [tmp_path / "requests.jsonl", tmp_path / "states.jsonl"]
    for path, lines in zip(paths, (requests, states), strict=True):
        path.write_bytes(b"\n".join(lines))
    merged = replayed(Inputs([str(path) for path in paths]), parse_policy(POLICY))
    assert [line for line in merged if b'"decision"' in line] == [line for line in whole if b'"decision"' in line]


SCENARIOS = Path(os.environ.get("SLODRIFT_SCENARIOS", "/nonexistent"))
DATA = Path(os.environ.get("SLODRIFT_DATA", "/nonexistent"))


def has(line: Line, wanted: Line) -> bool:
    return all(line.get(k) in v if isinstance(v, list) else line.get(k) == v for k, v in wanted.items())


def fault(lines: list[Line], expectation: Line) -> str:
    """What is wrong: `must` and `never` name fields of a line in a time range, `open_at_most` counts nodes."""
    inside = [x for x in lines if expectation.get("from", 0.0) <= x.get("t", 0.0) <= expectation.get("to", float("inf"))]
    if "must" in expectation:
        return "" if any(has(x, expectation["must"]) for x in inside) else f"missing: {expectation}"
    if "never" in expectation:
        return next((f"unwanted: {x}" for x in inside if has(x, expectation["never"])), "")
    away: set[tuple[str, str]] = set()
    for x in lines:
        if x["kind"] == "decision" and x["scope"] == expectation["scope"]:
            (away.add if x["state"] in ("OPEN", "HALF_OPEN") else away.discard)((x["pool"], x["subject"]))
            if len(away) > expectation["open_at_most"]:
                return f"{len(away)} away at {x['t']}"
    return ""


@pytest.mark.data
@pytest.mark.skipif(not SCENARIOS.is_dir(), reason="SLODRIFT_SCENARIOS names no folder")
@pytest.mark.parametrize("name", sorted(p.name.split(".")[0] for p in SCENARIOS.glob("*.expect.json")))
def test_scenario_file(name: str) -> None:
    lines = decoded(replayed(Inputs([str(SCENARIOS / f"{name}.jsonl.gz")]), load_policy(SCENARIOS / f"{name}.policy.yaml")))
    spec = json.loads((SCENARIOS / f"{name}.expect.json").read_text())
    assert [f for e in spec["expect"] if (f := fault(lines, e))] == []


@pytest.mark.data
@pytest.mark.skipif(not DATA.is_dir(), reason="SLODRIFT_DATA names no folder")
def test_recorded_latency_of_a_failing_service() -> None:
    """NAB's ec2_request_latency_system_failure: all three labelled windows are DEGRADED, little else is."""
    name = "realKnownCause/ec2_request_latency_system_failure.csv"
    inputs = Inputs([str(DATA / "nab/data" / name)], ["ts=timestamp,ttft_s=value"])
    score = LabelScore(load_labels(str(DATA / "nab/labels/combined_windows.json"), [str(DATA / "nab/data" / name)]))
    policy = load_policy(None)
    replay = Replay(judges_of(policy, inputs), slice_s_of(policy), lateness_s_of(policy))
    for result in replay.run(inputs.slices(slice_s_of(policy), lateness_s_of(policy))):
        score.add(result)
    alarms = score.summary()["alarms"]
    assert alarms["met"] == 3
    assert alarms["false"] <= 3

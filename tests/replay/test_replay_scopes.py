"""`slodrift replay` of simulated incidents, one for each scope: what opens, and nothing else."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from streams.cli import main
from streams.simulate.faults import parse_fault
from streams.simulate.fleet import Fleet, FleetSpec
from streams.simulate.output import encode_event
from streams.simulate.workload import PoissonWorkload

START_S = 1767225600.0
FAULT_S = 420
NODES = tuple(f"gpu-{i:02d}" for i in range(4))
POLICY = """
apiVersion: slodrift/v1
kind: Policy
extends: default
pools:
  "*":
    mode: enforce
    slo:
      ttft_s: {threshold: 1.0, objective: 0.99}
    breaker:
      scopes: [node, request, session, pool]
      actions:
        request: {action: fallback, fallback: chat-8b/eu/l4, admit_ratio: 0.1}
"""


def replayed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], fault: str, minutes: float = 9.5, rate: float = 12.0
) -> list[dict[str, Any]]:
    arrivals, rng = np.random.default_rng(11).spawn(2)
    adapters = (None, None, None, None, None, None, "lora-a", "lora-b", "lora-c", "lora-d")
    spec = FleetSpec("chat/eu/h100", NODES, adapters=adapters, gpu=False)
    fleet = Fleet(spec, PoissonWorkload(rate, arrivals), rng, start_s=START_S, faults=[parse_fault(f"{fault}:{FAULT_S}s-")])
    events, policy = tmp_path / "events.jsonl", tmp_path / "policy.yaml"
    events.write_bytes(b"".join(encode_event(e) + b"\n" for e in fleet.advance(60 * minutes)))
    policy.write_text(POLICY)
    with pytest.raises(SystemExit) as ended:
        main(["replay", str(events), "--policy", str(policy), "--json"])
    assert ended.value.code in (0, 1)
    return [json.loads(line) for line in capsys.readouterr().out.splitlines()]


@pytest.mark.parametrize(
    ("fault", "scope", "subject"),
    [
        ("slow_adapter@*", "request", "request:adapter:lora-a"),
        ("tenant_errors@*", "request", "request:tenant:t-1"),
        ("poison_session@*", "session", "session:"),
        pytest.param("slow_node=5@gpu-02", "node", "gpu-02", marks=pytest.mark.slow),
        pytest.param("fleet_slow=6@*", "pool", "pool:", marks=pytest.mark.slow),
    ],
)
def test_one_scope_opens_for_one_fault(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], fault: str, scope: str, subject: str
) -> None:
    decisions = [line for line in replayed(tmp_path, capsys, fault) if line["kind"] == "decision"]
    assert decisions
    assert {d["scope"] for d in decisions} == {scope}
    assert all(d["subject"].startswith(subject) for d in decisions)
    assert len({d["subject"] for d in decisions}) == 1
    assert START_S + FAULT_S < decisions[0]["t"] <= START_S + FAULT_S + 100
    if scope == "request":
        assert (decisions[0]["action"], decisions[0]["fallback"], decisions[0]["admit_ratio"]) == (
            "fallback",
            "chat-8b/eu/l4",
            0.1,
        )
    else:
        assert "fallback" not in decisions[0]


@pytest.mark.slow
@pytest.mark.parametrize("fault", ["mix_shift=3@*", "client_errors=0.5@gpu-01", "surge=1.5@*"])
def test_nothing_opens_where_nothing_is_at_fault(tmp_path: Path, capsys: pytest.CaptureFixture[str], fault: str) -> None:
    assert [line for line in replayed(tmp_path, capsys, fault) if line["kind"] == "decision"] == []


@pytest.mark.slow
def test_adapters_that_all_suffer_are_the_switching(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lines = replayed(tmp_path, capsys, "adapter_switch@*")
    assert any(line["kind"] == "finding" and line["cause"] == "lora_switch" for line in lines)
    assert not any(line["kind"] == "decision" and line["scope"] == "node" for line in lines)

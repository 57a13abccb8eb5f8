"""Two policies over the same events."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from schemas.results import Decision, Verdict
from streams.cli import main
from streams.labels import Incident
from streams.replay_compare import Tally

T0 = 1_767_225_600.0
POLICY = """\
apiVersion: slodrift/v1
kind: Policy
extends: default
pools:
  "*":
    mode: enforce
    slo:
      ttft_s: {{threshold: {threshold}, objective: 0.99}}
"""


def decision(t: float, node: str, state: Any) -> Decision:
    return Decision(t=t, pool="p", scope="node", subject=node, state=state, version=(1, 0, 1), tx="x")


def test_tally_counts_trips_alarms_and_time_away() -> None:
    tally, other = Tally("a.yaml", "v1", [Incident(100, 200, "p", "a")]), Tally("b.yaml", "v2")
    for result in (
        decision(110, "a", "OPEN"), decision(140, "a", "HALF_OPEN"), decision(150, "a", "OPEN"), decision(180, "a", "CLOSED"),
        Verdict(t=185, pool="p", node="a", sli="ttft_s", status="DEGRADED", n=1),
        Verdict(t=186, pool="p", node="a", sli="e2e_s", status="DEGRADED", n=1),
        decision(300, "b", "OPEN"), decision(310, "c", "FORCED_OPEN"),
        Verdict(t=350, pool="p", node="a", sli="ttft_s", status="OK", n=1),
    ):  # fmt: skip
        tally.add(result)
    other.add(decision(130, "a", "OPEN"))
    summary = tally.summary(other)
    assert (summary["trips"], summary["alarms"]) == (2, 1)
    assert summary["node_away_s"] == 70 + 50 + 40
    assert summary["trips_only_here"] == [{"t": 300, "pool": "p", "node": "b"}]
    assert summary["labels"]["intercepted"] == 1
    assert other.summary(tally)["trips_only_here"] == []
    assert other.summary()["labels"] == {}


def replay(capfd: pytest.CaptureFixture[str], *args: str) -> str:
    with pytest.raises(SystemExit) as done:
        main(["replay", *args])
    assert done.value.code in (0, None)
    return capfd.readouterr().out


def test_against_another_policy(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """A node that becomes three times slower hurts under an SLO of 0.3 s and not under one of 30 s."""
    rng = np.random.default_rng(1)
    events = tmp_path / "events.jsonl"
    with events.open("w") as file:
        for i, at in enumerate(np.cumsum(rng.exponential(1 / 24, 12_000))):
            ttft = 0.15 * np.exp(rng.normal(0, 0.2)) * (3 if i % 4 == 1 and at > 400 else 1)
            event = {"kind": "request", "ts": T0 + at, "pool": "p", "node": f"n{i % 4}", "outcome": "ok", "ttft_s": ttft}
            file.write(json.dumps(event) + "\n")
    strict, loose = tmp_path / "strict.yaml", tmp_path / "loose.yaml"
    strict.write_text(POLICY.format(threshold=0.3))
    loose.write_text(POLICY.format(threshold=30))
    alone = replay(capfd, str(events), "--json", "--policy", str(strict)).splitlines()
    compared = replay(capfd, str(events), "--json", "--policy", str(strict), "--against", str(loose)).splitlines()
    assert compared[:-1] == alone[:-1], "a second policy changes nothing for the first"
    against = json.loads(compared[-1])["against"]
    assert json.loads(alone[-1])["against"] == {}
    assert against["this"]["trips"] >= 1
    assert against["other"]["trips"] == 0
    assert {trip["node"] for trip in against["this"]["trips_only_here"]} == {"n1"}
    table = replay(capfd, str(events), "--policy", str(strict), "--against", str(loose))
    assert "node time away" in table

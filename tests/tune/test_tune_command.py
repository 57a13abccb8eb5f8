"""`slodrift tune` as it is called: calm, wobbling, unhealthy and short histories."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from schemas.policy_file import load_policy
from streams.cli import main

T0 = 1_767_225_600


def write_history(
    path: Path,
    *,
    minutes: float = 20.0,
    per_s: float = 4.0,
    wobble: float = 0.0,
    slow_from_s: float | None = None,
    nodes: int = 3,
    pool: str = "p",
) -> str:
    """Requests of some nodes at a rate each; with `wobble` (nats) all are slower for the last two minutes of every hour."""
    rng = np.random.default_rng(11)
    n = rng.poisson(per_s * nodes * 60 * minutes)
    at = np.sort(rng.uniform(0, 60 * minutes, n))
    node = rng.integers(0, nodes, n)
    seconds = 0.1 * rng.lognormal(0, 0.3, n)
    seconds *= np.exp(np.where(at % 3600 > 3480, wobble, 0.0))
    if slow_from_s is not None:
        seconds[(node == 1) & (at >= slow_from_s)] *= 4.0
    with gzip.open(path, "wt") as file:
        for t, i, s in zip(at.tolist(), node.tolist(), seconds.tolist(), strict=True):
            event = {"kind": "request", "ts": T0 + t, "pool": pool, "node": f"n{i}", "outcome": "ok", "ttft_s": s}
            file.write(json.dumps(event) + "\n")
    return str(path)


def call(capfd: pytest.CaptureFixture[str], *args: str, rate: str = "0.1") -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as done:
        main(["tune", *args, "--false-alarms-per-day", rate])
    out, err = capfd.readouterr()
    return int(done.value.code or 0), out, err


def proposals(out: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(out)
    return found


def test_calm_history_gives_the_wanted_rate(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    pool = "chat-70b/[eu]*"
    path = write_history(tmp_path / "calm.jsonl.gz", pool=pool)
    tuned = tmp_path / "tuned.yaml"
    code, out, _ = call(capfd, path, "--out", str(tuned))
    assert (code, out) == (0, "")
    policy = load_policy(tuned)
    assert policy.for_pool(pool).detection.false_alarms_per_day == 0.1
    assert policy.for_pool(pool).detection.wobble_floor_ratio == 0.02
    assert policy.entries_for("chat-70b/[eu]x") == ()  # the name is no glob
    text = tuned.read_text()
    assert "too short to show the wanted rate by itself, 30 node-days" in text
    assert max(map(len, text.splitlines())) <= 130


def test_enough_history_shows_the_rate(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    path = write_history(tmp_path / "calm.jsonl.gz")
    code, out, _ = call(capfd, path, "--json", rate="200")
    (found,) = proposals(out).values()
    assert code == 0
    assert found["supported"]
    assert 0.03 < found["node_days"] < 0.05
    assert found["rate"]["bound_per_day"] == pytest.approx(2.9957 / found["node_days"], rel=1e-3)


def test_wobble_widens_the_band(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    path = write_history(tmp_path / "wobble.jsonl.gz", wobble=0.35, minutes=140.0, per_s=1.0)
    code, out, _ = call(capfd, path, "--json")
    (found,) = proposals(out).values()
    assert code == 0
    assert len(found["trials"]) > 1
    assert found["trials"][0]["now"]["alarms"] > 0
    assert found["wobble_floor_ratio"] > 0.03
    assert found["rate"]["alarms"] == 0


def test_an_incident_is_no_healthy_history(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    path = write_history(tmp_path / "sick.jsonl.gz", slow_from_s=900.0)
    code, out, err = call(capfd, path)
    assert code == 1
    assert "nothing proposed" in err
    assert "name incidents with --labels" in err
    policy = tmp_path / "tuned.yaml"
    policy.write_text(out)
    assert load_policy(policy).pools == {}
    assert "n1 ttft_s" in out
    labels = tmp_path / "labels.json"
    labels.write_text(json.dumps([{"pool": "p", "node": "n1", "fault": "slow", "from": T0 + 890, "to": T0 + 1200}]))
    code, out, err = call(capfd, path, "--labels", str(labels))
    assert (code, err) == (0, "")
    policy.write_text(out)
    assert load_policy(policy).for_pool("p").detection.false_alarms_per_day == 0.1


def test_too_short_a_history(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    code, out, err = call(capfd, write_history(tmp_path / "short.jsonl.gz", minutes=1.0))
    assert code == 1
    assert "no series has learned a baseline" in err
    assert "pools: {}" in out


@pytest.mark.parametrize(
    ("args", "rate", "told"),
    [(["-"], "0.1", "write it to a file"), (["x"], "0", "a rate above 0"), (["missing.jsonl"], "0.1", "cannot be read")],
)
def test_wrong_calls(args: list[str], rate: str, told: str, capfd: pytest.CaptureFixture[str]) -> None:
    code, _, err = call(capfd, *args, rate=rate)
    assert code in (2, 3)
    assert told in err


def test_the_published_rule_is_not_tuned(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    policy = tmp_path / "seed.yaml"
    policy.write_text("apiVersion: slodrift/v1\nkind: Policy\nextends: seed\n")
    code, _, err = call(capfd, write_history(tmp_path / "h.jsonl.gz", minutes=1.0), "--policy", str(policy))
    assert code == 2
    assert "method: evidence" in err

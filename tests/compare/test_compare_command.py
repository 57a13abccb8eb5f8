"""`slodrift compare` as it is called, and what it makes of equal, slower and differently loaded recordings."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from streams.cli import main

POLICY = """apiVersion: slodrift/v1
kind: Policy
pools:
  "*":
    slo:
      ttft_s: {threshold: 0.5}
"""


def recording(path: Path, seed: int, *, n: int = 4000, slower: float = 1.0, longer: float = 1.0, errors: float = 0.0,
              pool: str = "p") -> str:  # fmt: skip
    rng = np.random.default_rng(seed)
    ts = 1_767_225_600 + np.sort(rng.uniform(0, 1200, n))
    tokens = np.maximum((longer * rng.lognormal(6.0, 0.8, n)).astype(int), 1)
    ttft = slower * (0.02 + 2e-4 * tokens) * rng.lognormal(0, 0.2, n)
    failed = rng.random(n) < errors
    with gzip.open(path, "wt") as file:
        for i in range(n):
            event = {
                "kind": "request", "ts": float(ts[i]), "pool": pool, "node": f"n{i % 3}", "prompt_tokens": int(tokens[i]),
                "outcome": "server_error" if failed[i] else "ok", "ttft_s": None if failed[i] else float(ttft[i]),
            }  # fmt: skip
            file.write(json.dumps(event) + "\n")
    return str(path)


def call(capfd: pytest.CaptureFixture[str], *args: str) -> tuple[int, dict[str, Any], str]:
    with pytest.raises(SystemExit) as done:
        main(["compare", *args, "--json"])
    out, err = capfd.readouterr()
    return int(done.value.code or 0), json.loads(out) if out else {}, err


def rows(result: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {row["measure"]: row for row in result["pools"][0]["measures"]}


def test_equal_recordings_are_not_outside(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    policy = tmp_path / "policy.yaml"
    policy.write_text(POLICY)
    a, b = recording(tmp_path / "a.jsonl.gz", 1), recording(tmp_path / "b.jsonl.gz", 2)
    code, result, _ = call(capfd, a, b, "--policy", str(policy), "--tolerance", "p50=0.15,p95=0.25,p99=0.6,slo=0.03")
    assert code == 0
    assert {name: row["verdict"] for name, row in rows(result).items() if row["verdict"] != "inside"} == {}
    assert set(rows(result)) == {"ttft_s.p50", "ttft_s.p95", "ttft_s.p99", "error_ratio", "empty_ratio", "slo.ttft_s"}
    for row in rows(result).values():
        assert row["change_low"] <= row["change"] <= row["change_high"]


def test_quantiles_are_those_of_the_values(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    a = recording(tmp_path / "a.jsonl.gz", 1)
    with gzip.open(a) as file:
        values = [json.loads(line)["ttft_s"] for line in file]
    _, result, _ = call(capfd, a, a)
    for q, name in ((0.5, "p50"), (0.95, "p95"), (0.99, "p99")):
        exact = float(np.quantile(values, q, method="inverted_cdf"))
        assert rows(result)[f"ttft_s.{name}"]["a"] == pytest.approx(exact, rel=1e-3)
        assert rows(result)[f"ttft_s.{name}"]["change"] == 0.0


def test_a_slower_service_is_outside_and_exits_1(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    a, b = recording(tmp_path / "a.jsonl.gz", 1), recording(tmp_path / "b.jsonl.gz", 2, slower=1.3)
    code, result, _ = call(capfd, a, b)
    row = rows(result)["ttft_s.p50"]
    assert code == 1
    assert row["verdict"] == "outside"
    assert row["change_low"] > 0.05
    assert row["service_low"] < 0.3 < row["service_high"]
    assert call(capfd, b, a)[0] == 0  # faster is not worse


def test_longer_prompts_are_the_workload_not_the_service(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    a, b = recording(tmp_path / "a.jsonl.gz", 1), recording(tmp_path / "b.jsonl.gz", 2, longer=1.6)
    code, result, _ = call(capfd, a, b)
    row = rows(result)["ttft_s.p50"]
    assert code == 1
    assert row["change"] > 0.3
    assert row["service_low"] < 0 < row["service_high"]
    assert abs(row["service"]) < 0.08
    assert (1 + row["service"]) * (1 + row["workload"]) == pytest.approx(1 + row["change"], rel=1e-4)
    loose = ("--tolerance", "p50=0.15,p95=0.25,p99=0.6,slo=0.03")
    assert call(capfd, a, b, *loose)[0] == 1
    assert call(capfd, a, b, *loose, "--adjusted")[0] == 0


def test_requests_like_none_before_accuse_nobody(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    a, b = recording(tmp_path / "a.jsonl.gz", 1), recording(tmp_path / "b.jsonl.gz", 2, longer=100.0)
    code, result, _ = call(capfd, a, b, "--adjusted")
    row = rows(result)["ttft_s.p95"]
    assert code == 0
    assert row["uncovered_ratio"] > 0.5
    assert (row["service"], row["verdict"]) == (None, "unclear")


def test_errors_and_attainment(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    policy = tmp_path / "policy.yaml"
    policy.write_text(POLICY)
    a, b = recording(tmp_path / "a.jsonl.gz", 1), recording(tmp_path / "b.jsonl.gz", 2, errors=0.03)
    code, result, _ = call(capfd, a, b, "--policy", str(policy))
    found = rows(result)
    assert code == 1
    assert found["error_ratio"]["verdict"] == found["slo.ttft_s"]["verdict"] == "outside"
    assert found["slo.ttft_s"]["change"] < -0.02
    assert found["empty_ratio"]["verdict"] == "inside"


def test_too_little_to_tell(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    a, b = recording(tmp_path / "a.jsonl.gz", 1, n=40), recording(tmp_path / "b.jsonl.gz", 2, n=40, slower=1.1)
    code, result, _ = call(capfd, a, b)
    assert code == 0
    assert rows(result)["ttft_s.p99"]["verdict"] == "unclear"
    assert rows(result)["ttft_s.p99"]["change_high"] is None
    assert call(capfd, a, b, "--strict")[0] == 1


def test_pools_of_other_names(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    a, b = recording(tmp_path / "a.jsonl.gz", 1, n=100), recording(tmp_path / "b.jsonl.gz", 2, n=100, pool="q")
    _, result, _ = call(capfd, a, b)
    assert (result["pools"][0]["pool"], result["pools"][0]["pool_b"]) == ("p", "q")
    both = tmp_path / "both.jsonl"
    both.write_bytes(gzip.decompress(Path(a).read_bytes()) + gzip.decompress(Path(b).read_bytes()))
    _, result, err = call(capfd, str(both), b)
    assert [pool["pool"] for pool in result["pools"]] == ["q"]
    assert result["only_a"] == ["p"]
    assert "pool p is in this recording alone" in err


@pytest.mark.parametrize(
    ("text", "hint"),
    [("p95=5%", "5 % is 0.05"), ("error_rate=0.1", "did you mean 'error_ratio'"), ("p95", "NAME=VALUE"), ("p95=-1", "no number")],
)
def test_a_wrong_tolerance_says_what_is_wrong(text: str, hint: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    a = recording(tmp_path / "a.jsonl.gz", 1, n=10)
    code, _, err = call(capfd, a, a, "--tolerance", text)
    assert code == 2
    assert hint in err


def test_files_that_cannot_be_compared(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    a, empty = recording(tmp_path / "a.jsonl.gz", 1, n=10), tmp_path / "empty.jsonl"
    empty.write_text("")
    assert call(capfd, a, str(tmp_path / "missing.jsonl"))[0] == 3
    code, _, err = call(capfd, a, str(empty))
    assert code == 2
    assert "no requests" in err


def test_people_get_a_table(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    a, b = recording(tmp_path / "a.jsonl.gz", 1, n=1000), recording(tmp_path / "b.jsonl.gz", 2, n=1000, slower=20.0)
    with pytest.raises(SystemExit) as done:
        main(["compare", a, b])
    out = capfd.readouterr().out
    assert done.value.code == 1
    assert "outside tolerance: ttft_s.p50, ttft_s.p95, ttft_s.p99; 2 unclear" in out
    assert "x 2" in out

"""`slodrift policy check` and `show` from the command line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from streams.cli import main

GOOD = "apiVersion: slodrift/v1\nkind: Policy\nextends: seed\npools:\n  a*:\n    tick_s: 2\n    slo: {ttft_s: {threshold: 1}}\n"


@pytest.fixture
def policy(tmp_path: Path) -> Path:
    path = tmp_path / "p.yaml"
    path.write_text(GOOD)
    return path


def run(*args: str) -> int:
    with pytest.raises(SystemExit) as ended:
        main(["policy", *args])
    return int(ended.value.code or 0)


def test_check_of_a_good_file(policy: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("check", str(policy)) == 0
    assert "extends seed" in capsys.readouterr().out


def test_check_prints_every_fault_and_exits_2(policy: Path, capsys: pytest.CaptureFixture[str]) -> None:
    policy.write_text(GOOD + "    mod: x\n  b: {mode: y}\n")
    assert run("check", str(policy)) == 2
    out = capsys.readouterr().out.splitlines()
    assert out[0].startswith(f"{policy}:8:5: ")
    assert out[1].startswith(f"{policy}:9:13: ")
    assert out[2].endswith("2 faults")


def test_show_tells_where_each_setting_comes_from(policy: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("show", str(policy), "--pool", "abc", "--json") == 0
    shown = json.loads(capsys.readouterr().out)
    assert shown["tick_s"] == {"value": 2.0, "origin": "line 6"}
    assert shown["slo.ttft_s.threshold"] == {"value": 1.0, "origin": "line 7"}
    assert shown["slo.ttft_s.objective"] == {"value": 0.99, "origin": "built-in"}
    assert shown["detection.kappa"] == {"value": 1.82, "origin": "preset seed"}


def test_show_of_another_pool_and_of_no_file(policy: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("show", str(policy), "--pool", "other", "--json") == 0
    assert json.loads(capsys.readouterr().out)["tick_s"]["origin"] == "built-in"
    assert run("show", "--preset", "seed") == 0
    assert "1.82" in capsys.readouterr().out


def test_unknown_preset_and_missing_file_exit_2(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("show", "--preset", "sead") == 2
    assert run("show", "nowhere.yaml") == 2
    assert "cannot be read" in capsys.readouterr().err

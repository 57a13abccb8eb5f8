"""Tables of benchmarks, and the command that prints them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from bench.report import Report, data_folder
from schemas.errors import SourceError
from streams.cli import main


def example() -> Report:
    report = Report("x", "An example", ("detector", "score"), seed=4)
    report.add("ours", 1.234)
    report.bar("score >= 1", holds=True)
    return report


def test_text_and_json_say_the_same(capsys: pytest.CaptureFixture[str]) -> None:
    example().print()
    text = capsys.readouterr().out
    assert "1.23" in text
    assert "bar holds: score >= 1" in text
    assert "seed 4" in text
    example().print(as_json=True)
    found = json.loads(capsys.readouterr().out)
    assert found["rows"] == [{"detector": "ours", "score": 1.234}]
    assert {"seed", "date", "machine", "versions", "command", "seconds"} <= found.keys()


def test_a_row_has_a_cell_for_each_column() -> None:
    with pytest.raises(ValueError, match="1 cells for 2 columns"):
        example().add("ours")


def test_data_folder_says_what_to_set(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("SLODRIFT_DATA", raising=False)
    with pytest.raises(SourceError, match="set SLODRIFT_DATA"):
        data_folder("nab")
    monkeypatch.setenv("SLODRIFT_DATA", str(tmp_path))
    with pytest.raises(SourceError, match="must hold the folder 'nab'"):
        data_folder("nab")


def run(*args: str) -> int:
    with pytest.raises(SystemExit) as ended:
        main(["bench", *args])
    return int(ended.value.code or 0)


def test_unknown_benchmark_and_missing_data(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("nabb") == 2
    assert "did you mean 'nab'" in capsys.readouterr().err
    monkeypatch.delenv("SLODRIFT_DATA", raising=False)
    assert run("microsoft") == 3


@pytest.mark.parametrize(("holds", "code"), [(True, 0), (False, 1)])
def test_exit_code_tells_whether_the_bars_hold(holds: bool, code: int, monkeypatch: pytest.MonkeyPatch) -> None:
    report = example()
    report.bar("another", holds=holds)

    def fake(seed: int, *, quick: bool) -> Report:
        assert (seed, quick) == (9, True)
        return report

    monkeypatch.setattr("bench.nab.run", fake)
    assert run("nab", "--seed", "9", "--quick", "--json") == code

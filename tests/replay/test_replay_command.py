"""`slodrift replay` as it is called."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from streams.cli import main

T0 = 1_767_225_600.0


def request(ts: float, **fields: Any) -> bytes:
    event = {"kind": "request", "ts": ts, "pool": "p", "node": "n", "outcome": "ok", "ttft_s": 0.2}
    return json.dumps(event | fields).encode()


@pytest.fixture
def events(tmp_path: Path) -> Path:
    lines = [request(T0 + i / 4, node=f"n{i % 3}", ttft_s=0.1 + (i % 7) / 100) for i in range(400)]
    lines.insert(100, b"rubbish")
    lines.insert(101, b"\xff\xfe")
    path = tmp_path / "events.jsonl"
    path.write_bytes(b"\n".join(lines))
    return path


def call(capfd: pytest.CaptureFixture[str], *args: str) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as done:
        main(["replay", *args])
    out, err = capfd.readouterr()
    return int(done.value.code or 0), out, err


def test_json_lines_in_order_of_time_with_the_summary_last(events: Path, capfd: pytest.CaptureFixture[str]) -> None:
    code, out, err = call(capfd, str(events), "--json")
    lines = [json.loads(line) for line in out.splitlines()]
    assert code == 0
    assert [line["t"] for line in lines[:-1]] == sorted(line["t"] for line in lines[:-1])
    summary = lines[-1]
    assert (summary["kind"], summary["events"], summary["rejected"]) == ("summary", 402, 2)
    assert summary["pools"]["p"]["requests"] == 400
    assert {line["reason"] for line in lines if line["kind"] == "rejected"} == {"bad_json", "bad_utf8"}
    assert "2 events refused" in err
    assert "events.jsonl:101: " in err


def test_people_get_a_table(events: Path, capfd: pytest.CaptureFixture[str]) -> None:
    code, out, _ = call(capfd, str(events))
    assert code == 0
    assert "402 events, 2 rejected, 0 duplicates" in out
    assert "preset default" in out


def test_refused_events_are_kept_with_their_bytes(events: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    kept = tmp_path / "refused.jsonl"
    assert call(capfd, str(events), "--rejects", str(kept))[0] == 0
    rows = [json.loads(line) for line in kept.read_text().splitlines()]
    assert all(row.pop("detail") for row in rows)
    assert rows == [
        {"source": str(events), "line": 101, "reason": "bad_json", "raw": "rubbish"},
        {"source": str(events), "line": 102, "reason": "bad_utf8", "raw_base64": "//4="},
    ]


def test_labels_are_scored(events: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    labels = tmp_path / "labels.json"
    labels.write_text(json.dumps({"incidents": [{"pool": "p", "node": "n1", "fault": "x", "from": T0, "to": T0 + 60}]}))
    _, out, _ = call(capfd, str(events), "--json", "--labels", str(labels))
    scored = json.loads(out.splitlines()[-1])["labels"]
    assert scored["interception_ratio"] == 0.0
    assert scored["false_trip_ratio"] is scored["median_delay_s"] is None


@pytest.mark.parametrize(
    ("args", "code", "message"),
    [
        (["none.jsonl"], 3, "none.jsonl: cannot be read: No such file"),
        (["{events}", "--policy", "none.yaml"], 2, "none.yaml: cannot be read"),
        (["{events}", "--labels", "none.json"], 2, "none.json: cannot be read"),
        (["{csv}", "--map", "ts=when,ttft_s=v"], 2, "there is no column 'when'; columns there: t, v"),
        (["{csv}"], 2, "no column gives ts and one of"),
        (["{events}", "--rejects", "/nowhere/x"], 3, "/nowhere/x: cannot be written"),
        ([], 2, "Missing argument"),
    ],
)
def test_errors_are_one_sentence_and_a_code(
    args: list[str], code: int, message: str, events: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    table = tmp_path / "rows.csv"
    table.write_text("t,v\n1,1\n")
    got, _, err = call(capfd, *(arg.format(events=events, csv=table) for arg in args))
    assert got == code
    assert message in err
    assert "Traceback" not in err


def test_late_events_are_warned_of(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "events.jsonl"
    path.write_bytes(b"\n".join(request(T0 + i / 4 - (100 if i % 50 == 49 else 0)) for i in range(400, 800)))
    _, _, err = call(capfd, str(path), "--json")
    assert "8 of 400 events come more than 10 s after later ones; 8 events in all were too late" in err
    assert "sort the file by ts, or raise lateness_s" in err


def test_an_empty_file_is_said_to_be_empty(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "events.jsonl"
    path.write_bytes(b"")
    code, out, err = call(capfd, str(path), "--json")
    assert code == 0
    assert json.loads(out)["events"] == 0
    assert "there are no events in it" in err


def test_a_reader_that_has_seen_enough(events: Path) -> None:
    code = "from streams.cli import main; main()"
    replay = subprocess.Popen(
        [sys.executable, "-c", code, "replay", str(events), "--json"], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    assert replay.stdout is not None
    assert replay.stderr is not None
    replay.stdout.close()
    err = replay.stderr.read()
    replay.stderr.close()
    assert replay.wait(60) == 0
    assert b"Traceback" not in err


def test_standard_input(events: Path) -> None:
    code = "from streams.cli import main; main()"
    done = subprocess.run(
        [sys.executable, "-c", code, "replay", "-", "--json"], input=events.read_bytes(), capture_output=True, check=True
    )
    assert json.loads(done.stdout.splitlines()[-1])["events"] == 402

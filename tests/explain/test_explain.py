"""`slodrift explain`: four lines, the same from ClickHouse, from a file and from stdin."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pytest

from schemas.results import Decision, Verdict, encode_line
from sinks.base import cut
from sinks.clickhouse import ClickHouse
from sinks.migrate import migrate
from sinks.rows import Origin, decision_columns
from streams.cli import main
from streams.embedded import EmbeddedStack
from streams.explain import explain, number

SERIES = {
    "slowdown": 2.5, "kl_service_nats": 0.4123, "log_evidence": 21.4, "log_threshold": 14.36, "p999_s": 1.25, "threshold_s": None,
    "slo_s": 1.0, "own_fault": True,
}  # fmt: skip
OPENED = Decision(
    t=1767226815.0, pool="chat/eu/h100", scope="node", subject="gpu-03", state="OPEN", version=(1, 4, 7), tx="ab12cd",
    reason="ttft_s is slower than its baseline and users are hurt", mode="enforce", not_after=1767226845.0,
    policy_version="5f0c", window_end=1767226815.0,
    evidence={"window_s": 60.0, "failure_ratio": 0.31, "series": {"ttft_s": SERIES}},
)  # fmt: skip
CLOSED = Decision(
    t=1767226890.0, pool="chat/eu/h100", scope="node", subject="gpu-03", state="CLOSED", version=(1, 4, 9), tx="ff00",
    reason="10 of 10 probes succeeded", mode="enforce", policy_version="5f0c",
)  # fmt: skip
FOUR_LINES = [
    "2026-01-01 00:20:15.00Z OPEN node gpu-03 of chat/eu/h100: no request to it",
    "  because   ttft_s is slower than its baseline and users are hurt",
    (
        "  evidence  failure_ratio 31 %, window_s 60 s; ttft_s 2.50 times its baseline, KL 0.41 nats, "
        "evidence e^21.4 where e^14.4 is needed, P99.9 1.25 s, SLO 1 s"
    ),
    (
        "  holds     until 2026-01-01 00:20:45.00Z at the latest, then probes decide; enforce (hosts obey); "
        "version 1.4.7, policy 5f0c, tx ab12cd"
    ),
]


def told(capsys: pytest.CaptureFixture[str], *args: str) -> list[str]:
    with pytest.raises(SystemExit) as end:
        main(["explain", *args])
    assert end.value.code in (0, None)
    return capsys.readouterr().out.splitlines()


def refused(capsys: pytest.CaptureFixture[str], *args: str) -> tuple[object, str]:
    with pytest.raises(SystemExit) as end:
        main(["explain", *args])
    return end.value.code, capsys.readouterr().err


@pytest.fixture
def recording(tmp_path: Path) -> Path:
    verdict = Verdict(t=1.0, pool="chat/eu/h100", node="gpu-03", sli="ttft_s", status="OK", n=1)
    lines = [encode_line(x) for x in (verdict, OPENED, CLOSED)]
    (tmp_path / "replay.ndjson").write_bytes(b"\n".join(lines) + b"\n")
    return tmp_path / "replay.ndjson"


def test_four_lines() -> None:
    assert explain(OPENED) == FOUR_LINES


def test_the_strongest_series_speaks_for_the_others() -> None:
    series = {"tpot_s": SERIES | {"log_evidence": 3.0}, "ttft_s": SERIES, "queue_s": {"log_evidence": None}}
    decision = Decision(
        t=0.0, pool="p", scope="node", subject="n", state="OPEN", version=(0, 0, 1), tx="t", evidence={"series": series}
    )
    line = explain(decision)[2]
    assert line.startswith("  evidence  ttft_s 2.50 times")
    assert line.endswith("(and 2 more series, --json shows all)")


def test_a_decision_that_was_capped_says_so() -> None:
    capped = Decision(**{name: getattr(OPENED, name) for name in OPENED.__struct_fields__} | {"capped": True})
    assert "held back by the cap" in explain(capped)[0]


@pytest.mark.parametrize("state", ["OPEN", "HALF_OPEN", "CLOSED", "FORCED_OPEN", "DISABLED"])
def test_every_state_has_words(state) -> None:
    decision = Decision(t=0.0, pool="p", scope="node", subject="n", state=state, version=(0, 0, 1), tx="t")
    lines = explain(decision)
    assert len(lines) == 4
    assert "no reason was recorded" in lines[1]
    assert "none was recorded" in lines[2]


def test_numbers_carry_their_unit() -> None:
    shown = {n: number(n, v) for n, v in {"a_s": 0.5, "b_ratio": 0.125, "c_nats": 0.31, "d": 7, "e": "x", "f_per_s": 2.0}.items()}
    assert shown == {"a_s": "0.5 s", "b_ratio": "12.5 %", "c_nats": "0.31 nats", "d": "7", "e": "x", "f_per_s": "2/s"}


def test_from_a_file(recording: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert told(capsys, "--from", str(recording), "ab12") == FOUR_LINES
    assert told(capsys, "--from", str(recording), "--last")[0].startswith("2026-01-01 00:21:30.00Z CLOSED node gpu-03")
    assert json.loads(told(capsys, "--from", str(recording), "ab12", "--json")[0])["tx"] == "ab12cd"


def test_from_stdin(recording: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    stdin = io.TextIOWrapper(io.BytesIO(recording.read_bytes()))
    monkeypatch.setattr("sys.stdin", stdin)
    assert told(capsys, "--from", "-", "ab12") == FOUR_LINES


def test_what_is_not_there_is_one_sentence(recording: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert refused(capsys, "--from", str(recording), "zz") == (
        3,
        f"slodrift: {recording}: there is no decision whose tx begins with 'zz'\n",
    )
    code, said = refused(capsys, "--from", "nowhere.ndjson")
    assert code == 3
    assert "cannot be read" in said
    assert refused(capsys, "--last", "ab12")[0] == 2
    recording.write_bytes(b'{"kind":"decision"\n')
    assert ":1: not a line" in refused(capsys, "--from", str(recording))[1]


@pytest.mark.embedded
def test_from_clickhouse(embedded_stack: EmbeddedStack, capsys: pytest.CaptureFixture[str]) -> None:
    dsn = f"{embedded_stack.clickhouse_dsn}?database=explain"
    migrate(dsn)
    clickhouse = ClickHouse(dsn)
    assert refused(capsys, "--clickhouse-dsn", dsn)[0] == 3
    for batch in cut(
        "decisions", "slodrift.decisions", 0, decision_columns([OPENED, CLOSED], Origin("slodrift.decisions", 0, 5))
    ):
        clickhouse.insert(batch)
    clickhouse.close()
    assert told(capsys, "--clickhouse-dsn", dsn, "ab12") == FOUR_LINES
    assert told(capsys, "--clickhouse-dsn", dsn)[0].startswith("2026-01-01 00:21:30.00Z CLOSED")
    assert refused(capsys, "--clickhouse-dsn", dsn, "--pool", "other")[0] == 3

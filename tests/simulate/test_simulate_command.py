"""`slodrift simulate`: files that are equal for equal seeds, labels, and telemetry on Kafka topics."""

from __future__ import annotations

import gzip
import json
import time
from pathlib import Path

import pytest

from streams.cli import main
from streams.embedded import EmbeddedStack
from streams.kafka import make_consumer


def simulate(*args: str) -> None:
    main(["simulate", *args])


def test_same_seed_gives_same_bytes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("a", "b"):
        with pytest.raises(SystemExit) as end:
            simulate("--out", str(tmp_path / f"{name}.jsonl.gz"), "--nodes", "3", "--minutes", "1", "--seed", "5")
        assert end.value.code in (0, None)
    assert (tmp_path / "a.jsonl.gz").read_bytes() == (tmp_path / "b.jsonl.gz").read_bytes()
    lines = gzip.decompress((tmp_path / "a.jsonl.gz").read_bytes()).splitlines()
    assert f"{len(lines)} events of 1 pools x 3 nodes" in capsys.readouterr().err
    assert {json.loads(line)["kind"] for line in lines} == {"request", "node", "gpu"}


def test_labels_and_pools(tmp_path: Path) -> None:
    with pytest.raises(SystemExit):
        simulate(
            "--out", str(tmp_path / "e.jsonl"), "--labels", str(tmp_path / "l.json"), "--minutes", "1", "--nodes", "3",
            "--fault", "errors@gpu-01:20s-40s", "--pool", "a", "--pool", "b",
        )  # fmt: skip
    events = [json.loads(line) for line in (tmp_path / "e.jsonl").read_text().splitlines()]
    assert [e["ts"] for e in events] == sorted(e["ts"] for e in events)
    assert {e["pool"] for e in events} == {"a", "b"}
    (one, two) = json.loads((tmp_path / "l.json").read_text())["incidents"]
    assert (one["pool"], two["pool"], one["node"], one["to"] - one["from"]) == ("a", "b", "gpu-01", 20.0)
    failed = {(e["pool"], e["node"]) for e in events if e.get("outcome") == "server_error"}
    assert failed == {("a", "gpu-01"), ("b", "gpu-01")}


@pytest.mark.parametrize(
    ("args", "code", "says"),
    [
        ([], 2, "either --out FILE or --kafka"),
        (["--out", "x.jsonl", "--fault", "slow_node@gpu-77:1m-2m"], 2, "there is no node 'gpu-77'"),
        (["--out", "x.jsonl", "--router", "random"], 2, "least_loaded or round_robin"),
        (["--out", "no/such/folder/x.jsonl", "--minutes", "0.1"], 3, "cannot be written"),
    ],
)
def test_mistakes_are_one_sentence(
    args: list[str], code: int, says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as end:
        simulate(*args)
    assert end.value.code == code
    assert says in capsys.readouterr().err


@pytest.mark.embedded
def test_events_reach_the_source_topics(embedded_stack: EmbeddedStack, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in embedded_stack.environ.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(SystemExit) as end:
        simulate(
            "--kafka", embedded_stack.bootstrap, "--nodes", "2", "--rps", "40", "--minutes", "0.5", "--speed", "60",
            "--pool", "simulated/eu/h100",
        )  # fmt: skip
    assert end.value.code in (0, None)
    consumer = make_consumer(embedded_stack.settings, "test-simulate")
    try:
        consumer.subscribe(["telemetry.requests", "telemetry.nodes", "telemetry.gpu"])
        seen: dict[str, int] = {}
        end_s = time.monotonic() + 20.0
        while seen.get("telemetry.requests", 0) < 500 or len(seen) < 3:
            assert time.monotonic() < end_s, f"nothing more came: {seen}"
            for message in consumer.consume(1000, timeout=0.2):
                if b"simulated/eu/h100" in message.value():
                    seen[message.topic()] = seen.get(message.topic(), 0) + 1
    finally:
        consumer.close()

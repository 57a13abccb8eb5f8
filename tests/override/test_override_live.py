"""`slodrift override` against a worker: the order travels through the log, and hosts obey."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer
from slodrift_client import BreakerClient

from schemas.topics import FRAMES, partition_of
from streams.cli import main
from streams.embedded import EmbeddedStack
from streams.framer_cut import cut_frames
from streams.framer_time import time_slices
from streams.framing import EventFramer
from streams.worker.child import WorkerChild

POOL, N_PARTITIONS = "chat-70b/eu/h100", 2
POLICY = """
apiVersion: slodrift/v1
kind: Policy
pools:
  "*": {mode: enforce, tick_s: 1, lateness_s: 1}
"""


class Fleet(threading.Thread):
    """Twelve nodes that answer ten requests a second together, now."""

    def __init__(self, bootstrap: str) -> None:
        super().__init__(daemon=True)
        self.stop = threading.Event()
        self._producer = Producer({"bootstrap.servers": bootstrap, "linger.ms": 5})

    def run(self) -> None:
        framer, offset = EventFramer(), 0
        while not self.stop.wait(0.2):
            now_s = time.time()
            lines = [
                json.dumps(
                    {"kind": "request", "ts": now_s, "pool": POOL, "node": f"gpu-{n:02d}", "ttft_s": 0.2, "outcome": "ok"}
                ).encode()
                for n in range(12)
            ]
            for part in time_slices(framer.feed(lines, range(offset, offset + len(lines)))):
                for _, raw in cut_frames(part, "telemetry.requests", 0):
                    self._producer.produce(FRAMES.name, raw, partition=partition_of(POOL, N_PARTITIONS))
            offset += len(lines)
            self._producer.flush(5)


@pytest.fixture
def site(tmp_path: Path) -> Iterator[tuple[EmbeddedStack, WorkerChild]]:
    (tmp_path / "policy.yaml").write_text(POLICY)
    args = ["--policy", str(tmp_path / "policy.yaml")]
    with EmbeddedStack(partitions=N_PARTITIONS) as stack, WorkerChild("judge", stack.environ, args) as worker:
        fleet = Fleet(stack.environ["SLODRIFT_KAFKA_BOOTSTRAP"])
        fleet.start()
        yield stack, worker
        fleet.stop.set()
        fleet.join(10)


def override(*args: str) -> int:
    with pytest.raises(SystemExit) as left:
        main(["override", POOL, *args])
    return int(left.value.code or 0)


@pytest.mark.embedded
def test_hosts_obey_an_operator(
    site: tuple[EmbeddedStack, WorkerChild],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    wait_until: Callable[..., Any],
) -> None:
    stack, worker = site
    for name, value in stack.environ.items():
        monkeypatch.setenv(name, value)
    fleet = stack.environ.get("SLODRIFT_FLEET", "default")
    with BreakerClient(stack.environ["SLODRIFT_REDIS_URL"], fleet, [POOL]) as client:
        assert client.wait(30)
        assert (
            override("gpu-03", "--state", "FORCED_OPEN", "--for", "10m", "--reason", "fan is broken", "--operator", "ada") == 0
        ), worker.said
        said = capsys.readouterr().out
        assert "FORCED_OPEN node gpu-03" in said
        assert "ada ordered FORCED_OPEN: fan is broken" in said
        wait_until(lambda: not client.allow("gpu-03"), "the host obeys")
        assert client.decide("gpu-03").state == "FORCED_OPEN"
        assert override("gpu-03", "--state", "CLOSED", "--reason", "fan is new") == 0
        wait_until(lambda: client.allow("gpu-03"), "the host obeys again")
        assert override("gpu-99", "--state", "FORCED_OPEN", "--for", "10m", "--reason", "x", "--wait", "2.5") == 1
        assert "no decision answered" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (["--state", "OPEN", "--reason", "x"], "write one of"),
        (["--state", "FORCED_OPEN", "--reason", "x"], "needs --for"),
        (["--state", "CLOSED", "--for", "1h", "--reason", "x"], "takes no --for"),
        (["--state", "DISABLED", "--for", "5h", "--reason", "x"], "at most 4 h"),
        (["--state", "DISABLED", "--for", "2 hours", "--reason", "x"], "number and a unit"),
        (["--state", "DISABLED", "--for", "0s", "--reason", "x"], "after its start"),
        (["--state", "DISABLED", "--for", "1h", "--reason", " "], "reason"),
        (["--state", "DISABLED", "--for", "1h"], "--reason"),
    ],
)
def test_usage(args: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert override("gpu-03", *args) == 2
    assert said in capsys.readouterr().err

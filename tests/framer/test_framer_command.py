import os
import re
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer

from schemas.topics import TELEMETRY
from streams.embedded import EmbeddedStack
from streams.embedded.lifeline import free_port

pytestmark = pytest.mark.embedded


@contextmanager
def slodrift(log: Path, *args: str, **environ: str) -> Iterator["subprocess.Popen[bytes]"]:
    with log.open("wb") as out:
        process = subprocess.Popen(
            [sys.executable, "-c", "from streams.cli import main; main()", *args], stderr=out, env=os.environ | environ
        )
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def test_waits_for_kafka_says_so_once_and_ends_on_sigterm(tmp_path: Path, wait_until: Callable[..., Any]) -> None:
    log = tmp_path / "log"
    with slodrift(log, "framer", "--bootstrap", f"127.0.0.1:{free_port()}") as process:
        wait_until(lambda: "waiting" in log.read_text(), "the framer to say that it waits", 30)
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(1.0)  # longer than its pauses
        process.send_signal(signal.SIGTERM)
        assert process.wait(20) == 0
    (line,) = log.read_text().splitlines()
    assert "Connection refused" in line


def test_frames_are_counted_for_prometheus_and_sigterm_commits(tmp_path: Path, wait_until: Callable[..., Any]) -> None:
    port = free_port()
    log = tmp_path / "log"
    with EmbeddedStack(redis=False) as stack, slodrift(log, "framer", "--metrics-port", str(port), **stack.environ) as process:
        producer = Producer({"bootstrap.servers": stack.bootstrap, "log_level": 0})
        for topic in TELEMETRY:
            producer.produce(topic.name, b'{"kind":"deploy","ts":1.0,"pool":"p"}', partition=1)
        producer.produce(TELEMETRY[0].name, b"rubbish", partition=1)
        assert producer.flush(10) == 0

        def counted() -> dict[str, float]:
            try:
                with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=5) as answer:
                    text = answer.read().decode()
            except OSError:
                return {}
            return {m[1]: float(m[2]) for m in re.finditer(r"^slodrift_framer_([^ ]+) ([^ ]+)$", text, re.MULTILINE)}

        wait_until(lambda: counted().get("frames_total") == 4.0, "four frames", 30)
        assert counted()['rejected_total{reason="bad_json"}'] == 1.0
        process.send_signal(signal.SIGTERM)
        assert process.wait(20) == 0
        assert "framer stopped" in log.read_text()

"""A split pool from JSON events on Kafka to a host: framer, two judges of one group, Redis; on the embedded stack."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from confluent_kafka import Producer
from slodrift_client import BreakerClient, cell_of, pools_of

from schemas.policy_file import parse_policy
from streams.embedded import EmbeddedStack
from streams.framer import Framer
from streams.worker.child import WorkerChild

POOL, CELLS, N_PARTITIONS = "chat/eu/h100", 4, 8
NODES = [f"gpu-{i:03d}" for i in range(40)]
BAD = "gpu-017"
POLICY = f"""
apiVersion: slodrift/v1
kind: Policy
pools:
  "chat/*":
    mode: enforce
    cells: {CELLS}
    tick_s: 2
    lateness_s: 2
    slo: {{e2e_s: {{threshold: 1.0}}}}
    detection: {{learning_s: 60}}
    breaker: {{open_s: 120}}
"""
STORY_S, BAD_S = 240, 60
"""The last minute of four ends now; in it one node is ten times as slow."""


def story(began_s: float) -> Iterator[bytes]:
    """Each node answers three requests a second."""
    rng = np.random.default_rng(3)
    for i in range(3 * STORY_S):
        for node in NODES:
            slow = 10.0 if node == BAD and i >= 3 * (STORY_S - BAD_S) else 1.0
            e2e_s = round(0.3 * slow * float(np.exp(rng.normal(0, 0.2))), 4)
            event = {"kind": "request", "ts": began_s + i / 3, "pool": POOL, "node": node, "outcome": "ok", "e2e_s": e2e_s}
            yield json.dumps(event).encode()


@pytest.fixture
def stack(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[EmbeddedStack]:
    (tmp_path / "policy.yaml").write_text(POLICY)
    with EmbeddedStack(partitions=N_PARTITIONS) as stack:
        for name, value in {**stack.environ, "SLODRIFT_POLICY_FILE": str(tmp_path / "policy.yaml")}.items():
            monkeypatch.setenv(name, value)
        yield stack


@pytest.mark.embedded
def test_a_bad_node_opens_in_its_cell_and_hosts_deny_exactly_it(
    stack: EmbeddedStack, wait_until: Callable[..., Any], capsys: pytest.CaptureFixture[str]
) -> None:
    stop = threading.Event()
    framer = threading.Thread(target=Framer(stack.settings, policy=parse_policy(POLICY)).run, args=(stop,), daemon=True)
    with WorkerChild("judge", {}), WorkerChild("judge", {}):
        framer.start()
        producer = Producer({"bootstrap.servers": stack.settings.kafka_bootstrap, "linger.ms": 5})
        for event in story(time.time() - STORY_S):
            producer.produce("telemetry.requests", event, partition=0)
        assert producer.flush(30) == 0
        with BreakerClient(stack.environ["SLODRIFT_REDIS_URL"], stack.settings.fleet, [POOL], cells={POOL: CELLS}) as client:
            wait_until(lambda: not client.allow(BAD), "the bad node is denied", deadline_s=40.0)
            assert [node for node in NODES if not client.allow(node)] == [BAD]
            assert client.decide(BAD, POOL).pool == cell_of(POOL, BAD, CELLS)
            assert set(client.status().pools) == set(pools_of(POOL, CELLS))
    stop.set()
    framer.join(20)
    assert not framer.is_alive()

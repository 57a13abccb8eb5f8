"""A small deterministic judge for tests of everything around the judge, and frames to feed it."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import numpy as np
import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from schemas.batch import UNKNOWN_TOKENS, RequestBatch
from schemas.frame import FrameHeader, encode_event_frame, encode_request_frame
from schemas.policy import PoolPolicy
from schemas.results import Decision, Finding
from schemas.telemetry import NodeEvent
from schemas.topics import DECISIONS, FRAMES, TOPICS, partition_of
from streams.embedded import EmbeddedStack
from streams.framer_cut import cut_frames
from streams.framer_time import time_slices
from streams.framing import EventFramer
from streams.kafka import client_config
from streams.settings import Settings
from streams.worker.child import WorkerChild
from streams.worker.decision_log import read_partition
from streams.worker.takeover import log_end

TICK_S = 10


class FakeJudge:
    """Counts rows; every tenth row of a pool opens or closes the breaker of that row's node. A row of node "poison" raises."""

    def __init__(self, pool: str, epoch: int, generation: int) -> None:
        self.pool, self.epoch, self.generation = pool, epoch, generation
        self.policy = PoolPolicy(mode="enforce")
        self.clock_ns: int | None = None
        self.rows, self.seq, self.sum_ns, self.events = 0, 0, 0, 0  # sum_ns depends on the order
        self.open: dict[str, bool] = {}
        self._news: list[tuple[float, str]] = []

    def requests(self, batch: RequestBatch) -> None:
        for node, ts_ns in zip(batch.node, batch.ts_ns, strict=True):
            name = batch.nodes[node]
            if name == "poison":
                raise ZeroDivisionError("this row makes no sense")
            self.rows += 1
            self.sum_ns = (self.sum_ns * 31 + int(ts_ns)) % 2**61
            self.clock_ns = max(self.clock_ns or 0, int(ts_ns))
            if self.rows % 10 == 0:
                self._news.append((int(ts_ns) / 1e9, name))

    def event(self, event: Any) -> None:
        self.events += 1

    def inherit(self, decisions: Any) -> None:
        self.open.update({d.subject: d.state == "OPEN" for d in decisions})

    def advance(self) -> list[Any]:
        outputs = []
        for t, node in self._news:
            self.seq += 1
            self.open[node] = not self.open.get(node, False)
            decision = Decision(
                t=t, pool=self.pool, scope="node", subject=node, state="OPEN" if self.open[node] else "CLOSED",
                version=(self.generation, self.epoch, self.seq), tx=f"{self.pool}/{self.seq}", mode="enforce",
                not_after=t + 60 if self.open[node] else None, policy_version="p1", window_end=t,
            )  # fmt: skip
            finding = Finding(t=t, pool=self.pool, finding="node_degradation", node=node)
            windows = SimpleNamespace(columns=lambda node=node: {"node": [node], "n": np.ones(1, np.uint32)})
            outputs.append(
                SimpleNamespace(t=t, pool=self.pool, verdicts=[], windows=windows, findings=[finding], decisions=[decision],
                                rejected={}, refused=[], n_eligible=20)
            )  # fmt: skip
        self._news.clear()
        return outputs

    def idle(self, now_ns: int) -> list[Any]:
        self.clock_ns = max(self.clock_ns or 0, now_ns)
        return []

    def snapshot(self) -> bytes:
        state = (self.pool, self.clock_ns, self.rows, self.seq, self.sum_ns, self.events, self.open)
        return msgspec.msgpack.encode(state)


class FakeFactory:
    """`JudgeFactory` of `FakeJudge`s."""

    def new(self, pool: str, epoch: int, generation: int) -> FakeJudge:
        return FakeJudge(pool, epoch, generation)

    def restore(self, pool: str, raw: bytes, epoch: int, generation: int) -> FakeJudge:
        judge = FakeJudge(pool, epoch, generation)
        judge.pool, judge.clock_ns, judge.rows, judge.seq, judge.sum_ns, judge.events, judge.open = msgspec.msgpack.decode(raw)
        return judge


@dataclass
class FakeRecord:
    """As aiokafka gives them."""

    offset: int
    value: bytes
    timestamp: int = 1_700_000_000_000
    key: bytes = b""


def frame(
    pool: str = "pool-a", node: str = "n1", n: int = 5, t0_s: float = 1000.0, first: int | None = None, latency_s: float = 0.1
) -> bytes:
    """One frame of `n` rows a millisecond apart; with source offsets from `first` on."""
    unknown = np.full(n, UNKNOWN_TOKENS, np.uint32)
    batch = RequestBatch(
        pool=pool, nodes=[node], node=np.zeros(n, np.uint32), ts_ns=round(t0_s * 1e9) + np.arange(n) * 1_000_000,
        latency_s=np.full((4, n), latency_s, np.float32), outcome=np.zeros(n, np.uint8), prompt_tokens=unknown,
        output_tokens=unknown, cached_tokens=unknown, batch_size=unknown, probe=np.full(n, -1, np.int8), adapters=[],
        adapter=unknown, tenants=[], tenant=unknown, session=np.zeros(n, np.uint32), kv_mismatch=np.zeros(n, np.bool_),
    )  # fmt: skip
    header = FrameHeader(pool=pool, node=node, origin=None if first is None else "telemetry.requests/0")
    return encode_request_frame(header, batch, None if first is None else np.arange(first, first + n))


def event_frame(pool: str = "pool-a", node: str = "n1", ts_s: float = 1000.0) -> bytes:
    """One frame with one node event."""
    return encode_event_frame(FrameHeader(pool=pool, node=node), [NodeEvent(ts=ts_s, pool=pool, node=node, running=1)])


@pytest.fixture
def factory() -> FakeFactory:
    return FakeFactory()


@pytest.fixture
def make_frame() -> Callable[..., bytes]:
    return frame


@pytest.fixture
def make_event_frame() -> Callable[..., bytes]:
    return event_frame


@pytest.fixture
def make_record() -> type[FakeRecord]:
    return FakeRecord


@dataclass
class Site:
    """Servers for one test: a Kafka with our topics, empty, and a Redis and a chDB folder of its own."""

    environ: dict[str, str]
    stack: EmbeddedStack
    real: bool
    workers: list[WorkerChild] = field(default_factory=list)

    @property
    def client(self) -> dict[str, Any]:
        return client_config(self.settings)

    @property
    def settings(self) -> Settings:
        return Settings(**{name.removeprefix("SLODRIFT_").lower(): value for name, value in self.environ.items()})  # type: ignore[arg-type]

    def worker(self, role: str, policy: Path, **environ: str) -> WorkerChild:
        more = {f"SLODRIFT_{name.upper()}": value for name, value in environ.items()}
        made = WorkerChild(role, {**self.environ, **more}, ["--policy", str(policy)])
        self.workers.append(made)
        return made

    def kill_workers(self) -> None:
        """Whatever a test that failed left running."""
        for worker in self.workers:
            if worker.process is not None and worker.process.poll() is None:
                worker.kill()

    def produce(self, frames: Iterable[tuple[str, bytes]], topic: str = FRAMES.name) -> None:
        """(pool, frame) to the pool's partition."""
        producer = Producer({**self.client, "linger.ms": 5, "acks": "all", "compression.type": "lz4"})
        for pool, raw in frames:
            producer.produce(topic, raw, partition=partition_of(pool, N_PARTITIONS))
            producer.poll(0)
        assert producer.flush(20) == 0

    def records(self, topic: str) -> list[Any]:
        found = []
        for partition in range(N_PARTITIONS):
            end = log_end(self.client, topic, partition)
            found += list(read_partition(self.client, topic, partition, 0, end))
        return found

    def decisions(self) -> list[bytes]:
        """Decision lines in log order."""
        return [m.value() for m in self.records(DECISIONS.name) if b'"kind":"decision"' in m.value()]

    def committed(self, group: str, topic: str) -> list[int]:
        consumer = Consumer({**self.client, "group.id": group})
        asked = [TopicPartition(topic, p) for p in range(N_PARTITIONS)]
        found = [max(0, p.offset) for p in consumer.committed(asked, timeout=10)]
        consumer.close()
        return found

    def ends(self, topic: str) -> list[int]:
        return [log_end(self.client, topic, p) for p in range(N_PARTITIONS)]


N_PARTITIONS = 4


def _fresh_topics(bootstrap: str) -> None:
    """Delete our topics and make them anew; deletion takes a moment, so creation is tried until it succeeds."""
    admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 0})
    present = [t.name for t in TOPICS if t.name in admin.list_topics(timeout=10).topics]
    for future in admin.delete_topics(present).values() if present else ():
        future.result(20)
    pause, end = threading.Event(), time.monotonic() + 30
    left = [NewTopic(t.name, N_PARTITIONS, 1, config=t.config) for t in TOPICS]
    while left:
        results = dict(zip(left, admin.create_topics(left).values(), strict=True))
        left = [t for t, f in results.items() if f.exception(20) is not None]
        assert time.monotonic() < end, [str(f.exception()) for f in results.values()]
        pause.wait(0.2)


@pytest.fixture(params=["embedded", pytest.param("kafka", marks=pytest.mark.kafka)])
def site(request: pytest.FixtureRequest) -> Iterator[Site]:
    """The embedded stack, and again a real Kafka with the rest of the stack."""
    group = uuid.uuid4().hex[:8]
    groups = {"SLODRIFT_JUDGE_GROUP": f"judge-{group}", "SLODRIFT_ARCHIVE_GROUP": f"archive-{group}"}
    with EmbeddedStack(partitions=N_PARTITIONS) as stack:
        if request.param == "embedded":
            mock = Site({**stack.environ, **groups}, stack, real=False)
            yield mock
            mock.kill_workers()
            return
        bootstrap = request.getfixturevalue("kafka_bootstrap")
        _fresh_topics(bootstrap)
        environ = {
            **stack.environ, **groups, "SLODRIFT_KAFKA_BOOTSTRAP": bootstrap,
            "SLODRIFT_KAFKA_SESSION_TIMEOUT_S": "6", "SLODRIFT_KAFKA_FETCH_WAIT_S": "0.5",
        }  # fmt: skip
        real = Site(environ, stack, real=True)
        yield real
        real.kill_workers()


@dataclass
class Story:
    """Ten nodes, one of which gets slow; as a file for replay and as frames."""

    events: list[bytes]
    jsonl: Path
    policy: Path
    pool: str = "llama/eu/h100"

    def frames(self, seed: int = 5, start: int = 0, stop: int | None = None) -> list[tuple[str, bytes]]:
        """The framer's frames of some of the events, cut at random places."""
        rng, framer, frames = np.random.default_rng(seed), EventFramer(), []
        stop = len(self.events) if stop is None else stop
        while start < stop:
            end = min(stop, start + int(rng.integers(50, 1500)))
            for part in time_slices(framer.feed(self.events[start:end], range(start, end))):
                frames += list(cut_frames(part, "telemetry.requests", 0))
            start = end
        return frames

    @cached_property
    def replayed(self) -> list[bytes]:
        """Decision lines of `slodrift replay` of the file."""
        command = [sys.executable, "-c", "from streams.cli import main; main()", "replay", str(self.jsonl)]
        done = subprocess.run([*command, "--policy", str(self.policy), "--json"], capture_output=True, check=True)
        return [line for line in done.stdout.splitlines() if line.startswith(b'{"kind":"decision"')]


@pytest.fixture(scope="session")
def story(tmp_path_factory: pytest.TempPathFactory) -> Story:
    rng, length_s, slow_from_s, nodes, t0_s = np.random.default_rng(11), 400.0, 220.0, 10, 1_796_000_000.0
    rows = []
    for node in range(nodes):
        n = rng.poisson(10 * length_s)
        at = rng.random(n) * length_s
        ttft = np.exp(rng.normal(np.log(0.3), 0.3, n))
        ttft[(at > slow_from_s) & (node == 3)] *= 6
        rows += [(round(t0_s + t, 6), f"gpu-{node:03d}", round(float(x), 5)) for t, x in zip(at, ttft, strict=True)]
    rows.sort()
    events = [
        json.dumps({"kind": "request", "ts": ts, "pool": Story.pool, "node": node, "request_id": f"r{i}", "prompt_tokens": 500,
                    "output_tokens": 100, "ttft_s": x, "e2e_s": round(4 * x, 5), "outcome": "ok"}).encode()
        for i, (ts, node, x) in enumerate(rows)
    ]  # fmt: skip
    folder = tmp_path_factory.mktemp("story")
    (folder / "events.jsonl").write_bytes(b"\n".join(events) + b"\n")
    (folder / "policy.yaml").write_text(
        "apiVersion: slodrift/v1\nkind: Policy\nextends: default\npools:\n"
        '  "*":\n    mode: enforce\n    slo:\n      ttft_s: {threshold: 1.0, objective: 0.99}\n'
    )
    return Story(events, folder / "events.jsonl", folder / "policy.yaml")

"""A small deterministic judge for tests of everything around the judge, and frames to feed it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import msgspec
import numpy as np
import pytest

from schemas.batch import UNKNOWN_TOKENS, RequestBatch
from schemas.frame import FrameHeader, encode_event_frame, encode_request_frame
from schemas.policy import PoolPolicy
from schemas.results import Decision, Finding
from schemas.telemetry import NodeEvent

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
                                rejected={}, n_eligible=20)
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

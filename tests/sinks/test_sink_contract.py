"""What every destination of batches must do. A new one adds a line to DESTINATIONS and passes all of this."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import Any, Protocol

import pytest

from schemas.errors import SinkBackpressure, SinkRejected
from sinks.base import Batch, BatchingSink, Columns, Writer
from sinks.clickhouse import ClickHouse, ClickHouseWriter

DAY_MS = 86_400_000
T_MS = (time.time_ns() // 1_000_000 // DAY_MS - 2) * DAY_MS + 1000  # recent: ClickHouse drops what is past its TTL at once


class Destination(Protocol):
    writer: Writer

    def stored(self) -> list[int]: ...  # scores of the rows, ordered


class MemoryDestination:
    """The contract in its simplest form; keeps the tests honest about what they ask."""

    def __init__(self) -> None:
        self.writer = self
        self.tokens: set[str] = set()
        self.scores: list[int] = []

    async def write(self, batch: Batch) -> None:
        if any(not math.isfinite(s) for s in batch.columns["score"]):
            raise SinkRejected("not finite")
        if batch.token not in self.tokens:
            self.tokens.add(batch.token)
            self.scores.extend(int(s) for s in batch.columns["score"])

    def stored(self) -> list[int]:
        return sorted(self.scores)


class ClickHouseDestination:
    def __init__(self, clickhouse: ClickHouse) -> None:
        self._clickhouse = clickhouse
        self.writer = ClickHouseWriter(clickhouse)

    def stored(self) -> list[int]:
        # Not the view: a duplicate must not even be in the table.
        return [int(row["score"]) for row in self._clickhouse.query("SELECT score FROM findings ORDER BY score")]


DESTINATIONS: dict[str, Callable[[pytest.FixtureRequest], Destination]] = {
    "memory": lambda request: MemoryDestination(),
    "clickhouse": lambda request: ClickHouseDestination(request.getfixturevalue("clickhouse")),
}


@pytest.fixture(params=list(DESTINATIONS))
def destination(request: pytest.FixtureRequest) -> Destination:
    return DESTINATIONS[request.param](request)


class Flaky:
    """Fails as told, before the write or after it (the answer is lost)."""

    def __init__(self, writer: Writer) -> None:
        self._writer = writer
        self.fail: list[str] = []
        self.calls = 0

    async def write(self, batch: Batch) -> None:
        self.calls += 1
        how = self.fail.pop(0) if self.fail else ""
        if how == "before":
            raise SinkBackpressure("away")
        await self._writer.write(batch)
        if how == "after":
            raise SinkBackpressure("the answer was lost")


class Sink:
    def __init__(self, destination: Destination) -> None:
        self.writer = Flaky(destination.writer)
        self.rejected: list[tuple[int, str]] = []
        self.sink = BatchingSink(self.writer, self._reject)

    async def _reject(self, batch: Batch, why: str) -> None:
        assert len(batch) == 1
        self.rejected.append((batch.first, why))

    def add(self, offset: int, scores: list[Any], t_ms: int = T_MS) -> None:
        self.sink.add("findings", "slodrift.findings", 3, findings(offset, scores, t_ms))


def findings(offset: int, scores: list[Any], t_ms: int) -> Columns:
    n = len(scores)
    return {
        "t": [t_ms] * n, "pool": ["p"] * n, "finding": ["improvement"] * n, "node": [f"n{s}" for s in scores], "cause": [""] * n,
        "score": [float(s) for s in scores], "evidence": ["{}"] * n, "id": list(range(n)),
        "src_topic": ["slodrift.findings"] * n, "src_partition": [3] * n, "src_offset": [offset] * n, "src_idx": list(range(n)),
    }  # fmt: skip


@pytest.fixture
def sink(destination: Destination) -> Sink:
    return Sink(destination)


pytestmark = pytest.mark.embedded


async def test_flush_of_nothing_does_nothing(sink: Sink) -> None:
    assert await sink.sink.flush() == 0
    sink.add(1, [])
    assert await sink.sink.flush() == 0
    assert sink.writer.calls == 0


async def test_flush_twice_stores_once(sink: Sink, destination: Destination) -> None:
    sink.add(1, [1, 2])
    assert sink.sink.pending == 2
    assert await sink.sink.flush() == 2
    assert await sink.sink.flush() == 0
    assert destination.stored() == [1, 2]


async def test_failure_keeps_the_batch(sink: Sink, destination: Destination) -> None:
    sink.add(1, [1, 2])
    sink.writer.fail = ["before"]
    with pytest.raises(SinkBackpressure):
        await sink.sink.flush()
    assert sink.sink.pending == 2
    assert destination.stored() == []
    sink.add(2, [3])
    assert await sink.sink.flush() == 3
    assert destination.stored() == [1, 2, 3]


async def test_lost_answer_stores_once(sink: Sink, destination: Destination) -> None:
    sink.add(1, [1, 2])
    sink.writer.fail = ["after", "after", "before"]
    for _ in range(3):
        with pytest.raises(SinkBackpressure):
            await sink.sink.flush()
    assert await sink.sink.flush() == 2
    assert destination.stored() == [1, 2]


async def test_rows_added_after_a_failure_do_not_change_the_batch(sink: Sink, destination: Destination) -> None:
    sink.add(1, [1])
    sink.writer.fail = ["after"]
    with pytest.raises(SinkBackpressure):
        await sink.sink.flush()
    sink.add(2, [2])
    await sink.sink.flush()
    assert destination.stored() == [1, 2]


async def test_another_process_with_the_same_offsets_stores_once(sink: Sink, destination: Destination) -> None:
    sink.add(1, [1, 2])
    sink.add(2, [3])
    await sink.sink.flush()
    successor = Sink(destination)
    successor.add(1, [1, 2])
    successor.add(2, [3])
    assert await successor.sink.flush() == 3
    assert destination.stored() == [1, 2, 3]


async def test_equal_rows_from_different_messages_are_both_stored(sink: Sink, destination: Destination) -> None:
    for offset in (1, 2):
        sink.add(offset, [7], T_MS + offset)
        await sink.sink.flush()
    assert destination.stored() == [7, 7]


async def test_rows_of_two_days_are_stored(sink: Sink, destination: Destination) -> None:
    sink.add(1, [1], T_MS)
    sink.add(2, [2], T_MS + DAY_MS)
    sink.add(3, [3], T_MS)
    assert [len(b) for b in sink.sink.seal()] == [2, 1]
    assert await sink.sink.flush() == 3
    assert destination.stored() == [1, 2, 3]


async def test_row_that_is_refused_is_handed_back_alone(sink: Sink, destination: Destination) -> None:
    sink.add(1, [0, 1, 2])
    sink.add(2, [float("nan")])
    sink.add(3, [4, 5, float("inf"), 7])
    assert await sink.sink.flush() == 8
    assert destination.stored() == [0, 1, 2, 4, 5, 7]
    assert [offset for offset, _ in sink.rejected] == [2, 3]


async def test_retry_in_the_middle_of_a_search_for_the_bad_row_stores_once(sink: Sink, destination: Destination) -> None:
    sink.add(1, [1, 2, 3, float("nan"), 5, 6])
    sink.writer.fail = ["", "after"]
    with pytest.raises(SinkBackpressure):
        await sink.sink.flush()
    sink.rejected.clear()
    assert await sink.sink.flush() == 6
    assert destination.stored() == [1, 2, 3, 5, 6]
    assert [offset for offset, _ in sink.rejected] == [1]

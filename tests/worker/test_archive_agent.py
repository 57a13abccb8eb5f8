"""The archive's agent without a broker: rows once, in order, however often ClickHouse or the worker goes away."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
from faust.types import TP

from schemas.deadletter import DeadLetter, to_message
from schemas.errors import SinkBackpressure, SinkRejected
from schemas.results import Decision, Finding, encode_line
from schemas.windows import encode_windows
from sinks.base import Batch
from streams.settings import Settings
from streams.worker import archive_agent
from streams.worker.archive_agent import ArchiveAgent
from streams.worker.archive_rows import ArchiveRows
from streams.worker.decision_log import EpochRecord, LogReader, encode_epoch
from streams.worker.fetch import FetchBatch
from streams.worker.ledger import CommitLedger

WINDOWS, DECISIONS = TP("slodrift.windows", 0), TP("slodrift.decisions", 0)
T_S = 1_796_000_000.0


@dataclass
class Record:
    offset: int
    value: bytes | None
    timestamp: int = 1_796_000_000_000
    key: bytes = b""
    headers: list[tuple[str, bytes]] = field(default_factory=list)


class Table:
    """ClickHouse with tokens: a batch with a known token is stored once."""

    def __init__(self) -> None:
        self.rows: list[tuple[str, int]] = []
        self.hours: list[tuple[int, str, int]] = []
        self.tokens: list[str] = []
        self.failures: list[Exception] = []

    async def write(self, batch: Batch) -> None:
        if self.failures:
            raise self.failures.pop(0)
        if batch.table == "window_hours":  # maxima: what comes twice changes nothing
            self.hours += zip(*(batch.columns[name] for name in ("t", "node", "src_offset")), strict=True)
        elif batch.token not in self.tokens:
            self.tokens.append(batch.token)
            self.rows += [(batch.table, o) for o in batch.columns["src_offset"]]


class Signal:
    def __init__(self) -> None:
        self.handler: Any = None

    def connect(self, handler: Any, **_: Any) -> None:
        self.handler = handler


class Consumer:
    def __init__(self, ledger: CommitLedger) -> None:
        self.ledger = ledger
        self.commits: list[tuple[dict[TP, int], dict[TP, str]]] = []
        self.seeks: list[int] = []

    def read_again_from(self, tp: TP, offset: int) -> int:
        self.seeks.append(offset)
        return len(self.seeks)

    async def commit(self) -> bool:
        offsets = self.ledger.committable(self.ledger.partitions())
        notes = self.ledger.notes_of(offsets)
        self.commits.append((offsets, notes))
        self.ledger.committed(offsets, notes)
        return True


class App:
    def __init__(self) -> None:
        self.ledger = CommitLedger()
        self.consumer = Consumer(self.ledger)
        self.on_partitions_assigned, self.on_partitions_revoked = Signal(), Signal()

    def agent(self, topic: Any, name: str) -> Callable[[Any], Any]:
        return lambda function: function

    def batches(self, *names: str) -> Any:
        return names


class Rig:
    def __init__(self, table: Table, where: tuple[int | None, int | None, int] = (None, None, -1)) -> None:
        self.app, self.table = App(), table
        self.letters: list[DeadLetter] = []
        self.fatal: list[str] = []
        self.earlier: list[bytes] = []

        async def dead_letter(letter: DeadLetter) -> None:
            self.letters.append(letter)

        async def settled() -> None: ...

        self.agent = ArchiveAgent(
            self.app, Settings(), table, dead_letter=dead_letter, settled=settled,  # type: ignore[arg-type]
            on_fatal=self.fatal.append, flush_s=0.0,
        )  # fmt: skip
        self.agent._where = lambda tp: where  # type: ignore[method-assign]
        self.agent._before = lambda tp, committed: self.earlier  # type: ignore[method-assign]
        self.agent.attach()

    async def assign(self, *tps: TP) -> None:
        await self.app.on_partitions_assigned.handler(self.app, set(tps))
        await self.agent.restored()

    def durable(self, tp: TP) -> int:
        return self.app.ledger._durable[tp][0]


@pytest.fixture
def table() -> Table:
    return Table()


@pytest.fixture
async def rig(table: Table, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Rig]:
    monkeypatch.setattr(archive_agent, "_INSERT_S", 0.0)
    rig = Rig(table)
    await rig.assign(WINDOWS, DECISIONS)
    yield rig
    await rig.agent.release()


def window(offset: int, n: int = 3) -> Record:
    columns = {"node": [f"n{i}" for i in range(n)], "kl_nats": np.full(n, np.nan)}
    return Record(offset, encode_windows("p", round(T_S * 1000) + 5000 * offset, columns))


def decision(offset: int, epoch: int = 0) -> Record:
    made = Decision(t=T_S, pool="p", scope="node", subject="n", state="OPEN", version=(1, epoch, offset), tx=str(offset))
    return Record(offset, encode_line(made))


def windows(first: int, last: int, tag: int = 0) -> FetchBatch:
    return FetchBatch(WINDOWS, [window(o) for o in range(first, last + 1)], tag)


async def test_rows_are_stored_once_and_then_their_offsets_are_durable(rig: Rig) -> None:
    await rig.agent.handle(windows(0, 4))
    assert rig.table.rows == []
    await rig.agent.every_second()
    assert rig.table.rows == [("windows", o) for o in range(5) for _ in range(3)]
    assert rig.durable(WINDOWS) == 5
    await rig.agent.handle(windows(3, 6))
    await rig.agent.every_second()
    assert [o for _, o in rig.table.rows[15:]] == [5, 5, 5, 6, 6, 6]
    assert rig.durable(WINDOWS) == 7
    assert rig.agent.done[WINDOWS] == 7


async def test_end_of_a_batch_is_committed_before_it_is_inserted(rig: Rig) -> None:
    await rig.agent.handle(windows(0, 4))
    rig.table.failures = [SinkBackpressure("away", retry_after_s=0.0)]
    await rig.agent.every_second()
    assert rig.app.consumer.commits[0] == ({WINDOWS: 0}, {WINDOWS: "until 4"})
    await rig.app.consumer.commit()
    assert rig.app.consumer.commits[-1] == ({WINDOWS: 5}, {WINDOWS: ""})


async def test_after_a_crash_during_an_insert_the_same_batch_is_cut_again(table: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(archive_agent, "_INSERT_S", 0.0)
    first = Rig(table)
    await first.assign(WINDOWS)
    await first.agent.handle(windows(0, 4))
    await first.agent.every_second()  # stored, but the worker dies before the commit: note "until 4" at offset 0 is what is left
    second = Rig(table, where=(0, 4, -1))
    await second.assign(WINDOWS)
    await second.agent.handle(windows(0, 2))
    await second.agent.every_second()
    assert len(table.tokens) == 1, "not before the noted end is there"
    await second.agent.handle(windows(3, 9))
    await second.agent.every_second()
    assert [o for _, o in table.rows] == [o for o in range(10) for _ in range(3)], "nothing twice, nothing missing"
    assert second.durable(WINDOWS) == 10
    for rig in (first, second):
        await rig.agent.release()


async def test_clickhouse_that_is_away_is_tried_again_until_it_is_back(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    pauses: list[float] = []
    sleep = asyncio.sleep

    async def no_sleep(seconds: float) -> None:
        pauses.append(seconds)
        await sleep(0)

    monkeypatch.setattr("streams.worker.archive_agent.asyncio.sleep", no_sleep)
    rig.table.failures = [SinkBackpressure("away", retry_after_s=0.5) for _ in range(50)]
    await rig.agent.handle(windows(0, 4))
    storing = asyncio.create_task(rig.agent.every_second())
    while len(pauses) < 3:
        await sleep(0)
    assert rig.agent.waiting == {WINDOWS, DECISIONS}, "the other one stands still, too"
    assert rig.durable(WINDOWS) == 0
    await storing
    assert len(rig.table.rows) == 15
    assert rig.agent.waiting == set()
    assert rig.durable(WINDOWS) == 5
    assert all(0.5 <= pause <= 30.0 for pause in pauses)
    assert len(pauses) == 50


async def test_partition_that_is_revoked_while_clickhouse_is_away_is_let_go(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(archive_agent, "_RELEASE_S", 0.05)
    rig.table.failures = [SinkBackpressure("away", retry_after_s=0.0) for _ in range(10_000)]
    await rig.agent.handle(windows(0, 4))
    storing = asyncio.create_task(rig.agent.every_second())
    async with asyncio.timeout(5):
        await rig.app.on_partitions_revoked.handler(rig.app, {WINDOWS})
        await storing
    assert rig.table.rows == []
    assert rig.durable(WINDOWS) == 0, "nothing is committed that is not stored"


async def test_row_that_clickhouse_refuses_is_dead_lettered_and_the_others_are_stored(rig: Rig) -> None:
    async def picky(batch: Batch) -> None:
        if 2 in batch.columns["src_offset"]:
            raise SinkRejected("no")
        await Table.write(rig.table, batch)

    rig.table.write = picky  # type: ignore[method-assign]
    await rig.agent.handle(windows(0, 4))
    await rig.agent.every_second()
    assert sorted(o for _, o in rig.table.rows) == [o for o in (0, 1, 3, 4) for _ in range(3)]
    assert {(x.stage, x.reason, x.topic, x.offset) for x in rig.letters} == {("archive", "refused_row", WINDOWS.topic, 2)}
    assert rig.durable(WINDOWS) == 5


async def test_record_that_is_none_is_dead_lettered_with_its_bytes(rig: Rig) -> None:
    batch = FetchBatch(WINDOWS, [window(0), Record(1, b"rubbish"), Record(2, None), window(3)], 0)
    await rig.agent.handle(batch)
    await rig.agent.every_second()
    assert [(x.offset, x.raw, x.reason) for x in rig.letters] == [(1, b"rubbish", "bad_windows"), (2, b"", "bad_windows")]
    assert {o for _, o in rig.table.rows} == {0, 3}
    assert rig.durable(WINDOWS) == 4


async def test_decisions_of_a_replaced_judge_are_kept_apart(rig: Rig) -> None:
    epoch = Record(2, encode_epoch(EpochRecord(generation=1, writer="w")))
    records = [decision(0), decision(1), epoch, decision(3, epoch=0), decision(4, epoch=2)]
    await rig.agent.handle(FetchBatch(DECISIONS, records, 0))
    await rig.agent.every_second()
    assert rig.table.rows == [("decisions", 0), ("decisions", 1), ("decisions", 4)]
    assert [(x.offset, x.reason) for x in rig.letters] == [(3, "void_decision")]
    assert rig.durable(DECISIONS) == 5


async def test_nothing_but_epoch_records_moves_the_offset_too(rig: Rig) -> None:
    await rig.agent.handle(FetchBatch(DECISIONS, [Record(0, encode_epoch(EpochRecord(generation=1, writer="w")))], 0))
    await rig.agent.every_second()
    assert rig.table.tokens == []
    assert rig.durable(DECISIONS) == 1


def test_rows_of_findings_and_dead_letters() -> None:
    finding = Finding(t=T_S, pool="p", finding="frozen", evidence={"bad": 3})
    ((table, columns),) = ArchiveRows("slodrift.findings", 1).rows(Record(7, encode_line(finding)))
    assert table == "findings"
    assert (columns["finding"], columns["src_partition"], columns["src_offset"]) == (["frozen"], [1], [7])
    _, value, headers = to_message(DeadLetter(raw=b"\xff", stage="decode", reason="bad_frame", topic="t", offset=5))
    ((table, columns),) = ArchiveRows("slodrift.deadletter", 0).rows(Record(9, value, headers=headers))
    assert table == "dead_letters"
    assert (columns["raw"], columns["origin_offset"], columns["src_offset"]) == ([b"\xff"], [5], [9])


def test_epochs_before_the_first_record_count() -> None:
    rows = ArchiveRows("slodrift.decisions", 0, LogReader(epoch=9))
    with pytest.raises(Exception, match="void_decision"):
        rows.rows(decision(10, epoch=3))
    assert len(rows.rows(decision(11, epoch=9))) == 1


async def test_error_that_nobody_foresaw_ends_the_process_and_makes_nothing_durable(
    rig: Rig, table: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fails(batch: Batch) -> None:
        raise ZeroDivisionError("a bug in a driver")

    table.write = fails  # type: ignore[method-assign]
    monkeypatch.setattr(archive_agent, "_MAX_ROWS", 5)
    await rig.agent.handle(windows(0, 4))
    await rig.agent.handle(windows(5, 9))
    assert ["ZeroDivisionError: a bug in a driver" in why for why in rig.fatal] == [True]
    assert rig.durable(WINDOWS) == 0
    assert WINDOWS not in rig.agent.done
    await rig.agent.release()


async def test_batch_that_cannot_be_taken_ends_the_process(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: Any) -> None:
        raise KeyError("a column that is not there")

    monkeypatch.setattr(rig.agent._owned[WINDOWS].sink, "add", fails)
    await rig.agent.handle(windows(0, 4))
    assert ["rows cannot be stored: KeyError" in why for why in rig.fatal] == [True]
    assert WINDOWS not in rig.agent.done, "its offsets are not committed any more"


def status_window(offset: int, status: list[str]) -> Record:
    columns = {"node": ["n0", "n1"], "sli": ["ttft_s"] * 2, "status": status, "n": np.ones(2, np.uint32)}
    return Record(offset, encode_windows("p", round(T_S * 1000) // 60_000 * 60_000 + 1000 * offset, columns))


async def test_new_owner_keeps_the_rows_that_the_former_one_kept() -> None:
    """Quiet series are kept once a minute; what is quiet depends on the tick before, which the new owner has not stored."""
    blocks = [status_window(o, ["OK", "DEGRADED" if o == 3 else "OK"]) for o in range(6)]

    async def stored(first: int, earlier: list[bytes]) -> list[int]:
        table = Table()
        rig = Rig(table, (first or None, None, -1))
        rig.earlier = earlier
        await rig.assign(WINDOWS)
        await rig.agent.handle(FetchBatch(WINDOWS, blocks[first:], 0))
        await rig.agent.release()
        return [offset for name, offset in table.rows if name == "windows" and offset >= 3]

    whole = await stored(0, [])
    assert whole == [3, 4], "the node that became worse, and then better"
    assert await stored(3, [b.value for b in blocks[:3]]) == whole
    assert await stored(3, []) != whole, "without what came before it keeps its first tick whole"

"""The judge's agent without a broker: ownership, holes, poison, silence, snapshots and what may be committed."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
from faust.types import TP

from schemas.errors import SinkRejected, SourceError
from streams.worker.fetch import FetchBatch
from streams.worker.judge_agent import JudgeAgent, JudgeTimes
from streams.worker.ledger import CommitLedger
from streams.worker.partition import JudgePartition, Step
from streams.worker.snapshot import pack
from streams.worker.takeover import Owned

TP0 = TP("telemetry.frames", 0)


class Signal:
    def __init__(self) -> None:
        self.handlers: list[Any] = []

    def connect(self, handler: Any, **_: Any) -> None:
        self.handlers.append(handler)


class Consumer:
    """Remembers seeks; says what the broker would say of the end."""

    def __init__(self) -> None:
        self.seeks: list[int] = []
        self.complete: tuple[int, int] | None = None

    def read_again_from(self, tp: TP, offset: int) -> int:
        self.seeks.append(offset)
        return len(self.seeks)

    def complete_until_ms(self, tp: TP) -> tuple[int, int] | None:
        return self.complete


class App:
    def __init__(self) -> None:
        self.consumer, self.ledger = Consumer(), CommitLedger()
        self.on_partitions_assigned, self.on_partitions_revoked = Signal(), Signal()

    def agent(self, topic: Any, name: str) -> Callable[[Any], Any]:
        return lambda function: function

    def batches(self, *names: str) -> Any:
        return names


class Outputs:
    """Keeps what is published; decisions count as logged at once."""

    def __init__(self) -> None:
        self.steps: list[Step] = []
        self.forgotten: list[JudgePartition] = []
        self.durable = asyncio.Event()
        self.durable.set()

    async def publish(self, owned: Owned, step: Step) -> None:
        self.steps.append(step)
        for decision in owned.state.new_decisions(step.outputs):
            owned.state.log.apply(decision)

    def announce(self, state: JudgePartition) -> None: ...

    def forget(self, state: JudgePartition) -> None:
        self.forgotten.append(state)

    async def settled(self) -> None:
        await self.durable.wait()

    @property
    def rows(self) -> int:
        return sum(s.rows for s in self.steps)

    @property
    def decided(self) -> list[str]:
        return [d.tx for s in self.steps for o in s.outputs for d in o.decisions]


class Writer:
    def __init__(self) -> None:
        self.written: list[Any] = []
        self.error: Exception | None = None

    async def write(self, partition: int, snapshot: Any, slot: int) -> bytes:
        if self.error is not None:
            raise self.error
        self.written.append((snapshot, slot))
        return pack(snapshot)


class Takeover:
    def __init__(self, factory: Any) -> None:
        self.factory, self.failures, self.claims, self.base = factory, 0, 0, None
        self.gate = asyncio.Event()
        self.gate.set()

    async def claim(self, partition: int) -> int:
        self.claims += 1
        return 0

    async def restore(self, partition: int, epoch: int) -> Owned:
        await self.gate.wait()
        if self.failures:
            self.failures -= 1
            raise SourceError("not yet")
        state = JudgePartition("telemetry.frames", partition, self.factory, epoch=0, generation=1)
        if self.base is not None:
            state.restore(self.base)
        return Owned(state, self.base, 1, 0)


class Rig:
    def __init__(self, factory: Any) -> None:
        self.app, self.outputs, self.writer, self.takeover = App(), Outputs(), Writer(), Takeover(factory)
        self.fatal: list[str] = []
        self.now_s = 100.0
        times = JudgeTimes(snapshot_s=0.0, idle_s=15.0, release_s=0.5)
        self.agent = JudgeAgent(
            self.app, self.takeover, self.outputs, self.writer, times, now_ms=lambda: 0,  # type: ignore[arg-type]
            on_fatal=self.fatal.append, clock_s=lambda: self.now_s,
        )  # fmt: skip
        self.agent.attach()

    async def assign(self) -> None:
        await self.app.on_partitions_assigned.handlers[0](self.app, {TP0, TP("other", 0)})

    async def revoke(self) -> None:
        await self.app.on_partitions_revoked.handlers[0](self.app, {TP0})

    @property
    def state(self) -> JudgePartition:
        return self.agent._owned[0].ready.result().state

    async def snapshot(self) -> None:
        await self.agent.every_second()
        task = self.agent._owned[0].snapshot_task
        if task is not None:
            await asyncio.wait([task])


@pytest.fixture
async def rig(factory: Any) -> AsyncIterator[Rig]:
    rig = Rig(factory)
    await rig.assign()
    await rig.agent.restored()
    yield rig
    await rig.agent.release()


@pytest.fixture
def batch(make_frame: Any, make_record: Any) -> Callable[..., FetchBatch]:
    def make(first: int, last: int, tag: int = 0, poison: tuple[int, ...] = ()) -> FetchBatch:
        frames = {
            o: make_frame(node="poison" if o in poison else f"n{o % 3}", n=4, t0_s=1000.0 + o) for o in range(first, last + 1)
        }
        return FetchBatch(TP0, [make_record(o, raw) for o, raw in frames.items()], tag)

    return make


async def test_batches_in_order_are_judged_once(rig: Rig, batch: Any) -> None:
    await rig.agent.handle(batch(0, 9))
    await rig.agent.handle(batch(5, 12))
    await rig.agent.handle(batch(0, 12))
    assert rig.outputs.rows == 13 * 4
    assert rig.agent.done == {TP0: 13}
    assert rig.app.consumer.seeks == []


async def test_hole_is_read_again_and_batches_fetched_before_are_passed_over(rig: Rig, batch: Any) -> None:
    await rig.agent.handle(batch(0, 3))
    await rig.agent.handle(batch(7, 9))
    assert rig.app.consumer.seeks == [4]
    await rig.agent.handle(batch(10, 12))  # fetched before the seek
    assert rig.outputs.rows == 4 * 4
    await rig.agent.handle(batch(4, 12, tag=1))
    assert rig.outputs.rows == 13 * 4


async def test_records_that_are_gone_do_not_stop_the_partition(rig: Rig, batch: Any) -> None:
    await rig.agent.handle(batch(0, 3))
    await rig.agent.handle(batch(7, 9))
    await rig.agent.handle(batch(7, 9, tag=1))
    assert rig.app.consumer.seeks == [4]
    assert rig.outputs.rows == 7 * 4


async def test_batch_waits_until_the_partition_is_restored(factory: Any, batch: Any) -> None:
    rig = Rig(factory)
    rig.takeover.gate.clear()
    await rig.assign()
    handled = asyncio.create_task(rig.agent.handle(batch(0, 1)))
    await asyncio.sleep(0)
    assert not handled.done()
    rig.takeover.gate.set()
    await handled
    assert rig.outputs.rows == 8
    await rig.agent.release()


async def test_partition_that_goes_away_while_it_is_restored_ends_the_wait(factory: Any, batch: Any) -> None:
    rig = Rig(factory)
    rig.takeover.gate.clear()
    await rig.assign()
    handled = asyncio.create_task(rig.agent.handle(batch(0, 1)))
    await asyncio.sleep(0)
    await rig.revoke()
    await handled
    assert rig.outputs.rows == 0
    await rig.agent.handle(batch(0, 1))
    assert rig.outputs.rows == 0, "not ours"


@pytest.mark.parametrize("bad", [(5,), (0,), (5, 6), (3, 9)])
async def test_frame_that_makes_the_judge_fail_is_found_and_dead_lettered_and_the_rest_is_judged(
    rig: Rig, batch: Any, bad: tuple[int, ...]
) -> None:
    tag, start = 0, 0
    for _ in range(20):
        await rig.agent.handle(batch(start, 12, tag=tag, poison=bad))
        if len(rig.app.consumer.seeks) > tag:
            tag, start = len(rig.app.consumer.seeks), rig.app.consumer.seeks[-1]
        elif rig.agent.done[TP0] == 13:
            break
    assert rig.agent.done == {TP0: 13}
    letters = {x.offset: x for s in rig.outputs.steps for x in s.dead}
    assert sorted(letters) == list(bad)
    assert {(x.stage, x.reason) for x in letters.values()} == {("judge", "poison")}
    assert "ZeroDivisionError" in letters[bad[0]].detail
    assert rig.state.pools["pool-a"].rows == (13 - len(bad)) * 4  # type: ignore[attr-defined]
    assert rig.fatal == []


async def test_judge_that_fails_at_everything_ends_the_process(rig: Rig, batch: Any) -> None:
    everything = tuple(range(13))
    for tag in range(20):
        await rig.agent.handle(batch(0, 12, tag=tag, poison=everything))
        if rig.fatal:
            break
    assert len(rig.fatal) == 1
    assert "ZeroDivisionError" in rig.fatal[0]


async def test_results_that_cannot_be_appended_end_the_process_without_a_snapshot(
    rig: Rig, batch: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def publish(owned: Owned, step: Step) -> None:
        raise AttributeError("a result without a field")

    monkeypatch.setattr(rig.outputs, "publish", publish)
    await rig.agent.handle(batch(0, 10))
    assert rig.fatal == ["partition 0: results cannot be appended: AttributeError: a result without a field"]
    await rig.agent.every_second()
    await rig.revoke()
    assert rig.writer.written == [], "the next owner judges these frames again"


async def test_after_a_failure_it_goes_back_to_the_snapshot_and_decides_nothing_twice(rig: Rig, batch: Any) -> None:
    await rig.agent.handle(batch(0, 9))
    await rig.snapshot()
    await rig.agent.handle(batch(10, 19))
    await rig.agent.handle(batch(20, 22, poison=(21,)))
    assert rig.app.consumer.seeks == [10], "the snapshot's offset"
    await rig.agent.handle(batch(10, 22, tag=1, poison=(21,)))
    await rig.agent.handle(batch(10, 22, tag=2, poison=(21,)))
    assert rig.agent.done == {TP0: 23}
    assert rig.state.pools["pool-a"].rows == 22 * 4  # type: ignore[attr-defined]
    logged = set(rig.state.log.known)
    assert logged == {f"pool-a/{i}" for i in range(1, 9)}


async def test_offsets_are_durable_only_up_to_a_written_snapshot(rig: Rig, batch: Any) -> None:
    await rig.agent.handle(batch(0, 9))
    assert rig.app.ledger.committable([TP0]) == {}
    rig.outputs.durable.clear()
    await rig.agent.every_second()
    await rig.agent.handle(batch(10, 12))
    assert rig.app.ledger.committable([TP0]) == {}, "what was published is not durable yet"
    rig.outputs.durable.set()
    await asyncio.wait([rig.agent._owned[0].snapshot_task])  # type: ignore[list-item]
    assert rig.app.ledger.committable([TP0]) == {TP0: 10}, "the state was copied before the second batch"
    assert rig.writer.written[0][0].next_offset == 10
    await rig.snapshot()
    assert rig.app.ledger.committable([TP0]) == {TP0: 13}
    assert [slot for _, slot in rig.writer.written] == [0, 1]


async def test_snapshot_that_cannot_be_written_commits_nothing(rig: Rig, batch: Any) -> None:
    rig.writer.error = SinkRejected("too large")
    await rig.agent.handle(batch(0, 9))
    await rig.snapshot()
    assert rig.app.ledger.partitions() == []
    rig.writer.error = ZeroDivisionError("a bug")
    await rig.agent.handle(batch(10, 12))
    await rig.snapshot()
    assert rig.app.ledger.partitions() == []
    assert rig.agent.done == {TP0: 13}


async def test_revoked_partition_leaves_a_last_snapshot(rig: Rig, batch: Any) -> None:
    await rig.agent.handle(batch(0, 9))
    state = rig.state
    await rig.revoke()
    assert rig.writer.written[-1][0].next_offset == 10
    assert rig.app.ledger.committable([TP0]) == {TP0: 10}
    assert rig.outputs.forgotten == [state]
    assert rig.agent.partitions == []


async def test_last_snapshot_may_not_hold_up_a_rebalance(rig: Rig, batch: Any) -> None:
    await rig.agent.handle(batch(0, 9))
    rig.outputs.durable.clear()
    async with asyncio.timeout(5):
        await rig.revoke()
    assert rig.app.ledger.partitions() == []
    assert rig.agent.partitions == []


async def test_time_goes_on_only_when_everything_was_read_and_nothing_came(rig: Rig, batch: Any) -> None:
    await rig.agent.handle(batch(0, 9))
    judge = rig.state.pools["pool-a"]
    clock_ns = judge.clock_ns
    assert clock_ns is not None
    rig.now_s += 60
    rig.app.consumer.complete = (12, 0)
    await rig.agent.every_second()
    assert judge.clock_ns == clock_ns, "records wait to be read: time belongs to them"
    rig.app.consumer.complete = (10, 0)
    rig.now_s = 114.0
    await rig.agent.every_second()
    assert judge.clock_ns == clock_ns, "not silent for long enough"
    rig.now_s = 120.0
    await rig.agent.every_second()
    assert judge.clock_ns == clock_ns + 20 * 10**9


async def test_a_wall_clock_that_is_hours_ahead_makes_no_pool_silent(rig: Rig, batch: Any) -> None:
    await rig.agent.handle(batch(0, 9))
    judge = rig.state.pools["pool-a"]
    clock_ns = judge.clock_ns
    heard_ms, _ = rig.state.heard["pool-a"]
    rig.app.consumer.complete = (10, heard_ms + 7_200_000)
    rig.now_s += 5
    await rig.agent.every_second()
    assert judge.clock_ns == clock_ns


async def test_takeover_is_tried_until_it_succeeds(factory: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    rig = Rig(factory)
    rig.takeover.failures = 2
    pauses: list[float] = []

    async def sleep(seconds: float) -> None:
        pauses.append(seconds)

    monkeypatch.setattr("streams.worker.judge_agent.asyncio.sleep", sleep)
    await rig.assign()
    await rig.agent.restored()
    assert pauses == [0.2, 0.4]
    assert rig.takeover.claims == 1, "an epoch is not spent on each attempt"
    monkeypatch.undo()
    await rig.agent.release()


async def test_waiting_for_the_restore_survives_a_rebalance_in_the_middle_of_it(factory: Any) -> None:
    rig = Rig(factory)
    rig.takeover.gate.clear()
    await rig.assign()
    restored = asyncio.create_task(rig.agent.restored())
    await asyncio.sleep(0)
    await rig.revoke()
    await rig.assign()
    rig.takeover.gate.set()
    async with asyncio.timeout(5):
        await restored
        await rig.agent.restored()
    assert rig.agent.partitions == [0]
    await rig.agent.release()

"""Taking a partition over: claims, fencing of former owners, snapshots, and logs that were made anew."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from typing import Any

import pytest
import structlog

from schemas.errors import SinkRejected, SourceError
from schemas.results import Decision, encode_line
from schemas.topics import DECISIONS, FRAMES, SNAPSHOTS
from streams.kafka import BrokerWatch
from streams.worker.partition import Step
from streams.worker.producer import LogProducer
from streams.worker.snapshot_writer import SnapshotWriter
from streams.worker.takeover import Owned, Takeover

pytestmark = pytest.mark.embedded

PARTITION = 1


class Desk:
    """What a judge needs to own a partition."""

    def __init__(self, site: Any, factory: Any) -> None:
        self.site, self.factory = site, factory
        self.producer = LogProducer(site.settings, BrokerWatch(site.settings))
        self.writer = SnapshotWriter(self.producer)

    async def take(self, generation: int = 1) -> Owned:
        takeover = Takeover(self.site.settings, self.producer, self.factory, generation=generation, with_snapshots=True)
        epoch = await takeover.claim(PARTITION)
        async with asyncio.timeout(20):
            while True:
                try:
                    return await takeover.restore(PARTITION, epoch)
                except SourceError:  # a topic that was made a moment ago has no leader yet
                    await asyncio.sleep(0.1)

    async def decide(self, owned: Owned, seq: int, subject: str = "n1", state: Any = "OPEN") -> None:
        epoch = owned.state.epoch
        made = Decision(
            t=1.0, pool="a", scope="node", subject=subject, state=state, version=(1, epoch, seq), tx=f"{epoch}/{seq}/{subject}"
        )
        await (await self.producer.append(DECISIONS.name, encode_line(made), key=b"a", partition=PARTITION))

    async def frames(self, make_frame: Any, n: int) -> None:
        for i in range(n):
            await self.producer.append(FRAMES.name, make_frame("a", t0_s=1000.0 + i), key=b"a", partition=PARTITION)
        await self.producer.settled()

    def judge(self, owned: Owned, make_record: Any, make_frame: Any, offsets: range) -> Step:
        return owned.state.step([make_record(o, make_frame("a", t0_s=1000.0 + o)) for o in offsets])


@pytest.fixture
async def desk(site: Any, factory: Any) -> AsyncIterator[Desk]:
    desk = Desk(site, factory)
    yield desk
    await desk.producer.close()


async def test_first_owner_of_a_fresh_log_has_epoch_0_and_each_later_one_a_higher(desk: Desk) -> None:
    first = await desk.take()
    await desk.decide(first, 1)
    second = await desk.take()
    assert (first.state.epoch, second.state.epoch) == (0, 2)
    assert second.state.next_offset is None
    assert {s: d.state for (_, s), d in second.state.log.live["a"].items()} == {"n1": "OPEN"}
    assert second.state.log.version == {"a": (1, 0, 1)}
    assert second.log_offset == 0, "it has not judged yet what the log holds"


async def test_without_a_snapshot_a_judge_takes_over_what_the_log_says(desk: Desk, make_record: Any, make_frame: Any) -> None:
    first = await desk.take()
    await desk.decide(first, 1, "n1")
    await desk.decide(first, 2, "n2")
    await desk.decide(first, 3, "n2", "CLOSED")
    second = await desk.take()
    await desk.decide(second, 1, "n3")
    assert second.state.judge("a").open == {"n1": True}  # type: ignore[attr-defined]
    assert second.state.judge("b").open == {}  # type: ignore[attr-defined]
    second.state.log.apply(Decision(t=2.0, pool="a", scope="node", subject="n4", state="OPEN", version=(1, 9, 9), tx="own"))
    second.state.reset(None, 0)
    assert second.state.judge("a").open == {"n1": True}, "what it decided itself, the frames lead to again"  # type: ignore[attr-defined]


async def test_what_a_replaced_owner_still_writes_is_void(desk: Desk) -> None:
    zombie = await desk.take()
    owner = await desk.take()
    await desk.decide(owner, 1, "n1")
    await desk.decide(zombie, 1, "n2")
    await desk.decide(owner, 2, "n3")
    third = await desk.take()
    assert [s for _, s in third.state.log.live["a"]] == ["n1", "n3"]


async def test_new_owner_goes_on_from_the_snapshot_and_knows_what_was_decided_since(
    desk: Desk, make_record: Any, make_frame: Any
) -> None:
    await desk.frames(make_frame, 20)
    first = await desk.take()
    desk.judge(first, make_record, make_frame, range(10))
    first.state.log.known.clear()
    await desk.writer.write(PARTITION, first.state.snapshot(first.log_offset), 0)
    await desk.decide(first, 6, "n9")
    second = await desk.take()
    assert second.state.next_offset == 10
    assert second.slot == 1
    assert second.base is not None
    assert second.state.pools["a"].rows == first.state.pools["a"].rows == 50  # type: ignore[attr-defined]
    assert second.state.log.known.keys() == {"0/6/n9"}
    step = desk.judge(second, make_record, make_frame, range(10, 12))
    assert [d.version for o in step.outputs for d in o.decisions] == [(1, second.state.epoch, 6)]


async def test_snapshot_that_a_replaced_owner_writes_late_is_passed_over(desk: Desk, make_record: Any, make_frame: Any) -> None:
    await desk.frames(make_frame, 30)
    zombie = await desk.take()
    desk.judge(zombie, make_record, make_frame, range(5))
    late = zombie.state.snapshot(zombie.log_offset)
    owner = await desk.take()
    desk.judge(owner, make_record, make_frame, range(25))
    await desk.writer.write(PARTITION, owner.state.snapshot(owner.log_offset), 1)
    await desk.writer.write(PARTITION, late, 0)
    third = await desk.take()
    assert third.state.next_offset == 25


async def test_late_snapshot_of_a_replaced_owner_brings_no_void_decision_back(
    desk: Desk, make_record: Any, make_frame: Any
) -> None:
    """Nobody else wrote one: the baselines in it are good, what it takes for the log's state is not."""
    await desk.frames(make_frame, 20)
    zombie = await desk.take()
    desk.judge(zombie, make_record, make_frame, range(10))
    owner = await desk.take()
    await desk.decide(owner, 1, "n1")
    await desk.decide(zombie, 1, "n2")
    zombie.state.log.apply(
        Decision(t=1.0, pool="a", scope="node", subject="n2", state="OPEN", version=(1, zombie.state.epoch, 1), tx="void")
    )
    await desk.writer.write(PARTITION, zombie.state.snapshot(4), 0)
    third = await desk.take()
    assert third.state.next_offset == 10
    assert [s for _, s in third.state.log.live["a"]] == ["n1"]
    assert "void" not in third.state.log.known


async def test_snapshot_of_an_owner_that_was_still_judging_again_lets_nothing_be_decided_twice(
    desk: Desk, make_record: Any, make_frame: Any
) -> None:
    """It died in the midst of it: what the log holds of the frames that its snapshot does not is known all the same."""
    await desk.frames(make_frame, 20)
    first = await desk.take()
    await desk.decide(first, 1, "n1")
    await desk.decide(first, 2, "n1", "CLOSED")
    second = await desk.take()
    desk.judge(second, make_record, make_frame, range(4))
    await desk.writer.write(PARTITION, second.state.snapshot(second.log_offset), 0)
    third = await desk.take()
    assert third.state.next_offset == 4
    assert third.state.log.known.keys() == {"0/1/n1", "0/2/n1"}
    assert third.state.log.live.get("a", {}) == {}


async def test_snapshot_of_a_log_that_was_made_anew_is_not_used(desk: Desk, make_record: Any, make_frame: Any) -> None:
    first = await desk.take()
    desk.judge(first, make_record, make_frame, range(10))  # the topic is empty: these offsets are of a former one
    await desk.writer.write(PARTITION, first.state.snapshot(first.log_offset), 0)
    with structlog.testing.capture_logs() as logs:
        second = await desk.take()
    assert second.state.next_offset is None
    assert second.state.pools == {}
    assert any("made anew" in line["event"] for line in logs)


async def test_decision_log_that_was_made_anew_is_noticed(desk: Desk, make_record: Any, make_frame: Any) -> None:
    await desk.frames(make_frame, 10)
    first = await desk.take()
    desk.judge(first, make_record, make_frame, range(10))
    snapshot = first.state.snapshot(first.log_offset)
    snapshot.epoch, snapshot.log_offset = 500, 501
    await desk.writer.write(PARTITION, snapshot, 0)
    with structlog.testing.capture_logs() as logs:
        second = await desk.take()
    assert any("SLODRIFT_GENERATION" in line["event"] for line in logs)
    assert second.state.next_offset == 10, "what was learnt is still true"
    with structlog.testing.capture_logs() as logs:
        third = await desk.take(generation=2)
    assert not any("SLODRIFT_GENERATION" in line["event"] for line in logs)
    assert third.state.generation == 2


async def test_large_snapshot_is_written_in_parts_and_smaller_ones_where_the_broker_refuses(
    desk: Desk, make_record: Any, make_frame: Any
) -> None:
    await desk.frames(make_frame, 10)
    owned = await desk.take()
    desk.judge(owned, make_record, make_frame, range(10))
    snapshot = owned.state.snapshot(owned.log_offset)
    snapshot.duplicates = b""  # replaced below by something that does not compress
    snapshot.pools["ballast"] = os.urandom(3_000_000)
    desk.writer = SnapshotWriter(desk.producer, max_part_bytes=5_000_000)
    with structlog.testing.capture_logs() as logs:
        await desk.writer.write(PARTITION, snapshot, 0)
    assert any("smaller parts" in line["event"] for line in logs)
    assert desk.site.ends(SNAPSHOTS.name)[PARTITION] >= 3


async def test_record_that_no_broker_takes_is_refused_and_the_next_one_is_not(desk: Desk) -> None:
    too_large = await desk.producer.append(FRAMES.name, bytes(9_000_000), partition=PARTITION)
    fine = await desk.producer.append(FRAMES.name, b"x", partition=PARTITION)
    with pytest.raises(SinkRejected, match=FRAMES.name):
        await too_large
    assert await fine == 0
    assert await desk.producer.settled() == 0
    assert desk.producer.outstanding == 0

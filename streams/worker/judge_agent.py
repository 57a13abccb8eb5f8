"""The judge: consumes `telemetry.frames`, appends what it concludes, keeps snapshots, and lets time pass when nothing arrives.

No exception leaves the agent (Faust would acknowledge the event and lose it). Bad frames go to the dead letters; a frame that
makes a judge fail is found by feeding its batch again one frame at a time, and dead-lettered too. A broker that is away blocks
the agent where it is. Offsets are committed up to the last durable snapshot, never further.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from time import monotonic, perf_counter
from typing import Any

import structlog
from faust.types import TP

from schemas.errors import SinkRejected, SlodriftError
from schemas.topics import FRAMES
from streams.worker import metrics
from streams.worker.app import WorkerApp
from streams.worker.continuity import Continuity
from streams.worker.fetch import FetchBatch
from streams.worker.outputs import Outputs
from streams.worker.partition import JudgePartition, Record, Step
from streams.worker.snapshot import Snapshot, decode
from streams.worker.snapshot_writer import SnapshotWriter
from streams.worker.takeover import Owned, Takeover

__all__ = ["JudgeAgent", "JudgeTimes"]

log = structlog.get_logger(__name__)

_CHUNK = 64  # frames fed at once: long enough to be cheap per frame, short enough to let other tasks run
_MAX_FAILURES = 3
_WRITING, _WRITING_SHARE = 1, 16  # snapshots written at once, one or a sixteenth of the partitions: each is a copy of the state


@dataclass(frozen=True)
class JudgeTimes:
    """Periods, seconds.

    Attributes:
        snapshot_s: Between two snapshots of a partition.
        idle_s: Silence of a pool, with nothing left to read, after which time goes on without it.
        release_s: What the last snapshot of a partition may take when it is given up.
    """

    snapshot_s: float = 30.0
    idle_s: float = 15.0
    release_s: float = 3.0


@dataclass(slots=True)
class _Tenure:
    """One partition while it is ours."""

    tp: TP
    ready: asyncio.Task[Owned]
    continuity: Continuity
    snapshot_at_s: float
    snapshot_task: asyncio.Task[None] | None = None
    snapshot_offset: int = -1
    first_offset: int | None = None
    one_by_one_until: int = 0
    failures: int = 0
    heard: dict[str, tuple[float, int | None]] = field(default_factory=dict)
    """By pool: when it was last heard of, and its clock then."""


class JudgeAgent:
    """Attach it to an app before the app starts.

    Args:
        app: The Faust app of the judge's group.
        takeover: Restores partitions.
        outputs: Appends results.
        writer: Writes snapshots; None where there is no snapshot topic.
        times: Periods.
        now_ms: Wall clock, Unix milliseconds.
        on_fatal: Called with the reason when going on makes no sense; ends the process.
        clock_s: Monotonic seconds.
    """

    def __init__(
        self,
        app: WorkerApp,
        takeover: Takeover,
        outputs: Outputs,
        writer: SnapshotWriter | None,
        times: JudgeTimes,
        *,
        now_ms: Callable[[], int],
        on_fatal: Callable[[str], None],
        clock_s: Callable[[], float] = monotonic,
    ) -> None:
        self._app = app
        self._takeover = takeover
        self._outputs = outputs
        self._writer = writer
        self._times = times
        self._now_ms = now_ms
        self._on_fatal = on_fatal
        self._clock_s = clock_s
        self._turn = asyncio.Lock()  # one thing at a time touches the judges: a batch, a second's work, a last snapshot
        self._owned: dict[int, _Tenure] = {}
        self.assigned = asyncio.Event()
        """Set at the first assignment, even an empty one."""

    def attach(self) -> None:
        """Register the agent and the rebalance handlers."""
        self._app.agent(self._app.batches(FRAMES.name), name="judge")(self._consume)
        self._app.on_partitions_assigned.connect(self._on_assigned, weak=False)
        self._app.on_partitions_revoked.connect(self._on_revoked, weak=False)

    # -- ownership -------------------------------------------------------------------------------------------------------------

    @property
    def partitions(self) -> list[int]:
        """Partitions that are ours."""
        return sorted(self._owned)

    @property
    def done(self) -> dict[TP, int]:
        """Next offset of each partition that is restored."""
        states = ((t.tp, _state(t)) for t in self._owned.values())
        return {tp: state.next_offset or 0 for tp, state in states if state is not None}

    def epoch_of(self, partition: int) -> int | None:
        """Our epoch in a partition that is restored; None in others."""
        tenure = self._owned.get(partition)
        state = None if tenure is None else _state(tenure)
        return None if state is None else state.epoch

    async def restored(self) -> None:
        """Wait until all partitions that are ours are restored."""
        while pending := [t.ready for t in self._owned.values() if not t.ready.done()]:
            await asyncio.wait(pending)  # a rebalance may cancel some and bring others

    async def _on_assigned(self, app: Any, assigned: set[TP], **_: Any) -> None:
        mine = {tp.partition for tp in assigned if tp.topic == FRAMES.name}
        for partition in mine - self._owned.keys():
            task = asyncio.create_task(self._take(partition), name=f"take-{partition}")
            due = asyncio.get_running_loop().time() + self._times.snapshot_s
            self._owned[partition] = _Tenure(
                TP(FRAMES.name, partition), task, Continuity(self._app.consumer.read_again_from), due
            )
        metrics.PARTITIONS.set(len(self._owned))
        self.assigned.set()

    async def _on_revoked(self, app: Any, revoked: set[TP], **_: Any) -> None:
        await self.release([tp.partition for tp in revoked if tp.topic == FRAMES.name])

    async def release(self, partitions: Iterable[int] | None = None) -> None:
        """Give partitions up (all if None), each with a last snapshot if that does not take long."""
        leaving = [self._owned[p] for p in (self.partitions if partitions is None else partitions) if p in self._owned]
        try:
            async with asyncio.timeout(self._times.release_s), self._turn:
                await asyncio.gather(*(self._last_snapshot(t) for t in leaving))
        except TimeoutError:
            log.info("no time for a last snapshot; the next owner reads on from the one before")
        for tenure in leaving:
            self._owned.pop(tenure.tp.partition, None)
            for task in (tenure.ready, tenure.snapshot_task):
                if task is not None:
                    task.cancel()
            if (state := _state(tenure)) is not None:
                self._outputs.forget(state)
        metrics.PARTITIONS.set(len(self._owned))

    async def _take(self, partition: int) -> Owned:
        pause_s, epoch = 0.2, None
        while True:
            try:
                if epoch is None:
                    epoch = await self._takeover.claim(partition)
                owned = await self._takeover.restore(partition, epoch)
            except SlodriftError as exc:
                log.warning("cannot take the partition over yet, trying again", partition=partition, cause=str(exc))
                await asyncio.sleep(pause_s)
                pause_s = min(2 * pause_s, 5.0)
            else:
                self._outputs.announce(owned.state)
                return owned

    # -- records ---------------------------------------------------------------------------------------------------------------

    async def _consume(self, stream: Any) -> None:
        async for event in stream.events():
            await self.handle(event.value)

    async def handle(self, batch: FetchBatch) -> None:
        """Judge one batch; what is not ours or was judged before is passed over."""
        tenure = self._owned.get(batch.tp.partition)
        try:
            if tenure is not None:
                await asyncio.shield(tenure.ready)
                async with self._turn:
                    await self._judge(tenure, batch)
        except asyncio.CancelledError:
            if tenure is not None and tenure.ready.cancelled():
                return  # the partition went away while it was being restored
            raise
        except Exception as exc:  # Faust would acknowledge the batch and go on without it
            log.error("the judge cannot append its results", partition=batch.tp.partition, exc_info=exc)
            self._owned.pop(batch.tp.partition, None)  # no snapshot may hold what was not appended
            self._on_fatal(f"partition {batch.tp.partition}: results cannot be appended: {type(exc).__name__}: {exc}")
        finally:
            batch.done()

    async def _judge(self, tenure: _Tenure, batch: FetchBatch) -> None:
        records = tenure.continuity.due(batch, tenure.ready.result().state.next_offset)
        start = 0
        while start < len(records) and self._owned.get(batch.tp.partition) is tenure:
            n = 1 if records[start].offset < tenure.one_by_one_until else _CHUNK
            chunk = records[start : start + n]
            owned = tenure.ready.result()
            if tenure.first_offset is None:
                tenure.first_offset = chunk[0].offset
            began_ms, began_s = self._now_ms(), perf_counter()
            try:
                step = owned.state.step(chunk)
            except Exception as exc:  # the supervised place: a judge failed, and we must not
                self._failed(tenure, chunk, exc)
                return  # what follows is read again
            metrics.FRAMES.inc(step.frames)
            metrics.ROWS.inc(step.rows)
            metrics.DUPLICATES.inc(step.duplicates)
            judged_s = perf_counter()
            for pool in step.pools:
                tenure.heard[pool] = self._clock_s(), owned.state.pools[pool].clock_ns
            await self._outputs.publish(owned, step)
            if any(output.decisions for output in step.outputs):
                metrics.STAGE_S.labels("queue").observe(max(0, began_ms - chunk[-1].timestamp) / 1000)
                metrics.STAGE_S.labels("judge").observe(judged_s - began_s)
                metrics.STAGE_S.labels("append").observe(perf_counter() - judged_s)
            if chunk[-1].offset > max(owned.state.poison, default=-1):
                tenure.failures = 0  # frames behind the poisonous ones are judged again
            start += n
            await asyncio.sleep(0)

    def _failed(self, tenure: _Tenure, chunk: Sequence[Record], exc: Exception) -> None:
        """Go back to the newest snapshot and come again, one frame at a time, until the frame that does it is found."""
        metrics.JUDGE_FAILURES.inc()
        owned = tenure.ready.result()
        first, last = chunk[0].offset, chunk[-1].offset
        log.error("a judge failed; looking for the frame that does it", partition=tenure.tp.partition, first=first, last=last,
                  cause=f"{type(exc).__name__}: {exc}", exc_info=len(chunk) == 1)  # fmt: skip
        if len(chunk) == 1:
            owned.state.poison[first] = f"{type(exc).__name__}: {exc}"
            tenure.failures += 1
        if tenure.failures >= _MAX_FAILURES:
            self._on_fatal(
                f"partition {tenure.tp.partition}: the judge fails at every frame, last with {type(exc).__name__}: {exc}"
            )
            return
        tenure.one_by_one_until = max(tenure.one_by_one_until, last + 1)
        base = owned.base if owned.packed is None else decode(owned.packed)
        tenure.heard.clear()
        tenure.first_offset = owned.state.reset(base, tenure.first_offset or 0)
        tenure.continuity.read_again(tenure.tp, tenure.first_offset)

    # -- every second ------------------------------------------------------------------------------------------------------------

    async def every_second(self) -> None:
        """Let time pass in silent pools, and write the snapshots that are due."""
        async with self._turn:
            for tenure in list(self._owned.values()):
                if _state(tenure) is not None:
                    await self._pass_time(tenure)
                    self._snapshot_if_due(tenure)

    async def _pass_time(self, tenure: _Tenure) -> None:
        """A pool of which everything was read, and nothing came for `idle_s`, goes on in time by as much as has passed.

        Silence alone is not enough: as long as records wait to be read, time belongs to them. It is counted from the moment this
        process had the last record, by a clock that nobody sets: wall clocks jump, and those of two hosts differ.
        """
        owned = tenure.ready.result()
        known = self._app.consumer.complete_until_ms(tenure.tp)
        if known is None or owned.state.next_offset is None or owned.state.next_offset < known[0]:
            return
        now_s, due = self._clock_s(), {}
        for pool, judge in owned.state.pools.items():
            since_s, clock_ns = tenure.heard.setdefault(pool, (now_s, judge.clock_ns))
            if clock_ns is not None and now_s - since_s >= self._times.idle_s:
                due[pool] = clock_ns + round((now_s - since_s) * 1e9)
        if outputs := owned.state.idle(due):
            await self._outputs.publish(owned, Step(outputs=outputs))

    # -- snapshots -------------------------------------------------------------------------------------------------------------

    def _snapshot_if_due(self, tenure: _Tenure) -> None:
        now_s = asyncio.get_running_loop().time()
        owned = tenure.ready.result()
        writing = [t for t in self._owned.values() if t.snapshot_task is not None and not t.snapshot_task.done()]
        busy = tenure in writing or len(writing) >= max(_WRITING, len(self._owned) // _WRITING_SHARE)
        if now_s < tenure.snapshot_at_s or busy or owned.state.next_offset in (None, tenure.snapshot_offset):
            return
        tenure.snapshot_at_s = now_s + self._times.snapshot_s
        tenure.snapshot_task = self._begin_snapshot(tenure, owned)

    async def _last_snapshot(self, tenure: _Tenure) -> None:
        if tenure.snapshot_task is not None:
            await asyncio.wait([tenure.snapshot_task])
        if (state := _state(tenure)) is None or state.next_offset in (None, tenure.snapshot_offset):
            return
        await asyncio.wait([self._begin_snapshot(tenure, tenure.ready.result())])

    def _begin_snapshot(self, tenure: _Tenure, owned: Owned) -> asyncio.Task[None]:
        """Copy the state now, between two batches; make it durable in a task."""
        task = asyncio.create_task(self._snapshot(tenure, owned, owned.state.snapshot(owned.log_offset)))
        task.add_done_callback(_note_failure)
        return task

    async def _snapshot(self, tenure: _Tenure, owned: Owned, snapshot: Snapshot) -> None:
        await self._outputs.settled()
        if self._writer is not None:
            try:
                packed = await self._writer.write(tenure.tp.partition, snapshot, owned.slot)
            except SinkRejected as exc:
                log.error("the snapshot cannot be written; after a restart more is read again", cause=str(exc))
                return
            owned.slot = 1 - owned.slot
            owned.base, owned.packed = None, packed
        if self._owned.get(tenure.tp.partition) is tenure:
            tenure.snapshot_offset = snapshot.next_offset
            self._app.ledger.durable(tenure.tp, snapshot.next_offset)


def _state(tenure: _Tenure) -> JudgePartition | None:
    ready = tenure.ready
    return ready.result().state if ready.done() and not ready.cancelled() else None


def _note_failure(task: asyncio.Task[None]) -> None:
    """A snapshot that fails costs time after a restart, nothing else: the judge goes on."""
    if not task.cancelled() and (error := task.exception()) is not None:
        metrics.JUDGE_FAILURES.inc()
        log.error("a snapshot failed; after a restart more is read again", exc_info=error)

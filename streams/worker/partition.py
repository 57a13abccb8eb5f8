"""The judge's state of one partition of `telemetry.frames`, and what one batch of frames does to it. No I/O, no clock.

Everything is a function of the log: the same records from the same state give the same state and the same results, which is
what makes snapshots, replays and a second owner agree.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from schemas.batch import RequestBatch
from schemas.deadletter import DeadLetter
from schemas.errors import SchemaError
from schemas.frame import EventFrame, RequestFrame, decode_frame
from schemas.results import Decision
from schemas.telemetry_auth import Authenticator
from streams.framing import valid_rows
from streams.worker.decision_log import LogState
from streams.worker.dedup import DuplicateFilter
from streams.worker.snapshot import Snapshot

if TYPE_CHECKING:
    from streams.judge import PoolJudge, TickOutput

__all__ = ["JudgeFactory", "JudgePartition", "Record", "Step"]


class Record(Protocol):
    """What is needed of a Kafka record."""

    @property
    def offset(self) -> int: ...
    @property
    def timestamp(self) -> int: ...
    @property
    def value(self) -> bytes | None: ...


class JudgeFactory(Protocol):
    """Makes judges of pools by the policy."""

    def new(self, pool: str, epoch: int, generation: int) -> PoolJudge:
        """A judge that knows nothing yet."""
        ...

    def restore(self, pool: str, raw: bytes, epoch: int, generation: int) -> PoolJudge:
        """The judge that `PoolJudge.snapshot` wrote."""
        ...


@dataclass(slots=True)
class Step:
    """Result of one batch."""

    outputs: list[TickOutput] = field(default_factory=list)
    dead: list[DeadLetter] = field(default_factory=list)
    frames: int = 0
    rows: int = 0
    duplicates: int = 0
    pools: set[str] = field(default_factory=set)
    """Pools that something arrived for."""


class JudgePartition:
    """Judges of the pools of one partition.

    Args:
        topic, partition: What it is the state of.
        factory: Makes judges.
        epoch, generation: Of this owner.
        auth: Verifies who wrote a frame; None takes every frame.

    Attributes:
        next_offset: First offset that is not in the state; None before the first record, when any offset may come.
        heard: When something last came for a pool (Unix ms, by the log) and the pool's clock then (ns).
        n_eligible: Nodes with fresh telemetry at the last tick, by pool.
        log: Non-closed subjects and versions by the decision log.
        inherited: What the log said was not closed when the partition was taken over, by pool: for judges without a snapshot.
        poison: Offsets that must not be fed again: they made a judge fail.
    """

    def __init__(
        self,
        topic: str,
        partition: int,
        factory: JudgeFactory,
        *,
        epoch: int,
        generation: int,
        auth: Authenticator | None = None,
    ) -> None:
        self.topic = topic
        self.partition = partition
        self.epoch = epoch
        self.generation = generation
        self.next_offset: int | None = None
        self.pools: dict[str, PoolJudge] = {}
        self.duplicates = DuplicateFilter()
        self.heard: dict[str, tuple[int, int]] = {}
        self.n_eligible: dict[str, int] = {}
        self.log = LogState()
        self.poison: dict[int, str] = {}
        self.inherited: dict[str, list[Decision]] = {}
        self._factory = factory
        self._auth = auth

    def step(self, records: Sequence[Record]) -> Step:
        """Feed records that follow on `next_offset` and close the ticks whose time has come."""
        step, before = Step(), self.duplicates.duplicates + self.duplicates.too_old
        for record in records:
            if record.offset in self.poison:
                step.dead.append(self._letter(record, "judge", "poison", self.poison[record.offset]))
                continue
            if self._auth is not None and (fault := self._auth.frame_fault(record.value or b"")) is not None:
                step.dead.append(self._letter(record, "authenticate", *fault))  # before it can move a mark or a clock
                continue
            try:
                frame = decode_frame(record.value or b"")
            except SchemaError as exc:
                step.dead.append(self._letter(record, "decode", exc.reason, exc.detail))
                continue
            step.frames += 1
            step.pools.add(frame.header.pool)
            judge = self.judge(frame.header.pool)  # keeps what it is given, and works on all of it at once in `advance`
            if isinstance(frame, EventFrame):
                for event in self.duplicates.events(frame):
                    judge.event(event)
            elif (batch := self._rows(frame, record, step)) is not None:
                step.rows += batch.requests
                judge.requests(batch)
        step.duplicates = self.duplicates.duplicates + self.duplicates.too_old - before
        came_ms = max(record.timestamp for record in records)
        for pool in sorted(step.pools):
            judge = self.pools[pool]
            step.outputs.extend(self._noted(judge.advance()))
            if judge.clock_ns is not None:
                self.heard[pool] = (came_ms, judge.clock_ns)
        self.next_offset = records[-1].offset + 1
        return step

    def idle(self, until_ns: Mapping[str, int]) -> list[TickOutput]:
        """Nothing more is in the log: in these pools, long silent, time goes on to so far, in their own time.

        Never to the wall clock itself: history that is poured into the log keeps its own time.
        """
        outputs: list[TickOutput] = []
        for pool, ns in until_ns.items():
            outputs.extend(self._noted(self.pools[pool].idle(ns)))
        return outputs

    def judge(self, pool: str) -> PoolJudge:
        """The judge of `pool`, made when it is first seen."""
        judge = self.pools.get(pool)
        if judge is None:
            judge = self.pools[pool] = self._factory.new(pool, self.epoch, self.generation)
            if inherited := self.inherited.get(pool):
                judge.inherit(inherited)
        return judge

    def new_decisions(self, outputs: Sequence[TickOutput]) -> list[Decision]:
        """Decisions of `outputs` that the log does not hold yet, in order.

        After a restart the ticks since the snapshot are judged again and give the decisions that the log already has.
        """
        return [d for output in outputs for d in output.decisions if d.tx not in self.log.known]

    def snapshot(self, log_offset: int) -> Snapshot:
        """The state, as bytes that nothing changes any more."""
        return Snapshot(
            epoch=self.epoch,
            next_offset=self.next_offset or 0,
            log_offset=log_offset,
            generation=self.generation,
            duplicates=self.duplicates.dump(),
            pools={pool: judge.snapshot() for pool, judge in self.pools.items()},
            live=[d for subjects in self.log.live.values() for d in subjects.values()],
            version=dict(self.log.version),
            heard=dict(self.heard),
            n_eligible=dict(self.n_eligible),
        )

    def restore(self, snapshot: Snapshot) -> dict[str, str]:
        """Go on from `snapshot`; the epoch stays ours.

        Returns:
            Pools that cannot be restored, and why (another format, another tick length): they begin anew.

        Raises:
            SchemaError: With reason ``bad_snapshot``: the marks of duplicates are unreadable.
        """
        try:
            self.duplicates = DuplicateFilter.load(snapshot.duplicates)
        except ValueError as exc:  # msgspec's errors are ValueErrors
            raise SchemaError("bad_snapshot", str(exc)) from None
        self.pools, failed = {}, {}
        for pool, raw in snapshot.pools.items():
            try:
                self.pools[pool] = self._factory.restore(pool, raw, self.epoch, self.generation)
            except ValueError as exc:
                failed[pool] = str(exc)
        self.next_offset = snapshot.next_offset
        self.heard = {pool: heard for pool, heard in snapshot.heard.items() if pool in self.pools}
        self.n_eligible = dict(snapshot.n_eligible)
        self.poison = {offset: why for offset, why in self.poison.items() if offset >= snapshot.next_offset}
        return failed

    def reset(self, snapshot: Snapshot | None, first_offset: int) -> int:
        """Forget what was judged since `snapshot` (or since `first_offset`, without one); returns the offset to read from."""
        self.pools, self.duplicates, self.heard = {}, DuplicateFilter(), {}
        self.next_offset = first_offset
        if snapshot is not None:
            self.restore(snapshot)
        return self.next_offset

    def _noted(self, outputs: list[TickOutput]) -> list[TickOutput]:
        for output in outputs:
            self.n_eligible[output.pool] = output.n_eligible
        return outputs

    def _rows(self, frame: RequestFrame, record: Record, step: Step) -> RequestBatch | None:
        fresh = self.duplicates.requests(frame)
        batch = frame.batch if fresh is None else frame.batch.take(fresh)
        if len(batch) == 0:
            return None
        batch, refused = valid_rows(batch)
        if refused:
            reason = max(refused, key=lambda r: (refused[r], r))
            counts = ", ".join(f"{n} {r}" for r, n in sorted(refused.items()))
            detail = f"{counts} of {frame.batch.requests} rows; the other rows were used"
            step.dead.append(self._letter(record, "rows", reason, detail, sum(refused.values())))
        return batch if len(batch) else None

    def _letter(self, record: Record, stage: str, reason: str, detail: str, count: int = 1) -> DeadLetter:
        raw = record.value or b""
        return DeadLetter(
            raw=raw, stage=stage, reason=reason, detail=detail, topic=self.topic, partition=self.partition, offset=record.offset,
            timestamp_ms=record.timestamp, size_bytes=len(raw), sha256=hashlib.sha256(raw).hexdigest(), count=count,
        )  # fmt: skip

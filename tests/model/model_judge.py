"""Judges of the protocol model: the worker's own code for claims, restore, log, projector and sink, around a small rule book.

What is replaced is what the protocol does not care about: detectors (a tick says which nodes, classes, sessions look bad) and
Kafka (lists). A tick is an input of the log of frames, so every judge that reads it decides the same.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import msgspec
from model_scopes import FLEET, POLICIES, POOL, act

from detectors import breaker, caps
from detectors.breaker import BreakerRecord
from detectors.caps import CapState
from schemas.policy import PoolPolicy
from schemas.scopes import scope_of
from schemas.signing import Signer
from schemas.topics import DECISIONS
from sinks.redis_decisions import DecisionSink
from streams.judge.decide import Breakers
from streams.judge.results import TickOutput
from streams.judge.scopes.scopes import Scopes
from streams.settings import Settings
from streams.worker import snapshot as snapshots
from streams.worker.outputs import Outputs
from streams.worker.partition import JudgePartition, Step
from streams.worker.projector import Projector
from streams.worker.takeover import Takeover

__all__ = ["BASE_MS", "POLICY", "Crashed", "Judge", "Log", "PoolModel", "Tick", "drive", "read_log", "replayed"]

POLICY = POLICIES[0]
"""For its numbers: all policies have the same."""
BASE_MS = 1_800_000_000_000
_SETTINGS = Settings()
_LOOP = asyncio.new_event_loop()


class Crashed(Exception):
    """The process died here."""


class Tick(msgspec.Struct, frozen=True):
    """One tick of frames: what a judge learns from it.

    Attributes:
        t: Its end, Unix seconds.
        n: Nodes with fresh telemetry, `known` that should be heard.
        bad: Nodes that meet the open condition.
        good_probes, bad_probes: Subjects whose probes (in a ramp, requests) all succeed, or fail.
        orders: (subject, cause, end) of operators.
        faulty: Classes, sessions, and the pool, that should open.
    """

    t: float
    n: int
    known: int
    bad: tuple[str, ...] = ()
    good_probes: frozenset[str] = frozenset()
    bad_probes: frozenset[str] = frozenset()
    orders: tuple[tuple[str, breaker.Cause, float], ...] = ()
    faulty: tuple[str, ...] = ()


@dataclass
class Log:
    """What Kafka keeps: frames, decisions, snapshots. And the policy, which every judge has."""

    policy: PoolPolicy = POLICY
    ticks: list[Tick] = field(default_factory=list)
    records: list[bytes] = field(default_factory=list)
    snapshots: list[bytes] = field(default_factory=list)

    def append(self, value: bytes) -> int:
        self.records.append(value)
        return len(self.records) - 1


class PoolModel:
    """Stands where `PoolJudge` stands: breakers of one pool, by the real state machine and caps; those of scopes other than nodes
    are the judge's own.
    """

    def __init__(self, policy: PoolPolicy, epoch: int, generation: int) -> None:
        self.policy = policy
        # Keeps the nodes' records by seat, bounds what is latched, and numbers and dresses decisions of every scope.
        self.desk = Breakers(POOL, policy, "v1", epoch, generation)
        self.scopes = Scopes(policy, self.desk.issue)
        self.caps = CapState()
        self.clock_ns: int | None = None
        self.held_back: list[str] = []  # why, in the newest tick

    def snapshot(self) -> bytes:
        records = [msgspec.structs.asdict(r) for r in self.desk.records.values()]
        others = {scope: breakers.dump() for scope, breakers in self.scopes.breakers.items()}
        return msgspec.msgpack.encode([self.desk.seq, records, msgspec.structs.asdict(self.caps), self.clock_ns, others])

    @classmethod
    def restore(cls, raw: bytes, policy: PoolPolicy, epoch: int, generation: int) -> PoolModel:
        model = cls(policy, epoch, generation)
        model.desk.seq, records, state, model.clock_ns, others = msgspec.msgpack.decode(raw)
        for raw_record in records:
            record = msgspec.convert(raw_record, BreakerRecord)
            model.desk.records[seat(record.subject)] = record
        model.caps = msgspec.convert(state, CapState)
        for scope, breakers in model.scopes.breakers.items():
            breakers.load(others[scope])
        return model

    def inherit(self, decisions: Any) -> None:
        """Nothing: the model reads its ticks again from the first one."""

    @property
    def records(self) -> dict[str, BreakerRecord]:
        """Of nodes."""
        return {r.subject: r for r in self.desk.records.values()}

    @property
    def away(self) -> list[BreakerRecord]:
        """Nodes."""
        return [r for r in self.desk.records.values() if r.state not in breaker.CLOSED_STATES]

    def everything(self) -> dict[str, BreakerRecord]:
        """Records of all scopes."""
        out = self.records
        for breakers in self.scopes.breakers.values():
            out |= breakers.records
        return out

    def tick(self, tick: Tick) -> TickOutput:
        self.clock_ns = round(tick.t * 1e9)
        rules = self.policy.breaker
        out = TickOutput(tick.t, POOL, n_eligible=tick.n)
        self.held_back = []
        for name, cause, end in tick.orders:
            if scope_of(name) != "node":
                continue
            if cause == "force_open" and (fault := self.desk._over_latched(seat(name), tick.n)):
                self.held_back.append(fault)
                continue
            record = self._record(name)
            if (record.state, cause) in breaker.MOVES:
                self._move(out, record, cause, tick.t, tick.n, until_s=None if cause == "release" else end)
        for name in sorted(self.records):
            good = rules.close_successes if name in tick.good_probes else 0
            bad = rules.reopen_failures if name in tick.bad_probes else 0
            record, due = breaker.step(self._record(name), tick.t, good, bad, rules)
            self.desk.records[seat(name)] = record
            if due is not None:
                self._move(out, record, due, tick.t, tick.n)
        self.caps = caps.step_freeze(self.caps, tick.t, tick.n, len(tick.bad), tick.n, tick.known, self.policy.caps)
        for name in tick.bad:
            record = self._record(name)
            if not breaker.may_trip(record, tick.t, rules):
                continue
            if not caps.may_open(self.caps, tick.t, tick.n, len(self.away), self.policy.caps):
                self.caps = caps.after_open(self.caps, tick.t)
                self._move(out, record, "trip", tick.t, tick.n)
        self.scopes.refused.clear()
        acted = act(self.scopes, tick)
        out.decisions += acted.decisions
        self.held_back += [*acted.capped.values(), *(f"bucket_{why}" for why in self.scopes.refused)]
        return out

    def _record(self, name: str) -> BreakerRecord:
        return self.desk.records.get(seat(name)) or BreakerRecord(subject=name)

    def _move(
        self, out: TickOutput, record: BreakerRecord, cause: breaker.Cause, t: float, n: int, until_s: float | None = None
    ) -> None:
        record = breaker.move(record, cause, t, self.policy.breaker, grace_s=self.desk.grace_s, until_s=until_s)
        if cause == "trip" and record.latched:
            record = self.desk._within_latched(record, n)
            self.held_back += [] if record.latched else ["no place is left for the latch"]
        self.desk.records[seat(record.subject)] = record
        out.decisions.append(self.desk.issue("node", record, t, "drawn", {"cause": cause}))


def seat(name: str) -> int:
    """Of a node."""
    return int(name[1:])


class _Factory:
    def __init__(self, policy: PoolPolicy) -> None:
        self.policy = policy

    def new(self, pool: str, epoch: int, generation: int) -> Any:
        return PoolModel(self.policy, epoch, generation)

    def restore(self, pool: str, raw: bytes, epoch: int, generation: int) -> Any:
        return PoolModel.restore(raw, self.policy, epoch, generation)


class _Producer:
    """Appends to the log; one append may be lost, unanswered (the process dies in both cases) or stored twice."""

    def __init__(self, log: Log) -> None:
        self.log = log
        self.fate: tuple[str, int] | None = None

    async def append(self, topic: str, value: bytes, *, headers: Sequence[Any] = (), **_: Any) -> asyncio.Future[int]:
        future: asyncio.Future[int] = _LOOP.create_future()
        offset = -1
        if topic == DECISIONS.name:
            fate, self.fate = self.fate, None
            if fate is not None and fate[1] > 0:
                self.fate, fate = (fate[0], fate[1] - 1), None
            if fate is not None and fate[0] == "lost":
                raise Crashed
            offset = self.log.append(value)
            if fate is not None and fate[0] == "unanswered":
                raise Crashed
            if fate is not None and fate[0] == "twice":
                offset = self.log.append(value)
        future.set_result(offset)
        return future


class _Record:
    def __init__(self, offset: int, value: bytes) -> None:
        self.offset, self.value = (lambda: offset), (lambda: value)


class _Takeover(Takeover):
    def __init__(self, log: Log, producer: Any) -> None:
        super().__init__(_SETTINGS, producer, _Factory(log.policy), generation=1, with_snapshots=True)
        self.log = log
        self._config = {"log": log}

    @staticmethod
    def read(config: Any, topic: str, partition: int, start: int, end: int) -> list[Any]:
        """In the place of `read_partition`."""
        return [_Record(offset, value) for offset, value in enumerate(config["log"].records[:end]) if offset >= start]

    def _newest_snapshot(self, partition: int) -> tuple[snapshots.Snapshot, int] | None:
        found = [snapshots.decode(raw) for raw in self.log.snapshots]
        return (max(found, key=lambda s: (s.epoch, s.next_offset)), 0) if found else None


class Judge:
    """One process that owned the partition when it started.

    Args:
        log: Kafka.
        redis: Facade of the sink's client.
        now_s: The world's time, seconds.
        skew_ms: Of this machine's clock.
        signer: The judge's key.
    """

    def __init__(self, log: Log, redis: Any, now_s: Callable[[], float], skew_ms: int, signer: Signer) -> None:
        self.log, self.alive, self.paused = log, True, False
        self.producer = _Producer(log)
        self.sink = DecisionSink(redis, FLEET, now_ms=lambda: BASE_MS + skew_ms + round(now_s() * 1000), signer=signer)
        self.projector = Projector(self.sink, may_speak=lambda: True)
        self.outputs = Outputs(self.producer, SimpleNamespace(count=lambda topic: 1), self.projector)  # type: ignore[arg-type]
        takeover = _Takeover(log, self.producer)
        self.epoch = drive_io(takeover.claim(0))
        self.owned = drive_io(takeover.restore(0, self.epoch))
        self.outputs.announce(self.owned.state)

    @property
    def state(self) -> JudgePartition:
        return self.owned.state

    @property
    def model(self) -> PoolModel:
        model: Any = self.state.judge(POOL)
        return model

    def work(self, check: Callable[[PoolModel, Tick, TickOutput, dict[str, BreakerRecord]], None]) -> None:
        """Judge every tick that it has not judged yet."""
        while self.alive and (position := self.state.next_offset or 0) < len(self.log.ticks):
            before = self.model.everything()
            out = self.model.tick(self.log.ticks[position])
            check(self.model, self.log.ticks[position], out, before)
            self.state.n_eligible[POOL] = out.n_eligible
            self.state.next_offset = position + 1
            try:
                drive_io(self.outputs.publish(self.owned, Step(outputs=[out], pools={POOL})))
            except Crashed:
                self.alive = False

    def beat(self) -> None:
        """What the projector's task does every second."""
        if self.alive:
            drive(self.projector._assert_all(beat=True))

    def save(self) -> None:
        """Write a snapshot."""
        self.log.snapshots.append(snapshots.pack(self.state.snapshot(self.owned.log_offset)))


def drive(coroutine: Coroutine[Any, Any, Any]) -> Any:
    """Result of a coroutine that never has to wait."""
    try:
        coroutine.send(None)
    except StopIteration as stop:
        return stop.value
    raise AssertionError("it waits")


def drive_io(coroutine: Coroutine[Any, Any, Any]) -> Any:
    """Result of a coroutine that waits for threads or futures."""
    return _LOOP.run_until_complete(coroutine)


def replayed(policy: PoolPolicy, ticks: Sequence[Tick]) -> list[str]:
    """Identities of the decisions that a judge gives that was there from the beginning."""
    model = PoolModel(policy, 0, 1)
    return [d.tx for tick in ticks for d in model.tick(tick).decisions]


read_log = _Takeover.read
"""What `streams.worker.takeover.read_partition` is replaced with."""

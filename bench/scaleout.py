"""Scale out: judges of one group share the pools while one joins under load and another is killed.

    slodrift bench scaleout [--kafka]

Frames of 16 pools come at a fixed pace, ten times as fast as their own time. Two judges share them; a third joins; then the first
is killed (SIGKILL: no last snapshot, no leave). Afterwards the log of windows is read whole and compared with one judge that saw
the same frames in this process, without a broker. Loss: a tick of a pool that is not there. Duplicate: one that is there twice,
because a successor judged again what its predecessor had appended, and is not equal to the byte. So for decisions, by identity.

The pause of a pool is the longest gap between two of its windows around an event, by the times that the judges gave the records.
All processes share the cores of one machine, so this shows correctness and pauses, not a multiple of speed.
"""

from __future__ import annotations

import time
from collections import defaultdict
from dataclasses import dataclass, field
from itertools import pairwise

from confluent_kafka import Producer

from bench.report import Report
from bench.scale_load import LoadShape, batches
from bench.stand import Stand, open_stand
from schemas.frame import FrameHeader, encode_request_frame
from schemas.policy_file import Policy, load_policy
from schemas.results import Decision
from schemas.topics import DECISIONS, FRAMES, WINDOWS, partition_of
from schemas.windows import decode_windows, encode_windows
from streams.kafka import client_config
from streams.worker.child import WorkerChild
from streams.worker.decision_log import LogReader, read_partition
from streams.worker.partition import JudgePartition
from streams.worker.policy_factory import PolicyFactory
from streams.worker.takeover import log_end

__all__ = ["Told", "read", "reference", "run"]

PARTITIONS, POOLS, NODES, ROWS = 8, 16, 8, 30
TICK_S = 5.0
PACE = 10.0  # event time to wall time
DEADLINE_S = 90.0
BEFORE_S = 1.0
"""A pause may begin with a window of the second before the event."""
SLOW_FROM = 50
"""Tick from which on the first node of every pool is slow: so there are decisions to lose."""


@dataclass
class Told:
    """What is in the log: contents and record times by (pool, tick), and decisions by their tx."""

    windows: dict[tuple[str, int], list[bytes]] = field(default_factory=lambda: defaultdict(list))
    times_s: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))
    decisions: dict[str, list[Decision]] = field(default_factory=lambda: defaultdict(list))


def run(seed: int, *, quick: bool = False, kafka: bool = False) -> Report:
    """Run it; `kafka` on a real Apache Kafka."""
    ticks = 100 if quick else 180
    report = Report("scaleout", "Judges of one group", ("event", "at s", "longest pause of a pool, s"), seed)
    frames = _frames(ticks, seed)
    expected = reference(frames, load_policy(None))
    with open_stand(kafka=kafka, partitions=PARTITIONS) as stand:
        workers = [_judge(stand) for _ in range(2)]
        try:
            events, took_s = _load(stand, workers, frames)
            told = _wait(stand, expected)
        finally:
            for worker in workers:
                if worker.process is not None and worker.process.poll() is None:
                    worker.terminate()
    for (what, at_s), (_, next_s) in pairwise([*events, ("", float("inf"))]):
        report.add(what, round(at_s - events[0][1], 1), round(_pause_s(told, at_s - BEFORE_S, next_s - BEFORE_S), 1))
    n = sum(len(tick) for tick in frames)
    report.notes.append(
        f"{stand.broker}: {n:,} frames in {took_s:.0f} s, {n / took_s:,.0f} frames/s, {n * ROWS / took_s:,.0f} requests/s; "
        "all processes on the cores of one machine"
    )
    missing = expected.windows.keys() - told.windows.keys()
    differing = [key for key, contents in told.windows.items() if set(contents) != set(expected.windows.get(key, []))]
    again = sum(len(contents) - 1 for contents in told.windows.values())
    report.notes.append(f"{len(told.windows):,} ticks of pools; {again:,} judged again by a successor and equal")
    report.bar(f"loss: {len(missing)} of {len(expected.windows):,} ticks", not missing)
    report.bar(f"duplicates that differ: {len(differing)}", not differing)
    lost = expected.decisions.keys() - told.decisions.keys()
    extra = [tx for tx, made in told.decisions.items() if len(made) > 1 or tx not in expected.decisions]
    report.bar(
        f"decisions: {len(lost)} of {len(expected.decisions)} lost, {len(extra)} twice or invented", not lost and not extra
    )
    return report


def _frames(ticks: int, seed: int) -> list[list[tuple[str, bytes]]]:
    """(pool, frame) by tick."""
    by_tick: list[list[tuple[str, bytes]]] = [[] for _ in range(ticks)]
    for p in range(POOLS):
        pool = f"pool-{p}"
        for tick, node, batch in batches(LoadShape(pool, NODES, ROWS, tick_s=TICK_S), range(ticks), seed):
            if node == 0 and tick >= SLOW_FROM:
                batch.latency_s *= 4
                batch.outcome[::3] = 5  # server errors
            header = FrameHeader(pool=pool, node=batch.nodes[0], boot_id="b", seq=tick)
            by_tick[tick].append((pool, encode_request_frame(header, batch)))
    return by_tick


@dataclass(frozen=True)
class _Record:
    offset: int
    timestamp: int
    value: bytes


def reference(frames: list[list[tuple[str, bytes]]], policy: Policy) -> Told:
    """What one judge concludes that is never interrupted, from (pool, frame) by tick."""
    judge, told = JudgePartition(FRAMES.name, 0, PolicyFactory(policy), epoch=0, generation=1), Told()
    offset = 0
    for tick in frames:
        step = judge.step([_Record(offset + i, 0, raw) for i, (_, raw) in enumerate(tick)])
        offset += len(tick)
        for out in step.outputs:
            if out.windows is not None:
                told.windows[out.pool, round(1000 * out.t)] = [
                    encode_windows(out.pool, round(1000 * out.t), out.windows.columns())
                ]
            for decision in out.decisions:
                told.decisions[decision.tx].append(decision)
    return told


def _judge(stand: Stand) -> WorkerChild:
    worker, _ = stand.judge(snapshot_s="5")
    worker.start(60.0)
    return worker


def _load(
    stand: Stand, workers: list[WorkerChild], frames: list[list[tuple[str, bytes]]]
) -> tuple[list[tuple[str, float]], float]:
    """Send everything at its pace; the third judge joins after 40 %, the first is killed after 65 %."""
    producer = Producer({**client_config(stand.settings), "linger.ms": 5})
    events = [("two judges", time.time())]
    began = time.monotonic()
    for tick, batch in enumerate(frames):
        for pool, raw in batch:
            producer.produce(FRAMES.name, raw, key=pool.encode(), partition=partition_of(pool, PARTITIONS))
            producer.poll(0)
        if tick == 2 * len(frames) // 5:
            worker, _ = stand.judge(snapshot_s="5")
            worker.spawn()
            workers.append(worker)
            events.append(("a third joins", time.time()))
        if tick == 13 * len(frames) // 20:
            workers[0].kill()
            events.append(("the first is killed", time.time()))
        ahead_s = began + (tick + 1) * TICK_S / PACE - time.monotonic()
        if ahead_s > 0:
            time.sleep(ahead_s)
    producer.flush(60)
    return events, time.monotonic() - began


def _wait(stand: Stand, expected: Told) -> Told:
    """Read the logs until everything expected is there, or the deadline."""
    end = time.monotonic() + DEADLINE_S
    while True:
        told = read(stand)
        complete = expected.windows.keys() <= told.windows.keys() and expected.decisions.keys() <= told.decisions.keys()
        if complete or time.monotonic() > end:
            return told
        time.sleep(2.0)


def read(stand: Stand) -> Told:
    """All windows and decisions in the logs of `stand`."""
    told, config = Told(), client_config(stand.settings)
    for partition in range(stand.partitions):
        for record in read_partition(config, WINDOWS.name, partition, 0, log_end(config, WINDOWS.name, partition)):
            block = decode_windows(record.value())
            told.windows[block.pool, block.t_ms].append(record.value())
            told.times_s[block.pool].append(record.timestamp()[1] / 1000)
        reader = LogReader()
        for record in read_partition(config, DECISIONS.name, partition, 0, log_end(config, DECISIONS.name, partition)):
            decision = reader.read(record.offset(), record.value())
            if decision is not None:
                told.decisions[decision.tx].append(decision)
    return told


def _pause_s(told: Told, from_s: float, until_s: float) -> float:
    """Longest gap between two windows of a pool that begins in this time."""
    longest = 0.0
    for times in told.times_s.values():
        longest = max([longest, *(b - a for a, b in pairwise(sorted(times)) if from_s <= a < until_s)])
    return longest

"""A hot pool: judged whole by one judge, whole with a second judge beside it, and as two cells on two judges.

    slodrift bench hotpool [--kafka]

The same frames, sent as fast as they go (to the mock cluster: as fast as they are judged), each time to an empty broker with two
partitions. A whole pool is in one of them, so a second judge has nothing to do; its two cells are in both. In each cell one node
becomes slow, so there are decisions to compare.

Shown is the time from the first frame to the last window of the log, and the CPU of each judge. Broker, Redis, the sender and the
judges share the cores of this machine: on two of them two judges cannot be twice as fast, and the CPU is what says how much of a
core each would need on a machine of its own. Windows and decisions are compared with one judge in this process that saw the same
frames without a broker: what becomes of a cell does not depend on where the other one is judged.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from confluent_kafka import Producer

from bench.report import Report
from bench.scale_load import LoadShape, batches
from bench.scaleout import Told, read, reference
from bench.stand import Counters, cpu_s, open_stand
from schemas.cells import cell_index, cell_of
from schemas.errors import SlodriftError
from schemas.frame import FrameHeader, encode_request_frame
from schemas.policy_file import load_policy
from schemas.topics import FRAMES, partition_of
from streams.kafka import client_config
from streams.worker.child import WorkerChild

__all__ = ["run"]

POOL, CELLS, PARTITIONS = "hot", 2, 2
NODES, ROWS, TICK_S = 200, 100, 5.0
SLOW_FROM = 40
BACKLOG, BATCH = 800, 200
"""Frames that wait for the judges, and that are sent at a time: the mock cluster keeps 5 MB of a partition."""
DEADLINE_S = 60.0
Frames = list[list[tuple[str, bytes]]]


@dataclass(frozen=True)
class _Run:
    """One run: wall seconds, CPU seconds of each judge, the frames each has judged, and what is in the log."""

    wall_s: float
    cpu_s: Sequence[float]
    frames: Sequence[int]
    told: Told


def run(seed: int, *, quick: bool = False, kafka: bool = False) -> Report:
    """Run it; `kafka` on a real Apache Kafka."""
    ticks = 60 if quick else 120
    report = Report(
        "hotpool", "A pool of one partition, and its two cells",
        ("case", "s", "requests/s", "CPU s of each judge", "frames of each judge"), seed,
    )  # fmt: skip
    with tempfile.TemporaryDirectory(prefix="slodrift-bench-") as folder:
        file, runs = Path(folder) / "policy.yaml", []
        for case, judges, cells in (
            ("whole, one judge", 1, 1),
            ("whole, two judges", 2, 1),
            ("two cells, two judges", 2, CELLS),
        ):
            pools = f'{{"{POOL}": {{cells: {cells}, slo: {{ttft_s: {{threshold: 0.5}}}}}}}}'
            file.write_text(f"apiVersion: slodrift/v1\nkind: Policy\npools: {pools}\n")
            frames = _frames(ticks, seed, cells)
            made = _measure(frames, judges, file, kafka)
            runs.append(made)
            rows = ROWS * sum(map(len, frames))
            used, judged = (
                ", ".join(f"{n:,.3g}" if isinstance(n, float) else f"{n:,}" for n in some) for some in (made.cpu_s, made.frames)
            )
            report.add(case, round(made.wall_s, 1), f"{rows / made.wall_s:,.0f}", used, judged)
            _compare(report, case, made.told, reference(frames, load_policy(file)))
    one, _, two = runs
    report.notes.append(
        f"{'Apache Kafka' if kafka else 'mock cluster'}, {NODES} nodes, {ticks} ticks; the cells are "
        f"{one.wall_s / two.wall_s:.2f} times as fast as the whole, with judges, broker, Redis and the sender on the cores of "
        f"one machine; the busier of their judges takes {max(two.cpu_s) / max(one.cpu_s):.2f} of the CPU of one judge for both"
    )
    return report


def _frames(ticks: int, seed: int, cells: int) -> Frames:
    """(pool, frame) by tick, of the pool or its cells; the first node of each cell becomes slow."""
    by_tick: Frames = [[] for _ in range(ticks)]
    names = [f"gpu-{i:05d}" for i in range(NODES)]
    slow = {next(i for i, name in enumerate(names) if cell_index(name, CELLS) == cell) for cell in range(CELLS)}
    for tick, node, batch in batches(LoadShape(POOL, NODES, ROWS, tick_s=TICK_S), range(ticks), seed):
        if node in slow and tick >= SLOW_FROM:
            batch.latency_s *= 4
        pool = cell_of(POOL, batch.nodes[0], cells)
        header = FrameHeader(pool=pool, node=batch.nodes[0], boot_id="b", seq=tick)
        by_tick[tick].append((pool, encode_request_frame(header, batch)))
    return by_tick


def _measure(frames: Frames, n_judges: int, policy: Path, kafka: bool) -> _Run:
    with open_stand(kafka=kafka, partitions=PARTITIONS) as stand:
        made = [stand.judge("--policy", str(policy)) for _ in range(n_judges)]
        judges, counters = [worker for worker, _ in made], [count for _, count in made]
        try:
            for worker in judges:
                worker.start(60.0)
            for count in counters:
                _shared(count, PARTITIONS // n_judges)
            began_cpu_s, began_s = [_cpu_s(worker) for worker in judges], time.time()
            producer = Producer({**client_config(stand.settings), "linger.ms": 5, "batch.size": 500_000})
            for i, (pool, raw) in enumerate(frame for tick in frames for frame in tick):
                if i % BATCH == 0 and not kafka:
                    _judged(counters, i - BACKLOG)
                producer.produce(FRAMES.name, raw, key=pool.encode(), partition=partition_of(pool, PARTITIONS))
                producer.poll(0)
            producer.flush(60)
            judged = _judged(counters, sum(map(len, frames)))
            used = [_cpu_s(worker) - before for worker, before in zip(judges, began_cpu_s, strict=True)]
        finally:
            for worker in judges:
                worker.terminate()
        told = read(stand)  # after they ended: everything is appended
    last_s = max(t for times in told.times_s.values() for t in times)
    return _Run(last_s - began_s, used, judged, told)


def _shared(counters: Counters, n_partitions: int) -> None:
    """Wait until the judge has its part of the partitions: the second one that comes takes some from the first."""
    end = time.monotonic() + DEADLINE_S
    while counters.read().get("slodrift_partitions") != n_partitions:
        if time.monotonic() > end:
            raise SlodriftError(f"a judge does not have {n_partitions} of the partitions after {DEADLINE_S:g} s")
        time.sleep(0.2)


def _judged(counters: Sequence[Counters], n_frames: int) -> list[int]:
    """Wait until so many frames are judged; how many by each."""
    end = time.monotonic() + DEADLINE_S
    while sum(judged := [int(count.read().get("slodrift_frames_total", 0)) for count in counters]) < n_frames:
        if time.monotonic() > end:
            raise SlodriftError(f"{sum(judged):,} of {n_frames:,} frames are judged after {DEADLINE_S:g} s")
        time.sleep(0.02)
    return judged


def _cpu_s(worker: WorkerChild) -> float:
    assert worker.process is not None
    return cpu_s(worker.process.pid)


def _compare(report: Report, case: str, told: Told, expected: Told) -> None:
    differing = [key for key, made in expected.windows.items() if told.windows.get(key) != made]
    n = len(expected.windows)
    report.bar(f"{case}: {len(differing)} of {n:,} ticks missing or different from one judge's", n > 0 and not differing)
    made = {tx: (d.pool, d.subject, d.state) for tx, some in told.decisions.items() for d in some}
    wanted = {tx: (d.pool, d.subject, d.state) for tx, some in expected.decisions.items() for d in some}
    opened = sorted({pool for pool, _, state in wanted.values() if state == "OPEN"})
    report.bar(f"{case}: {len(wanted)} decisions, equal; opens in {', '.join(opened)}", made == wanted and bool(opened))

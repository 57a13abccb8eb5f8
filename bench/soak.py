"""E, one judge: how much it takes at most, and whether it lives on four fifths of that.

A *request* is one finished request: one row of a frame, with its four latencies. A *sample* is one latency. Frames hold 1,000
requests of one node; pools of 64 nodes, a tick of one second, one second allowed for late events, all detection on, duplicates
filtered, results appended to Kafka and asserted in Redis.

1. Baselines are learnt from smaller frames.
2. *Ceiling*: the judge is stopped (SIGSTOP) while a backlog is written, then goes on; wall and CPU time until it is judged.
3. *Soak*: frames are sent at 80 % of that for some minutes, in real time. Memory, lag and CPU are noted every ten seconds; at the
   end everything that was sent must have been judged, once.
"""

from __future__ import annotations

import os
import signal
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from confluent_kafka import Producer

from bench.frames import Template, make_template
from bench.report import Report
from bench.stand import Counters, Stand, cpu_s, open_stand, rss_bytes
from schemas.errors import ConfigError, SlodriftError
from schemas.topics import FRAMES, partition_of
from streams.kafka import client_config

__all__ = ["run"]

ROWS, SLIS = 1000, 4
POOLS, NODES = 8, 64
DENSITY = 2000.0
"""Frames in a second of event time of the backlog."""
SPAN_S = 0.2
T0_NS = 1_796_000_000 * 10**9
LEARN_S, LEARN_ROWS = 35, 100
MOCK_KEEPS = 1000
"""Frames of backlog on the mock cluster, which keeps 5 MB a partition."""
SHARE = 0.8
BAR_REQUESTS_PER_S, BAR_RSS_MIB = 3_000_000, 512

POLICY = """\
apiVersion: slodrift/v1
kind: Policy
extends: default
pools:
  "*":
    mode: enforce
    tick_s: 1
    lateness_s: 1
    slo:
      ttft_s: {threshold: 3.0, objective: 0.99}
      e2e_s: {threshold: 120.0, objective: 0.99}
    health: {stale_after_s: 5}
    detection: {period_s: 10, learning_s: 30, learning_samples: 300}
"""


@dataclass
class Fleet:
    """All nodes of all pools, and what was sent of them.

    Attributes:
        sent: Frames so far, every size; `rows`: their requests.
        now_ns: Event time.
    """

    stand: Stand
    templates: list[Template]
    thin: list[Template]
    producer: Producer
    now_ns: int = T0_NS
    sent: int = 0
    rows: int = 0
    turn: int = 0
    seq: int = 0

    def send(self, n_rows: int, template: Template) -> None:
        """One frame, of the time `SPAN_S` before now."""
        self.seq += 1
        raw = template.at(self.seq, self.now_ns - round(SPAN_S * 1e9))
        partition = partition_of(template.pool, self.stand.partitions)
        while True:
            try:
                self.producer.produce(FRAMES.name, raw, partition=partition)
                break
            except BufferError:
                self.producer.poll(0.01)
        self.sent += 1
        self.rows += n_rows

    def learn(self, judged: Callable[[int], object]) -> None:
        """A small frame a node and second; `judged` waits until so many frames are judged (the mock cluster keeps few)."""
        for _ in range(LEARN_S):
            self.now_ns += 10**9
            for template in self.thin:
                self.send(LEARN_ROWS, template)
            self.producer.flush(60)
            judged(self.sent - 2 * len(self.thin))

    def full(self, n: int, per_s: float) -> None:
        """`n` full frames, nodes in turn, `per_s` of them in a second of event time."""
        for _ in range(n):
            self.now_ns += round(1e9 / per_s)
            self.send(ROWS, self.templates[self.turn])
            self.turn = (self.turn + 1) % len(self.templates)
        self.producer.poll(0)


def pools_of(partitions: int) -> list[str]:
    """Names of pools, one for each of the partitions."""
    found: dict[int, str] = {}
    i = 0
    while len(found) < partitions:
        found.setdefault(partition_of(f"pool-{i}", partitions), f"pool-{i}")
        i += 1
    return [found[partition] for partition in sorted(found)]


def make_fleet(stand: Stand, rng: np.random.Generator) -> Fleet:
    """Nodes of the pools in turn."""
    names = [(pool, f"gpu-{node:03d}") for node in range(NODES) for pool in pools_of(POOLS)]
    producer = Producer(
        {
            **client_config(stand.settings), "acks": "all", "linger.ms": 10, "batch.size": 500_000,
            "queue.buffering.max.kbytes": 262_144,
        }
    )  # fmt: skip
    full = [make_template(pool, node, ROWS, SPAN_S, rng) for pool, node in names]
    return Fleet(stand, full, [make_template(pool, node, LEARN_ROWS, SPAN_S, rng) for pool, node in names], producer)


def ceiling(fleet: Fleet, pid: int, counters: Counters, n: int) -> tuple[float, float]:
    """(Frames per second of wall time, per CPU second) of `n` frames of backlog."""
    os.kill(pid, signal.SIGSTOP)
    try:
        fleet.full(n, DENSITY)
        fleet.producer.flush(60)
        began_cpu_s = cpu_s(pid)
    finally:
        os.kill(pid, signal.SIGCONT)
    began_s = time.perf_counter()
    counters.wait_for("slodrift_frames_total", fleet.sent, 120)
    return n / (time.perf_counter() - began_s), n / (cpu_s(pid) - began_cpu_s)


def soak(fleet: Fleet, per_s: float, seconds: float, look: Callable[[], None]) -> None:
    """Frames in real time; `look` is called every ten seconds."""
    began, done, next_look = time.perf_counter(), 0, 10.0
    while (passed := time.perf_counter() - began) < seconds:
        due = int(passed * per_s) - done
        fleet.full(due, per_s)
        done += due
        if passed >= next_look:
            look()
            next_look += 10.0
        time.sleep(0.005)


def run(seed: int, *, quick: bool = False, kafka: bool = False, minutes: float | None = None) -> Report:
    """Run it; `minutes` of soak (10, or half a minute with `quick`; 0, and without `kafka`, for the ceiling alone)."""
    minutes = (0.5 if quick else 10.0) if minutes is None and kafka else minutes or 0.0
    if minutes and not kafka:
        raise ConfigError("the mock cluster keeps too little for a soak (a second of lag loses frames): add --kafka")
    report = Report("soak", "", ("what", "value", "unit"), seed)
    with tempfile.TemporaryDirectory() as folder, open_stand(kafka=kafka, partitions=POOLS) as stand:
        file = Path(folder, "policy.yaml")
        file.write_text(POLICY)
        fleet = make_fleet(stand, np.random.default_rng(seed))
        worker, counters = stand.judge("--policy", str(file), kafka_session_timeout_s="45" if kafka else "30")
        with worker:
            assert worker.process is not None
            pid = worker.process.pid
            fleet.learn(lambda n: counters.wait_for("slodrift_frames_total", n, 60))
            counters.wait_for("slodrift_frames_total", fleet.sent, 60)
            tries = [ceiling(fleet, pid, counters, 20_000 if kafka else MOCK_KEEPS) for _ in range(2 if kafka else 8)]
            wall, cpu = (float(np.median([t[i] for t in tries])) for i in (0, 1))
            add_rate(report, "ceiling, wall time", wall)
            add_rate(report, "ceiling, CPU time of the judge", cpu)
            report.add("CPU a frame", 1e6 / cpu, "us")
            report.add("resident memory then", rss_bytes(pid) / 2**20, "MiB")
            if minutes > 0:
                watch_soak(report, fleet, pid, counters, SHARE * wall, minutes * 60)
        report.title = f"E. One judge, frames of {ROWS} requests, {POOLS} pools of {NODES} nodes, {stand.broker}"
    report.bar(f"{wall * ROWS / 1e6:.2f} M requests/s >= 3", wall * ROWS >= BAR_REQUESTS_PER_S)
    return report


def watch_soak(report: Report, fleet: Fleet, pid: int, counters: Counters, per_s: float, seconds: float) -> None:
    """Soak, and what it showed."""
    rss, lag, cpu = [rss_bytes(pid)], [0.0], [cpu_s(pid)]
    before = fleet.sent

    def look() -> None:
        judged = counters.read().get("slodrift_frames_total", 0.0)
        rss.append(rss_bytes(pid))
        lag.append(fleet.sent - judged)
        cpu.append(cpu_s(pid))

    soak(fleet, per_s, seconds, look)
    if fleet.producer.flush(60):
        raise SlodriftError("the producer could not send everything: the broker is too slow for this rate")
    counters.wait_for("slodrift_frames_total", fleet.sent, 60)
    values = counters.read()
    lost = fleet.rows - values["slodrift_rows_total"]
    twice = values.get("slodrift_duplicates_total", 0.0)
    add_rate(report, f"soak, {seconds / 60:g} minutes", (fleet.sent - before) / seconds)
    report.add("  judge's share of a core", 100 * (cpu[-1] - cpu[0]) / (10 * (len(cpu) - 1)) if len(cpu) > 1 else 0.0, "%")
    mib = [bytes_ / 2**20 for bytes_ in rss]
    half = len(mib) // 2
    report.add("  resident memory, largest", max(mib), "MiB")
    halves = f"{np.median(mib[:half]):.0f}, {np.median(mib[half:]):.0f}"
    report.add("  resident memory, median of the first and second half", halves, "MiB")
    report.add("  lag, median and largest", f"{np.median(lag):,.0f}, {max(lag):,.0f}", "frames")
    report.add("  requests lost, requests refused as duplicates", f"{lost:,.0f}, {twice:,.0f}", "")
    report.notes.append("resident memory every 10 s, MiB: " + " ".join(f"{m:.0f}" for m in mib))
    report.notes.append("lag every 10 s, frames: " + " ".join(f"{frames:.0f}" for frames in lag))
    report.bar(f"memory {max(mib):.0f} MiB <= {BAR_RSS_MIB}", max(mib) <= BAR_RSS_MIB)
    lag_s = max(lag) / per_s
    report.bar(f"lag at most {lag_s:.1f} s of traffic <= 5 s, nothing lost ({lost:,.0f})", lag_s <= 5 and lost == 0)


def add_rate(report: Report, what: str, frames_per_s: float) -> None:
    """A rate in frames, requests and samples."""
    report.add(what, frames_per_s, "frames/s")
    report.add("", frames_per_s * ROWS / 1e6, "M requests/s")
    report.add("", frames_per_s * ROWS * SLIS / 1e6, "M samples/s")

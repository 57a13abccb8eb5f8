"""Frames per second of one judge process, end to end: Kafka, Faust, decode, detection, results to Kafka and Redis.

    python bench/judge_speed.py [--frames 6400] [--rows 500] [--nodes 384] [--every 5] [--kafka HOST:PORT]

Frames are written first and then consumed by one `slodrift worker judge`, so the rate is that of the judge alone; CPU time is
that of its process and includes the fetching. Every node sends one frame each `--every` seconds of event time. Without --kafka
it runs on the embedded stack, whose mock broker keeps 5 MB a partition: so no more than about 200 frames a partition.
"""

from __future__ import annotations

import argparse
import os
import platform
import socket
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

import numpy as np
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient

from schemas.batch import UNKNOWN_TOKENS, RequestBatch
from schemas.frame import FrameHeader, encode_request_frame
from schemas.topics import FRAMES, partition_of
from streams.embedded import EmbeddedStack
from streams.kafka import client_config
from streams.kafka_topics import create_topics
from streams.worker.child import WorkerChild

T0_S = 1_796_000_000.0


def make_frames(n_frames: int, rows: int, nodes: int, every_s: float, pools: list[str]) -> list[tuple[str, bytes]]:
    """(pool, frame) in event-time order, all nodes in turn."""
    rng = np.random.default_rng(1)
    frames: list[tuple[str, bytes]] = []
    per_pool = max(1, nodes // len(pools))
    unknown = np.full(rows, UNKNOWN_TOKENS, np.uint32)
    turn = 0
    while len(frames) < n_frames:
        for pool in pools:
            for node in range(per_pool):
                latency_s = np.exp(rng.normal(np.log([[0.2], [0.02], [0.01], [2.0]]), 0.4, (4, rows))).astype(np.float32)
                offset_us = np.sort(rng.integers(0, int(every_s * 999_000), rows))
                tokens = rng.integers(2, 4000, (2, rows)).astype(np.uint32)
                header = FrameHeader(pool=pool, node=f"gpu-{node:03d}", boot_id="b", seq=turn)
                batch = RequestBatch(
                    pool=pool, nodes=[header.node], node=np.zeros(rows, np.uint32),
                    ts_ns=round((T0_S + turn * every_s) * 1e9) + offset_us * 1000, latency_s=latency_s,
                    outcome=np.zeros(rows, np.uint8), prompt_tokens=tokens[0],
                    output_tokens=tokens[1], cached_tokens=unknown, batch_size=unknown,
                    probe=np.full(rows, -1, np.int8), adapters=[], adapter=unknown, tenants=[], tenant=unknown,
                    session=rng.integers(1, 1 << 30, rows).astype(np.uint32), kv_mismatch=np.zeros(rows, np.bool_),
                )  # fmt: skip
                frames.append((pool, encode_request_frame(header, batch)))
        turn += 1
    return frames[:n_frames]


def pools_for(partitions: int) -> list[str]:
    """One pool name for each partition."""
    found: dict[int, str] = {}
    i = 0
    while len(found) < partitions:
        found.setdefault(partition_of(f"pool-{i}", partitions), f"pool-{i}")
        i += 1
    return list(found.values())


def free_port() -> int:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port: int = s.getsockname()[1]
    return port


def counter(port: int, name: str) -> float:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=5) as answer:
        for line in answer.read().decode().splitlines():
            if line.startswith(f"{name}_total "):
                return float(line.split()[1])
    return 0.0


def cpu_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--frames", type=int, default=6400)
    parser.add_argument("--rows", type=int, default=500)
    parser.add_argument("--nodes", type=int, default=384)
    parser.add_argument("--every", type=float, default=5.0)
    parser.add_argument("--partitions", type=int, default=32)
    parser.add_argument("--kafka")
    args = parser.parse_args()
    with EmbeddedStack(partitions=args.partitions) as stack:
        environ = {**stack.environ, "SLODRIFT_JUDGE_GROUP": f"bench-{time.time_ns()}", "SLODRIFT_IDLE_S": "3600"}
        if args.kafka:
            environ |= {
                "SLODRIFT_KAFKA_BOOTSTRAP": args.kafka, "SLODRIFT_KAFKA_SESSION_TIMEOUT_S": "10",
                "SLODRIFT_KAFKA_FETCH_WAIT_S": "0.5",
            }  # fmt: skip
        settings = stack.settings.model_copy(update={"kafka_bootstrap": environ["SLODRIFT_KAFKA_BOOTSTRAP"]})
        if args.kafka:
            create_topics(settings, args.partitions, 1)
        partitions = len(AdminClient(client_config(settings)).list_topics(timeout=10).topics[FRAMES.name].partitions)
        frames = make_frames(args.frames, args.rows, args.nodes, args.every, pools_for(partitions))
        producer = Producer({**client_config(settings), "linger.ms": 20, "batch.size": 1_000_000, "compression.type": "none"})
        for pool, raw in frames:
            producer.produce(FRAMES.name, raw, partition=partition_of(pool, partitions))
            producer.poll(0)
        producer.flush(60)
        report(environ, frames, args)


def report(environ: dict[str, str], frames: list[tuple[str, bytes]], args: argparse.Namespace) -> None:
    port = free_port()
    worker = WorkerChild("judge", environ, ["--metrics-port", str(port)])
    worker.spawn()
    try:
        while True:
            try:
                seen = counter(port, "slodrift_frames")
            except OSError:
                seen = 0.0
            if seen:
                break
            time.sleep(0.02)
        assert worker.process is not None
        pid = worker.process.pid
        began, began_cpu, first = time.perf_counter(), cpu_s(pid), seen
        while (seen := counter(port, "slodrift_frames")) < len(frames) and time.perf_counter() - began < 300:
            time.sleep(0.05)
        wall_s, used_s, done = time.perf_counter() - began, cpu_s(pid) - began_cpu, seen - first
        ticks, rows = counter(port, "slodrift_ticks"), counter(port, "slodrift_rows")
    finally:
        worker.terminate()
    size_kb = sum(len(raw) for _, raw in frames) / len(frames) / 1000
    git = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False)
    broker = "real Kafka" if args.kafka else "mock cluster"
    per_s, per_cpu_s = done / wall_s, done / used_s
    print(f"$ python {' '.join(sys.argv)}")
    print(f"{platform.platform()}, {os.cpu_count()} cores, Python {platform.python_version()}, commit {git.stdout.strip()}")
    print(f"{time.strftime('%Y-%m-%d')}, broker: {broker}, load average {os.getloadavg()[0]:.1f}")
    print(
        f"{len(frames)} frames of {args.rows} requests ({size_kb:.1f} kB), {args.nodes} nodes; {ticks:.0f} ticks, {rows:.0f} rows"
    )
    print(f"wall: {per_s:,.0f} frames/s, {per_s * args.rows:,.0f} requests/s, {4 * per_s * args.rows:,.0f} samples/s")
    print(
        f"CPU:  {1e6 / per_cpu_s:,.0f} us a frame; a core: {per_cpu_s:,.0f} frames/s, {4 * per_cpu_s * args.rows:,.0f} samples/s"
    )


if __name__ == "__main__":
    main()

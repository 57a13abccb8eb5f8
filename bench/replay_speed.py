"""Speed of `slodrift replay` from JSON lines to results, one process pinned to one core.

    python -m bench.replay_speed [--events N] [--nodes N] [--rps-per-node R] [--seed N] [--json]

Writes made-up request events of one pool (full set of fields, about 290 bytes each) to a temporary file and replays it with the
default policy and `--json` to /dev/null, plain and gzipped. Start-up (imports, policy) is measured with a file of ten events and
shown apart; rates are with and without it.
"""

from __future__ import annotations

import argparse
import gzip
import json
import os
import platform
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

__all__ = ["main", "replay", "write_events"]

T0 = 1_767_225_600.0


def write_events(path: Path, n: int, nodes: int, rps: float, seed: int) -> None:
    """`n` requests in order of time: lognormal latencies, three adapters, four tenants."""
    rng = np.random.default_rng(seed)
    ts = T0 + np.cumsum(rng.exponential(1.0 / rps, n))
    node = rng.integers(0, nodes, n)
    prompt = np.exp(rng.normal(6.2, 0.9, n)).astype(int) + 1
    output = np.exp(rng.normal(4.8, 0.8, n)).astype(int) + 2
    tpot = 0.018 * np.exp(rng.normal(0, 0.1, n))
    ttft = (0.05 + 1.2e-4 * prompt) * np.exp(rng.normal(0, 0.25, n))
    with path.open("w") as file:
        for i in range(n):
            adapter = (None, "lora-1", "lora-2")[i % 3]
            file.write(
                f'{{"kind":"request","ts":{ts[i]:.6f},"pool":"chat-70b/eu/h100","node":"gpu-{node[i]:03d}","request_id":"r{i}",'
                f'"tenant":"t{i % 4}","session":"s{i % 997}","adapter":{json.dumps(adapter)},"prompt_tokens":{prompt[i]},'
                f'"output_tokens":{output[i]},"cached_tokens":0,"queue_s":0.004,"ttft_s":{ttft[i]:.6f},"tpot_s":{tpot[i]:.6f},'
                f'"e2e_s":{ttft[i] + tpot[i] * output[i]:.6f},"outcome":"ok","batch_size":14,"probe":false}}\n'
            )


def replay(path: Path) -> tuple[float, float]:
    """Wall and CPU seconds of one run."""
    core = min(os.sched_getaffinity(0))
    env = os.environ | {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
    before, began = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    subprocess.run(
        [sys.executable, "-c", "from streams.cli import main; main()", "replay", str(path), "--json"],
        stdout=subprocess.DEVNULL, check=True, env=env, preexec_fn=lambda: os.sched_setaffinity(0, {core}),
    )  # fmt: skip
    wall, after = time.perf_counter() - began, resource.getrusage(resource.RUSAGE_CHILDREN)
    return wall, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def main() -> None:
    """Print one row a format."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--events", type=int, default=500_000)
    parser.add_argument("--nodes", type=int, default=32)
    parser.add_argument("--rps-per-node", type=float, default=10.0)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        plain, few, packed = Path(folder, "events.jsonl"), Path(folder, "few.jsonl"), Path(folder, "events.jsonl.gz")
        write_events(plain, args.events, args.nodes, args.nodes * args.rps_per_node, args.seed)
        write_events(few, 10, args.nodes, args.nodes * args.rps_per_node, args.seed)
        packed.write_bytes(gzip.compress(plain.read_bytes(), 6))
        start_s = min(replay(few)[1] for _ in range(2))
        for name, path in (("jsonl", plain), ("jsonl.gz", packed)):
            wall_s, cpu_s = replay(path)
            rows.append(
                {
                    "input": name, "events": args.events, "nodes": args.nodes, "wall_s": round(wall_s, 2),
                    "cpu_s": round(cpu_s, 2), "start_up_cpu_s": round(start_s, 2), "events_per_cpu_s": round(args.events / cpu_s),
                    "events_per_cpu_s_without_start_up": round(args.events / (cpu_s - start_s)),
                }
            )  # fmt: skip
    if args.json:
        print(json.dumps(rows))
        return
    print(f"{platform.processor() or platform.machine()}, Python {platform.python_version()}, numpy {np.__version__}, one core")
    for row in rows:
        print(
            f"{row['input']:9} {row['events']} events of {row['nodes']} nodes: {row['cpu_s']} s CPU ({row['start_up_cpu_s']} s "
            f"of it start-up), {row['wall_s']} s wall: {row['events_per_cpu_s']:,} events/s, without start-up "
            f"{row['events_per_cpu_s_without_start_up']:,}"
        )


if __name__ == "__main__":
    main()

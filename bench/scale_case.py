"""One size of a fleet through the judge of one partition, in a process of its own: what it costs and how much comes out.

    python -m bench.scale_case '{"nodes": 100, "pools": 1, "requests": 50, ...}'

Frames are made beforehand. Then ticks are judged one by one: decode, duplicates, detection, decisions, encoding of the windows,
as a worker does it but without Kafka (bench/scale_live.py measures what that adds). The first ticks, in which baselines are
learned, are not counted. CPU time only, divided by that of a yardstick taken after every tick (bench/yardstick.py): the median of
blocks of a minute of event time. Memory is what stays resident when everything free was given back.
"""

from __future__ import annotations

import ctypes
import gc
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from statistics import mean, median
from typing import Any

from bench.scale_load import LoadShape, frames
from bench.yardstick import yardstick_s
from schemas.policy_file import parse_policy
from schemas.topics import FRAMES, WINDOWS
from schemas.windows import encode_windows
from streams.worker.archive_rows import ArchiveRows
from streams.worker.partition import JudgePartition
from streams.worker.policy_factory import PolicyFactory

__all__ = ["Size", "judged", "measure"]

WARM, BLOCK, BLOCKS = 36, 12, 7
_PASSES = 15  # of the archive, a tenth of a second each
_POLICY = """\
apiVersion: slodrift/v1
kind: Policy
extends: default
pools:
  "*": {mode: enforce, slo: {ttft_s: {threshold: 1.0, objective: 0.99}}}
"""


@dataclass(frozen=True)
class Size:
    """A partition's share of a fleet: `nodes` in each of `pools` pools, `requests` of a node a tick, in `split` frames."""

    nodes: int
    pools: int = 1
    requests: int = 50
    slis: int = 4
    adapters: int = 0
    split: int = 1


@dataclass(frozen=True)
class _Record:
    offset: int
    timestamp: int
    value: bytes


def measure(size: Size, seed: int) -> dict[str, float]:
    """Counts and costs of `size` for a second of event time; memory in bytes; in a child process.

    CPU time is given in yardsticks (`cpu_yards`, `archive_yards`), with the seconds that one took (`yardstick_s`).

    Raises:
        RuntimeError: The child failed.
    """
    argument = json.dumps(vars(size) | {"seed": seed})
    env = os.environ | {
        "OMP_NUM_THREADS": "1",
        "OPENBLAS_NUM_THREADS": "1",
        "PYTHONPATH": os.pathsep.join(p for p in sys.path if p),
    }
    child = subprocess.run(
        [sys.executable, "-m", "bench.scale_case", argument], capture_output=True, text=True, check=False, env=env,
        cwd=Path(__file__).resolve().parents[1],
    )  # fmt: skip
    if child.returncode != 0:
        raise RuntimeError(f"{argument}: {child.stderr[-2000:]}")
    result: dict[str, float] = json.loads(child.stdout)
    return result


def judged(size: Size, seed: int) -> Callable[[], None]:
    """A partition that has learned, and what judges its next tick; frames are made beforehand, for 16 ticks."""
    judge = JudgePartition(FRAMES.name, 0, PolicyFactory(parse_policy(_POLICY, "bench")), epoch=0, generation=1)
    shape = LoadShape("pool-0", size.nodes, size.requests, size.slis, size.adapters)
    ready: list[list[_Record]] = []
    for tick in range(WARM + 16):
        raws = [raw for _, raw in frames(shape, range(tick, tick + 1), seed)]
        made = [_Record(tick * size.nodes + i, 1000 * tick, raw) for i, raw in enumerate(raws)]
        if tick < WARM:
            judge.step(made)
        else:
            ready.append(made)
    coming = iter(ready)

    def turn() -> None:
        for out in judge.step(next(coming)).outputs:
            if out.windows is not None:
                encode_windows(out.pool, round(1000 * out.t), out.windows.columns())

    return turn


def _give_back() -> None:
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)  # glibc keeps what was freed


def _resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def _run(size: Size, seed: int) -> dict[str, float]:
    shapes = [LoadShape(f"pool-{p}", size.nodes, size.requests, size.slis, size.adapters) for p in range(size.pools)]
    judge = JudgePartition(FRAMES.name, 0, PolicyFactory(parse_policy(_POLICY, "bench")), epoch=0, generation=1)
    totals = dict.fromkeys(("frame_bytes", "window_rows", "window_bytes", "stored_rows", "archive_yards", "ticks"), 0.0)
    blocks: list[float] = []
    yards_s: list[float] = []
    judged(Size(2, requests=20), seed)()  # everything is imported now
    yardstick_s()  # and has its arrays
    _give_back()
    before_bytes = _resident_bytes()
    offset, spent_s = 0, 0.0
    kept: list[tuple[int, bytes]] = []
    for tick in range(WARM + BLOCK * BLOCKS):
        made = [raw for shape in shapes for _, raw in frames(shape, range(tick, tick + 1), seed, size.split)]
        records = [_Record(offset + i, 1000 * tick, raw) for i, raw in enumerate(made)]
        offset += len(records)
        began = time.process_time()
        outputs: list[Any] = []
        for start in range(0, len(records), 64):
            outputs += judge.step(records[start : start + 64]).outputs
        messages = [
            (len(columns["node"]), encode_windows(out.pool, round(1000 * out.t), columns))
            for out in outputs if out.windows is not None and len((columns := out.windows.columns())["node"])
        ]  # fmt: skip
        spent_s += time.process_time() - began
        yards_s.append(yardstick_s())
        if tick >= WARM:
            totals["frame_bytes"] += sum(map(len, made))
            totals["ticks"] += len(outputs)
            kept += messages
        if tick >= WARM - 1 and (tick + 1 - WARM) % BLOCK == 0:
            blocks.append(spent_s / mean(yards_s[-BLOCK:]))
            spent_s = 0.0
    del made, records, outputs, messages
    _give_back()
    memory_bytes = _resident_bytes() - before_bytes - sum(len(message) for _, message in kept)
    totals["window_rows"] = float(sum(rows for rows, _ in kept))
    totals["window_bytes"] = float(sum(len(message) for _, message in kept))
    passes = [_archived([message for _, message in kept], skip=BLOCK * size.pools) for _ in range(_PASSES)]
    totals["archive_yards"], stored = median(yards for yards, _ in passes), passes[0][1]
    totals["stored_rows"] = stored * BLOCKS / (BLOCKS - 1)
    span_s = BLOCK * BLOCKS * 5.0
    return {
        "frames": size.nodes * size.pools * size.split / 5.0, "requests": size.nodes * size.pools * size.requests / 5.0,
        "samples": size.nodes * size.pools * size.requests * size.slis / 5.0, "pool_ticks": size.pools / 5.0,
        "node_ticks": size.nodes * size.pools / 5.0, "nodes": size.nodes * size.pools, "pools": size.pools, "slis": size.slis,
        "cpu_yards": median(blocks[1:]) / (BLOCK * 5.0), "yardstick_s": median(yards_s), "memory_bytes": float(memory_bytes),
        "snapshot_bytes": float(sum(len(raw) for raw in judge.snapshot(0).pools.values())),
        **{name: value / span_s for name, value in totals.items()},
    }  # fmt: skip


def _archived(messages: list[bytes], skip: int) -> tuple[float, float]:
    """(CPU of the archive for these messages in yardsticks, rows to store without the first `skip`, which are kept whole)."""
    archive, rows = ArchiveRows(WINDOWS.name, 0, quiet_s=60.0), 0
    before_s, began = yardstick_s(), time.process_time()
    for i, message in enumerate(messages):
        stored = archive.rows(_Record(i, 0, message))
        rows += len(stored[0][1]["t"]) if stored and i >= skip else 0
    spent_s = time.process_time() - began
    return 2 * spent_s / (before_s + yardstick_s()), float(rows)


def main() -> None:
    """Measure the size in the first argument and print the result as JSON."""
    given = json.loads(sys.argv[1])
    seed = given.pop("seed")
    print(json.dumps(_run(Size(**given), seed)))


if __name__ == "__main__":
    main()

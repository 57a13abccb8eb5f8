"""Cost of `BreakerClient.allow()` on a serving host, in nanoseconds, call by call: `python bench/client_allow.py`.

Five rows: nothing blocked; a blocked subject; a healthy one of a pool with four cells; a healthy one while another thread swaps
snapshots of 2,000 entries twice a second, parsed and verified as from Redis; the same while Redis accepts connections and never
answers. The cost of the two clock reads around each call is measured alike and shown, not subtracted: the figures are upper
bounds.
"""

from __future__ import annotations

import argparse
import gc
import json
import platform
import socket
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from slodrift_client import BreakerClient, Limits
from slodrift_client.gate import Gate

from schemas.contract import Entry, build, encode

__all__ = ["Row", "measure"]

N_ENTRIES = 2000
SWAP_EVERY_S = 0.5
UNLIMITED = Limits(max_open_ratio=1.0, max_open=1 << 20, panic_ratio=1.0)


@dataclass(frozen=True)
class Row:
    """Nanoseconds per call, clock reads included."""

    name: str
    calls: int
    p50_ns: float
    p99_ns: float
    p999_ns: float
    max_ns: float


def measure(name: str, call: Callable[[], Any], seconds: float) -> Row:
    """Time single calls for `seconds`."""
    clock, chunks, end = time.perf_counter_ns, [], time.perf_counter() + seconds
    gc.collect()
    while time.perf_counter() < end:
        chunk = []
        for _ in range(10_000):
            before = clock()
            call()
            chunk.append(clock() - before)
        chunks.append(np.array(chunk, np.int64))
    samples = np.concatenate(chunks)
    p50, p99, p999 = np.percentile(samples, [50, 99, 99.9])
    return Row(name, len(samples), float(p50), float(p99), float(p999), float(samples.max()))


class Swapper:
    """Puts snapshot after snapshot into a gate, as the reader thread does."""

    def __init__(self) -> None:
        self.gate = Gate("f", ["p"], limits=UNLIMITED)
        self.swaps = 0
        self.swap_ms: list[float] = []
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def write(self) -> None:
        self.swaps += 1
        now_ms = time.time_ns() // 1_000_000
        entries = [
            Entry(
                scope="node", subject=f"bad-{i}", state="OPEN", version=(1, 1, self.swaps), tx=f"t{i}", opened_ms=now_ms,
                not_after_ms=now_ms + 30_000,
            )
            for i in range(N_ENTRIES)
        ]  # fmt: skip
        head, raw = build(
            fleet="f", pool="p", version=(1, 1, self.swaps), entries=entries, n_eligible=1 << 20, cap=1 << 20, mode="enforce",
            issued_ms=now_ms,
        )  # fmt: skip
        raw_head = encode(head)
        started = time.perf_counter()
        self.gate._views["p"].offer(raw_head, raw, time.monotonic())
        self.gate._rebuild()
        self.swap_ms.append(1000 * (time.perf_counter() - started))

    def __enter__(self) -> Swapper:
        self.write()
        self._thread.start()
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._stop.wait(SWAP_EVERY_S):
            self.write()


def run(seconds: float) -> tuple[list[Row], dict[str, float]]:
    """All rows, and what one swap costs."""
    rows = [measure("two clock reads alone", lambda: None, seconds)]
    offline = BreakerClient.offline({"bad": "OPEN"})
    rows.append(measure("healthy subject", lambda: offline.allow("gpu-017"), seconds))
    rows.append(measure("blocked subject", lambda: offline.allow("bad"), seconds))
    cells = Gate("f", ["p"], cells={"p": 4})
    rows.append(measure("healthy, a pool of four cells", lambda: cells.allow("gpu-017"), seconds))
    with Swapper() as swapper:
        rows.append(measure(f"healthy, {N_ENTRIES} entries swapped", lambda: swapper.gate.allow("gpu-017"), 2 * seconds))
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"redis://127.0.0.1:{silent.getsockname()[1]}/0"
        with BreakerClient(url, "f", ["p"]) as client:
            rows.append(measure("healthy, Redis hangs", lambda: client.allow("gpu-017"), 2 * seconds))
    return rows, {"swaps": swapper.swaps, "swap_p50_ms": float(np.median(swapper.swap_ms))}


def main() -> None:
    """Print the table, or JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=2.0, help="time for each row")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    rows, swap = run(options.seconds)
    if options.json:
        print(json.dumps({"rows": [vars(row) for row in rows], **swap}))
        return
    print(f"{platform.machine()}, {platform.python_implementation()} {platform.python_version()}; ns a call")
    for row in rows:
        numbers = f"p50 {row.p50_ns:6.0f}  p99 {row.p99_ns:6.0f}  p99.9 {row.p999_ns:7.0f}  max {row.max_ns:11.0f}"
        print(f"{row.name:32} {numbers}  ({row.calls} calls)")
    print(f"one swap: {swap['swap_p50_ms']:.1f} ms (median of {swap['swaps']:.0f})")


if __name__ == "__main__":
    sys.exit(main())

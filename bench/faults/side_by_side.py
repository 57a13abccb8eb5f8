"""Faults side by side: batches of rows in processes of their own, each with its own stack, ports and folders.

Most of a row is waiting, so a machine bears more batches than it has cores. Rows that assert a latency or a memory of their own
(`Fault.alone`) run afterwards, one at a time.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from bench.faults.case import Result
from bench.faults.processes import ROOT
from bench.faults.registry import Fault
from streams.embedded.lifeline import die_with_parent

__all__ = ["Batch", "batches", "default_jobs", "run_batches"]

_ROWS = 6
_LOOK_S = 0.2


class Batch:
    """Rows of one group that share a start of its stack.

    Args:
        faults: In order.
    """

    def __init__(self, faults: Sequence[Fault]) -> None:
        self.faults = list(faults)
        self.alone = any(f.alone for f in faults)

    @property
    def weight_s(self) -> float:
        """About how long it takes: the longest begin first."""
        return 35.0 if self.faults[0].together else 5.0 + 14.0 * len(self.faults)

    def command(self, report: Path) -> list[str]:
        """What runs it."""
        return [sys.executable, "-m", "bench.faults", "--batch", "--json", str(report), *(f.name for f in self.faults)]

    def lost(self, why: str) -> list[Result]:
        """Every row of a process that did not report."""
        return [Result(f.name, f.injected, f.expected, why, False, 0.0, f.group) for f in self.faults]


def default_jobs() -> int:
    """Batches at once that this machine bears."""
    return max(2, min(8, 3 * (os.cpu_count() or 1) // 2))  # a stack takes 0.6 of a core


def batches(faults: Sequence[Fault]) -> list[Batch]:
    """All rows, those that run alone last; rows that are played at once stay together."""
    found = []
    for group in dict.fromkeys(f.group for f in faults):
        mine = [f for f in faults if f.group == group]
        found.append([f for f in mine if f.together])
        found.append([f for f in mine if f.alone])
        rest = [f for f in mine if not (f.together or f.alone)]
        parts = -(-len(rest) // _ROWS)
        found += [rest[i::parts] for i in range(parts)]
    made = [Batch(some) for some in found if some]
    return sorted(made, key=lambda b: (b.alone, -b.weight_s))


def run_batches(
    faults: Sequence[Fault], jobs: int, *, stop_early: bool = False, say: Callable[[str], object] = print
) -> list[Result]:
    """Results in the order of `faults`.

    Args:
        faults: What to run.
        jobs: Batches at once.
        stop_early: After a row that does not hold no further batch is begun.
        say: Called with a line about each batch that ended without a report.
    """
    waiting, running, results = batches(faults), list[tuple[Batch, "subprocess.Popen[bytes]", Path]](), list[Result]()
    with tempfile.TemporaryDirectory(prefix="slodrift-faults-") as folder:
        try:
            while waiting or running:
                while waiting and _may_begin(waiting[0], running, jobs):
                    batch = waiting.pop(0)
                    report = Path(folder) / f"{len(waiting)}.json"
                    running.append((batch, _begin(batch.command(report)), report))
                time.sleep(_LOOK_S)
                for ended in [r for r in running if r[1].poll() is not None]:
                    running.remove(ended)
                    results += _read(*ended, say)
                    if stop_early and not all(r.holds for r in results):
                        waiting.clear()
        finally:
            for _, process, _ in running:
                process.send_signal(signal.SIGINT)  # it puts back what it has mounted and made
                process.wait()
    order = {f.name: i for i, f in enumerate(faults)}
    return sorted(results, key=lambda r: order[r.fault])


def _may_begin(batch: Batch, running: Sequence[tuple[Batch, object, Path]], jobs: int) -> bool:
    if batch.alone:
        return not running
    return len(running) < jobs


def _begin(command: Sequence[str]) -> subprocess.Popen[bytes]:
    return subprocess.Popen(command, cwd=ROOT, stdin=subprocess.DEVNULL, preexec_fn=die_with_parent())  # noqa: PLW1509


def _read(batch: Batch, process: subprocess.Popen[bytes], report: Path, say: Callable[[str], object]) -> list[Result]:
    if not report.exists():
        why = f"its process ended with code {process.returncode} before it reported"
        say(f"FAILS {batch.faults[0].group}: {why}")
        return batch.lost(why)
    return [Result(**row) for row in json.loads(report.read_text())]

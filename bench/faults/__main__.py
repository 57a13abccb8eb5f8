"""`python -m bench.faults [--quick] [--jobs N] [--repeat N] [--json FILE] [NAME or GROUP ...]`.

Exit code 1 when a row does not hold.
"""

from __future__ import annotations

import argparse
import datetime
import importlib.metadata
import json
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bench.faults.case import Result
from bench.faults.processes import ROOT
from bench.faults.side_by_side import default_jobs, run_batches
from bench.faults.table import print_table, run, select
from bench.report import machine

_LIBRARIES = ("confluent-kafka", "faust-streaming", "redis", "clickhouse-connect", "chdb", "slodrift-client")


def main() -> int:
    """Run and print."""
    parser = argparse.ArgumentParser(prog="python -m bench.faults", description="Injects faults and checks what comes of them.")
    parser.add_argument("names", nargs="*", help="faults (part of a name) or groups; all by default")
    parser.add_argument("--quick", action="store_true", help="the short version, for every change")
    parser.add_argument("--jobs", type=int, default=default_jobs(), help="stacks side by side; %(default)s here")
    parser.add_argument("--repeat", type=int, default=1, help="runs in a row; ends with the first in which a row does not hold")
    parser.add_argument("--json", type=Path, help="write the tables as JSON, too")
    parser.add_argument("--batch", action="store_true", help=argparse.SUPPRESS)  # one of the processes side by side
    chosen = parser.parse_args()
    faults = select(chosen.names, quick=chosen.quick, exact=chosen.batch)
    if not faults:
        parser.error(f"no fault is called {', '.join(chosen.names)}")
    if chosen.batch:
        chosen.json.write_text(json.dumps([r.__dict__ for r in run(faults)], default=str))
        return 0
    runs: list[dict[str, Any]] = []
    for n in range(chosen.repeat):
        began, load = time.monotonic(), os.getloadavg()[0]
        started = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
        results = run_batches(faults, chosen.jobs, stop_early=chosen.repeat > 1)
        print_table(results)
        print(f"run {n + 1} of {chosen.repeat}: {time.monotonic() - began:.0f} s, begun {started}", flush=True)
        runs.append(_run_facts(results) | {"started": started, "seconds": round(time.monotonic() - began), "load_before": load})
        if chosen.json:
            chosen.json.write_text(json.dumps(_facts(chosen.jobs) | {"runs": runs}, indent=1, default=str))
        if len(results) < len(faults) or not all(r.holds for r in results):
            return 1
    return 0


def _run_facts(results: Sequence[Result]) -> dict[str, Any]:
    return {"holding": sum(r.holds for r in results), "rows": [r.__dict__ for r in results]}


def _facts(jobs: int) -> dict[str, Any]:
    facts = machine()
    facts["versions"] |= {name: importlib.metadata.version(name) for name in _LIBRARIES}
    command = " ".join(["python -m bench.faults", *sys.argv[1:]])
    return {**facts, "command": command, "jobs": jobs, "commit": _git("rev-parse", "HEAD"), "changed": _git("status", "--short")}


def _git(*words: str) -> str:
    """What git says about this tree; nothing where it is no working copy."""
    done = subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True, check=False)
    return done.stdout.strip()


if __name__ == "__main__":
    sys.exit(main())

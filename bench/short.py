"""What `make bench` runs: speeds of the core, the client, the framer and the judge, with their peers, in a few minutes.

    slodrift bench short [--write docs/performance.md]

CPU time on one core, the fastest of some rounds (pytest-benchmark). `--write` puts the table between the markers of a document.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from bench.replay_speed import replay, write_events
from bench.report import Report, machine
from schemas.errors import ConfigError

__all__ = ["BEGIN", "END", "measure", "put", "run", "table"]

BEGIN, END = "<!-- slodrift bench short: begin -->", "<!-- slodrift bench short: end -->"
OURS = "test_histogram[grouped]"
PEERS = ("test_river_", "test_ddsketch", "test_datasketches")
ORDER = (
    "test_histogram", "test_datasketches_kll", "test_river_adwin", "test_river_page_hinkley", "test_ddsketch",
    "test_river_half_space_trees", "test_river_kswin", "test_allow", "test_framer", "test_judge",
)  # fmt: skip
REPLAYED = 60_000


def measure(*names: str) -> dict[str, dict[str, Any]]:
    """Nanoseconds of CPU of one unit, and what it is, by case; all cases unless some are named.

    Raises:
        RuntimeError: A case failed.
    """
    root = Path(__file__).resolve().parents[1]
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder, "result.json")
        chosen = [f"bench/short_cases.py::{name}" for name in names] or ["bench/short_cases.py"]
        command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--benchmark-timer=time.process_time",
                   f"--benchmark-json={out}", "--override-ini=timeout=240", *chosen]  # fmt: skip
        env = os.environ | {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
        done = subprocess.run(command, cwd=root, env=env, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise RuntimeError(done.stdout[-3000:] + done.stderr[-1000:])
        cases = json.loads(out.read_text())["benchmarks"]
    cases.sort(key=lambda case: ORDER.index(case["name"].split("[")[0]))
    return {
        case["name"]: {"ns": 1e9 * case["stats"]["min"] / case["extra_info"]["units"], "what": case["extra_info"]["what"]}
        for case in cases
    }


def run(seed: int, *, quick: bool = False, write: Path | None = None) -> Report:
    """Run everything; `quick` leaves the replay out."""
    report = Report("short", "Speed in short, CPU of one core", ("what", "ns each", "each a second", "times slodrift's"), seed)
    cases = measure()
    ours = cases[OURS]["ns"]
    for name, case in cases.items():
        ratio = case["ns"] / ours if name.startswith(PEERS) else None
        report.add(case["what"], _digits(case["ns"]), f"{1e9 / case['ns']:,.0f}", None if ratio is None else f"{ratio:,.1f}")
    if not quick:
        with tempfile.TemporaryDirectory() as folder:
            path, few = Path(folder, "events.jsonl"), Path(folder, "few.jsonl")
            write_events(path, REPLAYED, 32, 320.0, seed)
            write_events(few, 10, 32, 320.0, seed)
            start_s = min(replay(few)[1] for _ in range(2))
            used_s = min(replay(path)[1] for _ in range(2)) - start_s
        report.add("slodrift replay, JSON lines to results, without start-up", _digits(1e9 * used_s / REPLAYED),
                   f"{REPLAYED / used_s:,.0f}", None)  # fmt: skip
    report.notes.append("histograms hold any number of series and give quantiles within 1.54 %; a peer's row is one series of it")
    if write is not None:
        write.write_text(put(write.read_text(), table(report)))
        report.notes.append(f"written to {write}")
    return report


def table(report: Report) -> str:
    """The report as a Markdown table with machine, versions and date."""
    facts = machine()
    lines = ["| " + " | ".join(report.columns) + " |", "|---|" + "---:|" * (len(report.columns) - 1)]
    lines += ["| " + " | ".join("" if cell is None else str(cell) for cell in row) + " |" for row in report.rows]
    versions = ", ".join(f"{name} {version}" for name, version in facts["versions"].items())
    origin = (
        f"{facts['date']}, {facts['machine']}, {versions}; CPU time, the fastest of some rounds; load average "
        f"{os.getloadavg()[0]:.1f}. Made by `slodrift bench short --write docs/performance.md`."
    )
    lines += ["", origin]
    return "\n".join(lines)


def put(document: str, text: str) -> str:
    """`document` with `text` between the markers.

    Raises:
        ConfigError: There are no markers.
    """
    before, found, rest = document.partition(BEGIN)
    _, also, after = rest.partition(END)
    if not found or not also:
        raise ConfigError(f"the document has no place for the table: write {BEGIN} and {END} where it belongs")
    return f"{before}{BEGIN}\n{text}\n{END}{after}"


def _digits(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"

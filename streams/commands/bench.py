"""`slodrift bench`: repeatable benchmarks. They live beside the packages in a source checkout and are not installed."""

from __future__ import annotations

import importlib
import inspect
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from schemas.errors import ConfigError
from schemas.policy_faults import did_you_mean

__all__ = ["BENCHES", "run"]

BENCHES: dict[str, tuple[str, str, str]] = {
    "short": ("bench.short", "2 min", "what make bench runs: every speed, with its peers; --write FILE for the table"),
    "breaker": ("bench.breaker", "15 min, --quick 2 min", "false trips and interception of breaker rules"),
    "drift": ("bench.drift", "15 min, --quick 2 min", "false alarms and delay of the drift detector, with river"),
    "nab": ("bench.nab", "10 min", "Numenta Anomaly Benchmark; needs SLODRIFT_DATA"),
    "microsoft": ("bench.microsoft", "2 min", "23 series of API latencies; needs SLODRIFT_DATA"),
    "speed": ("bench.drift_speed", "1 min", "the detector: a sample, a tick, memory"),
    "latency": ("bench.latency", "3 min", "from a frame to allow() on a host; --kafka"),
    "scale": ("bench.scale", "5 min", "growth of the judge's cost, fitted: --write FILE, or compared: --check"),
    "scaleout": ("bench.scaleout", "2 min", "three judges in a group, one joins, one is killed; --kafka"),
    "hotpool": ("bench.hot_pool", "2 min", "a hot pool on one judge, and as two cells on two; --kafka"),
    "archive": (
        "bench.archive",
        "4 min, with --folder 15 min, --quick 1 min",
        "ClickHouse: rows/s, bytes a row, queries over a month; --days --nodes --folder",
    ),
    "sketch": ("bench.sketch", "1 min, --quick 20 s", "frames of weighted rows against frames of requests, at high rates"),
    "soak": ("bench.soak", "12 min, --minutes 0 1 min", "one judge: its ceiling, then 80 % of it; --kafka --minutes"),
}
"""Benchmark to (module, duration on two cores, what it measures).

A module has `run(seed, *, quick) -> Report`, and takes those of the further options that it has parameters for.
"""


def _list() -> str:
    return "\n\n".join(f"{name} ({took}): {what}." for name, (_, took, what) in BENCHES.items())


def run(
    name: Annotated[str, typer.Argument(help="Which one; see above.")],
    seed: Annotated[int, typer.Option(help="Seed of everything random.")] = 0,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object instead of a table.")] = False,
    quick: Annotated[bool, typer.Option(help="A smaller run: fewer repetitions, no slow peers.")] = False,
    kafka: Annotated[bool, typer.Option(help="Live benchmarks: a real Apache Kafka instead of the mock cluster.")] = False,
    minutes: Annotated[float | None, typer.Option(help="Length of the run of `soak`.")] = None,
    days: Annotated[int | None, typer.Option(min=1, max=30, help="Of `archive`: days of history.")] = None,
    nodes: Annotated[int | None, typer.Option(min=16, help="Of `archive`: nodes of the fleet.")] = None,
    folder: Annotated[
        str | None, typer.Option(help="Of `archive`: keep the database there, or query the one that is there.")
    ] = None,
    write: Annotated[Path | None, typer.Option(help="Of `short` and `scale`: file to write the table or the fit to.")] = None,
    check: Annotated[bool, typer.Option("--check", help="Of `scale`: compare the fit with sizes that it has not seen.")] = False,
) -> None:
    if name not in BENCHES:
        raise ConfigError(f"unknown benchmark {name!r}, {did_you_mean(name, list(BENCHES))}")
    root = Path(__file__).resolve().parents[2]
    if not (root / "bench" / "report.py").is_file():
        raise ConfigError(
            f"benchmarks need a source checkout, {root} has no folder bench: clone the repository and `pip install -e .`"
        )
    if str(root) not in sys.path:
        sys.path.insert(0, str(root))
    bench = importlib.import_module(BENCHES[name][0]).run
    options: dict[str, Any] = {
        "kafka": kafka or None, "minutes": minutes, "days": days, "nodes": nodes, "folder": folder, "write": write,
        "check": check or None,
    }  # fmt: skip
    options = {option: value for option, value in options.items() if value is not None}
    for option in options.keys() - inspect.signature(bench).parameters.keys():
        raise ConfigError(f"the benchmark {name} has no option --{option}: leave it away")
    report = bench(seed, quick=quick, **options)
    report.print(as_json=as_json)
    if not all(holds for _, holds in report.bars):
        raise typer.Exit(1)


run.__doc__ = f"""Run one benchmark and print its table. Exit code 1 when a promised figure is missed.

{_list()}
"""

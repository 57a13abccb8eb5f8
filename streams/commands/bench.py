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

BENCHES = {
    "breaker": "bench.breaker",
    "drift": "bench.drift",
    "speed": "bench.drift_speed",
    "nab": "bench.nab",
    "microsoft": "bench.microsoft",
    "latency": "bench.latency",
}
"""Benchmark to module; a module has `run(seed, *, quick) -> Report`, the live ones also `kafka` and `minutes`."""


def run(
    name: Annotated[str, typer.Argument(help=f"One of {', '.join(BENCHES)}.")],
    seed: Annotated[int, typer.Option(help="Seed of everything random.")] = 0,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object instead of a table.")] = False,
    quick: Annotated[bool, typer.Option(help="A smaller run: fewer repetitions, no slow peers.")] = False,
    kafka: Annotated[bool, typer.Option(help="Live benchmarks: a real Apache Kafka instead of the mock cluster.")] = False,
    minutes: Annotated[float | None, typer.Option(help="Length of the run of `soak`.")] = None,
) -> None:
    """Run one benchmark and print its table. Exit code 1 when a promised figure is missed."""
    if name not in BENCHES:
        raise ConfigError(f"unknown benchmark {name!r}, {did_you_mean(name, list(BENCHES))}")
    root = Path(__file__).resolve().parents[2]
    if not (root / "bench" / "report.py").is_file():
        raise ConfigError(
            f"benchmarks need a source checkout, {root} has no folder bench: clone the repository and `pip install -e .`"
        )
    if str(root) not in sys.path:
        sys.path.insert(0, str(root))
    bench = importlib.import_module(BENCHES[name]).run
    options: dict[str, Any] = {"kafka": kafka or None, "minutes": minutes}
    options = {option: value for option, value in options.items() if value is not None}
    for option in options.keys() - inspect.signature(bench).parameters.keys():
        raise ConfigError(f"the benchmark {name} has no option --{option}: leave it away")
    report = bench(seed, quick=quick, **options)
    report.print(as_json=as_json)
    if not all(holds for _, holds in report.bars):
        raise typer.Exit(1)

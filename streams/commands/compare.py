"""`slodrift compare`: two recordings held against tolerances, for a release gate."""

from __future__ import annotations

import sys
from typing import Annotated

import numpy as np
import typer

from schemas.errors import ConfigError
from schemas.policy_file import load_policy
from streams.compare.judge import compare, parse_tolerances
from streams.compare.recording import read_recording
from streams.compare.report import print_comparison

__all__ = ["run"]


def run(
    a: Annotated[str, typer.Argument(metavar="A", help="Reference: JSONL, CSV or Parquet, .gz and .zst too; - is stdin.")],
    b: Annotated[str, typer.Argument(metavar="B", help="The recording that may be worse.")],
    policy: Annotated[str | None, typer.Option(help="Policy file with the SLOs [default: built-in, without any].")] = None,
    tolerance: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME=VALUE,...", help="p95=0.05 (5 % slower), ttft_s.p99=0.2, error_ratio=0.01, slo.ttft_s=0.002"),
    ] = None,
    confidence: Annotated[float, typer.Option(help="With which all intervals hold together.")] = 0.95,
    adjusted: Annotated[
        bool, typer.Option("--adjusted", help="Judge latencies by the service's part of their change, not by all of it.")
    ] = False,
    strict: Annotated[bool, typer.Option("--strict", help="Exit 1 for unclear measures too.")] = False,
    column_map: Annotated[
        list[str] | None, typer.Option("--map", metavar="FIELD=COLUMN,...", help="CSV, Parquet: ts=timestamp,ttft_s=value")
    ] = None,
    seed: Annotated[int, typer.Option(help="Of the bootstrap.")] = 0,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object instead of tables.")] = False,
) -> None:
    """Compare quantiles of latency, error and empty ratios and SLO attainment of two recordings. Exit code 1 when something is
    worse by more than its tolerance and the whole interval of the change says so.
    """
    if not 0.5 <= confidence < 1:
        raise ConfigError(f"--confidence {confidence:g}: it is a share from 0.5 to below 1, such as 0.95")
    if a == b == "-":
        raise ConfigError("A and B are both standard input: name a file for one of them")
    tolerances = parse_tolerances(tolerance or ())
    settings = load_policy(policy)
    sides = []
    for path in (a, b):
        pools, inputs, refused = read_recording(path, column_map or ())
        sides.append(pools)
        if refused:
            print(f"slodrift: {path}: {refused} events refused; slodrift replay --rejects FILE shows them", file=sys.stderr)
        for pool, cadence in inputs.cadence_s.items():
            print(f"slodrift: {path}: {pool} has one value every {cadence:g} s; quantiles are of those values", file=sys.stderr)
    found = compare(
        sides[0], sides[1], settings.for_pool, names=(a, b), tolerances=tolerances, confidence=confidence, by_service=adjusted,
        rng=np.random.default_rng(seed),
    )  # fmt: skip
    for path, pools_only in ((a, found.only_a), (b, found.only_b)):
        for pool in pools_only:
            print(f"slodrift: {path}: pool {pool} is in this recording alone and was not compared", file=sys.stderr)
    if as_json:
        import msgspec

        print(msgspec.json.encode(found).decode())
    else:
        print_comparison(found)
    if found.verdict == "outside" or (strict and found.verdict == "unclear"):
        raise typer.Exit(1)

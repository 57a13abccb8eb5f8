"""Benchmark A: how often a breaker trips on a healthy node, and how surely and fast on a sick one.

Episodes are described in `bench.episodes`. A false trip is a healthy episode with a trip in its scored ten minutes, an
interception a faulty one. Every policy sees the same requests. Presets run in the judge itself (`streams.judge.PoolJudge`), which
also compares peers; its caps on how many nodes may be open are lifted, because the nodes of a pool are episodes of their own
here. The replay row runs the `slodrift replay` command on some of the same episodes, written as JSON lines, and its decisions
must be those of the judge.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from bench.breaker_rules import FixedRule, TailRule, TickFigures
from bench.episodes import FAULTS, HEALTHY, POOL_NODES, SCORED, START_S, TICK_S, WARM, Tick, episodes, to_batch
from bench.report import Report
from schemas.policy_file import parse_policy
from streams.judge import PoolJudge

__all__ = ["Tally", "run"]

POOLS = 40  # 2,000 healthy and 320 faulty episodes
SEED_POOLS = 10  # the presets of the published formulas are compared on fewer: they cost as much as the default
GRID = ((50.0, 0.05), (50.0, 0.15), (5.0, 0.05), (5.0, 0.15))
REPLAYED_POOLS = 2
_FAULT_S = WARM * TICK_S

_POLICY = """
apiVersion: slodrift/v1
kind: Policy
extends: {extends}
pools:
  "*":
    slo: {{e2e_s: {{threshold: 0.2, objective: 0.99}}}}
    caps: {{share: 1.0, absolute: 1000000, velocity: 1000000, velocity_share: 1.0}}
    {more}
"""
PRESETS = {
    "preset seed": _POLICY.format(extends="seed", more=""),
    "preset seed, kappa 5.87": _POLICY.format(extends="seed", more="detection: {kappa: 5.87}"),
    "preset default": _POLICY.format(extends="default", more=""),
}
DEFAULT = "preset default"

Trips = NDArray[np.float64]
"""Seconds from the start of the fault to the first trip in the scored part, inf without one, (nodes,)."""


@dataclass
class Tally:
    """Trips of one policy over many pools."""

    trips: list[Trips]

    def false_ratio(self) -> float:
        """Share of the healthy episodes with a trip, percent."""
        return 100.0 * float(np.mean([np.isfinite(t[:HEALTHY]) for t in self.trips]))

    def delays(self) -> Trips:
        """Delays of all faulty episodes, (pools, faults)."""
        return np.array([t[HEALTHY:] for t in self.trips])

    def cells(self) -> tuple[float, float, float, float | None]:
        """False trips %, interception %, within 30 s %, median delay of those intercepted."""
        delays = self.delays()
        caught = np.isfinite(delays)
        median = float(np.median(delays[caught])) if caught.any() else None
        return self.false_ratio(), 100.0 * float(caught.mean()), 100.0 * float((delays <= 30.0).mean()), median


def first_trips(ticks: Iterable[tuple[float, Iterable[int]]]) -> Trips:
    """First trip of each node in the scored part.

    Args:
        ticks: (seconds since the start of the episode, nodes that trip) in order of time.
    """
    first = np.full(POOL_NODES, np.inf)
    for t_s, nodes in ticks:
        if t_s > _FAULT_S:
            for node in nodes:
                first[node] = min(first[node], t_s - _FAULT_S)
    return first


def judged(policy: str, ticks: Sequence[Tick] | Iterable[Tick], pool: str) -> list[tuple[float, list[int], list[str]]]:
    """Per closed tick of the judge: seconds since the start, nodes opened, and the identities of all decisions."""
    loaded = parse_policy(policy)
    judge = PoolJudge(pool, loaded.for_pool(pool), policy_version=loaded.version)
    found = []
    for tick in ticks:
        judge.requests(to_batch(tick, pool))
        found += judge.advance()
    found += judge.finish()
    return [
        (
            out.t - START_S,
            [int(d.subject[-3:]) for d in out.decisions if (d.scope, d.state) == ("node", "OPEN")],
            [d.tx for d in out.decisions],
        )
        for out in found
    ]


def one_pool(job: tuple[float, float, int, int]) -> dict[str, Trips]:
    """First trips of every policy on one pool of episodes."""
    rate, wobble, seed, number = job
    ticks = list(episodes(rate, wobble, seed, number))
    figures = TickFigures()
    rules = {
        "fixed 200 ms": FixedRule(),
        "published rule, kappa 1.82": TailRule(1.82),
        "published rule, kappa 5.87": TailRule(5.87),
    }
    trips: dict[str, list[tuple[float, list[int]]]] = {name: [] for name in rules}
    for tick in ticks:
        p999_s, failures = figures.update(tick)
        for name, rule in rules.items():
            trips[name].append(((tick.index + 1) * TICK_S, np.flatnonzero(rule.trips(p999_s, failures)).tolist()))
    rng = np.random.default_rng([seed, number, 99])
    dummy = np.where(rng.random(POOL_NODES) < 0.5, rng.uniform(0, SCORED * TICK_S, POOL_NODES), np.inf)
    result = {"dummy, half of all at random": dummy}
    result |= {name: first_trips(found) for name, found in trips.items()}
    for name, policy in PRESETS.items():
        if name != DEFAULT and number >= SEED_POOLS:
            continue
        result[name] = first_trips((t, opened) for t, opened, _ in judged(policy, ticks, f"pool-{number}"))
    return result


def replayed(job: tuple[float, float, int, int]) -> tuple[Trips, bool]:
    """First trips of the default preset through `slodrift replay`, and whether its decisions are the judge's."""
    rate, wobble, seed, number = job
    pool = f"pool-{number}"
    with tempfile.TemporaryDirectory() as folder:
        events, policy = Path(folder) / "episodes.jsonl", Path(folder) / "policy.yaml"
        policy.write_text(PRESETS[DEFAULT])
        with events.open("w") as lines:
            for tick in episodes(rate, wobble, seed, number):
                for node, ts_s, latency, failed in zip(
                    tick.node.tolist(), tick.ts_s.tolist(), tick.latency_s.tolist(), tick.failed.tolist(), strict=True
                ):
                    lines.write(
                        f'{{"kind":"request","ts":{START_S + ts_s:.6f},"pool":"{pool}","node":"node-{node:03d}",'
                        f'"e2e_s":{latency!r},"outcome":"{"server_error" if failed else "ok"}"}}\n'
                    )
        command = [
            sys.executable,
            "-c",
            "from streams.cli import main; main()",
            "replay",
            str(events),
            "--policy",
            str(policy),
            "--json",
        ]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode not in (0, 1):
        raise RuntimeError(f"replay ended with {done.returncode}: {done.stderr[-500:]}")
    decisions = [d for d in map(json.loads, done.stdout.splitlines()) if d.get("kind") == "decision"]
    opened = [(d["t"] - START_S, [int(d["subject"][-3:])]) for d in decisions if (d["scope"], d["state"]) == ("node", "OPEN")]
    direct = [tx for _, _, txs in judged(PRESETS[DEFAULT], episodes(rate, wobble, seed, number), pool) for tx in txs]
    return first_trips(opened), direct == [d["tx"] for d in decisions]


def run(seed: int, *, quick: bool = False) -> Report:
    """Run the benchmark; `quick` takes 8 pools (400 healthy, 64 faulty episodes) and the two worlds with 5 % wobble."""
    pools = 8 if quick else POOLS
    grid = [g for g in GRID if not quick or g[1] == 0.05]
    report = Report(
        "breaker",
        f"A. Breaker: {pools * HEALTHY:,} healthy and {pools * len(FAULTS)} faulty episodes a world",
        ("world and policy", "false trips %", "interception %", "within 30 s %", "median delay s"),
        seed,
    )
    with ProcessPoolExecutor(max_workers=os.cpu_count() or 1) as workers:
        for rate, wobble in grid:
            report.add(f"{rate:g} requests/s, wobble {100 * wobble:g} %", *[None] * 4)
            results = list(workers.map(one_pool, [(rate, wobble, seed, p) for p in range(pools)]))
            for name in results[0]:
                trips = [r[name] for r in results if name in r]
                some = "" if len(trips) == len(results) else f", {len(trips)} pools"
                report.add(f"  {name}{some}", *Tally(trips).cells())
            ours = Tally([r[DEFAULT] for r in results])
            _bars(report, rate, wobble, ours)
            if rate == 5.0:
                again = list(workers.map(replayed, [(rate, wobble, seed, p) for p in range(min(REPLAYED_POOLS, pools))]))
                report.add(f"  {DEFAULT}, slodrift replay, {len(again)} pools", *Tally([t for t, _ in again]).cells())
                report.bar(f"replay takes the judge's decisions ({rate:g}/s, {100 * wobble:g} %)", all(same for _, same in again))
            missed = 100.0 * (1 - np.isfinite(ours.delays()).mean(axis=0))
            late = 100.0 * (1 - (ours.delays() <= 30.0).mean(axis=0))
            by_fault = ", ".join(f"{n} {m:.0f}/{s:.0f}" for n, m, s in zip(FAULTS, missed, late, strict=True) if s > 0)
            report.notes.append(
                f"{rate:g}/s, {100 * wobble:g} %: default, missed % / not within 30 s % by fault: {by_fault or 'none'}"
            )
    report.notes.append("the caps on open nodes are lifted; the nodes of a pool are independent episodes")
    return report


def _bars(report: Report, rate: float, wobble: float, ours: Tally) -> None:
    false, caught, soon, _ = ours.cells()
    world = f"default, {rate:g}/s, wobble {100 * wobble:g} %"
    max_false, min_caught = (1.3, 99.6) if rate == 50.0 else (0.5, 93.0)
    report.bar(f"{world}: false trips {false:.2f} % <= {max_false:g} %", false <= max_false)
    report.bar(f"{world}: interception {caught:.2f} % >= {min_caught:g} %", caught >= min_caught)
    if rate == 50.0:
        report.bar(f"{world}: within 30 s {soon:.2f} % >= 95 %", soon >= 95.0)

"""`slodrift simulate`: telemetry of a made-up fleet, to a file or to Kafka, with a labels file of the injected faults."""

from __future__ import annotations

import heapq
import sys
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import numpy as np
import typer

from schemas.errors import ConfigError, SourceError
from schemas.telemetry import Event
from streams.settings import load_settings
from streams.simulate.faults import FAULTS, Fault, parse_fault
from streams.simulate.fleet import Fleet, FleetSpec
from streams.simulate.output import EventProducer, Pacer, encode_event, labels_of, open_jsonl
from streams.simulate.router import Router
from streams.simulate.workload import Arrival, PoissonWorkload, TraceWorkload, Workload, read_trace

__all__ = ["build_fleets", "run"]

_FILE_STEP_S = 10.0  # events are generated and written in slices of this length
_LIVE_STEP_S = 0.05
_POOL = "chat-70b/eu/h100"
_EPOCH_S = 1767225600.0  # 2026-01-01: a file has the same bytes whenever it is made


def build_fleets(
    pools: list[str], nodes: int, rps: float | None, trace: list[Arrival] | None, faults: list[Fault], seed: int,
    start_s: float, rule: str,
) -> list[Fleet]:  # fmt: skip
    """One fleet a pool, each with its own random streams; `faults` go to every pool that has the node.

    Raises:
        ConfigError: No pool has the node of a fault, or `rule` is unknown.
    """
    if rule not in ("least_loaded", "round_robin"):
        raise ConfigError(f"--router {rule!r} is not known: write least_loaded or round_robin")
    names = tuple(f"gpu-{i:0{max(2, len(str(nodes - 1)))}d}" for i in range(nodes))
    for fault in faults:
        if fault.node != "*" and fault.node not in names:
            raise ConfigError(f"--fault {fault.name}: there is no node {fault.node!r}; they are {names[0]} to {names[-1]}")
    fleets = []
    for pool, child in zip(pools, np.random.SeedSequence(seed).spawn(len(pools)), strict=True):
        arrivals, behaviour = np.random.default_rng(child).spawn(2)
        workload: Workload
        workload = PoissonWorkload(rps or 0.0, arrivals) if trace is None else TraceWorkload(trace, rps)
        router = Router("least_loaded" if rule == "least_loaded" else "round_robin")
        fleets.append(Fleet(FleetSpec(pool, names), workload, behaviour, start_s=start_s, faults=faults, router=router))
    return fleets


def run(
    out: Annotated[str | None, typer.Option(help="JSONL file to write (.gz compresses, - is stdout).")] = None,
    kafka: Annotated[str | None, typer.Option(help="host:port of a broker: send to the telemetry topics instead.")] = None,
    labels: Annotated[Path | None, typer.Option(help="Labels file to write: which fault was where and when.")] = None,
    pool: Annotated[list[str] | None, typer.Option(help=f"Pool name, again for more pools [default: {_POOL}].")] = None,
    nodes: Annotated[int, typer.Option(min=1, max=10_000, help="Nodes of each pool.")] = 8,
    rps: Annotated[
        float | None, typer.Option(min=0.001, help="Requests/s of each pool [default: 5 a node, or the trace's].")
    ] = None,
    minutes: Annotated[float, typer.Option(min=0.01, help="How long, in event time.")] = 30.0,
    fault: Annotated[list[str] | None, typer.Option(help="NAME[=STRENGTH]@NODE:FROM-TO: slow_node@gpu-03:20m-25m.")] = None,
    trace: Annotated[Path | None, typer.Option(help="CSV with TIMESTAMP,ContextTokens,GeneratedTokens.")] = None,
    router: Annotated[str, typer.Option(help="least_loaded or round_robin.")] = "least_loaded",
    seed: Annotated[int, typer.Option(help="Same seed, same bytes.")] = 0,
    speed: Annotated[float, typer.Option(min=0.01, help="With --kafka: simulated seconds per second.")] = 1.0,
    start: Annotated[datetime | None, typer.Option(help="Start of event time, UTC [default: 2026-01-01, or now].")] = None,
    list_faults: Annotated[bool, typer.Option("--list-faults", help="Name every fault and end.")] = False,
) -> None:
    """Simulate a fleet with continuous batching: queueing makes the latency, faults are injected by name."""
    if list_faults:
        for name, kind in FAULTS.items():
            print(f"{name:18} {kind.about} [strength {kind.strength:g}]")
        return
    if (out is None) == (kafka is None):
        raise ConfigError("say where the events go: either --out FILE or --kafka HOST:PORT")
    began_s = _EPOCH_S if kafka is None else float(int(time.time()))
    if start is not None:
        began_s = start.replace(tzinfo=start.tzinfo or UTC).timestamp()
    arrivals = None if trace is None else read_trace(trace)
    rate = 5.0 * nodes if rps is None and trace is None else rps
    fleets = build_fleets(pool or [_POOL], nodes, rate, arrivals, [parse_fault(f) for f in fault or ()], seed, began_s, router)
    until_s = minutes * 60.0
    if labels is not None:
        try:
            labels.write_bytes(labels_of(fleets, until_s))
        except OSError as exc:
            raise SourceError(f"{labels}: cannot be written: {exc.strerror}") from None
    count = _write(out, fleets, until_s) if out is not None else _produce(kafka or "", fleets, until_s, speed)
    print(f"{count} events of {len(fleets)} pools x {nodes} nodes, {minutes:g} minutes", file=sys.stderr)


def _slices(fleets: list[Fleet], until_s: float, step_s: float) -> Iterator[tuple[float, list[Event]]]:
    """Telemetry of all pools merged by time, in slices that end at the given simulation time."""
    end_s = 0.0
    while end_s < until_s:
        end_s = min(until_s, end_s + step_s)
        parts = [fleet.advance(end_s) for fleet in fleets]
        yield end_s, parts[0] if len(parts) == 1 else list(heapq.merge(*parts, key=lambda e: e.ts))


def _write(path: str, fleets: list[Fleet], until_s: float) -> int:
    count = 0
    with open_jsonl(path) as file:
        for _, events in _slices(fleets, until_s, _FILE_STEP_S):
            file.writelines(encode_event(event) + b"\n" for event in events)
            count += len(events)
    return count


def _produce(bootstrap: str, fleets: list[Fleet], until_s: float, speed: float) -> int:
    producer = EventProducer(load_settings(kafka_bootstrap=bootstrap))
    pacer = Pacer(speed)
    try:
        for end_s, events in _slices(fleets, until_s, _LIVE_STEP_S * speed):
            pacer.sleep_until(end_s)
            producer.send(events)
    except KeyboardInterrupt:
        pass  # the usual way to end a live simulation
    producer.flush()
    return producer.sent

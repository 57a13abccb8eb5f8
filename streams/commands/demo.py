"""`slodrift demo`: the whole pipeline on this machine, a node that goes bad, and what is done about it."""

from __future__ import annotations

from typing import Annotated

import typer

from schemas.errors import ConfigError
from streams.demo.narrator import Narrator
from streams.demo.run import DemoSpec, perform
from streams.simulate.faults import FAULTS

__all__ = ["run"]


def run(
    seed: Annotated[int, typer.Option(help="Chooses the node and the traffic.")] = 7,
    fault: Annotated[str, typer.Option(help="Fault to inject; slodrift simulate --list-faults names them.")] = "slow_node",
    strength: Annotated[float | None, typer.Option(help="Its strength; default 4 for slow_node, else its own.")] = None,
    nodes: Annotated[int, typer.Option(min=4, max=64, help="Simulated nodes.")] = 6,
) -> None:
    """Show a node going bad, the breaker opening, the host obeying, and the recovery. Exit code 1 when a step does not happen.

    Kafka, Redis and ClickHouse come from the Python package index and leave nothing behind.
    """
    if fault not in FAULTS:
        raise ConfigError(f"--fault: there is no fault {fault!r}; known: {', '.join(FAULTS)}")
    if strength is None:
        strength = DemoSpec.strength if fault == DemoSpec.fault else FAULTS[fault].strength
    spec = DemoSpec(seed=seed, fault=fault, strength=strength, nodes=nodes, rps=12.0 * nodes)
    if not perform(spec, Narrator()):
        raise typer.Exit(1)

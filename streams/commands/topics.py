"""`slodrift topics`: create and check the Kafka topics."""

from __future__ import annotations

from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from schemas.errors import ConfigError
from streams.kafka_topics import TopicState, check_topics, create_topics
from streams.settings import load_settings

__all__ = ["run"]

DEFAULT_PARTITIONS = 16


def run(
    create: Annotated[bool, typer.Option("--create", help="Create the topics that are missing, then check.")] = False,
    check: Annotated[bool, typer.Option("--check", help="Only check (the default).")] = False,
    partitions: Annotated[
        int | None, typer.Option(min=1, max=10_000, help=f"Partitions of a new topic (default: {DEFAULT_PARTITIONS}).")
    ] = None,
    replication: Annotated[
        int | None, typer.Option(min=1, max=9, help="Copies of each partition; 3 in production (default: the broker's).")
    ] = None,
    bootstrap: Annotated[str | None, typer.Option(help="Kafka addresses (default: SLODRIFT_KAFKA_BOOTSTRAP).")] = None,
) -> None:
    """Create or check the Kafka topics. Exit code 1 when one is missing or not as it should be.

    More partitions let more workers share the pools; the count of a topic stays as it is for good.
    """
    if create and check:
        raise ConfigError("--create checks as well: give one of --create and --check")
    settings = load_settings(kafka_bootstrap=bootstrap)
    states = (
        create_topics(settings, partitions or DEFAULT_PARTITIONS, replication) if create else check_topics(settings, partitions)
    )
    _print(states)
    if any(state.faults for state in states):
        raise typer.Exit(1)


def _print(states: list[TopicState]) -> None:
    table = Table("topic", "partitions", "replication", "state", box=None)
    for state in states:
        said = "; ".join(state.faults) or ("created" if state.created else "fine")
        table.add_row(state.name, str(state.partitions or "-"), str(state.replication or "-"), said)
    Console().print(table)

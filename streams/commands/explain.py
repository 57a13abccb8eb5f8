"""`slodrift explain`: one decision in four lines, from ClickHouse or from the output of a replay."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from schemas.errors import ConfigError, SourceError
from schemas.results import Decision, encode_line
from sinks.clickhouse import ClickHouse
from streams.explain import decision_from_clickhouse, decision_from_lines, explain
from streams.settings import load_settings

__all__ = ["run"]


def run(
    tx: Annotated[str | None, typer.Argument(help="tx of a decision, or the beginning of it [default: the last one].")] = None,
    last: Annotated[bool, typer.Option("--last", help="The last decision (the default without TX).")] = False,
    pool: Annotated[str | None, typer.Option(help="The last one of this pool.")] = None,
    source: Annotated[str | None, typer.Option("--from", help="NDJSON of slodrift replay --json; - is stdin.")] = None,
    clickhouse_dsn: Annotated[str | None, typer.Option(help="ClickHouse [SLODRIFT_CLICKHOUSE_DSN].")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="The whole decision as JSON.")] = False,
) -> None:
    """Say what was decided, why, on which evidence, and for how long."""
    if tx is not None and last:
        raise ConfigError("TX names one decision and --last another: give one of them")
    decision = _from_file(source, tx) if source is not None else _from_clickhouse(clickhouse_dsn, tx, pool)
    print(encode_line(decision).decode() if as_json else "\n".join(explain(decision)))


def _from_file(source: str, tx: str | None) -> Decision:
    if source == "-":
        return decision_from_lines(sys.stdin.buffer, tx, "stdin")
    try:
        with open(source, "rb") as file:
            return decision_from_lines(file, tx, source)
    except OSError as exc:
        raise SourceError(f"{source}: cannot be read: {exc.strerror}") from None


def _from_clickhouse(dsn: str | None, tx: str | None, pool: str | None) -> Decision:
    clickhouse = ClickHouse(load_settings(clickhouse_dsn=dsn).clickhouse_dsn.get_secret_value())
    try:
        return decision_from_clickhouse(clickhouse, tx, pool)
    finally:
        clickhouse.close()

"""`slodrift migrate`: brings ClickHouse to the current schema and loads the function library into Redis.

An administrator's step: it needs rights that the running pipeline does not. Running it twice changes nothing.
"""

from __future__ import annotations

import asyncio
from typing import Annotated

import typer

from sinks.migrate import load_migrations, migrate
from sinks.redis_decisions import connect
from sinks.redis_library import load_library
from streams.settings import load_settings, redact_url

__all__ = ["run"]


def run(
    clickhouse_dsn: Annotated[str | None, typer.Option(help="ClickHouse; default SLODRIFT_CLICKHOUSE_DSN.")] = None,
    redis_url: Annotated[str | None, typer.Option(help="Redis; default SLODRIFT_REDIS_URL.")] = None,
    only: Annotated[str | None, typer.Option(help="clickhouse or redis: leave the other one alone.")] = None,
) -> None:
    """Create or update the ClickHouse tables and the Redis function library."""
    if only not in (None, "clickhouse", "redis"):
        raise typer.BadParameter("write clickhouse or redis", param_hint="--only")
    settings = load_settings(clickhouse_dsn=clickhouse_dsn, redis_url=redis_url)
    if only != "redis":
        fresh = migrate(settings.clickhouse_dsn.get_secret_value())
        for migration in fresh:
            typer.echo(f"applied {migration.name}")
        where = redact_url(settings.clickhouse_dsn)
        typer.echo(f"{where} is at migration {load_migrations()[-1].version:04d}" + ("" if fresh else ", nothing to do"))
    if only != "clickhouse":
        asyncio.run(_load(settings.redis_url.get_secret_value()))
        typer.echo(f"{redact_url(settings.redis_url)} has the function library")


async def _load(url: str) -> None:
    redis = connect(url)
    try:
        await load_library(redis)
    finally:
        await redis.aclose()

"""Brings a ClickHouse database to the schema in schemas/clickhouse, one numbered file after the other.

Table `schema_migrations` holds what was applied, with a digest: a file that changed afterwards is an error, not a surprise.
Every statement is idempotent (IF NOT EXISTS), so a run that died half-way is simply run again.
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from importlib import resources
from urllib.parse import parse_qs, urlsplit

from clickhouse_connect.driver.client import Client
from clickhouse_connect.driver.exceptions import ClickHouseError

from schemas.errors import ConfigError, SinkError
from sinks.clickhouse import open_client

__all__ = ["Migration", "applied", "load_migrations", "migrate"]

_NAME = re.compile(r"^(\d{4})_[a-z0-9_]+\.sql$")
_IDENTIFIER = re.compile(r"^[A-Za-z_][A-Za-z0-9_]{0,63}$")

_LEDGER = """
CREATE TABLE IF NOT EXISTS schema_migrations
(
    version UInt32, name String, sha256 String, applied_at DateTime('UTC') DEFAULT now()
)
ENGINE = ReplacingMergeTree ORDER BY version
"""


@dataclass(frozen=True)
class Migration:
    """One file."""

    version: int
    name: str
    sql: str

    @property
    def sha256(self) -> str:
        """Digest of the text."""
        return hashlib.sha256(self.sql.encode()).hexdigest()

    @property
    def statements(self) -> list[str]:
        """Statements without comments. No literal in our migrations holds `--` or `;`."""
        bare = re.sub(r"--[^\n]*", "", self.sql)
        return [s.strip() for s in bare.split(";") if s.strip()]


def load_migrations() -> list[Migration]:
    """All migrations in order."""
    files = (f for f in (resources.files("schemas") / "clickhouse").iterdir() if _NAME.match(f.name))
    return sorted((Migration(int(f.name[:4]), f.name, f.read_text(encoding="utf-8")) for f in files), key=lambda m: m.version)


def migrate(dsn: str) -> list[Migration]:
    """Apply what is missing, creating the DSN's database first if need be.

    Returns:
        What was applied now, in order.

    Raises:
        ConfigError: An applied file has changed, or the database is newer than this code, or its name is no identifier.
        SinkError: ClickHouse is away or refuses a statement.
    """
    _create_database(dsn)
    client = open_client(dsn)
    try:
        return _apply(client, load_migrations())
    finally:
        client.close()


def applied(client: Client) -> dict[int, tuple[str, str]]:
    """Version to (name, digest) of what the database holds; creates the ledger."""
    client.command(_LEDGER)
    rows = client.query("SELECT version, name, sha256 FROM schema_migrations FINAL ORDER BY version").result_rows
    return {int(version): (str(name), str(digest)) for version, name, digest in rows}


def _apply(client: Client, migrations: list[Migration]) -> list[Migration]:
    try:
        done = applied(client)
        if unknown := sorted(done.keys() - {m.version for m in migrations}):
            raise ConfigError(
                f"the database has migration {unknown[-1]:04d}, which this slodrift does not know: install a newer one"
            )
        changed = [m.name for m in migrations if m.version in done and done[m.version][1] != m.sha256]
        if changed:
            raise ConfigError(
                f"{', '.join(changed)}: applied earlier with another text; add a new migration instead of editing one"
            )
        fresh = [m for m in migrations if m.version not in done]
        for migration in fresh:
            for statement in migration.statements:
                _run(client, migration, statement)
            row = [[migration.version, migration.name, migration.sha256]]
            client.insert("schema_migrations", row, column_names=["version", "name", "sha256"], settings={"async_insert": 0})
    except ClickHouseError as exc:
        raise SinkError(f"ClickHouse: {exc}") from None
    return fresh


def _run(client: Client, migration: Migration, statement: str) -> None:
    try:
        client.command(statement)
    except ClickHouseError as exc:
        first = statement.split("\n", 1)[0]
        raise SinkError(f"{migration.name}: {first!r} failed: {exc}") from None


def _create_database(dsn: str) -> None:
    parts = urlsplit(dsn)
    if parts.scheme == "chdb":
        name = parse_qs(parts.query).get("database", [""])[0]
        dsn = parts._replace(query="").geturl()
    else:
        name = parts.path.strip("/")
    if not name or name == "default":
        return
    if not _IDENTIFIER.match(name):
        raise ConfigError(f"database name {name!r}: use letters, digits and _, starting with a letter")
    client = open_client(dsn, database="default")
    try:
        client.command(f"CREATE DATABASE IF NOT EXISTS {name}")
    except ClickHouseError as exc:
        raise SinkError(f"cannot create database {name}: {exc}") from None
    finally:
        client.close()

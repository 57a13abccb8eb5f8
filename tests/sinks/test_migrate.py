import re

import pytest
from typer.testing import CliRunner

from schemas.errors import ConfigError, SinkError
from sinks import migrate as module
from sinks.clickhouse import ClickHouse, open_client
from sinks.migrate import Migration, load_migrations, migrate
from streams.embedded import EmbeddedStack
from streams.embedded.redis_server import RedisServer

pytestmark = pytest.mark.embedded


def test_numbers_have_no_gaps() -> None:
    assert [m.version for m in load_migrations()] == list(range(1, len(load_migrations()) + 1))


def test_every_statement_may_run_twice() -> None:
    for migration in load_migrations():
        assert migration.statements
        for statement in migration.statements:
            assert re.match(
                r"CREATE (TABLE|VIEW) IF NOT EXISTS |INSERT INTO window_hours |"  # the latter: maxima
                r"ALTER TABLE \w+\s(MODIFY SETTING|ADD PROJECTION IF NOT EXISTS|MATERIALIZE PROJECTION) ",
                statement,
            )


def test_applies_all_once(empty_dsn: str) -> None:
    assert [m.name for m in migrate(empty_dsn)] == [m.name for m in load_migrations()]
    assert migrate(empty_dsn) == []
    rows = ClickHouse(empty_dsn).query("SELECT version FROM schema_migrations FINAL ORDER BY version")
    assert [row["version"] for row in rows] == [m.version for m in load_migrations()]


def test_tables_have_the_settings_that_delivery_needs(clickhouse: ClickHouse) -> None:
    tables = clickhouse.query("SELECT name, create_table_query AS sql FROM system.tables WHERE database = currentDatabase()")
    stored = {row["name"]: row["sql"] for row in tables if row["name"] in {"windows", "findings", "decisions", "dead_letters"}}
    assert len(stored) == 4
    for sql in stored.values():
        assert "ENGINE = ReplacingMergeTree(src_offset)" in sql
        assert "non_replicated_deduplication_window = 10000" in sql
        assert "ttl_only_drop_parts = 1" in sql
        assert " TTL " in sql
        assert "now()" not in sql


def test_run_that_died_half_way_is_finished_by_the_next(empty_dsn: str, monkeypatch: pytest.MonkeyPatch) -> None:
    real = load_migrations()
    broken = Migration(3, real[2].name, f"{real[2].sql}; CREATE TABLE IF NOT EXISTS broken (x Nonsense) ENGINE = Memory;")
    monkeypatch.setattr(module, "load_migrations", lambda: [*real[:2], broken])
    with pytest.raises(SinkError, match=r"0003_decisions\.sql: 'CREATE TABLE IF NOT EXISTS broken"):
        migrate(empty_dsn)
    monkeypatch.setattr(module, "load_migrations", lambda: real)
    assert [m.version for m in migrate(empty_dsn)] == list(range(3, len(real) + 1))


def test_edited_migration_is_an_error(empty_dsn: str, monkeypatch: pytest.MonkeyPatch) -> None:
    migrate(empty_dsn)
    real = load_migrations()
    edited = [Migration(1, real[0].name, real[0].sql + "\n-- more"), *real[1:]]
    monkeypatch.setattr(module, "load_migrations", lambda: edited)
    with pytest.raises(ConfigError, match=r"0001_windows\.sql: applied (earlier )?with another text"):
        migrate(empty_dsn)


def test_database_of_a_newer_version_is_an_error(empty_dsn: str, monkeypatch: pytest.MonkeyPatch) -> None:
    migrate(empty_dsn)
    real = load_migrations()
    monkeypatch.setattr(module, "load_migrations", lambda: real[:-1])
    with pytest.raises(ConfigError, match="install a newer one"):
        migrate(empty_dsn)


@pytest.mark.parametrize("name", ["a-b", "x;y", "1a", "a b"])
def test_database_name_that_is_no_identifier_is_an_error(embedded_stack: EmbeddedStack, name: str) -> None:
    with pytest.raises(ConfigError, match="database name"):
        migrate(f"{embedded_stack.clickhouse_dsn}?database={name}")


def test_comments_may_hold_a_semicolon() -> None:
    assert Migration(1, "x", "-- a; b\nCREATE x; -- c;\nCREATE y;\n").statements == ["CREATE x", "CREATE y"]


def test_command_migrates_and_loads_the_library(empty_dsn: str, redis_server: RedisServer) -> None:
    import typer

    from streams.commands.migrate import run

    app = typer.Typer()
    app.command()(run)
    arguments = ["--clickhouse-dsn", empty_dsn, "--redis-url", redis_server.url]
    first = CliRunner().invoke(app, arguments)
    assert first.exit_code == 0, first.output
    assert "applied 0001_windows.sql" in first.output
    assert "has the function library" in first.output
    second = CliRunner().invoke(app, arguments)
    assert "nothing to do" in second.output
    client = open_client(empty_dsn)
    assert client.command("EXISTS TABLE decisions") == 1
    client.close()


def test_command_refuses_an_unknown_part() -> None:
    import typer

    from streams.commands.migrate import run

    app = typer.Typer()
    app.command()(run)
    assert CliRunner().invoke(app, ["--only", "kafka"]).exit_code == 2

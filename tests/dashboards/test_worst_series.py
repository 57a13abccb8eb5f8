"""The twelve worst series are those of the whole table, whichever projection finds them, and so is what the panels draw."""

from __future__ import annotations

import time
from collections.abc import Iterator
from itertools import product
from typing import Any

import pytest

from bench.archive_queries import Selection, dashboard_queries, expand
from sinks.clickhouse import open_client
from sinks.migrate import load_migrations, migrate
from streams.embedded import EmbeddedStack

pytestmark = pytest.mark.embedded

HOUR_S, DAY_S = 3600, 86_400
MIDNIGHT_S = int(time.time()) // DAY_S * DAY_S
DAYS, NODES, SLIS, POOLS = 5, 100, 3, 4
PANELS = [sql for _, sql in dashboard_queries() if "window_maxima" in sql]
ORDERS = {"p999_ratio": "p999_s / threshold_s"}  # of the view: of the table
VALUES = ("p999_ratio", "kl_service_nats", "kl_mix_nats", "evidence_margin")
RANGES = {
    "an hour": (MIDNIGHT_S - 5400, MIDNIGHT_S - 1800),
    "over midnight": (MIDNIGHT_S - DAY_S - 3 * HOUR_S, MIDNIGHT_S - DAY_S + 4 * HOUR_S),
    "six hours": (MIDNIGHT_S - 6 * HOUR_S - 77, MIDNIGHT_S - 77),
    "within a day": (MIDNIGHT_S - 23 * HOUR_S, MIDNIGHT_S - 2 * HOUR_S),
    "whole days": (MIDNIGHT_S - 3 * DAY_S, MIDNIGHT_S - DAY_S),
    "a second more": (MIDNIGHT_S - 3 * DAY_S - 1, MIDNIGHT_S - DAY_S + 1),
    "days and parts": (MIDNIGHT_S - 4 * DAY_S + 12_345, MIDNIGHT_S - 9_876),
    "before all": (MIDNIGHT_S - 20 * DAY_S, MIDNIGHT_S - 10 * DAY_S),
    "everything": (MIDNIGHT_S - 20 * DAY_S, MIDNIGHT_S + 20 * DAY_S),
}
CHOICES: list[dict[str, list[str]]] = [{"pool": ["pool-1", "it's"], "sli": ["sli-0", "sli-2"]}, {"node": ["nobody"]}]


def number(salt: int) -> str:
    """A value of a row between 0 and 2, unknown in one of seven."""
    return f"if(cityHash64(s, at, {salt}) % 7 = 0, NULL, toFloat32(cityHash64(s, at, {salt + 1}) % 2000003 / 1e6))"


def rows(step_s: int, from_s: int, to_s: int) -> str:
    steps = (to_s - from_s) // step_s
    return (
        f"SELECT toDateTime64({from_s} + {step_s} * (number % {steps}), 3, 'UTC') AS at, intDiv(number, {steps}) AS s, "
        f"concat('pool-', toString(s % {POOLS})) AS pool, concat('node-', toString(intDiv(s, {SLIS}))) AS node, "
        f"concat('sli-', toString(s % {SLIS})) AS sli FROM numbers({NODES * SLIS * steps})"
    )


def insert_hours(client: Any, from_s: int, to_s: int) -> None:
    client.command(
        "INSERT INTO window_hours (t, pool, node, sli, kl_service_nats, kl_mix_nats, evidence_margin, p999_s, threshold_s, "
        f"slo_s) SELECT at, pool, node, sli, {number(1)}, {number(3)}, {number(5)}, {number(7)}, 0.1 + {number(9)}, 1 "
        f"FROM ({rows(HOUR_S, from_s, to_s)})"
    )


@pytest.fixture(scope="module")
def client(embedded_stack: EmbeddedStack) -> Iterator[Any]:
    dsn = f"{embedded_stack.clickhouse_dsn}?database=worst"
    migrate(dsn)
    client = open_client(dsn)
    client.command(
        "INSERT INTO windows (t, pool, node, sli, kl_service_nats, kl_mix_nats, log_evidence, log_threshold, p999_s, "
        "threshold_s, slo_s) "
        f"SELECT at, pool, node, sli, {number(1)}, {number(3)}, {number(5)}, 0.5, {number(7)}, {number(9)}, 1 "
        f"FROM ({rows(60, MIDNIGHT_S - 7 * HOUR_S, MIDNIGHT_S)})"
    )
    client.command("SYSTEM STOP MERGES window_hours")
    insert_hours(client, MIDNIGHT_S - DAYS * DAY_S, MIDNIGHT_S)
    insert_hours(client, MIDNIGHT_S - 2 * DAY_S, MIDNIGHT_S)  # once more, as after a lost answer of a batch cut otherwise
    yield client
    client.close()


def before(sql: str) -> str:
    """The panel's query as it would be without the view: every hour of every series is read."""
    by = sql.split(" DESC, pool, node, sli LIMIT 12", 1)[0].rsplit(" ", 1)[1]
    conditions = sql.split("to_s = ${__to:date:seconds}) WHERE ", 1)[1].split(" ORDER BY", 1)[0]
    series = (
        "SELECT pool, node, sli FROM window_hours WHERE t >= toStartOfHour(toDateTime(${__from:date:seconds})) AND "
        f"t <= toDateTime(${{__to:date:seconds}}) AND {conditions} GROUP BY pool, node, sli "
        f"ORDER BY max({ORDERS.get(by, by)}) DESC, pool, node, sli LIMIT 12"
    )
    select = "SELECT $__timeInterval" + sql.split(" AS worst SELECT $__timeInterval", 1)[1]
    narrowed = "node IN (worst.2) AND (pool, node, sli) IN (arrayDistinct(worst))"
    assert narrowed in select
    return select.replace(narrowed, f"(pool, node, sli) IN ({series})") + " SETTINGS optimize_use_projections = 0"


def drawn(client: Any, sql: str) -> list[tuple[Any, ...]]:
    return sorted(map(tuple, client.query(sql).result_rows), key=repr)


def compare(client: Any) -> int:
    """Panels, ranges and choices that gave rows; all are compared."""
    filled = 0
    cases: list[tuple[str, tuple[int, int], dict[str, list[str]]]]
    cases = [*product(PANELS, RANGES.values(), [{}]), *product(PANELS[:1], RANGES.values(), CHOICES)]
    for sql, (from_s, to_s), values in cases:
        chosen = Selection(from_s, to_s, values)
        expected = drawn(client, expand(before(sql), chosen))
        assert drawn(client, expand(sql, chosen)) == expected, expand(sql, chosen)
        filled += bool(expected)
    return filled


def test_panels_draw_the_same_as_from_all_hours(client: Any) -> None:
    assert len(PANELS) == 6
    assert compare(client) == 56
    client.command("SYSTEM START MERGES window_hours")
    client.command("OPTIMIZE TABLE window_hours FINAL")
    assert compare(client) == 56


@pytest.mark.parametrize("name", RANGES)
def test_maxima_are_those_of_the_table(client: Any, name: str) -> None:
    from_s, to_s = RANGES[name]
    seen = client.query(f"SELECT pool, node, sli, {', '.join(VALUES)} FROM window_maxima(from_s = {from_s}, to_s = {to_s})")
    values = ", ".join(f"max({ORDERS.get(value, value)})" for value in VALUES)
    whole = client.query(
        f"SELECT pool, node, sli, {values} FROM window_hours WHERE t >= toStartOfHour(toDateTime({from_s})) AND "
        f"t <= toDateTime({to_s}) GROUP BY pool, node, sli SETTINGS optimize_use_projections = 0"
    )
    assert sorted(seen.result_rows, key=repr) == sorted(whole.result_rows, key=repr)
    assert len(whole.result_rows) == (0 if name == "before all" else NODES * SLIS)


@pytest.mark.parametrize(("projection", "name"), [("by_time", "an hour"), ("by_day", "whole days")])
def test_projections_are_what_is_read(client: Any, projection: str, name: str) -> None:
    from_s, to_s = RANGES[name]
    client.command("SYSTEM START MERGES window_hours")
    client.command("OPTIMIZE TABLE window_hours FINAL")
    plan = client.query(f"EXPLAIN SELECT pool, max(p999_ratio) FROM window_maxima(from_s={from_s}, to_s={to_s}) GROUP BY pool")
    assert f"ReadFromMergeTree ({projection})" in "".join(row[0] for row in plan.result_rows)


def test_what_was_stored_before_the_migration_is_in_the_projections(
    embedded_stack: EmbeddedStack, monkeypatch: pytest.MonkeyPatch
) -> None:
    from sinks import migrate as module

    dsn = f"{embedded_stack.clickhouse_dsn}?database=worst_upgraded"
    everything = load_migrations()
    monkeypatch.setattr(module, "load_migrations", lambda: everything[:8])
    migrate(dsn)
    client = open_client(dsn)
    insert_hours(client, MIDNIGHT_S - DAY_S, MIDNIGHT_S)
    monkeypatch.setattr(module, "load_migrations", lambda: everything)
    assert [m.version for m in migrate(dsn)] == [m.version for m in everything[8:]]
    for name in ("by_time", "by_day"):  # again, and waiting for it: what is there already changes nothing
        client.command(f"ALTER TABLE window_hours MATERIALIZE PROJECTION {name} SETTINGS mutations_sync = 1")
    stored = client.query(
        "SELECT name, sum(rows) FROM system.projection_parts WHERE active AND database = currentDatabase() GROUP BY name"
    )
    assert dict(stored.result_rows) == {"by_time": 24 * NODES * SLIS, "by_day": NODES * SLIS}
    client.close()

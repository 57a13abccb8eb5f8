"""Copies of the audit's anchors in ClickHouse, out of reach of whoever owns the audit file."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime

from clickhouse_connect.driver.exceptions import ClickHouseError

from schemas.audit import Anchor, decode_line
from schemas.errors import SchemaError, SinkError
from sinks.clickhouse import open_client

__all__ = ["read_anchors", "store_anchors"]

_COLUMNS = ["t", "fleet", "pool", "n", "line"]
_READ = "SELECT line FROM anchors FINAL WHERE fleet = {fleet:String} ORDER BY pool, n, line"


def store_anchors(dsn: str, lines: Iterable[bytes]) -> None:
    """Insert signed anchors; one that is there already stays one row.

    Raises:
        ConfigError: The DSN is wrong.
        SinkError: ClickHouse does not take them; try again with the same.
    """
    rows = []
    for line in lines:
        try:
            anchor = decode_line(line)
        except SchemaError:
            continue
        if isinstance(anchor, Anchor):
            rows.append([datetime.fromtimestamp(anchor.t_ms / 1000, UTC), anchor.fleet, anchor.pool, anchor.n, line.decode()])
    if not rows:
        return
    client = open_client(dsn)
    try:
        client.insert("anchors", rows, column_names=_COLUMNS, settings={"async_insert": 0})
    except ClickHouseError as exc:
        raise SinkError(f"ClickHouse does not take anchors: {str(exc)[:200]}; is there the table? slodrift migrate") from None
    finally:
        client.close()


def read_anchors(dsn: str, fleet: str) -> list[bytes]:
    """All copies of a fleet's anchors; whether they are genuine is the verifier's question.

    Raises:
        ConfigError: The DSN is wrong.
        SinkError: ClickHouse does not answer.
    """
    client = open_client(dsn)
    try:
        return [str(row[0]).encode() for row in client.query(_READ, parameters={"fleet": fleet}).result_rows]
    except ClickHouseError as exc:
        raise SinkError(f"ClickHouse has no anchors to read: {str(exc)[:200]}") from None
    finally:
        client.close()

"""ClickHouse: the server over HTTP, or the embedded engine chDB, chosen by the DSN alone.

`clickhouse://user:password@host:8123/database` (`clickhouses://` with TLS) or `chdb:///folder?database=name`. Inserts are
synchronous, carry the token of their batch, and are one block each (sinks/base.py), so ClickHouse stores a retry once. Errors
that time or an operator can cure are SinkBackpressure, also a missing table: dead-lettering everything because a migration was
forgotten would be worse than waiting. Only what is wrong with the data itself is SinkRejected.
"""

from __future__ import annotations

import asyncio
import logging
import math
import re
import threading
from collections.abc import Mapping
from typing import Any, LiteralString
from urllib.parse import urlsplit, urlunsplit

import clickhouse_connect
import numpy as np
from clickhouse_connect.driver.client import Client
from clickhouse_connect.driver.exceptions import ClickHouseError, DataError, NotSupportedError

from schemas.errors import ConfigError, SinkBackpressure, SinkError, SinkRejected
from sinks.base import Batch

__all__ = ["TABLES", "ClickHouse", "ClickHouseWriter", "open_client"]

logging.getLogger("clickhouse_connect").addHandler(logging.NullHandler())  # it logs what it also raises

TABLES = frozenset({"windows", "window_hours", "findings", "decisions", "dead_letters"})

# Codes that speak of the data: parsing, types, ranges, NULLs, constraints, string sizes.
_BAD_DATA = frozenset({6, 7, 9, 26, 27, 33, 38, 41, 53, 69, 70, 72, 117, 131, 190, 349, 469, 691})
_ERRNO = re.compile(r"\[Errno -?\d+\] ([^\"')]+)")
_CURE = {
    60: "run slodrift migrate",  # unknown table
    16: "run slodrift migrate",  # no such column
    81: "run slodrift migrate",  # unknown database
    497: "grant this user INSERT and SELECT on the database",
    516: "correct user or password in the DSN",
    164: "the server or the user is read-only",
    252: "too many parts: inserts are too small or merges too slow",
}


def open_client(dsn: str, *, timeout_s: float = 10.0, database: str | None = None) -> Client:
    """A clickhouse-connect client of the server or the embedded engine.

    Args:
        dsn: See the module.
        timeout_s: To connect; an answer may take three times as long.
        database: Instead of the DSN's.

    Raises:
        ConfigError: The DSN is wrong, or the engine is not installed.
        SinkBackpressure: Nobody answers.
    """
    parts = urlsplit(dsn)
    try:
        if parts.scheme == "chdb":
            return clickhouse_connect.create_client(dsn=dsn, database=database)
        if parts.scheme not in ("clickhouse", "clickhouses"):
            raise ConfigError(f"ClickHouse DSN starts with {parts.scheme!r}: write clickhouse://, clickhouses:// or chdb://")
        return clickhouse_connect.create_client(
            dsn=urlunsplit(parts._replace(scheme="clickhouse")),
            database=database,
            secure=parts.scheme == "clickhouses",
            connect_timeout=math.ceil(timeout_s),
            send_receive_timeout=math.ceil(3 * timeout_s),
            query_retries=0,  # trying again is the business of the caller
            autogenerate_session_id=False,  # a session allows one statement at a time
        )
    except ImportError as exc:
        raise ConfigError(f"{exc}; or: pip install 'slodrift[embedded]'") from None
    except ClickHouseError as exc:
        raise _translate(exc) from None


class ClickHouse:
    """One lazily opened, shared connection; its methods may be called from any thread.

    Args:
        dsn: See the module.
        timeout_s: See `open_client`.
    """

    def __init__(self, dsn: str, *, timeout_s: float = 10.0) -> None:
        self._dsn = dsn
        self._timeout_s = timeout_s
        self._client: Client | None = None
        self._lock = threading.Lock()

    def query(self, sql: LiteralString, parameters: Mapping[str, Any] | None = None) -> list[dict[str, Any]]:
        """Rows of a SELECT. Values travel only as server-side parameters, `{name:Type}` in the text, which is a constant.

        Raises:
            SinkBackpressure: ClickHouse is away or not migrated.
            SinkError: It refuses the query.
        """
        with self._lock:
            client = self._open()
            try:
                result = client.query(sql, parameters=dict(parameters or {}), settings=self._read_settings(client))
                return list(result.named_results())
            except (ClickHouseError, OSError) as exc:
                error = self._failed(exc)
                raise SinkError(str(error)) if isinstance(error, SinkRejected) else error from None

    def insert(self, batch: Batch) -> None:
        """Store a batch as one block; see `Writer.write`."""
        if batch.table not in TABLES:
            raise SinkRejected(f"there is no table {batch.table!r}")
        if not len(batch):
            return
        _refuse_non_finite(batch)
        with self._lock:
            client = self._open()
            settings: dict[str, Any] = {
                "async_insert": 0,
                "insert_deduplicate": 1,
                "insert_deduplication_token": batch.token,
                "max_partitions_per_insert_block": 1,
            }
            if "deduplicate_insert" in client.server_settings:  # 26.2 and later
                settings["deduplicate_insert"] = "enable"
            try:
                client.insert(
                    batch.table, list(batch.columns.values()), column_names=list(batch.columns),
                    column_oriented=True, settings=settings,
                )  # fmt: skip
            except (ClickHouseError, OSError) as exc:
                raise self._failed(exc) from None
            except (TypeError, ValueError, OverflowError) as exc:  # a value that its column cannot hold
                raise SinkRejected(f"{batch.table}: {exc}") from None

    def close(self) -> None:
        """Close the connection; the next call opens a new one."""
        with self._lock:
            self._drop()

    def _open(self) -> Client:
        if self._client is None:
            self._client = open_client(self._dsn, timeout_s=self._timeout_s)
        return self._client

    def _failed(self, exc: ClickHouseError | OSError) -> SinkError:
        error = _translate(exc)
        if getattr(exc, "code", None) is None and isinstance(error, SinkBackpressure):
            self._drop()  # the connection itself may be what is broken
        return error

    def _drop(self) -> None:
        if self._client is not None:
            self._client.close()
            self._client = None

    def _read_settings(self, client: Client) -> dict[str, Any]:
        if urlsplit(self._dsn).scheme == "chdb":
            return {"max_execution_time": 30}
        return {"max_execution_time": 30, "readonly": 2}


class ClickHouseWriter:
    """`Writer` for asyncio: inserts run in a thread, one at a time."""

    def __init__(self, clickhouse: ClickHouse) -> None:
        self._clickhouse = clickhouse

    async def write(self, batch: Batch) -> None:
        """See `Writer.write`."""
        await asyncio.to_thread(self._clickhouse.insert, batch)


def _refuse_non_finite(batch: Batch) -> None:
    """One NaN makes every average of its column NaN for ever."""
    for name, values in batch.columns.items():
        if isinstance(values[0], (str, bytes)):
            continue
        try:
            numbers = np.array(values, dtype=np.float64)  # None becomes NaN
        except (TypeError, ValueError, OverflowError):
            continue  # no column of numbers, or a wrong one: the driver says so
        for i in np.flatnonzero(~np.isfinite(numbers)):
            if values[i] is not None:
                raise SinkRejected(f"{batch.table}.{name}, row {i}: {values[i]} is not a number; unknown is None")


def _translate(exc: ClickHouseError | OSError) -> SinkError:
    code = getattr(exc, "code", None)
    first_line = str(exc).strip().split("\n", 1)[0][:500]
    if code is None and (refused := _ERRNO.search(first_line)):
        return SinkBackpressure(f"ClickHouse does not answer: {refused[1]}", retry_after_s=1.0)
    if isinstance(exc, (DataError, NotSupportedError)) or code in _BAD_DATA:
        return SinkRejected(f"ClickHouse refuses the data: {first_line}")
    cure = f" ({_CURE[code]})" if code in _CURE else ""
    return SinkBackpressure(f"ClickHouse does not take it now: {first_line}{cure}", retry_after_s=1.0)

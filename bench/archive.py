"""What the archive costs and how fast it answers: rows/s through the sink, bytes a row, and every query over a month of a fleet.

    slodrift bench archive [--days 30 --nodes 1000] [--folder FOLDER]

The month is generated inside the embedded engine (bench/archive_month.py) as the archive keeps it: quiet series once a minute,
everything else at every tick, hourly maxima beside it. Windows are generated for the last two days and hours for all: no query
reads older windows, since ranges beyond 6 hours are read by the hour and windows are partitioned by day. With `--folder`, which
keeps the database, all days have windows: half a minute of one core and 195 MB for a day of 1,000 nodes.

Beside the time by the wall stands the CPU time of the process; on a machine with other work the first says little.
"""

from __future__ import annotations

import itertools
import os
import shutil
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
from clickhouse_connect.driver.client import Client

from bench.archive_month import Month, fill_day, fill_events, fill_hours, judged_blocks, make_samples
from bench.archive_queries import Selection, dashboard_queries, expand
from bench.archive_sink import store
from bench.report import Report
from sinks.clickhouse import ClickHouse, open_client
from sinks.migrate import migrate
from streams.explain import decision_from_clickhouse, explain

__all__ = ["run"]

LIMIT_MS = 200.0
_DAY_S = 86_400
_UNFINISHED = "SELECT count() FROM system.mutations WHERE NOT is_done AND database = currentDatabase()"
_PROJECTIONS = (
    "SELECT name, sum(rows), sum(data_compressed_bytes) FROM system.projection_parts WHERE active AND "
    "database = currentDatabase() GROUP BY name ORDER BY name"
)
_SIZES = (
    "SELECT sum(rows), sum(data_compressed_bytes), count() FROM system.parts WHERE active AND database = currentDatabase() AND "
    "table = {table:String}"
)


def run(
    seed: int, *, quick: bool = False, days: int | None = None, nodes: int | None = None, folder: str | None = None
) -> Report:
    """Run the benchmark; `quick` takes one day of 200 nodes unless told otherwise."""
    days, nodes = days or (1 if quick else 30), nodes or (200 if quick else 1000)
    where = Path(folder or tempfile.mkdtemp(prefix="slodrift-archive-"))
    report = Report("archive", f"queries over {days} days of {nodes} nodes, ms: p50 / p95", _columns(days), seed)
    dsn = f"chdb://{where}?database=month"
    try:
        fresh = not (where / "store").exists()
        migrate(dsn)
        clickhouse, client = ClickHouse(dsn), open_client(dsn)
        try:
            while int(client.command(_UNFINISHED)):  # what a migration of a kept folder fills behind
                time.sleep(0.1)
            if fresh:
                month = Month(nodes, days, 16, _midnight_s() - days * _DAY_S, seed)
                _generate(report, clickhouse, client, month, 2 if folder is None else days)
            _sizes(report, client, nodes)
            _queries(report, clickhouse, client, days, repeats=10 if quick else 20)
        finally:
            client.close()
            clickhouse.close()
    finally:
        if folder is None:
            shutil.rmtree(where, ignore_errors=True)
    return report


def _midnight_s() -> int:
    """Of today: the month must not be older than the tables keep."""
    return int(time.time()) // _DAY_S * _DAY_S


def _columns(days: int) -> tuple[str, ...]:
    spans = ("1 hour", "6 hours", f"{days} days", "one pool")
    return ("query", *itertools.chain.from_iterable((span, f"CPU {span}") for span in spans), "rows")


def _generate(report: Report, clickhouse: ClickHouse, client: Client, month: Month, windows_days: int) -> None:
    blocks = judged_blocks(400, month.seed)
    for quiet_s in (0.0, 60.0):
        stored = store(clickhouse, blocks, quiet_s)
        client.command("OPTIMIZE TABLE windows FINAL")
        rows, size, _ = client.query(_SIZES, parameters={"table": "windows"}).result_rows[0]
        written = stored.rows + stored.hours
        what = "every tick" if quiet_s == 0.0 else "quiet series once a minute"
        report.notes.append(
            f"sink, {what}: {stored.rows:,} windows and as many hours in {stored.wall_s:.2f} s: {written / stored.wall_s:,.0f} "
            f"rows/s, {1e6 * stored.cpu_s / written:.1f} us of CPU a row with the engine; {size / rows:.1f} bytes a window"
        )
        for table in ("windows", "window_hours"):
            client.command(f"TRUNCATE TABLE {table}")
    ticks, slow_rows = make_samples(client, clickhouse, blocks)
    fill_events(clickhouse, month)
    first = month.days - min(windows_days, month.days)
    for day in range(first, month.days):
        fill_day(client, month, day, ticks, slow_rows)
    for day in range(first):
        fill_hours(client, month, day, first)
    client.command("OPTIMIZE TABLE window_hours FINAL")
    report.notes.append(f"windows of the last {month.days - first} days, hours of all {month.days}")


def _sizes(report: Report, client: Client, nodes: int) -> None:
    for table in ("windows", "window_hours", "decisions", "findings"):
        rows, size, parts = client.query(_SIZES, parameters={"table": table}).result_rows[0]
        days = int(client.command(f"SELECT uniqExact(toDate(t)) FROM {table}"))  # table is one of ours
        report.notes.append(
            f"{table}: {rows:,} rows in {parts} parts, {size / 1e6:,.0f} MB, {size / max(rows, 1):.1f} bytes a row, "
            f"{size / days / nodes / 1e3:,.1f} kB a node and day"
        )
    for name, rows, size in client.query(_PROJECTIONS).result_rows:
        report.notes.append(f"projection {name}: {rows:,} rows, {size / 1e6:,.0f} MB beside its table")


def _queries(report: Report, clickhouse: ClickHouse, client: Client, days: int, repeats: int) -> None:
    end_s = int(client.command("SELECT toUnixTimestamp(max(t)) FROM windows"))
    pool = str(client.command("SELECT min(pool) FROM window_hours"))
    choices = [Selection(end_s - span_s, end_s, {}) for span_s in (3600, 21_600, days * _DAY_S)]
    choices.append(Selection(end_s - days * _DAY_S, end_s, {"pool": [pool]}))
    all_timed: list[tuple[Timed, str]] = []
    for name, sql in dashboard_queries():
        timed = [_timed(partial(_rows, client, expand(sql, chosen)), repeats) for chosen in choices]
        report.add(name, *itertools.chain.from_iterable(t.cells() for t in timed), timed[2].rows)
        all_timed += [(t, f"{name}, {label}") for t, label in zip(timed, ("1 hour", "6 hours", "month", "one pool"), strict=True)]
    txs = [row[0] for row in client.query("SELECT tx FROM decisions ORDER BY tx LIMIT 20").result_rows]
    turn = itertools.cycle(txs)
    timed_one = _timed(lambda: len(explain(decision_from_clickhouse(clickhouse, next(turn)[:12]))), repeats)
    report.add("slodrift explain", *[""] * 4, *timed_one.cells(), "", "", 4)
    all_timed.append((timed_one, "slodrift explain"))
    slowest, which = max(all_timed, key=lambda pair: pair[0].p95_ms)
    report.bar(f"every query <= {LIMIT_MS:.0f} ms at p95; slowest {slowest.p95_ms:.0f} ms: {which}", slowest.p95_ms <= LIMIT_MS)
    most, which = max(all_timed, key=lambda pair: pair[0].cpu_ms)
    report.notes.append(f"most CPU: {most.cpu_ms:.0f} ms, {which}; load average {os.getloadavg()[0]:.1f}")


@dataclass(frozen=True)
class Timed:
    """Milliseconds of a query: by the wall, and of CPU (median)."""

    p50_ms: float
    p95_ms: float
    cpu_ms: float
    rows: int

    def cells(self) -> tuple[str, int]:
        """Of the table: "p50 / p95", CPU."""
        return f"{self.p50_ms:.0f} / {self.p95_ms:.0f}", round(self.cpu_ms)


def _rows(client: Client, sql: str) -> int:
    return len(client.query(sql).result_rows)


def _timed(query: Callable[[], int], repeats: int) -> Timed:
    """`repeats` runs after one that warms up."""
    rows = query()
    took_ms, cpu_ms = [], []
    for _ in range(repeats):
        began, cpu = time.perf_counter(), time.process_time()
        query()
        took_ms.append(1000 * (time.perf_counter() - began))
        cpu_ms.append(1000 * (time.process_time() - cpu))
    p50_ms, p95_ms = np.percentile(took_ms, [50, 95])
    return Timed(float(p50_ms), float(p95_ms), float(np.median(cpu_ms)), rows)

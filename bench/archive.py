"""What the archive costs and how fast it answers: rows/s through the sink, bytes a row, and every query over a month of a fleet.

    slodrift bench archive [--days 30 --nodes 1000] [--folder FOLDER]

The month is generated inside the embedded engine (bench/archive_month.py) as the archive keeps it: quiet series once a minute,
everything else at every tick, hourly maxima beside it. Generating takes about 20 s a day of 1,000 nodes; `--folder` keeps it, and
a folder that has a month already is only queried. Disk: some 23 bytes a row, 8.7 million rows a day and 1,000 nodes.
"""

from __future__ import annotations

import shutil
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
from clickhouse_connect.driver.client import Client

from bench.archive_month import Month, fill_day, fill_events, judged_blocks, make_samples
from bench.archive_queries import Selection, dashboard_queries, expand
from bench.archive_sink import store
from bench.report import Report
from sinks.clickhouse import ClickHouse, open_client
from sinks.migrate import migrate
from streams.explain import decision_from_clickhouse, explain

__all__ = ["run"]

LIMIT_MS = 200.0
_DAY_S = 86_400
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
            if fresh:
                _generate(report, clickhouse, client, Month(nodes, days, 16, _midnight_s() - days * _DAY_S, seed))
            _sizes(report, client, days, nodes)
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
    return ("query", "1 hour", "12 hours", f"{days} days", "one pool", "rows")


def _generate(report: Report, clickhouse: ClickHouse, client: Client, month: Month) -> None:
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
    for day in range(month.days):
        fill_day(client, month, day, ticks, slow_rows)


def _sizes(report: Report, client: Client, days: int, nodes: int) -> None:
    for table in ("windows", "window_hours", "decisions", "findings"):
        rows, size, parts = client.query(_SIZES, parameters={"table": table}).result_rows[0]
        report.notes.append(
            f"{table}: {rows:,} rows in {parts} parts, {size / 1e6:,.0f} MB, {size / max(rows, 1):.1f} bytes a row, "
            f"{size / days / nodes / 1e3:,.1f} kB a node and day"
        )


def _queries(report: Report, clickhouse: ClickHouse, client: Client, days: int, repeats: int) -> None:
    end_s = int(client.command("SELECT toUnixTimestamp(max(t)) FROM windows"))
    pool = str(client.command("SELECT min(pool) FROM window_hours"))
    choices = [Selection(end_s - span_s, end_s, {}) for span_s in (3600, 43_200, days * _DAY_S)]
    choices.append(Selection(end_s - days * _DAY_S, end_s, {"pool": [pool]}))
    worst: list[tuple[float, str]] = []
    for name, sql in dashboard_queries():
        cells = []
        for chosen in choices:
            plain = expand(sql, chosen)
            p50_ms, p95_ms, rows = _timed(lambda plain=plain: len(client.query(plain).result_rows), repeats)  # type: ignore[misc]
            cells.append(f"{p50_ms:.0f} / {p95_ms:.0f}")
            worst.append((p95_ms, f"{name}, {report.columns[len(cells)]}"))
        report.add(name, *cells, rows)
    txs = [row[0] for row in client.query("SELECT tx FROM decisions ORDER BY tx LIMIT 20").result_rows]
    turn = iter(txs * repeats)
    p50_ms, p95_ms, rows = _timed(lambda: len(explain(decision_from_clickhouse(clickhouse, next(turn)[:12]))), repeats)
    report.add("slodrift explain", "", "", f"{p50_ms:.0f} / {p95_ms:.0f}", "", rows)
    worst.append((p95_ms, "slodrift explain"))
    slowest_ms, slowest = max(worst)
    report.bar(f"every query <= {LIMIT_MS:.0f} ms at p95; slowest {slowest_ms:.0f} ms: {slowest}", slowest_ms <= LIMIT_MS)


def _timed(query: Callable[[], int], repeats: int) -> tuple[float, float, int]:
    """(p50, p95, rows) of `repeats` runs after one that warms up, milliseconds by the wall."""
    rows = query()
    took_ms = []
    for _ in range(repeats):
        began = time.perf_counter()
        query()
        took_ms.append(1000 * (time.perf_counter() - began))
    p50_ms, p95_ms = np.percentile(took_ms, [50, 95])
    return float(p50_ms), float(p95_ms), rows

"""The hourly roll-up equals what the windows say, however often and in whatever pieces they come."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from sinks.base import Batch, Columns, cut
from sinks.clickhouse import ClickHouse
from sinks.hours import SEVERITY, hour_columns

pytestmark = pytest.mark.embedded

T_MS = 1_796_000_000_000 // 3_600_000 * 3_600_000 - 1_800_000


def windows(first: int, last: int, seed: int = 0) -> Columns:
    """One window of four series every minute; offset is the minute."""
    minutes = np.repeat(np.arange(first, last), 4)
    rng = np.random.default_rng(seed)
    n = len(minutes)
    value = rng.random((4, n)).astype(np.float32)
    return {
        "t": (T_MS + 60_000 * minutes).tolist(), "pool": ["p"] * n, "node": ["a", "a", "b", "b"] * (n // 4),
        "sli": ["ttft_s", "e2e_s"] * (n // 2), "status": rng.choice(list(SEVERITY), n).tolist(),
        "n": rng.integers(1, 900, n).tolist(), "kl_service_nats": value[0].tolist(), "kl_mix_nats": [None] * n,
        "log_evidence": value[1].tolist(), "log_threshold": [0.5] * n, "p999_s": value[2].tolist(),
        "threshold_s": value[3].tolist(), "slo_s": [1.0] * n, "src_topic": ["w"] * n, "src_partition": [0] * n,
        "src_offset": minutes.tolist(), "src_idx": [0, 1, 2, 3] * (n // 4),
    }  # fmt: skip


def insert(clickhouse: ClickHouse, columns: Columns, rows: int = 10_000) -> None:
    for table, part in (("windows", columns), ("window_hours", hour_columns(columns))):
        for batch in cut(table, "w", 0, part, rows):
            clickhouse.insert(batch)


def rolled(clickhouse: ClickHouse, source: str) -> list[dict[str, Any]]:
    if source == "windows":
        return clickhouse.query(
            "SELECT toStartOfHour(t) AS hour, pool, node, sli, max(indexOf(['OK', 'LEARNING', 'IDLE', 'INSUFFICIENT_DATA', "
            "'STALE', 'DEGRADED', 'STALLED'], status)) AS worst, max(n) AS n, max(kl_service_nats) AS kl, max(p999_s) AS p999, "
            "max(log_evidence - log_threshold) AS margin FROM window_history GROUP BY hour, pool, node, sli ORDER BY ALL"
        )
    return clickhouse.query(
        "SELECT toStartOfHour(t) AS hour, pool, node, sli, max(worst) AS worst, max(n) AS n, max(kl_service_nats) AS kl, "
        "max(p999_s) AS p999, max(evidence_margin) AS margin FROM window_hours GROUP BY hour, pool, node, sli ORDER BY ALL"
    )


def same(clickhouse: ClickHouse) -> None:
    hours, windows_ = rolled(clickhouse, "window_hours"), rolled(clickhouse, "windows")
    assert hours == [row | {"margin": pytest.approx(row["margin"], abs=1e-6)} for row in windows_]
    assert len(hours) == 4 * len({row["hour"] for row in hours})


def test_roll_up_is_that_of_the_windows(clickhouse: ClickHouse) -> None:
    insert(clickhouse, windows(0, 150))
    same(clickhouse)


def test_what_comes_twice_in_other_pieces_and_late_changes_nothing(clickhouse: ClickHouse) -> None:
    everything = windows(0, 150)
    late = {name: values[:160] for name, values in everything.items()}
    for name in ("windows", "window_hours"):  # as a writer that died between the two tables, and its successor
        columns = everything if name == "windows" else hour_columns(everything)
        for batch in cut(name, "w", 0, columns, 37):
            clickhouse.insert(batch)
            if name == "windows" and batch.first > 60:
                break
    insert(clickhouse, everything, 53)
    insert(clickhouse, late, 7)
    same(clickhouse)


def test_the_same_batch_is_one_block(clickhouse: ClickHouse) -> None:
    (batch,) = cut("window_hours", "w", 0, hour_columns(windows(0, 20)))
    assert isinstance(batch, Batch)
    clickhouse.insert(batch)
    (before,) = clickhouse.query("SELECT count() AS n FROM window_hours")
    clickhouse.insert(batch)
    assert clickhouse.query("SELECT count() AS n FROM window_hours") == [before]


def test_a_range_is_read_at_the_resolution_that_suits_it(clickhouse: ClickHouse) -> None:
    insert(clickhouse, windows(0, 150))
    end_s = T_MS // 1000 + 9000
    (short,) = clickhouse.query(f"SELECT uniqExact(t) AS times, max(p999_s) AS p999 FROM window_ranges(from_s = {end_s - 3600}, "  # type: ignore[arg-type]
                                f"to_s = {end_s})")  # fmt: skip
    (long,) = clickhouse.query(f"SELECT uniqExact(t) AS times, max(p999_s) AS p999 FROM window_ranges(from_s = {end_s - 90_000}, "  # type: ignore[arg-type]
                               f"to_s = {end_s})")  # fmt: skip
    (stored,) = clickhouse.query("SELECT max(p999_s) AS p999 FROM windows")
    assert short["times"] == 60
    assert long["times"] == 3
    assert long["p999"] == stored["p999"]

"""From coefficients to what a fleet needs."""

from __future__ import annotations

import json
from pathlib import Path

import msgspec
import pytest

from schemas.errors import ConfigError
from streams.cli import main
from streams.plan.fleet import USE, Fleet, plan
from streams.plan.model import COUNTS, Calibration, load_calibration


@pytest.fixture
def calibration() -> Calibration:
    return Calibration(
        machine="m", versions={}, date="d", residual_ratio={}, yardstick_s=0.01, live_frame_s=100e-6,
        live_pool_tick_s=1e-3, live_base_bytes=1e8, redis_per_pool_s=1.0,
        coefficients={
            "cpu_s": {"frames": 100e-6, "requests": 1e-6, "pool_ticks": 2e-3}, "memory_bytes": {"nodes": 1e5, "pools": 1e6},
            "snapshot_bytes": {"nodes": 3e4}, "frame_bytes": {"frames": 100.0, "requests": 35.0},
            "window_bytes": {"window_rows": 80.0}, "window_rows": {"window_rows": 1.0},
            "stored_rows": {"window_rows": 0.09}, "archive_s": {"window_rows": 1e-6},
        },
    )  # fmt: skip


def test_a_plan_is_the_sum_of_its_parts(calibration: Calibration) -> None:
    needed = plan(Fleet(nodes=1000, rps=20_000.0, pools=10), calibration)
    assert needed.judge_cores == pytest.approx(200 * 200e-6 + 20_000 * 1e-6 + 2 * 3e-3)
    assert needed.workers == 1
    assert needed.kafka_in_bytes_per_s == pytest.approx(200 * 100 + 20_000 * 35)
    assert needed.hour_rows_per_day == 1000 * 6 * 24
    assert needed.stored_rows_per_day == pytest.approx(6000 / 5 * 0.09 * 86_400)
    assert needed.redis_per_s == 10
    assert needed.worker_bytes == pytest.approx(1e8 + 1e8 + 1e7)


def test_a_hundred_times_the_fleet_needs_a_hundred_times_the_judges(calibration: Calibration) -> None:
    small = plan(Fleet(nodes=1000, rps=20_000.0, pools=10), calibration)
    large = plan(Fleet(nodes=100_000, rps=2_000_000.0, pools=1000), calibration)
    assert large.judge_cores == pytest.approx(100 * small.judge_cores)
    assert large.workers >= large.judge_cores / USE
    assert large.partitions >= large.workers
    assert large.partitions & (large.partitions - 1) == 0


def test_there_are_no_more_partitions_than_pools(calibration: Calibration) -> None:
    assert plan(Fleet(nodes=100, rps=100.0, pools=3), calibration).partitions == 3


def test_cells_are_the_fewest_that_one_partition_carries(calibration: Calibration) -> None:
    hot = Fleet(nodes=4000, rps=1_500_000.0, pools=2)
    needed = plan(hot, calibration)
    assert needed.cells == 2
    assert needed.pool_cores == pytest.approx((1500 * 200e-6 + 1.5 + 0.4 * 3e-3) / 2)
    assert needed.cell_cores == pytest.approx((1500 * 200e-6 + 1.5 + 0.8 * 3e-3) / 4)
    assert needed.cell_cores <= USE < needed.pool_cores
    assert needed.judge_cores == pytest.approx(4 * needed.cell_cores), "a cell has ticks of its own"
    assert needed.redis_per_s == 4
    assert needed.partitions == 16, "cells of one pool must not meet in one"
    assert plan(Fleet(nodes=4000, rps=1500.0, pools=2), calibration).cells == 1
    assert plan(Fleet(nodes=2, rps=1_500_000.0, pools=2), calibration).cells == 0


def test_a_busy_node_sends_more_frames_not_larger_ones() -> None:
    fleet = Fleet(nodes=10, rps=100_000.0, pools=1)
    assert fleet.rows_per_frame == 1000
    assert fleet.frames_per_s == 100


def test_a_shorter_tick_costs_ticks_and_no_stored_rows(calibration: Calibration) -> None:
    slow, fast = (plan(Fleet(nodes=100, rps=100.0, pools=10, tick_s=t), calibration) for t in (5.0, 1.0))
    assert fast.judge_cores - slow.judge_cores == pytest.approx(10 * 3e-3 * (1.0 - 0.2))
    assert fast.stored_rows_per_day == pytest.approx(slow.stored_rows_per_day)


def test_shipped_calibration_has_every_quantity_and_says_where_it_is_from() -> None:
    shipped = load_calibration()
    assert shipped.machine
    assert shipped.date
    quantities = {
        "cpu_s",
        "memory_bytes",
        "snapshot_bytes",
        "frame_bytes",
        "window_bytes",
        "window_rows",
        "stored_rows",
        "archive_s",
    }
    assert shipped.coefficients.keys() == quantities
    for factors in shipped.coefficients.values():
        assert factors.keys() <= set(COUNTS)
        assert any(value > 0 for value in factors.values())
        assert all(value >= 0 for value in factors.values())


def test_a_file_that_is_no_calibration_is_refused(tmp_path: Path) -> None:
    (tmp_path / "c.json").write_text("{}")
    with pytest.raises(ConfigError, match="bench scale --write"):
        load_calibration(tmp_path / "c.json")


def run(capsys: pytest.CaptureFixture[str], *args: str) -> tuple[object, str]:
    with pytest.raises(SystemExit) as end:
        main(["plan", *args])
    out = capsys.readouterr()
    return end.value.code or 0, out.out + out.err


def test_command_prints_numbers_and_assumptions(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, calibration: Calibration
) -> None:
    file = tmp_path / "c.json"
    file.write_bytes(msgspec.json.encode(calibration))
    code, text = run(capsys, "--nodes", "1000", "--rps", "20000", "--pools", "10", "--calibration", str(file))
    assert code == 0
    assert "judge workers" in text
    assert "1 (0.07 cores)" in text
    assert "measured on m, d" in text
    code, text = run(capsys, "--nodes", "1000", "--rps", "20000", "--json", "--calibration", str(file))
    document = json.loads(text)
    assert document["fleet"]["pools"] == 16
    assert document["plan"]["workers"] == 1


def test_command_says_when_a_pool_is_too_large(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, calibration: Calibration
) -> None:
    file = tmp_path / "c.json"
    file.write_bytes(msgspec.json.encode(calibration))
    _, text = run(capsys, "--nodes", "5000", "--rps", "900000", "--pools", "1", "--calibration", str(file))
    # 1,000 frames of 0.2 ms, 900,000 requests of 1 us, a fifth of a tick of 3 ms
    assert "a pool needs 1.10 cores, and one partition has one: split it into 2 cells (cells: 2 in the policy), 0.55" in " ".join(
        text.split()
    )
    assert "with 2,500 nodes; the table counts them" in " ".join(text.split())
    _, text = run(capsys, "--nodes", "90", "--rps", "5000000", "--pools", "1", "--calibration", str(file))
    assert "split it into 16 cells" in text
    assert "nodes, which is few: " in text
    assert "with caps.velocity of 16 at least" in text
    _, text = run(capsys, "--nodes", "2", "--rps", "5000000", "--pools", "1", "--calibration", str(file))
    assert "no split into cells is enough" in text
    code, text = run(capsys, "--nodes", "5", "--rps", "9", "--pools", "7")
    assert code == 2
    assert "fewer pools" in text

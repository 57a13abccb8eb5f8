"""The archive against a broker and the chDB engine: killed in the middle of inserts, and with ClickHouse away."""

from __future__ import annotations

import asyncio
import random
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from schemas.errors import SinkBackpressure
from schemas.results import Decision, encode_line
from schemas.topics import DECISIONS, FRAMES, WINDOWS, partition_of
from schemas.windows import encode_windows
from sinks.base import Batch
from sinks.clickhouse import ClickHouse
from sinks.migrate import migrate
from streams.embedded import EmbeddedStack
from streams.worker.process import WorkerProcess

pytestmark = pytest.mark.embedded

Wait = Callable[..., Any]
N_PARTITIONS = 4
T_MS = 1_796_000_000_000
POOLS = [f"pool-{i}" for i in range(12)]


def history(ticks: range) -> list[tuple[str, bytes]]:
    """A block of 40 series for every pool and tick."""
    columns = {"node": [f"n{i}" for i in range(40)], "sli": ["ttft_s"] * 40, "n": np.arange(40, dtype=np.uint32)}
    return [(pool, encode_windows(pool, T_MS + 5000 * tick, columns)) for tick in ticks for pool in POOLS]


def decisions(n: int) -> list[tuple[str, bytes]]:
    made = [
        Decision(t=T_MS / 1000 + i, pool=POOLS[i % 12], scope="node", subject="n", state="OPEN", version=(1, 0, i), tx=f"tx{i}")
        for i in range(n)
    ]
    return [(d.pool, encode_line(d)) for d in made]


def rows_of(clickhouse: ClickHouse) -> tuple[int, int, int]:
    """Rows of windows as written, as read, and decisions."""
    (raw,) = clickhouse.query("SELECT count() AS n FROM windows")
    (read,) = clickhouse.query("SELECT count() AS n FROM window_history")
    (made,) = clickhouse.query("SELECT count() AS n FROM decisions")
    return raw["n"], read["n"], made["n"]


@pytest.mark.slow
def test_killed_archive_stores_every_row_once(site: Any, story: Any, wait_until: Wait) -> None:
    chance = random.Random(4)
    pause = threading.Event()
    site.produce(decisions(60), DECISIONS.name)
    for round_ in range(3):
        site.produce(history(range(30 * round_, 30 * round_ + 30)), WINDOWS.name)
        worker = site.worker("archive", story.policy)
        worker.start()
        pause.wait(1.0 + 1.5 * chance.random())  # somewhere among its inserts
        worker.kill()
    with site.worker("archive", story.policy):
        wait_until(lambda: site.committed(site.settings.archive_group, WINDOWS.name) == site.ends(WINDOWS.name), "windows", 60)
        wait_until(lambda: site.committed(site.settings.archive_group, DECISIONS.name) == site.ends(DECISIONS.name), "decisions")
    clickhouse = ClickHouse(site.environ["SLODRIFT_CLICKHOUSE_DSN"])
    try:
        expected = 90 * len(POOLS) * 40
        assert rows_of(clickhouse) == (expected, expected, 60), "written once, not only read once"
    finally:
        clickhouse.close()


class MovableClickHouse(ClickHouse):
    """One that can be taken away."""

    away = True
    refused = 0

    def insert(self, batch: Batch) -> None:
        if self.away:
            self.refused += 1
            raise SinkBackpressure("ClickHouse does not answer: taken away", retry_after_s=0.01)
        super().insert(batch)


async def test_clickhouse_down_and_back_loses_nothing_and_the_judge_does_not_notice(
    embedded_stack: EmbeddedStack, site: Any, factory: Any, make_frame: Any, wait_until: Wait
) -> None:
    if site.real:
        pytest.skip("ClickHouse is what is tested here")
    dsn = f"{embedded_stack.clickhouse_dsn}?database=worker_archive"  # one chDB folder per process: the session's
    migrate(dsn)
    clickhouse = MovableClickHouse(dsn)
    settings = site.settings.model_copy(update={"snapshot_s": 0.5})
    worker = WorkerProcess(settings, ("judge", "archive"), factory, clickhouse=clickhouse)
    ready = asyncio.Event()

    async def until(look: Callable[[], Any], what: str) -> None:
        await asyncio.to_thread(wait_until, look, what, 40)

    running = asyncio.create_task(worker.run(lambda partitions: ready.set()))
    try:
        async with asyncio.timeout(100):
            await ready.wait()
            site.produce([("a", make_frame("a", t0_s=T_MS / 1000 + i, n=5)) for i in range(40)])
            await until(lambda: len(site.decisions()) == 20, "decisions without ClickHouse")
            await until(lambda: clickhouse.refused >= 3, "attempts to insert")
            await until(lambda: sum(site.committed(settings.judge_group, FRAMES.name)) == 40, "snapshots without ClickHouse")
            assert rows_of(clickhouse) == (0, 0, 0)
            partition = partition_of("a", N_PARTITIONS)
            assert site.committed(settings.archive_group, DECISIONS.name)[partition] <= 1, "the epoch record at most"
            clickhouse.away = False
            await until(lambda: rows_of(clickhouse) == (20, 20, 20), "all rows, once")
            await until(lambda: site.committed(settings.archive_group, DECISIONS.name) == site.ends(DECISIONS.name), "commits")
    finally:
        worker.stop()
        await running
        clickhouse.close()

"""What ClickHouse holds is compared with what was stored in it."""

from __future__ import annotations

from typing import Any

import pytest

from schemas.errors import SinkBackpressure
from sinks.base import Batch
from sinks.clickhouse import ClickHouse, ClickHouseWriter, open_client
from sinks.reconcile import Found, Reconciler

pytestmark = pytest.mark.embedded

T_MS = 1_796_000_000_000
TOPIC = "slodrift.windows"


def batch(first: int, n: int = 3, pool: str = "p", t_ms: int = T_MS) -> Batch:
    """`n` records of two rows each."""
    offsets = [first + i // 2 for i in range(2 * n)]
    columns: dict[str, list[Any]] = {
        "t": [t_ms + 5000 * o for o in offsets], "pool": [pool] * (2 * n), "node": [f"n{i % 2}" for i in range(2 * n)],
        "sli": ["ttft_s"] * (2 * n), "src_topic": [TOPIC] * (2 * n), "src_partition": [1] * (2 * n), "src_offset": offsets,
        "src_idx": [i % 2 for i in range(2 * n)],
    }  # fmt: skip
    return Batch("windows", TOPIC, 1, columns)


@pytest.fixture
def reconciler(clickhouse: ClickHouse) -> Reconciler:
    return Reconciler(ClickHouseWriter(clickhouse), clickhouse, lambda: T_MS)


async def test_all_there_once_and_asked_once(reconciler: Reconciler) -> None:
    await reconciler.write(batch(0))
    await reconciler.write(batch(3))
    assert await reconciler.look() == [Found(TOPIC, 1, 6, 0, 0)]
    assert await reconciler.look() == []


async def test_rows_that_are_gone_and_rows_that_are_there_twice_are_found(reconciler: Reconciler, migrated_dsn: str) -> None:
    await reconciler.write(batch(0))
    client = open_client(migrated_dsn)
    client.command("ALTER TABLE windows DELETE WHERE src_offset = 1 SETTINGS mutations_sync = 2")
    client.command("SYSTEM STOP MERGES windows")
    client.command("INSERT INTO windows SELECT * FROM windows WHERE src_offset = 2 SETTINGS insert_deduplicate = 0")
    try:
        assert await reconciler.look() == [Found(TOPIC, 1, 3, 1, 2)]
    finally:
        client.command("SYSTEM START MERGES windows")
        client.close()


async def test_record_that_was_appended_again_replaces_itself_and_is_not_missing(reconciler: Reconciler) -> None:
    await reconciler.write(batch(0))
    again = batch(0)
    again.columns["src_offset"] = [o + 100 for o in again.columns["src_offset"]]
    await reconciler.write(again)
    assert await reconciler.look() == [Found(TOPIC, 1, 3, 0, 0)]


async def test_what_the_ttl_takes_away_is_not_missed(reconciler: Reconciler) -> None:
    await reconciler.write(batch(0, t_ms=T_MS - 31 * 86_400_000))
    assert await reconciler.look() == [Found(TOPIC, 1, 0, 0, 0)]


async def test_while_clickhouse_is_away_nothing_is_forgotten(reconciler: Reconciler, monkeypatch: pytest.MonkeyPatch) -> None:
    await reconciler.write(batch(0))

    def away(*_: Any, **__: Any) -> Any:
        raise SinkBackpressure("away")

    with monkeypatch.context() as patch:
        patch.setattr(reconciler._clickhouse, "query", away)
        assert await reconciler.look() == []
    assert await reconciler.look() == [Found(TOPIC, 1, 3, 0, 0)]

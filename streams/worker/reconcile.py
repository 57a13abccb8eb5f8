"""Every minute: is everything that was produced on the way into ClickHouse, and is what was stored there, and there once?"""

from __future__ import annotations

import asyncio

import structlog

from schemas.errors import SinkError
from sinks.reconcile import Reconciler
from streams.worker import metrics
from streams.worker.broker_view import BrokerView

__all__ = ["EVERY_S", "reconcile", "reconcile_once"]

log = structlog.get_logger(__name__)

EVERY_S = 60.0


async def reconcile(reconciler: Reconciler, view: BrokerView) -> None:
    """Look until cancelled."""
    while True:
        await asyncio.sleep(EVERY_S)
        await reconcile_once(reconciler, view)


async def reconcile_once(reconciler: Reconciler, view: BrokerView) -> None:
    """One look: the gauges `slodrift_archive_*`, and an error in the log for what is missing or twice."""
    for tp, end in (view.ends or {}).items():
        metrics.ARCHIVE_PRODUCED.labels(tp.topic, tp.partition).set(end)
        metrics.ARCHIVE_STORED.labels(tp.topic, tp.partition).set(view.committed.get(tp, 0))
    try:
        results = await reconciler.look()
    except SinkError as exc:
        log.error("ClickHouse cannot be compared with the log", cause=str(exc))
        return
    for found in results:
        metrics.ARCHIVE_MISSING.labels(found.topic, found.partition).set(found.missing)
        metrics.ARCHIVE_DUPLICATE.labels(found.topic, found.partition).set(found.duplicate)
        if found.missing or found.duplicate:
            where = {"topic": found.topic, "partition": found.partition, "checked": found.checked}
            log.error(
                "ClickHouse does not hold what was stored in it, or holds it twice",
                missing=found.missing, duplicate=found.duplicate, **where,
            )  # fmt: skip

"""Counters of a worker, in the default Prometheus registry."""

from __future__ import annotations

from prometheus_client import Counter, Gauge, Histogram

__all__ = [
    "ARCHIVE_DUPLICATE", "ARCHIVE_MISSING", "ARCHIVE_PRODUCED", "ARCHIVE_STORED", "DEAD_LETTERS", "DECISIONS", "DUPLICATES",
    "FORGED_HEADS", "FRAMES", "JUDGE_FAILURES", "LOST_RECORDS", "PARTITIONS", "REFUSED_APPENDS", "REJECTED", "ROWS",
    "ROWS_ARCHIVED", "SINK_RETRIES", "SNAPSHOT_BYTES", "STAGE_S", "TICKS",
]  # fmt: skip

FORGED_HEADS = Counter("slodrift_forged_heads", "States in Redis that were newer than ours, not signed by us, and removed")
FRAMES = Counter("slodrift_frames", "Frames judged")
ROWS = Counter("slodrift_rows", "Requests judged")
TICKS = Counter("slodrift_ticks", "Ticks closed, all pools")
DECISIONS = Counter("slodrift_decisions", "Decisions appended to the log", ["state"])
DUPLICATES = Counter("slodrift_duplicates", "Rows and events that were delivered before")
REJECTED = Counter("slodrift_rejected", "Events that the judge did not use", ["reason"])
DEAD_LETTERS = Counter("slodrift_dead_letters", "Dead letters written", ["stage", "reason"])
JUDGE_FAILURES = Counter("slodrift_judge_failures", "Batches at which a judge raised an exception")
LOST_RECORDS = Counter("slodrift_lost_records", "Records that were gone from the log before they were judged")
REFUSED_APPENDS = Counter("slodrift_refused_appends", "Records that Kafka refuses for good", ["topic"])
SINK_RETRIES = Counter("slodrift_sink_retries", "Attempts to write to a destination that failed and were repeated", ["sink"])
ROWS_ARCHIVED = Counter("slodrift_rows_archived", "Rows stored in ClickHouse", ["topic"])
PARTITIONS = Gauge("slodrift_partitions", "Partitions of telemetry.frames that this worker owns")
SNAPSHOT_BYTES = Gauge("slodrift_snapshot_bytes", "Size of the newest snapshot, compressed", ["partition"])
STAGE_S = Histogram(
    "slodrift_decision_stage_seconds",
    "Where decisions spend their time: queue (frame sent until taken up), judge, append (to the log), redis",
    ["stage"],
    buckets=(0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 5.0),
)
_WHERE = ["topic", "partition"]
ARCHIVE_PRODUCED = Gauge(
    "slodrift_archive_produced_offset", "Log end of a result topic's partition, looked at every minute", _WHERE
)
ARCHIVE_STORED = Gauge("slodrift_archive_stored_offset", "Offset up to which it is stored in ClickHouse", _WHERE)
ARCHIVE_MISSING = Gauge(
    "slodrift_archive_missing", "Of what was stored in the last minute, what ClickHouse does not hold; must be 0", _WHERE
)
ARCHIVE_DUPLICATE = Gauge(
    "slodrift_archive_duplicate", "Of what was stored in the last minute, rows written twice; must be 0", _WHERE
)

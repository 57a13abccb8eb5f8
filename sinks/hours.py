"""The hourly roll-up of the windows, as rows of the table `window_hours`: what a month of a fleet is drawn from.

Each stored window gives one row here, and ClickHouse merges the rows of an hour. Only what does not change when a row comes
twice is rolled up, maxima: a sum behind deduplicated inserts counts a repeated batch again, or misses one.
"""

from __future__ import annotations

from typing import Any

from sinks.base import Columns

__all__ = ["SEVERITY", "hour_columns"]

_HOUR_MS = 3_600_000
SEVERITY = {"OK": 1, "LEARNING": 2, "IDLE": 3, "INSUFFICIENT_DATA": 4, "STALE": 5, "DEGRADED": 6, "STALLED": 7}
"""Order of the statuses, the worst highest; what the hour's `worst` counts in."""

_SAME = (
    "pool", "node", "sli", "n", "kl_service_nats", "kl_mix_nats", "p999_s", "threshold_s", "slo_s", "src_topic", "src_partition",
    "src_offset", "src_idx",
)  # fmt: skip


def hour_columns(windows: Columns) -> Columns:
    """Columns of `window_hours` from those of `windows`; both tables name their columns alike."""
    columns: Columns = {"t": [t - t % _HOUR_MS for t in windows["t"]]}
    columns |= {name: windows[name] for name in _SAME if name in windows}
    if "status" in windows:
        columns["worst"] = [SEVERITY.get(status, 0) for status in windows["status"]]
    if "log_evidence" in windows and "log_threshold" in windows:
        pairs = zip(windows["log_evidence"], windows["log_threshold"], strict=True)
        columns["evidence_margin"] = [_difference(evidence, threshold) for evidence, threshold in pairs]
    return columns


def _difference(evidence: Any, threshold: Any) -> float | None:
    return None if evidence is None or threshold is None else float(evidence - threshold)

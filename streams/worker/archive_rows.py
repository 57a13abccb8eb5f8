"""Records of the result topics as rows of the ClickHouse tables; what cannot be read becomes a dead letter."""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Callable
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from schemas.deadletter import DeadLetter, from_message
from schemas.errors import SchemaError
from schemas.results import Finding
from schemas.topics import DEADLETTER, DECISIONS, FINDINGS, WINDOWS
from schemas.windows import decode_windows
from sinks.base import Columns
from sinks.hours import hour_columns
from sinks.rows import Origin, dead_letter_columns, decision_columns, finding_columns, window_columns
from streams.worker.archive_thin import Thinner
from streams.worker.decision_log import LogReader

__all__ = ["ARCHIVED", "ArchiveRows"]

ARCHIVED = (WINDOWS.name, FINDINGS.name, DECISIONS.name, DEADLETTER.name)
"""Topics that are archived."""

Table = tuple[str, Columns]
"""Name and rows."""

_finding = msgspec.json.Decoder(Finding)


class ArchiveRows:
    """Rows of one partition of one topic, record by record in offset order.

    Args:
        topic, partition: Where the records come from.
        log: For the decision log: knows the epochs before the first record.
        quiet_s: A series with nothing to tell is stored this often, seconds (`Thinner`).
    """

    def __init__(self, topic: str, partition: int, log: LogReader | None = None, *, quiet_s: float = 0.0) -> None:
        self.topic = topic
        self.partition = partition
        self._log = log or LogReader()
        self._thinner = Thinner(quiet_s)
        self._rows: Callable[[Any, Origin], list[Table]] = {
            WINDOWS.name: self._window_rows, FINDINGS.name: _finding_rows, DEADLETTER.name: _dead_letter_rows,
            DECISIONS.name: self._decision_rows,
        }[topic]  # fmt: skip

    def rows(self, record: Any) -> list[Table]:
        """(table, columns) for each table that one record has rows of.

        Raises:
            SchemaError: The record is not what its topic holds, or is void.
        """
        return self._rows(record, Origin(self.topic, self.partition, record.offset))

    def remember(self, value: bytes) -> None:
        """Windows that came before the first record: they make no rows, but what is kept of the next ones depends on them."""
        with contextlib.suppress(SchemaError):
            self._thinner.keep(decode_windows(value))

    def letter(self, record: Any, error: SchemaError) -> DeadLetter:
        """The dead letter of a record that has no row."""
        raw = record.value or b""
        return DeadLetter(
            raw=raw, stage="archive", reason=error.reason, detail=error.detail, topic=self.topic, partition=self.partition,
            offset=record.offset, timestamp_ms=record.timestamp, size_bytes=len(raw), sha256=hashlib.sha256(raw).hexdigest(),
        )  # fmt: skip

    def _decision_rows(self, record: Any, origin: Origin) -> list[Table]:
        void = self._log.void
        decision = self._log.read(record.offset, record.value)
        if self._log.void > void:
            raise SchemaError("void_decision", f"written by a judge that epoch {self._log.epoch} had replaced")
        return [] if decision is None else [("decisions", decision_columns([decision], origin))]

    def _window_rows(self, record: Any, origin: Origin) -> list[Table]:
        block = decode_windows(record.value or b"")
        kept = self._thinner.keep(block)
        if len(kept) == 0:
            return []
        chosen = {name: _take(values, kept) for name, values in block.columns.items()}
        arrays = {"t": [block.t_ms] * len(kept), "pool": [block.pool] * len(kept), **chosen}
        columns = window_columns(arrays, origin) | {"src_idx": kept.tolist()}
        return [("windows", columns), ("window_hours", hour_columns(columns))]


def _take(values: Any, kept: NDArray[np.intp]) -> Any:
    if len(kept) == len(values):
        return values
    return values[kept] if isinstance(values, np.ndarray) else [values[i] for i in kept]


def _finding_rows(record: Any, origin: Origin) -> list[Table]:
    try:
        finding = _finding.decode(record.value or b"")
    except (msgspec.DecodeError, UnicodeDecodeError) as exc:
        raise SchemaError("bad_finding", str(exc)) from None
    return [("findings", finding_columns([finding], origin))]


def _dead_letter_rows(record: Any, origin: Origin) -> list[Table]:
    letter = from_message(record.value, record.headers)
    return [("dead_letters", dead_letter_columns(letter, record.timestamp, origin))]

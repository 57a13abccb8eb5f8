"""Records of the result topics as rows of the ClickHouse tables; what cannot be read becomes a dead letter."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import Any

import msgspec

from schemas.deadletter import DeadLetter, from_message
from schemas.errors import SchemaError
from schemas.results import Finding
from schemas.topics import DEADLETTER, DECISIONS, FINDINGS, WINDOWS
from schemas.windows import decode_windows
from sinks.base import Columns
from sinks.rows import Origin, dead_letter_columns, decision_columns, finding_columns, window_columns
from streams.worker.decision_log import LogReader

__all__ = ["ARCHIVED", "ArchiveRows"]

ARCHIVED = (WINDOWS.name, FINDINGS.name, DECISIONS.name, DEADLETTER.name)
"""Topics that are archived."""

_finding = msgspec.json.Decoder(Finding)


class ArchiveRows:
    """Rows of one partition of one topic, record by record in offset order.

    Args:
        topic, partition: Where the records come from.
        log: For the decision log: knows the epochs before the first record.
    """

    def __init__(self, topic: str, partition: int, log: LogReader | None = None) -> None:
        self.topic = topic
        self.partition = partition
        self._log = log or LogReader()
        self._rows: Callable[[Any, Origin], tuple[str, Columns] | None] = {
            WINDOWS.name: _window_rows, FINDINGS.name: _finding_rows, DEADLETTER.name: _dead_letter_rows,
            DECISIONS.name: self._decision_rows,
        }[topic]  # fmt: skip

    def rows(self, record: Any) -> tuple[str, Columns] | None:
        """(table, columns) of one record, or None when it has no row.

        Raises:
            SchemaError: The record is not what its topic holds, or is void.
        """
        return self._rows(record, Origin(self.topic, self.partition, record.offset))

    def letter(self, record: Any, error: SchemaError) -> DeadLetter:
        """The dead letter of a record that has no row."""
        raw = record.value or b""
        return DeadLetter(
            raw=raw, stage="archive", reason=error.reason, detail=error.detail, topic=self.topic, partition=self.partition,
            offset=record.offset, timestamp_ms=record.timestamp, size_bytes=len(raw), sha256=hashlib.sha256(raw).hexdigest(),
        )  # fmt: skip

    def _decision_rows(self, record: Any, origin: Origin) -> tuple[str, Columns] | None:
        void = self._log.void
        decision = self._log.read(record.offset, record.value)
        if self._log.void > void:
            raise SchemaError("void_decision", f"written by a judge that epoch {self._log.epoch} had replaced")
        return None if decision is None else ("decisions", decision_columns([decision], origin))


def _window_rows(record: Any, origin: Origin) -> tuple[str, Columns] | None:
    block = decode_windows(record.value or b"")
    if block.n == 0:
        return None
    arrays = {"t": [block.t_ms] * block.n, "pool": [block.pool] * block.n, **block.columns}
    return "windows", window_columns(arrays, origin)


def _finding_rows(record: Any, origin: Origin) -> tuple[str, Columns] | None:
    try:
        finding = _finding.decode(record.value or b"")
    except (msgspec.DecodeError, UnicodeDecodeError) as exc:
        raise SchemaError("bad_finding", str(exc)) from None
    return "findings", finding_columns([finding], origin)


def _dead_letter_rows(record: Any, origin: Origin) -> tuple[str, Columns] | None:
    letter = from_message(record.value, record.headers)
    return "dead_letters", dead_letter_columns(letter, record.timestamp, origin)

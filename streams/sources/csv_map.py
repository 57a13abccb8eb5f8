"""CSV files with a header: recorded or exported latencies, one request or one aggregated value a row."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator, Sequence
from itertools import islice

from schemas.errors import ConfigError, SourceError
from schemas.telemetry import RequestEvent
from streams.framing import EventFramer, Framed
from streams.framing_rejects import Reject, StateEvent
from streams.sources.files import open_bytes
from streams.sources.mapping import ColumnMap, row_bytes

__all__ = ["csv_chunks", "frame_rows"]


def csv_chunks(
    path: str, framer: EventFramer, mapping: Sequence[str], chunk_rows: int = 4096, damaged: list[str] | None = None
) -> Iterator[Framed]:
    """Framed rows of a CSV file; offsets are row numbers, the header is row 1. The delimiter is `,`, `;` or a tab.

    Args:
        path: File name, `-` for standard input.
        framer: Checks values and remembers identifiers.
        mapping: Texts of `--map`, see `streams.sources.mapping`.
        chunk_rows: Rows framed at once at most.
        damaged: See `open_bytes`.

    Raises:
        SourceError: If the file cannot be read.
        ConfigError: If the mapping does not fit the header.
    """
    with open_bytes(path, damaged) as file:
        text = io.TextIOWrapper(file, encoding="utf-8-sig", errors="replace", newline="")
        first = text.readline()
        if not first.strip():
            raise ConfigError(f"{path}: empty; the first row must name the columns")
        delimiter = max(",;\t", key=first.count)
        header = next(csv.reader([first], delimiter=delimiter))
        columns = ColumnMap(mapping, header, path)
        rows, number = csv.reader(text, delimiter=delimiter), 2
        try:
            while chunk := list(islice(rows, chunk_rows)):
                numbered = [(row, i) for i, row in enumerate(chunk, number) if row]
                number += len(chunk)
                yield frame_rows(columns, framer, [row for row, _ in numbered], [i for _, i in numbered])
        except csv.Error as exc:
            raise SourceError(f"{path}: line {rows.line_num + 1}: {exc}") from None
        finally:
            text.detach()  # the file is closed by its owner


def frame_rows(columns: ColumnMap, framer: EventFramer, rows: Sequence[Sequence[object]], where: Sequence[int]) -> Framed:
    """Rows of a table through the framer's checks."""
    events: list[RequestEvent | StateEvent | None] = []
    raws, rejects = [row_bytes(row) for row in rows], list[Reject]()
    for row, raw, number in zip(rows, raws, where, strict=True):
        event = columns.event(row, raw, number)
        if isinstance(event, Reject):
            rejects.append(event)
            events.append(None)
        else:
            events.append(event)
    return framer.frame(events, raws, where, rejects)

"""Parquet files, by pyarrow (the extra `parquet`)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

from schemas.errors import ConfigError, SourceError
from streams.framing import EventFramer, Framed
from streams.sources.csv_map import frame_rows
from streams.sources.mapping import ColumnMap

__all__ = ["parquet_chunks"]


def parquet_chunks(path: str, framer: EventFramer, mapping: Sequence[str], chunk_rows: int = 4096) -> Iterator[Framed]:
    """Framed rows of a Parquet file; offsets are row numbers from 1. Columns are mapped as for CSV.

    Raises:
        SourceError: If the file cannot be read or is no Parquet file.
        ConfigError: If pyarrow is not installed or the mapping does not fit the columns.
    """
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError:
        raise ConfigError(f"{path}: reading Parquet needs pyarrow: pip install 'slodrift[parquet]'") from None
    if not Path(path).is_file():
        raise SourceError(f"{path}: cannot be read: no such file")
    try:
        with pyarrow.parquet.ParquetFile(path) as file:
            header = [str(name) for name in file.schema_arrow.names]
            columns = ColumnMap(mapping, header, path)
            number = 1
            for part in file.iter_batches(batch_size=chunk_rows):
                cells = [_values(pyarrow, column) for column in part.columns]
                rows = list(zip(*cells, strict=True))
                yield frame_rows(columns, framer, rows, range(number, number + len(rows)))
                number += len(rows)
    except (pyarrow.ArrowException, OSError) as exc:
        raise SourceError(f"{path}: cannot be read as Parquet: {exc}") from None


def _values(pa: ModuleType, column: Any) -> list[object]:
    """Python values of a column; timestamps become Unix seconds (a naive one is UTC)."""
    if pa.types.is_timestamp(column.type):
        nanoseconds = column.cast(pa.timestamp("ns", tz=column.type.tz)).cast(pa.int64())
        return [None if v is None else v / 1e9 for v in nanoseconds.to_pylist()]
    values: list[object] = column.to_pylist()
    return values

"""Input files of a replay, whatever their format, as one stream of slices."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from streams.framing import EventFramer, Framed
from streams.sources.csv_map import csv_chunks
from streams.sources.files import file_kind
from streams.sources.jsonl import jsonl_chunks
from streams.sources.merge import InputStats, Slice, Slicer, merged
from streams.sources.parquet import parquet_chunks

__all__ = ["Inputs"]


class Inputs:
    """Files that are replayed together, merged by event time.

    Args:
        paths: File names; `-` is standard input.
        mapping: Texts of `--map`, for CSV and Parquet.
        chunk_rows: Events read at once; changes memory and speed, never a result.
    """

    def __init__(self, paths: Sequence[str], mapping: Sequence[str] = (), chunk_rows: int = 4096) -> None:
        self._paths = list(paths)
        self._mapping = list(mapping)
        self._chunk_rows = chunk_rows
        self._framer = EventFramer()
        self.stats: list[InputStats] = []

    def slices(self, slice_s: float, lateness_s: float) -> Iterator[Slice]:
        """All events, in slices of `slice_s` seconds of event time.

        Raises:
            SourceError: A file cannot be read.
            ConfigError: A mapping does not fit a file.
        """
        slicers = [Slicer(path, slice_s, lateness_s) for path in self._paths]
        self.stats = [slicer.stats for slicer in slicers]
        return merged([slicer.slices(self._chunks(path)) for slicer, path in zip(slicers, self._paths, strict=True)])

    def _chunks(self, path: str) -> Iterator[Framed]:
        kind = file_kind(path, bool(self._mapping))
        if kind == "csv":
            return csv_chunks(path, self._framer, self._mapping, self._chunk_rows)
        if kind == "parquet":
            return parquet_chunks(path, self._framer, self._mapping, self._chunk_rows)
        return jsonl_chunks(path, self._framer, self._chunk_rows)

"""Input files of a replay, whatever their format, as one stream of slices."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from streams.framing import EventFramer, Framed
from streams.series import CadenceProbe
from streams.sources.csv_map import csv_chunks
from streams.sources.files import file_kind
from streams.sources.jsonl import jsonl_chunks
from streams.sources.merge import InputStats, Slice, Slicer, merged
from streams.sources.parquet import parquet_chunks

__all__ = ["Inputs"]

PROBE_ROWS = 512


class Inputs:
    """Files that are replayed together, merged by event time.

    Args:
        paths: File names; `-` is standard input.
        mapping: Texts of `--map`, for CSV and Parquet.
        chunk_rows: Events read at once; changes memory and speed, never a result.
        salvage: Read compressed files that are damaged up to the damage and note it in `damaged`; else that is an error.

    Attributes:
        stats: One for each file.
        cadence_s: Pools of tables that are aggregated series, with their cadence; known before their first slice comes.
        damaged: What was lost of which file, once they are read.
    """

    def __init__(
        self, paths: Sequence[str], mapping: Sequence[str] = (), chunk_rows: int = 4096, *, salvage: bool = False
    ) -> None:
        self._paths = list(paths)
        self._mapping = list(mapping)
        self._chunk_rows = chunk_rows
        self._framer = EventFramer()
        self.stats: list[InputStats] = []
        self.cadence_s: dict[str, float] = {}
        self.damaged: list[str] = []
        self._damaged = self.damaged if salvage else None

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
        if kind == "jsonl":
            return jsonl_chunks(path, self._framer, self._chunk_rows, self._damaged)
        if kind == "csv":
            return self._probed(csv_chunks(path, self._framer, self._mapping, self._chunk_rows, self._damaged))
        return self._probed(parquet_chunks(path, self._framer, self._mapping, self._chunk_rows))

    def _probed(self, chunks: Iterator[Framed]) -> Iterator[Framed]:
        """The chunks of a table, after a look at its first rows."""
        probe, seen, first = CadenceProbe(PROBE_ROWS), 0, list[Framed]()
        for chunk in chunks:
            first.append(chunk)
            probe.look(chunk)
            seen += chunk.n_events
            if seen > PROBE_ROWS:
                break
        self.cadence_s |= probe.cadences_s()
        yield from first
        yield from chunks

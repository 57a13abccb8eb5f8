"""JSON lines: one telemetry event a line, the vocabulary of `schemas.telemetry`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import IO

from streams.framing import EventFramer, Framed
from streams.framing_rejects import MAX_EVENT_BYTES
from streams.sources.files import open_bytes

__all__ = ["jsonl_chunks"]

_BLOCK_BYTES = 1 << 20
_BOM = b"\xef\xbb\xbf"


def jsonl_chunks(path: str, framer: EventFramer, chunk_lines: int = 4096, damaged: list[str] | None = None) -> Iterator[Framed]:
    """Framed events of a file; offsets are line numbers from 1. Blank lines are skipped.

    Args:
        path: File name, `-` for standard input.
        framer: Remembers identifiers; one for all files that are read together.
        chunk_lines: Lines framed at once at most.
        damaged: See `open_bytes`.

    Raises:
        SourceError: If the file cannot be read.
    """
    number = 1
    with open_bytes(path, damaged) as file:
        for lines in _lines(file):
            for start in range(0, len(lines), chunk_lines):
                chunk = lines[start : start + chunk_lines]
                offsets: Sequence[int] = range(number, number + len(chunk))
                number += len(chunk)
                if b"" in chunk or b"\r" in chunk:
                    kept = [(line, offset) for line, offset in zip(chunk, offsets, strict=True) if line.strip()]
                    chunk, offsets = [line for line, _ in kept], [offset for _, offset in kept]
                if chunk:
                    yield framer.feed(chunk, offsets)


def _lines(file: IO[bytes]) -> Iterator[list[bytes]]:
    """Lines in blocks. A line without end takes no memory: what is beyond the longest event is dropped, it is refused anyway."""
    rest, first = b"", True
    while block := file.read(_BLOCK_BYTES):
        if first:
            block, first = block.removeprefix(_BOM), False
        head, newline, tail = block.partition(b"\n")
        rest = (rest + head)[: MAX_EVENT_BYTES + 2]
        if newline:
            lines = [rest, *tail.split(b"\n")]
            rest = lines.pop()
            yield lines
    if rest:
        yield [rest]

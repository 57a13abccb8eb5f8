"""Opening input files: `-` is standard input, gzip and Zstandard are told by their first bytes."""

from __future__ import annotations

import gzip
import io
import sys
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, cast

from schemas.errors import SourceError

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

__all__ = ["file_kind", "open_bytes"]

_GZIP, _ZSTD = b"\x1f\x8b", b"\x28\xb5\x2f\xfd"
_SUFFIXES = {".csv": "csv", ".tsv": "csv", ".parquet": "parquet", ".pq": "parquet"}


def file_kind(path: str, mapped: bool) -> str:
    """`jsonl`, `csv` or `parquet`, by the name without its compression suffix; standard input is CSV when columns are mapped."""
    if path == "-":
        return "csv" if mapped else "jsonl"
    name = Path(path.lower().removesuffix(".gz").removesuffix(".zst"))
    return _SUFFIXES.get(name.suffix, "jsonl")


@contextmanager
def open_bytes(path: str) -> Iterator[IO[bytes]]:
    """The decompressed bytes of `path`.

    Raises:
        SourceError: The file is not there, cannot be read, or is damaged; also for faults found while reading inside the block.
    """
    try:
        raw = sys.stdin.buffer if path == "-" else Path(path).open("rb")  # noqa: SIM115  # closed below
        try:
            buffered = raw if isinstance(raw, io.BufferedReader) else io.BufferedReader(cast(io.RawIOBase, raw))
            magic = buffered.peek(4)[:4]
            if magic[:2] == _GZIP:
                yield cast(IO[bytes], gzip.GzipFile(fileobj=buffered))
            elif magic == _ZSTD:
                yield cast(IO[bytes], zstd.ZstdFile(buffered))
            else:
                yield buffered
        finally:
            if path != "-":
                raw.close()
    except (EOFError, gzip.BadGzipFile, zlib.error, zstd.ZstdError) as exc:
        raise SourceError(f"{path}: damaged or cut off: {exc}; get it again, or cut it before the damage") from None
    except OSError as exc:
        raise SourceError(f"{path}: cannot be read: {exc.strerror or exc}") from None

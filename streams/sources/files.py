"""Opening input files: `-` is standard input, gzip and Zstandard are told by their first bytes."""

from __future__ import annotations

import gzip
import io
import sys
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, TYPE_CHECKING, cast

from schemas.errors import SourceError

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer

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


_DAMAGE = (EOFError, gzip.BadGzipFile, zlib.error, zstd.ZstdError)


class _UpToDamage(io.RawIOBase):
    """A compressed file that ends where it is damaged, if anything came before that; the damage is noted."""

    def __init__(self, file: IO[bytes], note: Callable[[str], None]) -> None:
        self._file, self._note, self._n = file, note, 0

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: WriteableBuffer, /) -> int:
        view = memoryview(buffer)
        try:
            data = cast(io.BufferedReader, self._file).read1(len(view))
        except _DAMAGE as exc:
            if self._n == 0:
                raise
            self._note(f"{exc}; {self._n} bytes could be read, what follows is lost")
            return 0
        view[: len(data)] = data
        self._n += len(data)
        return len(data)


@contextmanager
def open_bytes(path: str, damaged: list[str] | None = None) -> Iterator[IO[bytes]]:
    """The decompressed bytes of `path`.

    Args:
        path: File name, `-` for standard input.
        damaged: If given, a compressed file that is damaged or cut off ends there, and what happened is appended.

    Raises:
        SourceError: The file is not there, cannot be read, or is damaged; also for faults found while reading inside the block.
    """

    def whole(file: IO[bytes]) -> IO[bytes]:
        if damaged is None:
            return file
        said = lambda what: damaged.append(f"{path}: damaged or cut off: {what}; get it again")  # noqa: E731
        return io.BufferedReader(_UpToDamage(file, said), 1 << 18)

    try:
        raw = sys.stdin.buffer if path == "-" else Path(path).open("rb")  # noqa: SIM115  # closed below
        try:
            buffered = raw if isinstance(raw, io.BufferedReader) else io.BufferedReader(cast(io.RawIOBase, raw))
            magic = buffered.peek(4)[:4]
            if magic[:2] == _GZIP:
                yield whole(cast(IO[bytes], gzip.GzipFile(fileobj=buffered)))
            elif magic == _ZSTD:
                yield whole(cast(IO[bytes], zstd.ZstdFile(buffered)))
            else:
                yield buffered
        finally:
            if path != "-":
                raw.close()
    except _DAMAGE as exc:
        raise SourceError(f"{path}: damaged or cut off: {exc}; get it again, or cut it before the damage") from None
    except OSError as exc:
        raise SourceError(f"{path}: cannot be read: {exc.strerror or exc}") from None

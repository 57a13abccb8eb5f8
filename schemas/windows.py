"""All series of one pool at one closed tick, as columns, in one Kafka message (`slodrift.windows`).

A MessagePack map: format version, pool, `t_ms`, row count, numbers as little-endian binary, words as dictionary and codes. The
columns are those of the ClickHouse table `windows`, without the ones that are equal in every row (`t`, `pool`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from schemas.errors import SchemaError

__all__ = ["WindowBlock", "decode_windows", "encode_windows"]

_VERSION = 1
_DTYPES = {"f": "<f4", "u": "<u4", "i": "<i4", "b": "|b1"}


class WindowBlock(msgspec.Struct, kw_only=True):
    """Decoded message: `columns` are arrays (n,) or lists of n words."""

    pool: str
    t_ms: int
    n: int
    columns: dict[str, Any]


class _Words(msgspec.Struct, kw_only=True):
    words: list[str]
    codes: bytes


class _Numbers(msgspec.Struct, kw_only=True):
    dtype: str
    raw: bytes


class _Wire(msgspec.Struct, kw_only=True):
    v: int
    pool: str
    t_ms: int
    n: int
    numbers: dict[str, _Numbers]
    words: dict[str, _Words]


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(_Wire)


def encode_windows(pool: str, t_ms: int, columns: Mapping[str, NDArray[Any] | Sequence[str]]) -> bytes:
    """Bytes of one message.

    Args:
        pool: Of all rows.
        t_ms: End of the tick, Unix milliseconds.
        columns: Numbers as arrays (n,), words as sequences of n strings; at least one column.

    Raises:
        ValueError: Columns differ in length, or an array is of a type that has no place in it.
    """
    n = len(next(iter(columns.values())))
    if wrong := [name for name, values in columns.items() if len(values) != n]:
        raise ValueError(f"columns of {n} rows: {', '.join(wrong)} differ")
    numbers: dict[str, _Numbers] = {}
    words: dict[str, _Words] = {}
    for name, values in columns.items():
        if isinstance(values, np.ndarray) and values.dtype.kind in _DTYPES:
            dtype = _DTYPES[values.dtype.kind]
            numbers[name] = _Numbers(dtype=dtype, raw=values.astype(dtype, copy=False).tobytes())
        else:
            index: dict[str, int] = {}
            codes = np.fromiter((index.setdefault(str(word), len(index)) for word in values), "<u4", n)
            words[name] = _Words(words=list(index), codes=codes.tobytes())
    return _encoder.encode(_Wire(v=_VERSION, pool=pool, t_ms=t_ms, n=n, numbers=numbers, words=words))


def decode_windows(raw: bytes) -> WindowBlock:
    """Inverse of `encode_windows`.

    Raises:
        SchemaError: With reason ``bad_windows``.
    """
    try:
        wire = _decoder.decode(raw)
    except (msgspec.DecodeError, UnicodeDecodeError) as exc:
        raise SchemaError("bad_windows", str(exc)) from None
    if wire.v != _VERSION:
        raise SchemaError("bad_windows", f"version {wire.v}, this reader knows {_VERSION}")
    columns: dict[str, Any] = {}
    for name, numbers in wire.numbers.items():
        if numbers.dtype not in _DTYPES.values() or len(numbers.raw) != wire.n * np.dtype(numbers.dtype).itemsize:
            raise SchemaError("bad_windows", f"column {name}: {len(numbers.raw)} bytes of {numbers.dtype} for {wire.n} rows")
        columns[name] = np.frombuffer(numbers.raw, numbers.dtype)
    for name, words in wire.words.items():
        codes = np.frombuffer(words.codes, "<u4") if len(words.codes) == 4 * wire.n else None
        if codes is None or (wire.n and int(codes.max()) >= len(words.words)):
            raise SchemaError("bad_windows", f"column {name}: codes do not fit {wire.n} rows and {len(words.words)} words")
        columns[name] = [words.words[code] for code in codes]
    return WindowBlock(pool=wire.pool, t_ms=wire.t_ms, n=wire.n, columns=columns)

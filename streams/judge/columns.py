"""Columns that say the same for every row: they take no memory and no time until somebody needs them as rows.

A fleet without adapters or tenants has nothing in half of its columns. Such a column is one value with a stride of zero.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["constant", "is_constant", "join"]


def constant(value: np.generic, n: int) -> NDArray[Any]:
    """`n` times `value`, read-only."""
    return _endless(value.dtype.char, value.item())[:n]


@lru_cache(maxsize=10_000)
def _endless(dtype: str, value: float) -> NDArray[Any]:
    """More of them than anybody has; a slice of it costs a fifth of making a new one."""
    made: NDArray[Any] = np.broadcast_to(np.dtype(dtype).type(value), 1 << 48)
    return made


def is_constant(column: NDArray[Any]) -> bool:
    """Whether a column was made so, or is a part of such a column."""
    return column.strides[0] == 0 and len(column) > 1


def join(parts: Sequence[NDArray[Any]]) -> NDArray[Any]:
    """All parts, one after the other; constant where all of them are, with the same value.

    >>> import numpy as np
    >>> zeros = constant(np.uint16(0), 3)
    >>> join([zeros, zeros]).strides, join([zeros, np.ones(1, np.uint16)]).tolist()
    ((0,), [0, 0, 0, 1])
    """
    first = parts[0]
    if is_constant(first):
        value = first[0]
        if all(part.strides[0] == 0 and len(part) > 1 and part[0] == value for part in parts):
            return constant(value, sum(map(len, parts)))
    return np.concatenate(parts)

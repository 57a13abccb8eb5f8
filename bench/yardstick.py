"""How fast the machine is just now: CPU seconds of a fixed piece of work of the judge's kind.

On a shared machine the same instructions take twice the time within minutes, in CPU time too: caches, memory and the core's other
half are shared. Costs measured at different moments are compared in yardsticks: each is divided by those measured beside it.
"""

from __future__ import annotations

import time
from functools import cache

import msgspec
import numpy as np

__all__ = ["yardstick_s"]

_LARGE, _SMALL, _TABLE = 100_000, 256, 500_000
_PASSES, _CALLS = 3, 150


def yardstick_s() -> float:
    """CPU seconds that it takes: some 10 to 30 ms."""
    values, index, small, raw = _material()
    table = np.zeros(_TABLE, np.uint16)
    began = time.process_time()
    for _ in range(_PASSES):  # as histograms and residuals: passes over arrays, counts in a table beyond the inner caches
        bins = (np.log2(values) * np.float32(32)).astype(np.int32) & 1023
        np.add.at(table, index, np.uint16(1))
        np.bincount(bins, minlength=1024)
        values[bins > 100].sum()
    for _ in range(_CALLS):  # as the rest of a tick: many calls for little
        picked = small[small > 0.5]
        np.where(small > 0.1, small, 0.0).sum()
        np.concatenate([picked, small]).max(initial=0.0)
        msgspec.msgpack.decode(raw)
    return time.process_time() - began


@cache
def _material() -> tuple[np.ndarray, np.ndarray, np.ndarray, bytes]:
    rng = np.random.default_rng(0)
    raw = msgspec.msgpack.encode({"n": 1, "node": "gpu-000", "cols": {name: bytes(100) for name in "abcdefgh"}})
    values = rng.lognormal(-2.0, 0.5, _LARGE).astype(np.float32)
    return values, rng.integers(0, _TABLE, _LARGE), rng.random(_SMALL), raw

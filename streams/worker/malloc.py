"""How glibc's malloc is to behave in a worker, set by the worker itself at its start.

By default every thread may get a heap of its own (64 MB each), and the size from which a block is given back to the system when
it is freed grows with the blocks: both keep memory that a judge used once, for a tick or a snapshot. With one heap and a fixed
size the resident memory follows what is in use. What the environment sets (`MALLOC_ARENA_MAX` and so on) is left alone; other C
libraries have no such calls and keep their ways. mallopt(3).
"""

from __future__ import annotations

import ctypes
import os

__all__ = ["keep_little"]

_TRIM_THRESHOLD, _MMAP_THRESHOLD, _ARENA_MAX = -1, -3, -8
_SETTINGS = (
    ("MALLOC_ARENA_MAX", _ARENA_MAX, 1),
    ("MALLOC_MMAP_THRESHOLD_", _MMAP_THRESHOLD, 2 << 20),
    ("MALLOC_TRIM_THRESHOLD_", _TRIM_THRESHOLD, 32 << 20),
)


def keep_little() -> bool:
    """Call it before threads start; False where the C library has no `mallopt`, or refuses."""
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):
        return False
    mallopt.argtypes, mallopt.restype = (ctypes.c_int, ctypes.c_int), ctypes.c_int
    done = [mallopt(parameter, value) for name, parameter, value in _SETTINGS if name not in os.environ]
    return all(done)

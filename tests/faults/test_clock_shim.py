"""The injected wall clock moves what the kernel's moves: readings, and the end of waits until a moment of it; no other clock."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from bench.faults.rows_clock import _Clock

pytestmark = pytest.mark.skipif(not (shutil.which("cc") or shutil.which("gcc")), reason="no C compiler")

CHILD = """
import ctypes, os, struct, threading, time

class Timespec(ctypes.Structure):
    _fields_ = [("s", ctypes.c_int64), ("ns", ctypes.c_int64)]

libc = ctypes.CDLL(None)
cond, mutex = ctypes.create_string_buffer(64), ctypes.create_string_buffer(64)

def move(seconds):
    with open(os.environ["FAULTS_CLOCK"], "r+b") as file:
        file.write(struct.pack("@q", seconds))

def seconds_until(wait, end_s):  # a wait returns something else than 0 when its end has come
    began = time.monotonic()
    while wait(cond, mutex, ctypes.byref(Timespec(int(end_s), int(end_s % 1 * 1e9)))) == 0:
        pass
    return time.monotonic() - began

for wait, lock in ((libc.pthread_cond_timedwait, libc.pthread_mutex_lock), (libc.cnd_timedwait, libc.mtx_lock)):
    ctypes.memset(cond, 0, 64), ctypes.memset(mutex, 0, 64)
    assert lock(mutex) == 0
    true_s, since_start_s = time.time(), time.monotonic()
    move(7200)
    assert 7195 < time.time() - true_s < 7260 and time.monotonic() - since_start_s < 60
    assert 0.09 < seconds_until(wait, time.time() + 0.1) < 20
    assert seconds_until(wait, true_s + 3600) < 20, "by the moved clock that is past"
    soon_s = time.time() + 0.1
    move(0)
    forward = threading.Timer(0.5, move, (7200,))
    forward.start()
    assert 0.4 < seconds_until(wait, soon_s) < 20, "set back it is two hours away, until the clock is set forward"
    forward.join()
    move(0)
print("all as in the kernel")
"""


def test_waits_end_by_the_moved_clock(tmp_path: Path) -> None:
    environ = _Clock(tmp_path).environ
    child = subprocess.run([sys.executable, "-c", CHILD], env=environ, check=False, capture_output=True, text=True, timeout=120)
    assert child.stdout == "all as in the kernel\n", child.stderr

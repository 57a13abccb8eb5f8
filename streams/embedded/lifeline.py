"""Child processes that do not outlive us."""

from __future__ import annotations

import ctypes
import signal
import socket
import sys
from collections.abc import Callable

__all__ = ["die_with_parent", "free_port"]

_PR_SET_PDEATHSIG = 1


def die_with_parent() -> Callable[[], None] | None:
    """For `subprocess.Popen(preexec_fn=...)`: on Linux the kernel kills the child when the thread that started it ends."""
    if not sys.platform.startswith("linux"):
        return None
    prctl = ctypes.CDLL(None).prctl  # looked up before the fork, after which nothing but the call itself may happen

    def ask_kernel() -> None:
        prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)

    return ask_kernel


def free_port() -> int:
    """A TCP port of the loopback interface that nobody uses at this moment."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
    return port

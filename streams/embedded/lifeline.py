"""Child processes that do not outlive us."""

from __future__ import annotations

import contextlib
import ctypes
import secrets
import signal
import socket
import sys
from collections.abc import Callable

__all__ = ["die_with_parent", "free_port"]

_PR_SET_PDEATHSIG = 1
_FIRST_PORT, _N_PORTS = 15_000, 17_000


def die_with_parent() -> Callable[[], None] | None:
    """For `subprocess.Popen(preexec_fn=...)`: on Linux the kernel kills the child when the thread that started it ends."""
    if not sys.platform.startswith("linux"):
        return None
    prctl = ctypes.CDLL(None).prctl  # looked up before the fork, after which nothing but the call itself may happen

    def ask_kernel() -> None:
        prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)

    return ask_kernel


def free_port() -> int:
    """A TCP port of the loopback interface that nobody uses at this moment.

    Below the range that outgoing connections are given: a server that ends and comes back finds it free, and a client that tries
    again meanwhile is never connected to itself.
    """
    while True:
        port = _FIRST_PORT + secrets.randbelow(_N_PORTS)
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port

"""Leases for trying a half-open subject: few at a time, and every slot comes back.

A slot is taken by at most one caller, is free again when the caller leaves, and at the latest after the probe timeout, so a
request that hangs or a worker that was killed cannot keep a subject half-open for ever. Which hosts may probe at all follows
from a rendezvous hash when the hosts of the pool are known.
"""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Callable, Iterable
from types import TracebackType

from slodrift_client.contract import Version

__all__ = ["Lease", "ProbeSlots", "chosen"]


class Lease:
    """Result of asking for a probe: true when it may be sent. Use it as a context manager.

    Attributes:
        granted: Whether the caller may send this one request to the subject.
    """

    __slots__ = ("_release", "granted")

    def __init__(self, release: Callable[[], None] | None = None) -> None:
        self.granted = release is not None
        self._release = release

    def __bool__(self) -> bool:
        return self.granted

    def __enter__(self) -> Lease:
        return self

    def __exit__(self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None) -> None:
        self.release()

    def release(self) -> None:
        """Give the slot back; a second call, or one after the timeout, does nothing."""
        release, self._release = self._release, None
        if release is not None:
            release()


class ProbeSlots:
    """Slots of this process, one per subject."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._taken: dict[tuple[str, str], tuple[int, float]] = {}  # number of the lease, when it runs out
        self._next_at: dict[tuple[str, str], float] = {}
        self._number = 0

    def ask(self, key: tuple[str, str], now: float, *, per_s: float, timeout_s: float) -> Lease:
        """A lease, granted when no other is out and the last one began at least 1 / `per_s` ago."""
        with self._lock:
            _, runs_out = self._taken.get(key, (0, now))
            if now < runs_out or now < self._next_at.get(key, now):
                return Lease()
            self._number += 1
            number = self._number
            self._taken[key] = number, now + timeout_s
            self._next_at[key] = now + 1.0 / per_s
        return Lease(lambda: self._give_back(key, number))

    def forget(self, live: Iterable[tuple[str, str]]) -> None:
        """Drop what is kept for subjects that are not half-open any more; their leases may still be given back."""
        with self._lock:
            for key in self._next_at.keys() - set(live):
                del self._next_at[key]
                self._taken.pop(key, None)

    def in_flight(self, now: float) -> int:
        """Leases that are out and have not run out."""
        with self._lock:
            return sum(now < runs_out for _, runs_out in self._taken.values())

    def _give_back(self, key: tuple[str, str], number: int) -> None:
        with self._lock:
            if self._taken.get(key, (0, 0.0))[0] == number:  # else it ran out and somebody else has the slot
                del self._taken[key]


def chosen(host: str, hosts: Iterable[str], subject: str, version: Version, n: int) -> bool:
    """Whether `host` is one of the `n` of `hosts` that probe this opening of `subject`; all hosts agree without talking."""

    def weight(name: str) -> bytes:
        return hashlib.blake2b(f"{name}\0{subject}\0{version}".encode(), digest_size=8).digest()

    mine = weight(host)
    return sum(weight(other) > mine for other in hosts if other != host) < n

"""The last-known-good state of a pool on this host's disk, for a start without Redis.

Only what passed every check is written: to a temporary file that is synced and then renamed, so a crash or a full disk leaves
the old one. What is read back is checked again like anything from Redis, and is worth nothing after ten minutes.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from slodrift_client.contract import MAX_HEAD_BYTES, MAX_SNAPSHOT_BYTES

__all__ = ["MAX_AGE_S", "LastGood", "Saved"]

MAX_AGE_S = 600.0
_MAX_FILE_BYTES = MAX_HEAD_BYTES + MAX_SNAPSHOT_BYTES + 256


@dataclass(frozen=True, slots=True)
class Saved:
    """A state as it was read from Redis, and how long ago."""

    raw_head: bytes
    raw_snapshot: bytes
    age_s: float


class LastGood:
    """One file per pool in `folder`.

    Args:
        folder: Created if need be; must belong to this user, since what it says is obeyed.
        wall: Unix seconds; a file has to outlive the process, so its age is by the wall clock.
    """

    def __init__(self, folder: Path, wall: Callable[[], float]) -> None:
        self._folder = folder
        self._wall = wall

    def path(self, fleet: str, pool: str) -> Path:
        """File of one pool."""
        name = hashlib.sha256(f"{fleet}\0{pool}".encode()).hexdigest()[:32]
        return self._folder / f"{name}.slodrift"

    def save(self, fleet: str, pool: str, raw_head: bytes, raw_snapshot: bytes) -> None:
        """Replace the file.

        Raises:
            OSError: And the old file is still there.
        """
        path = self.path(fleet, pool)
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        sizes = {"saved_s": self._wall(), "head": len(raw_head), "snapshot": len(raw_snapshot)}
        temporary = path.with_suffix(f".{os.getpid()}.tmp")
        try:
            with temporary.open("wb") as file:
                file.write(json.dumps(sizes).encode() + b"\n" + raw_head + raw_snapshot)
                file.flush()
                os.fsync(file.fileno())
            temporary.replace(path)
        except OSError:
            with contextlib.suppress(OSError):
                temporary.unlink(missing_ok=True)
            raise
        folder = os.open(self._folder, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)

    def load(self, fleet: str, pool: str) -> Saved | None:
        """The state, or None when there is none that may still be believed.

        Raises:
            OSError, ValueError: The file cannot be read or is damaged.
        """
        path = self.path(fleet, pool)
        if not path.exists():
            return None
        with path.open("rb") as file:
            raw = file.read(_MAX_FILE_BYTES + 1)
        if len(raw) > _MAX_FILE_BYTES:
            raise ValueError(f"{path}: too long")
        line, _, rest = raw.partition(b"\n")
        try:
            sizes = json.loads(line)
            saved_s, n_head, n_snapshot = float(sizes["saved_s"]), int(sizes["head"]), int(sizes["snapshot"])
        except (ValueError, TypeError, KeyError, RecursionError, OverflowError) as exc:
            raise ValueError(f"{path}: {exc}") from None
        age_s = self._wall() - saved_s
        if len(rest) != n_head + n_snapshot or n_head < 0:
            raise ValueError(f"{path}: cut off")
        if not 0.0 <= age_s <= MAX_AGE_S:  # from the future: one of the clocks is wrong, so its age is unknown
            return None
        return Saved(rest[:n_head], rest[n_head:], age_s)

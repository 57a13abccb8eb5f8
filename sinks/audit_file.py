"""The audit file: decisions are appended, then made durable, then anchored. It is its own state: a restart reads it back."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path
from typing import BinaryIO

from schemas.audit import Chain, pool_of, sign_anchor
from schemas.errors import SinkRejected
from schemas.signing import Keyring, Signer
from sinks.audit_verify import verify_lines

__all__ = ["AuditFile"]


class AuditFile:
    """One file of one fleet, opened for appending. Also a context manager.

    Args:
        path: Made if need be, mode 0640.
        fleet: Name of the fleet.
        signer: Signs anchors; a key of the auditor's own.
        keys: Public keys of anchors so far, to verify what is there already.

    Attributes:
        next_offset: First offset that is not in the file, by partition of the decision log.
        torn: Bytes of an unfinished last line that a crash left and that were cut off.

    Raises:
        SinkRejected: The file was tampered with, or cannot be written.
    """

    def __init__(self, path: Path, fleet: str, signer: Signer, keys: Keyring) -> None:
        self._fleet, self._signer, self._keys = fleet, signer, keys
        self._chains: dict[str, Chain] = {}
        self._unanchored: set[str] = set()
        self.next_offset: dict[int, int] = {}
        self.torn = 0
        try:
            handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o640)
            self._file: BinaryIO = os.fdopen(handle, "r+b")
        except OSError as exc:
            raise SinkRejected(f"{path}: the audit file cannot be opened: {exc.strerror}") from None
        try:
            self._resume(path)
        except BaseException:
            self._file.close()
            raise

    def _resume(self, path: Path) -> None:
        self._file.seek(0)
        lines = self._file.readlines()
        if lines and not lines[-1].endswith(b"\n"):
            self.torn = len(lines.pop())
            self._file.truncate(sum(map(len, lines)))
        result = verify_lines(lines, self._fleet, self._keys)
        faults = [fault for fault in result.faults if fault.kind != "unanchored"]  # it may have ended before its first anchor
        if faults:
            fault = faults[0]
            what = f"{fault.pool} {fault.n}: {fault.kind}, {fault.detail}"
            raise SinkRejected(f"{path}: nothing is added to a file that was tampered with ({what}); keep it, and begin another")
        for entry in result.entries:
            self._chains[entry.pool] = Chain(self._fleet, entry.pool, entry.n, entry.hash)
            self.next_offset[entry.partition] = max(self.next_offset.get(entry.partition, 0), entry.offset + 1)
        self._unanchored = {pool for pool, chain in self._chains.items() if result.pools[pool].anchored < chain.n}

    def append(self, partition: int, records: Iterable[tuple[int, bytes]]) -> int:
        """Add the decisions among `records` (offset, value) of a partition, in log order; returns how many."""
        lines = []
        for offset, raw in records:
            pool = pool_of(raw)
            if pool is not None and offset >= self.next_offset.get(partition, 0):
                chain = self._chains.get(pool) or self._chains.setdefault(pool, Chain(self._fleet, pool))
                lines.append(chain.append(partition, offset, raw) + b"\n")
                self._unanchored.add(pool)
                self.next_offset[partition] = offset + 1
        self._write(lines)
        return len(lines)

    def anchor(self, t_ms: int) -> list[bytes]:
        """Make what was appended durable and sign where each pool that grew stands; returns the anchors, for copies elsewhere."""
        if not self._unanchored:
            return []
        os.fsync(self._file.fileno())  # an anchor of what a crash can take away would say "truncated" afterwards
        anchors = [sign_anchor(self._chains[pool].anchor(t_ms), self._signer) for pool in sorted(self._unanchored)]
        self._write([line + b"\n" for line in anchors])
        os.fsync(self._file.fileno())
        self._unanchored.clear()
        return anchors

    def _write(self, lines: list[bytes]) -> None:
        try:
            self._file.write(b"".join(lines))
            self._file.flush()
        except OSError as exc:
            raise SinkRejected(f"the audit file cannot be written: {exc.strerror}") from None

    def __enter__(self) -> AuditFile:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._file.close()

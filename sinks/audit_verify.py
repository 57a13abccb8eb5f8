"""Reads an audit file against the signatures of its anchors and tells what was done to it.

Everything is recomputed from the decisions; stored hashes only help to say what happened. Per pool, the history that the newest
anchors vouch for is followed back to its beginning, and what does not fit is named: changed, removed, inserted, reordered,
truncated (anchored decisions are missing at the end), forked (two histories), anchor_mismatch (one whole chain, but not the one
that an anchor vouches for). What comes after the last anchor is only as good as the file: keep copies of anchors elsewhere and
give them as `anchors`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Literal

from schemas.audit import Anchor, AuditEntry, decode_line, genesis, link
from schemas.errors import SchemaError
from schemas.signing import Keyring

__all__ = ["Fault", "FaultKind", "PoolAudit", "Verified", "verify_lines"]

FaultKind = Literal[
    "changed", "removed", "inserted", "reordered", "truncated", "forked", "anchor_mismatch", "bad_anchor", "unanchored",
    "unreadable",
]  # fmt: skip


@dataclass(frozen=True, slots=True)
class Fault:
    """One thing that is wrong, at decision `n` of a pool (or line `n` of the file where there is no pool)."""

    kind: FaultKind
    pool: str
    n: int
    detail: str


@dataclass(slots=True)
class PoolAudit:
    """What is known of one pool: decisions in the file, and how many of them an anchor vouches for."""

    entries: int = 0
    anchored: int = 0


@dataclass(slots=True)
class Verified:
    """Result; the file is good when there are no faults."""

    faults: list[Fault] = field(default_factory=list)
    pools: dict[str, PoolAudit] = field(default_factory=dict)
    entries: list[AuditEntry] = field(default_factory=list)


def verify_lines(lines: Iterable[bytes], fleet: str, keys: Keyring, anchors: Iterable[bytes] = ()) -> Verified:
    """Verify the lines of an audit file.

    Args:
        lines: Of the file, with or without newlines.
        fleet: Whose it is.
        keys: Public keys of anchors.
        anchors: Copies of anchors from elsewhere.
    """
    result = Verified()
    entries: dict[str, list[AuditEntry]] = {}
    trusted: dict[str, dict[int, set[str]]] = {}
    for where, source in (("line", lines), ("anchor", anchors)):
        for number, raw in enumerate(source, 1):
            line = raw.rstrip(b"\n")
            try:
                record = decode_line(line)
            except SchemaError as exc:
                result.faults.append(Fault("unreadable", "", number, f"{where} {number}: {exc.detail}"[:300]))
                continue
            if isinstance(record, AuditEntry):
                entries.setdefault(record.pool, []).append(record)
                result.entries.append(record)
            elif fault := _distrust(line, record, fleet, keys):
                result.faults.append(Fault("bad_anchor", record.pool, record.n, f"{where} {number}: {fault}"))
            else:
                trusted.setdefault(record.pool, {}).setdefault(record.n, set()).add(record.hash)
    for pool in sorted(entries.keys() | trusted.keys()):
        _Pool(fleet, pool, entries.get(pool, []), trusted.get(pool, {}), result).verify()
    return result


def _distrust(line: bytes, anchor: Anchor, fleet: str, keys: Keyring) -> str:
    try:
        keys.verify("slodrift-anchor-v1", line)
    except SchemaError as exc:
        return str(exc)
    return "" if anchor.fleet == fleet else f"it belongs to fleet {anchor.fleet}"


class _Pool:
    """One pool's entries against its anchors."""

    def __init__(
        self, fleet: str, pool: str, entries: Sequence[AuditEntry], anchors: dict[int, set[str]], result: Verified
    ) -> None:
        self.pool, self.entries, self.anchors = pool, entries, anchors
        self.out = result
        self.root = genesis(fleet, pool)
        self.true = [link(e.prev, e.pool, e.n, e.partition, e.offset, bytes(e.decision)) for e in entries]
        self.by_hash: dict[str, int] = {}
        self.by_n: dict[int, list[int]] = {}
        for i, entry in enumerate(entries):
            self.by_n.setdefault(entry.n, []).append(i)
            for name in (self.true[i], entry.hash):
                self.by_hash.setdefault(name, i)
        self.spine: dict[int, int] = {}  # place in the chain to index in the file
        self.place: dict[int, int] = {}  # and back
        self.changed: set[int] = set()
        self.missing: set[int] = set()

    def verify(self) -> None:
        top_anchor = max(self.anchors, default=0)
        for n in sorted(self.anchors, reverse=True):
            for name in sorted(self.anchors[n]):
                if n not in self.spine and name in self.by_hash:
                    self._back(n, self.by_hash[name])
        self._forward()
        self._leftovers(top_anchor)
        self._anchors(top_anchor)
        for i, entry in enumerate(self.entries):
            if self.true[i] != entry.hash:
                self.changed.add(self.place.get(i, entry.n))
        for n in sorted(self.changed):
            self._fault("changed", n, "its content is not what was recorded")
        for n in sorted(self.missing):
            self._fault("removed", n, "it was recorded and is not in the file")
        self._order()
        vouched = [n for n, names in self.anchors.items() if n in self.spine and self.true[self.spine[n]] in names]
        self.out.pools[self.pool] = PoolAudit(len(self.entries), max(vouched, default=0))

    def _fault(self, kind: FaultKind, n: int, detail: str) -> None:
        self.out.faults.append(Fault(kind, self.pool, n, detail))

    def _back(self, n: int, i: int) -> None:
        """Follow the chain from an anchored entry to its beginning or to what is followed already."""
        while True:
            self._put(n, i)
            n -= 1
            if n == 0 or n in self.spine:
                return
            prev = self.entries[i].prev
            found = self.by_hash.get(prev)
            if found is None or found in self.place:
                found = self._stand_in(n, i)
            while found is None:
                self.missing.add(n)
                n -= 1
                if n == 0 or n in self.spine:
                    return
                found = next((j for j in self.by_n.get(n, ()) if j not in self.place), None)
            i = found

    def _stand_in(self, n: int, successor: int) -> int | None:
        """The entry that says it is `n`, though the one after it links to another: one of the two was changed."""
        for j in self.by_n.get(n, ()):
            if j not in self.place:
                if self.true[successor] == self.entries[successor].hash:
                    self.changed.add(n)
                return j
        return None

    def _forward(self) -> None:
        """Go on from the last anchored entry by the links, as far as the file goes."""
        n = max(self.spine, default=0)
        last = self.root if n == 0 else self.true[self.spine[n]]
        for m in sorted(m for m in self.by_n if m > n):
            here = [j for j in self.by_n[m] if j not in self.place]
            fits = [j for j in here if self.entries[j].prev == last]
            if not here:
                continue
            if len({self.true[j] for j in fits}) > 1:
                self._fault("forked", m, "two histories go on from here")
            self.missing.update(range(n + 1, m))
            if not fits and m == n + 1 and self.true[here[0]] == self.entries[here[0]].hash:
                self.changed.add(max(n, 1))  # the next one links to something else
            n = m
            self._put(n, (fits or here)[0])
            last = self.entries[self.spine[n]].hash

    def _put(self, n: int, i: int) -> None:
        self.spine[n] = i
        self.place[i] = n

    def _leftovers(self, top_anchor: int) -> None:
        for j, entry in enumerate(self.entries):
            if j in self.place:
                continue
            twin = self.spine.get(entry.n)
            if twin is not None and self.entries[twin] == entry:
                self._fault("inserted", entry.n, "a copy of a decision that is there")
            elif entry.n <= top_anchor or self.true[j] != entry.hash:
                self._fault("inserted", entry.n, "no anchored history has it")
            else:
                self._fault("forked", entry.n, "another history has something else here")

    def _anchors(self, top_anchor: int) -> None:
        top = max(self.spine, default=0)
        if self.entries and not self.anchors:
            self._fault("unanchored", top, "no anchor with a valid signature vouches for this pool")
        if top_anchor > top:
            self._fault("truncated", top + 1, f"decisions {top + 1} to {top_anchor} were anchored and are not in the file")
        for n, names in sorted(self.anchors.items()):
            if len(names) > 1:
                self._fault("forked", n, "two anchors with valid signatures say different things")
            if (
                n in self.spine
                and not names & {self.true[self.spine[n]], self.entries[self.spine[n]].hash}
                and n not in self.changed
            ):
                self._fault("anchor_mismatch", n, "an anchor says that another history was recorded")

    def _order(self) -> None:
        places = sorted(self.spine.items())
        for (_, before), (n, after) in pairwise(places):
            if after < before:
                self._fault("reordered", n, "it stands before the decision that it follows")

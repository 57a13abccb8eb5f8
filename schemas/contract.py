"""The decision contract: what the judge writes to Redis and every serving host reads.

One pool is two values. The *head* is rewritten every second, changed or not; the *snapshot* is the complete list of subjects
whose breaker is not closed. The head names the snapshot by length and SHA-256, so a host never mixes two states. Both are
canonical JSON: keys sorted, no spaces, UTF-8; equal states are equal bytes. Times are Unix milliseconds of the writer's clock;
a host only ever uses differences between them, so its own clock need not agree.

`slodrift_client` has its own reader of this contract and shares no code with this module.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Annotated, Literal

import msgspec

from schemas.errors import SchemaError
from schemas.results import BreakerState, Mode, Scope

__all__ = [
    "LIBRARY_VERSION",
    "MAX_AHEAD_MS",
    "MAX_ENTRIES",
    "MAX_HEAD_BYTES",
    "MAX_REASON",
    "MAX_SNAPSHOT_BYTES",
    "SCHEMA",
    "Action",
    "Entry",
    "Head",
    "Probe",
    "Snapshot",
    "Version",
    "build",
    "decode_head",
    "decode_snapshot",
    "encode",
    "is_capped",
]

SCHEMA = 1
"""Raised only when a field changes its meaning; a field that is added needs no new number."""
LIBRARY_VERSION = 1
"""Version of schemas/redis/slodrift.lua that this contract needs."""

MAX_HEAD_BYTES = 2048
MAX_SNAPSHOT_BYTES = 1 << 20
MAX_ENTRIES = 4096
MAX_AHEAD_MS = 300_000
"""An entry that is not latched ends at most this far ahead of its head, milliseconds."""
MAX_REASON = 512

Version = tuple[Annotated[int, msgspec.Meta(ge=0)], Annotated[int, msgspec.Meta(ge=0)], Annotated[int, msgspec.Meta(ge=0)]]
"""(generation, epoch, sequence): the operator's, the log owner's, the decision's number."""
Action = Literal["eject", "shed", "fallback", "degrade", "none"]

_Name = Annotated[str, msgspec.Meta(min_length=1, max_length=256)]
_Count = Annotated[int, msgspec.Meta(ge=0, le=1 << 31)]
_Ms = Annotated[int, msgspec.Meta(ge=0, le=1 << 52)]


class Probe(msgspec.Struct, kw_only=True, frozen=True, gc=False):
    """How a half-open subject may be tried."""

    hosts: Annotated[int, msgspec.Meta(ge=1, le=1000)] = 3
    """Hosts that may probe at the same time."""
    per_s: Annotated[float, msgspec.Meta(gt=0, le=1000)] = 1.0
    """Probes a second of one host."""
    timeout_ms: Annotated[int, msgspec.Meta(ge=1, le=MAX_AHEAD_MS)] = 30_000
    """A probe that has not reported after this long gives its slot back, milliseconds."""


class Entry(msgspec.Struct, kw_only=True, frozen=True, gc=False):
    """One subject whose breaker is not closed."""

    scope: Scope
    subject: _Name
    """Node name, or scope-qualified: `session:17`, `request:adapter:lora-3`, `pool:` (`schemas.scopes`)."""
    state: BreakerState
    version: Version
    tx: Annotated[str, msgspec.Meta(max_length=128)]
    """Identity of the decision."""
    opened_ms: _Ms
    not_after_ms: _Ms | None
    """The state ends by itself then; None only for a latched entry."""
    action: Action = "eject"
    admit_ratio: Annotated[float, msgspec.Meta(ge=0, le=1)] = 0.0
    """Share of requests still admitted when `action` is shed or fallback."""
    reason: Annotated[str, msgspec.Meta(max_length=MAX_REASON)] = ""
    policy_version: Annotated[str, msgspec.Meta(max_length=128)] = ""
    window_end_ms: _Ms = 0
    latched: bool = False
    """Set by an operator or by the flap latch; counted against a cap of its own."""
    on_stale: Literal["decay", "hold"] = "decay"
    """What a host does with it when nothing is heard: let it end, or keep it until `not_after_ms`."""
    fallback: Annotated[str, msgspec.Meta(max_length=256)] | None = None
    """Where to send the request instead, once."""
    profile: Annotated[str, msgspec.Meta(max_length=256)] | None = None
    """Cheaper profile to serve the request under, when `action` is degrade."""
    probe: Probe | None = None
    ramping: bool = False
    """Half-open and given `admit_ratio` of its ordinary requests, more with each step: no probes are needed."""


class Head(msgspec.Struct, kw_only=True, frozen=True, gc=False):
    """State of one pool in one line."""

    schema: int = SCHEMA
    fleet: _Name
    pool: _Name
    gen: _Count
    epoch: Annotated[int, msgspec.Meta(ge=0, le=1 << 52)]
    seq: Annotated[int, msgspec.Meta(ge=0, le=1 << 52)]
    hb: Annotated[int, msgspec.Meta(ge=0, le=1 << 52)]
    """Grows with every write of the same (gen, epoch, seq); a head that repeats it is old."""
    issued_ms: _Ms
    lease_ms: Annotated[int, msgspec.Meta(ge=1, le=60_000)] = 5000
    """A host that has seen no new head this long calls its state stale."""
    n_eligible: _Count
    """Nodes of the pool with fresh telemetry: what the cap was computed from."""
    n_nonclosed: Annotated[int, msgspec.Meta(ge=0, le=MAX_ENTRIES)]
    cap: _Count
    """Nodes that automation may take away at once; see `is_capped`."""
    mode: Mode
    snap_len: Annotated[int, msgspec.Meta(ge=1, le=MAX_SNAPSHOT_BYTES)]
    snap_sha256: Annotated[str, msgspec.Meta(pattern="^[0-9a-f]{64}$")]

    @property
    def version(self) -> tuple[int, int, int]:
        """(gen, epoch, seq)."""
        return self.gen, self.epoch, self.seq


class Snapshot(msgspec.Struct, kw_only=True, frozen=True, gc=False):
    """Everything that is not closed in one pool; a list that is not complete is worth nothing."""

    schema: int = SCHEMA
    fleet: _Name
    pool: _Name
    version: Version
    complete: Literal[True] = True
    count: Annotated[int, msgspec.Meta(ge=0, le=MAX_ENTRIES)]
    entries: tuple[Entry, ...]
    """Sorted by (scope, subject)."""


_encoder = msgspec.json.Encoder(order="sorted")
_head_decoder = msgspec.json.Decoder(Head)
_snapshot_decoder = msgspec.json.Decoder(Snapshot)


def encode(part: Head | Snapshot) -> bytes:
    """Canonical JSON."""
    return _encoder.encode(part)


def decode_head(raw: bytes) -> Head:
    """Parse and bound one head.

    Raises:
        SchemaError: With reason ``bad_head``.
    """
    if len(raw) > MAX_HEAD_BYTES:
        raise SchemaError("bad_head", f"{len(raw)} bytes, {MAX_HEAD_BYTES} are allowed")
    try:
        head = _head_decoder.decode(raw)
    except (msgspec.DecodeError, UnicodeDecodeError) as exc:
        raise SchemaError("bad_head", str(exc)) from None
    if head.schema != SCHEMA:
        raise SchemaError("bad_head", f"schema {head.schema}, this side knows {SCHEMA}")
    return head


def decode_snapshot(raw: bytes) -> Snapshot:
    """Parse and bound one snapshot; whether it belongs to a head is the caller's question.

    Raises:
        SchemaError: With reason ``bad_snapshot``.
    """
    if len(raw) > MAX_SNAPSHOT_BYTES:
        raise SchemaError("bad_snapshot", f"{len(raw)} bytes, {MAX_SNAPSHOT_BYTES} are allowed")
    try:
        snapshot = _snapshot_decoder.decode(raw)
    except (msgspec.DecodeError, UnicodeDecodeError) as exc:
        raise SchemaError("bad_snapshot", str(exc)) from None
    if snapshot.schema != SCHEMA or snapshot.count != len(snapshot.entries):
        raise SchemaError(
            "bad_snapshot", f"schema {snapshot.schema}, {snapshot.count} entries said, {len(snapshot.entries)} there"
        )
    return snapshot


def is_capped(entry: Entry) -> bool:
    """Whether the pool's cap counts this entry: a node that automation, not an operator or a latch, took away."""
    return entry.scope == "node" and not entry.latched and entry.state in ("OPEN", "HALF_OPEN")


def build(
    *,
    fleet: str,
    pool: str,
    version: tuple[int, int, int],
    entries: Sequence[Entry],
    n_eligible: int,
    cap: int,
    mode: Mode,
    issued_ms: int,
    hb: int = 0,
) -> tuple[Head, bytes]:
    """Head of a state and the bytes of its snapshot.

    Raises:
        ValueError: The state breaks a bound of the contract: the caller has a bug.
    """
    ordered = tuple(sorted(entries, key=lambda e: (e.scope, e.subject)))
    if len({e.subject for e in ordered}) != len(ordered):
        raise ValueError("a subject occurs twice")
    for entry in ordered:
        _check_entry(entry, issued_ms)
    raw = encode(Snapshot(fleet=fleet, pool=pool, version=version, count=len(ordered), entries=ordered))
    head = Head(
        fleet=fleet, pool=pool, gen=version[0], epoch=version[1], seq=version[2], hb=hb, issued_ms=issued_ms,
        n_eligible=n_eligible, n_nonclosed=len(ordered), cap=cap, mode=mode,
        snap_len=len(raw), snap_sha256=hashlib.sha256(raw).hexdigest(),
    )  # fmt: skip
    # Structs check bounds only when they decode, so what was built is read back once; it costs microseconds.
    decode_snapshot(raw)
    decode_head(encode(head))
    return head, raw


def _check_entry(entry: Entry, issued_ms: int) -> None:
    if entry.state == "CLOSED":
        raise ValueError(f"{entry.subject}: a closed subject is not in a snapshot")
    if entry.not_after_ms is None:
        if not entry.latched:
            raise ValueError(f"{entry.subject}: only a latched entry may have no end")
    elif not entry.latched and entry.not_after_ms - issued_ms > MAX_AHEAD_MS:
        raise ValueError(f"{entry.subject}: ends {(entry.not_after_ms - issued_ms) / 1000:g} s ahead, 300 s are allowed")

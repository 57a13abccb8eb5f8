"""The decision contract as a host reads it: two JSON values per pool in Redis, none of them trusted.

The head is rewritten every second and names the snapshot by length and SHA-256; the snapshot is the complete list of subjects
whose breaker is not closed. Everything is checked here before anything is believed: size, types, ranges, fleet and pool (no
other pool's snapshot), completeness. A field that is not known is ignored, an unknown word is not.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, get_args
from urllib.parse import quote

from slodrift_client.subjects import scope_of

__all__ = [
    "Action",
    "Entry",
    "Head",
    "Keys",
    "Mode",
    "Refused",
    "Scope",
    "State",
    "Version",
    "parse_head",
    "parse_snapshot",
]

SCHEMA = 1
MAX_HEAD_BYTES = 2048
MAX_SNAPSHOT_BYTES = 1 << 20
MAX_ENTRIES = 4096
MAX_AHEAD_MS = 300_000
_FAR = 1 << 52

State = Literal["CLOSED", "OPEN", "HALF_OPEN", "FORCED_OPEN", "DISABLED"]
Mode = Literal["shadow", "advise", "enforce"]
Scope = Literal["node", "session", "request", "pool"]
Action = Literal["eject", "shed", "fallback", "degrade", "none"]
Version = tuple[int, int, int]

_STATES = frozenset(get_args(State)) - {"CLOSED"}
_MODES = frozenset(get_args(Mode))
_SCOPES = frozenset(get_args(Scope))
_ACTIONS = frozenset(get_args(Action))


class Refused(Exception):
    """A head or snapshot that must not be applied; what was applied before stays.

    Args:
        reason: Stable word, used as a counter: bad_head, bad_snapshot, foreign, mismatch, rollback, conflict, over_cap,
            unsigned, unknown_key, bad_signature.
        detail: One sentence for people.
    """

    def __init__(self, reason: str, detail: str) -> None:
        super().__init__(f"{reason}: {detail}")
        self.reason = reason
        self.detail = detail


@dataclass(frozen=True, slots=True)
class Keys:
    """Names of a pool's Redis keys."""

    fleet: str
    pool: str

    @property
    def tag(self) -> str:
        """Cluster hash tag; a brace in the name must not end it early."""
        return f"{{slodrift:{self.fleet}:{quote(self.pool, safe='/:@+,=._-~')}}}"

    @property
    def head(self) -> str:
        """Key of the head."""
        return f"{self.tag}:head"

    @property
    def snap(self) -> str:
        """Key of the snapshot."""
        return f"{self.tag}:snap"

    @property
    def doorbell(self) -> str:
        """Channel that says "look at the head"; whatever else it says is not read."""
        return f"{self.tag}:ch"


@dataclass(frozen=True, slots=True)
class Head:
    """State of one pool in one line; times are milliseconds of the writer's clock."""

    fleet: str
    pool: str
    version: Version
    hb: int
    issued_ms: int
    n_eligible: int
    n_nonclosed: int
    cap: int
    mode: Mode
    snap_len: int
    snap_sha256: str


@dataclass(frozen=True, slots=True)
class Entry:
    """One subject whose breaker is not closed."""

    scope: Scope
    subject: str
    state: State
    version: Version
    tx: str = ""
    opened_ms: int = 0
    not_after_ms: int | None = None
    action: Action = "eject"
    admit_ratio: float = 0.0
    reason: str = ""
    policy_version: str = ""
    latched: bool = False
    hold: bool = False
    """Kept when the state is stale, until it ends by itself."""
    fallback: str | None = None
    profile: str | None = None
    probe_hosts: int = 3
    probe_per_s: float = 1.0
    probe_timeout_s: float = 30.0
    ramping: bool = False
    """Half-open, and ordinary requests go there by `admit_ratio`: it needs no probes."""

    @property
    def is_capped(self) -> bool:
        """Whether this is a node that automation took away: what caps count."""
        return self.scope == "node" and not self.latched and self.state in ("OPEN", "HALF_OPEN")

    @property
    def is_held(self) -> bool:
        """Whether this is a node that an operator or the flap latch took away: their cap is another."""
        return self.scope == "node" and (self.latched or self.state == "FORCED_OPEN")


def parse_head(raw: bytes, fleet: str, pool: str) -> Head:
    """Check one head and that it is this pool's.

    Raises:
        Refused: bad_head or foreign.
    """
    fields = _Fields(_load(raw, MAX_HEAD_BYTES, "bad_head"), "bad_head")
    _same_place(fields, fleet, pool)
    sha256 = fields.text("snap_sha256", 64)
    if len(sha256) != 64 or sha256.strip("0123456789abcdef"):
        raise Refused("bad_head", "snap_sha256 is no digest")
    return Head(
        fleet=fleet,
        pool=pool,
        version=(fields.whole("gen"), fields.whole("epoch"), fields.whole("seq")),
        hb=fields.whole("hb"),
        issued_ms=fields.whole("issued_ms"),
        n_eligible=fields.whole("n_eligible", hi=1 << 31),
        n_nonclosed=fields.whole("n_nonclosed", hi=MAX_ENTRIES),
        cap=fields.whole("cap", hi=1 << 31),
        mode=fields.word("mode", _MODES),
        snap_len=fields.whole("snap_len", lo=1, hi=MAX_SNAPSHOT_BYTES),
        snap_sha256=sha256,
    )


def parse_snapshot(raw: bytes, head: Head) -> tuple[Entry, ...]:
    """Check one snapshot and that it is the one `head` names.

    Raises:
        Refused: mismatch (a newer or older state, or cut off), foreign, or bad_snapshot.
    """
    if len(raw) != head.snap_len or hashlib.sha256(raw).hexdigest() != head.snap_sha256:
        raise Refused("mismatch", f"{len(raw)} bytes are not the snapshot of version {head.version}")
    fields = _Fields(_load(raw, MAX_SNAPSHOT_BYTES, "bad_snapshot"), "bad_snapshot")
    _same_place(fields, head.fleet, head.pool)
    if fields.version() != head.version:
        raise Refused("foreign", f"snapshot of version {fields.version()} under a head of {head.version}")
    listed = fields.get("entries")
    if fields.get("complete") is not True or type(listed) is not list:
        raise Refused("bad_snapshot", "it does not say that it is complete")
    if not len(listed) == fields.whole("count", hi=MAX_ENTRIES) == head.n_nonclosed:
        raise Refused("bad_snapshot", f"{len(listed)} entries, {fields.get('count')!r} said, {head.n_nonclosed} in the head")
    entries = tuple(_entry(item, head) for item in listed)
    if len({entry.subject for entry in entries}) != len(entries):
        raise Refused("bad_snapshot", "a subject occurs twice")
    return entries


def _entry(item: object, head: Head) -> Entry:
    if type(item) is not dict:
        raise Refused("bad_snapshot", "an entry is no object")
    fields = _Fields(item, "bad_snapshot")
    latched = fields.flag("latched")
    end = fields.get("not_after_ms")
    not_after_ms = None if end is None else fields.whole("not_after_ms")
    if not latched and (not_after_ms is None or not_after_ms - head.issued_ms > MAX_AHEAD_MS):
        raise Refused("bad_snapshot", "an entry that is not latched has no end within 300 s")
    plan: dict[str, Any] = {}
    if (probe := fields.get("probe")) is not None:
        if type(probe) is not dict:
            raise Refused("bad_snapshot", "probe is no object")
        probe_fields = _Fields(probe, "bad_snapshot")
        plan = {
            "probe_hosts": probe_fields.whole("hosts", lo=1, hi=1000),
            "probe_per_s": probe_fields.number("per_s", 1e-3, 1000.0),
            "probe_timeout_s": probe_fields.whole("timeout_ms", lo=1, hi=MAX_AHEAD_MS) / 1000,
        }
    subject = fields.text("subject", 256)
    if not subject:
        raise Refused("bad_snapshot", "a subject has no name")
    if (scope := fields.word("scope", _SCOPES)) != scope_of(subject):  # caps and bounds are its scope's, questions go by its name
        raise Refused("bad_snapshot", f"{subject!r:.80} is no {scope}")
    return Entry(
        scope=scope,
        subject=subject,
        state=fields.word("state", _STATES),
        version=fields.version(),
        tx=fields.text("tx", 128),
        opened_ms=fields.whole("opened_ms"),
        not_after_ms=not_after_ms,
        action=fields.word("action", _ACTIONS),
        admit_ratio=fields.number("admit_ratio", 0.0, 1.0),
        reason=fields.text("reason", 512),
        policy_version=fields.text("policy_version", 128),
        latched=latched,
        hold=fields.word("on_stale", frozenset({"decay", "hold"})) == "hold",
        fallback=None if fields.get("fallback") is None else fields.text("fallback", 256),
        profile=None if fields.get("profile") is None else fields.text("profile", 256),
        ramping=fields.get("ramping") is not None and fields.flag("ramping"),  # older writers do not say it
        **plan,
    )


class _Fields:
    """Fields of one JSON object, each with its type and range."""

    __slots__ = ("_items", "_reason")

    def __init__(self, items: Mapping[str, Any], reason: str) -> None:
        self._items = items
        self._reason = reason

    def get(self, name: str) -> Any:
        return self._items.get(name)

    def whole(self, name: str, lo: int = 0, hi: int = _FAR) -> int:
        value = self._items.get(name)
        if type(value) is not int or not lo <= value <= hi:  # a bool is no number
            raise self._wrong(name)
        return value

    def number(self, name: str, lo: float, hi: float) -> float:
        value = self._items.get(name)
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not lo <= value <= hi:  # NaN is in no range
            raise self._wrong(name)
        return float(value)

    def text(self, name: str, longest: int) -> str:
        value = self._items.get(name)
        if type(value) is not str or len(value) > longest:
            raise self._wrong(name)
        return value

    def word(self, name: str, words: frozenset[str]) -> Any:
        value = self._items.get(name)
        if type(value) is not str or value not in words:
            raise self._wrong(name)
        return value

    def flag(self, name: str) -> bool:
        value = self._items.get(name)
        if type(value) is not bool:
            raise self._wrong(name)
        return value

    def version(self) -> Version:
        value = self._items.get("version")
        if type(value) is not list or len(value) != 3 or not all(type(v) is int and 0 <= v <= _FAR for v in value):
            raise self._wrong("version")
        return value[0], value[1], value[2]

    def _wrong(self, name: str) -> Refused:
        return Refused(self._reason, f"{name} is missing or out of range: {self._items.get(name)!r:.80}")


def _same_place(fields: _Fields, fleet: str, pool: str) -> None:
    if fields.get("schema") != SCHEMA:
        raise Refused("foreign", f"schema {fields.get('schema')!r:.20}, this client knows {SCHEMA}")
    if fields.get("fleet") != fleet or fields.get("pool") != pool:
        raise Refused("foreign", f"it belongs to {fields.get('fleet')!r:.80} / {fields.get('pool')!r:.80}")


def _load(raw: bytes, longest: int, reason: str) -> dict[str, Any]:
    if len(raw) > longest:
        raise Refused(reason, f"{len(raw)} bytes, {longest} are allowed")
    try:
        value = json.loads(raw, parse_constant=_no_constant)
    except (ValueError, RecursionError) as exc:  # ValueError: not JSON, not UTF-8, a number of thousands of digits
        raise Refused(reason, f"not JSON: {exc}"[:200]) from None
    if type(value) is not dict:
        raise Refused(reason, "not a JSON object")
    return value


def _no_constant(word: str) -> float:
    raise ValueError(f"{word} is no number")

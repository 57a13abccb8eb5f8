"""What a host believes about one pool: the last state that passed every check, and how old it is.

Pure: bytes and monotonic times in, no I/O and no clock of its own. A state is replaced whole or not at all. Old states are
refused by (place of the signing key, generation, epoch, sequence, heartbeat), which only grows. Age is the time since the
heartbeat last advanced, so no clocks need to agree and a frozen head grows old like a missing one. What is not heard of any more
ends by itself.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal

from slodrift_client.contract import Entry, Head, Refused, State, parse_head, parse_snapshot
from slodrift_client.signature import HeadKeys

__all__ = ["FRESH_S", "STALE_S", "Held", "Limits", "PoolView", "Pulse", "Source"]

FRESH_S = 3.0
STALE_S = 5.0
"""Without a new heartbeat this long the state is stale, seconds."""
STALE_HOLD_S = 60.0
"""A stale OPEN that is not latched ends at the latest this long after the last heartbeat, seconds."""
RAMP_S = 30.0
"""Half-open time between the end of an entry and closed; when stale each host draws its own share, so not all come at once."""

Source = Literal["fresh", "late", "stale", "lkg", "default"]


@dataclass(frozen=True)
class Limits:
    """What this host lets automation take away, whatever the writer says.

    Attributes:
        max_open_ratio: Nodes open or half-open, as a share of the pool.
        max_open: The same as a number.
        min_open: So many in a pool of three or more, whatever the share says; none in a cell of a split pool.
        max_latched_ratio: Nodes held open by an operator or the flap latch.
        panic_ratio: When more of the pool than this is not closed, whoever did it, nothing is obeyed.
        max_sessions: Session buckets that may be open (5 % of 1024).
        max_requests: Request classes that may be open.
        max_refused_ratio: Requests that are refused in 10 s, whatever is open (`slodrift_client.refusals`).
        max_retry_ratio: Requests that are told of a fallback in 10 s (`slodrift_client.retries`).
    """

    max_open_ratio: float = 0.10
    max_open: int = 20
    min_open: int = 1
    max_latched_ratio: float = 0.20
    panic_ratio: float = 0.30
    max_sessions: int = 51
    max_requests: int = 64
    max_refused_ratio: float = 0.15
    max_retry_ratio: float = 0.10


class Pulse:
    """When the pool's heartbeat last advanced; shared by all entries of the pool, written by the reader alone."""

    __slots__ = ("advanced_at",)

    def __init__(self, advanced_at: float) -> None:
        self.advanced_at = advanced_at


class Held:
    """An entry with its end on this host's monotonic clock."""

    __slots__ = ("asked", "ends_at", "entry", "pulse", "ramp_s")

    def __init__(self, entry: Entry, pulse: Pulse, ends_at: float, ramp_s: float) -> None:
        self.asked = 0  # requests without a key that shedding has decided on
        self.entry = entry
        self.pulse = pulse
        self.ends_at = ends_at
        self.ramp_s = ramp_s

    def state_at(self, now: float) -> State:
        """State at monotonic time `now`, which may be long after the last word about it."""
        entry, ends_at, ramp_s = self.entry, self.ends_at, RAMP_S
        heard_at = self.pulse.advanced_at
        if now - heard_at > STALE_S:
            ramp_s = self.ramp_s
            if not entry.hold:
                ends_at = min(ends_at, heard_at + STALE_HOLD_S)
        if now < ends_at:
            return entry.state
        return "HALF_OPEN" if now < ends_at + ramp_s and entry.state in ("OPEN", "HALF_OPEN") else "CLOSED"


class PoolView:
    """The state of one pool on this host.

    Args:
        fleet, pool: What this view accepts.
        limits: Caps of this host.
        pool_size: Nodes of the pool by the host's own configuration; a population that claims more does not widen the cap.
        rng: Draws each entry's share of the ramp.
        keys: Heads must be signed with one of them; None takes any head.

    Attributes:
        head: Of the state that is believed; None before the first.
        held: Its entries by subject.
        panic: So much is not closed that nothing is obeyed.
        refused: Refusals by reason.
        last_refusal: The newest one, "" when the newest head was taken.
    """

    def __init__(
        self, fleet: str, pool: str, limits: Limits, *, pool_size: int | None = None, rng: random.Random | None = None,
        keys: HeadKeys | None = None,
    ) -> None:  # fmt: skip
        self.fleet = fleet
        self.pool = pool
        self.limits = limits
        self.pool_size = pool_size
        self.head: Head | None = None
        self.held: Mapping[str, Held] = MappingProxyType({})
        self.panic = False
        self.refused: dict[str, int] = {}
        self.last_refusal = ""
        self.from_file = False
        self._rng = rng or random.Random()  # noqa: S311 - spreads load, keeps no secret
        self._pulse = Pulse(float("-inf"))
        self._keys = keys
        self._verified: tuple[bytes, int] = (b"", 0)
        self._newest = (-1, -1, -1, -1, -1)

    def offer_head(self, raw: bytes, now: float) -> bool:
        """Take a head in. True when it names a state that is new here: then `offer` head and snapshot together.

        Raises:
            Refused: And nothing changed.
        """
        rank, head = self._trusted(raw)
        self._check_order(rank, head)
        if self.head is None or head.version != self.head.version:
            return True
        if (rank, *head.version, head.hb) > self._newest:
            if self.age_s(now) > STALE_S:  # what had ended here for want of news would come back: as if it were new
                self._check_caps(head, [held.entry for held in self.held.values()], now)
            self._advance(head, now, rank)
        return False

    def offer(self, raw_head: bytes, raw_snapshot: bytes, now: float, *, file_age_s: float | None = None) -> None:
        """Take a whole state in.

        Args:
            raw_head: The head,
            raw_snapshot: and the snapshot that was read in the same step.
            now: Monotonic time at which they were read.
            file_age_s: They come from the last-known-good file, which is this old: stale from the start.

        Raises:
            Refused: And nothing changed.
        """
        rank, head = self._trusted(raw_head)
        self._check_order(rank, head)
        if (rank, *head.version, head.hb) == self._newest:
            return
        entries = parse_snapshot(raw_snapshot, head)
        self._check_caps(head, entries, now)
        self.install(head, entries, now, file_age_s or 0.0, rank)
        if file_age_s is not None:
            self.from_file = True
            self._pulse.advanced_at = now - STALE_S

    def install(self, head: Head, entries: Iterable[Entry], now: float, spent_s: float = 0.0, rank: int = 0) -> None:
        """Make this the state without asking whether it may be; `spent_s` of the time until its ends is over."""
        held: dict[str, Held] = {}
        for entry in entries:
            known = self.held.get(entry.subject)
            if known is not None and known.entry == entry:  # its end is fixed here; the writer's clock may jump as it likes
                held[entry.subject] = known
                continue
            ends_at = float("inf")
            if entry.not_after_ms is not None:
                ends_at = now + (entry.not_after_ms - head.issued_ms) / 1000 - spent_s
            held[entry.subject] = Held(entry, self._pulse, ends_at, self._rng.uniform(0.0, RAMP_S))
        self.held = MappingProxyType(held)
        self._advance(head, now, rank)

    def age_s(self, now: float) -> float:
        """Seconds since the heartbeat last advanced; infinite before the first state."""
        return max(0.0, now - self._pulse.advanced_at)

    def pin(self) -> None:
        """Never grow old; for a state that nobody writes."""
        self._pulse.advanced_at = float("inf")

    def source(self, now: float) -> Source:
        """How good what is believed is."""
        if self.head is None:
            return "default"
        age_s = self.age_s(now)
        if self.from_file:
            return "lkg"
        return "fresh" if age_s <= FRESH_S else "late" if age_s <= STALE_S else "stale"

    def refuse(self, refusal: Refused) -> None:
        """Count a refusal."""
        self.refused[refusal.reason] = self.refused.get(refusal.reason, 0) + 1
        self.last_refusal = str(refusal)

    def _trusted(self, raw: bytes) -> tuple[int, Head]:
        """The head, once its signature is verified; heads are read twice, and verifying is the dear part."""
        if self._keys is not None and raw != self._verified[0]:
            self._verified = raw, self._keys.rank(raw)
        return self._verified[1], parse_head(raw, self.fleet, self.pool)

    def _check_order(self, rank: int, head: Head) -> None:
        order = (rank, *head.version, head.hb)
        if order < self._newest:
            raise Refused("rollback", f"{order} after {self._newest}")
        if self.head is not None and head.version == self.head.version and head.snap_sha256 != self.head.snap_sha256:
            raise Refused("conflict", f"two states of version {head.version}")

    def _advance(self, head: Head, now: float, rank: int) -> None:
        self.head = head
        self._newest = (rank, *head.version, head.hb)
        self._pulse.advanced_at = now
        self.from_file = False
        self.last_refusal = ""
        nodes = sum(h.entry.scope == "node" and h.entry.state != "DISABLED" for h in self.held.values())
        self.panic = nodes > max(1, int(self.limits.panic_ratio * self.population(head)))

    def population(self, head: Head) -> int:
        """Nodes that shares are taken of: as many as `head` claims, and hardly more than this host is told there are."""
        return head.n_eligible if self.pool_size is None else min(head.n_eligible, int(self.pool_size * 1.1))

    def _check_caps(self, head: Head, entries: Sequence[Entry], now: float) -> None:
        """Refuse a state that takes more than this host allows, if it adds anything: a cap that shrank blocks no close."""
        n, limits = self.population(head), self.limits
        open_cap = 0 if n < 3 else min(head.cap, limits.max_open, max(limits.min_open, int(limits.max_open_ratio * n)))
        latched_cap = max(1, int(limits.max_latched_ratio * n))
        taken = [e for e in entries if e.state != "DISABLED"]  # what is disabled takes nothing away
        caps = (
            ("nodes open", [e for e in taken if e.is_capped], open_cap),
            ("nodes latched", [e for e in taken if e.is_held], latched_cap),
            ("sessions", [e for e in taken if e.scope == "session"], limits.max_sessions),
            ("request classes", [e for e in taken if e.scope == "request"], limits.max_requests),
            ("pools", [e for e in taken if e.scope == "pool"], 1),
        )
        known = {subject for subject, held in self.held.items() if held.state_at(now) not in ("CLOSED", "DISABLED")}
        for what, listed, cap in caps:
            if len(listed) > cap and any(e.subject not in known for e in listed):
                raise Refused("over_cap", f"{len(listed)} {what}, this host allows {cap} in a pool of {n}")

"""The question a serving host asks: may I use this node? Answered from memory, without I/O, lock or exception.

Only subjects that are blocked are in the map that `allow` reads, so for a healthy one it is a dictionary miss. The map is
replaced whole, never changed. Ages and ends are looked at when a subject is in the map, so a block ends on time even if the
thread that reads Redis hangs or died.
"""

from __future__ import annotations

import logging
import os
import random
import socket
import time
import zlib
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from slodrift_client.answers import Decision, PoolStatus, Status
from slodrift_client.cells import Cells
from slodrift_client.contract import Entry, State
from slodrift_client.probes import Lease, ProbeSlots, chosen
from slodrift_client.refusals import Refusals
from slodrift_client.retries import RetryBudget
from slodrift_client.signature import HeadKeys
from slodrift_client.subjects import kind_of
from slodrift_client.view import Held, Limits, PoolView, Pulse

__all__ = ["Counters", "Gate"]

log = logging.getLogger("slodrift_client")

_BLOCKING = frozenset({"OPEN", "HALF_OPEN", "FORCED_OPEN"})
_REFUSING = frozenset({"eject", "shed", "fallback"})
_AMBIGUOUS = Held(Entry("node", "?", "OPEN", (0, 0, 0)), Pulse(float("inf")), float("inf"), 0.0)


@dataclass(slots=True)
class Counters:
    """Totals of `Status`, kept while running."""

    polls: int = 0
    errors: int = 0
    file_errors: int = 0
    ambiguous: int = 0
    callback_errors: int = 0
    last_error: str = ""


class Gate:
    """Everything a client answers from memory; reading Redis is added by its subclasses.

    Args:
        fleet: Name of the fleet.
        pools: Pools to follow.
        cells: How many cells some of the pools have (`slodrift_client.cells`), as the policy says.
        limits: What this host lets automation take away.
        pool_sizes: Nodes of a pool by this host's own configuration.
        host: Name of this host, for the choice of probing hosts.
        hosts: All hosts of the pool; None lets every host probe at the plan's rate.
        public_keys: PEM (bytes, or paths of files) of the keys that heads must be signed with, the current one first and then
            the next; None takes unsigned ones.
        clock: Monotonic seconds.
        rng: For jitter.
    """

    def __init__(
        self,
        fleet: str,
        pools: Sequence[str],
        *,
        cells: Mapping[str, int] | None = None,
        limits: Limits | None = None,
        pool_sizes: Mapping[str, int] | None = None,
        host: str | None = None,
        hosts: Sequence[str] | None = None,
        public_keys: Sequence[bytes | str | os.PathLike[str]] | None = None,
        clock: Callable[[], float] = time.monotonic,
        rng: random.Random | None = None,
    ) -> None:
        if not pools or isinstance(pools, str) or len(set(pools)) != len(pools):
            raise ValueError('pools is a list of distinct names, for example ["llama3-70b/eu/h100"]')
        self._rng = rng or random.Random()  # noqa: S311 - spreads load, keeps no secret
        self._clock = clock
        self._host = host or socket.gethostname()
        self._hosts = None if hosts is None else tuple(hosts)
        sizes = pool_sizes or {}
        keys = None if public_keys is None else HeadKeys(public_keys)
        self._limits = limits or Limits()
        self._cells = Cells(pools, cells)
        self._views = {
            name: PoolView(
                fleet,
                name,
                self._cells.limits(name, self._limits),
                pool_size=self._cells.size(name, sizes),
                rng=self._rng,
                keys=keys,
            )
            for name in self._cells.names
        }
        self._only = pools[0] if len(pools) == 1 else None
        self._blocked: dict[Any, Held] = {}
        self._refusals: dict[str, Refusals] = {}
        self._retries = {pool: RetryBudget(self._limits.max_retry_ratio) for pool in {*pools, *self._cells.names}}
        self._slots = ProbeSlots()
        self._counters = Counters()
        self._callbacks: list[Callable[[Decision], None]] = []
        self._reported: dict[tuple[str, str], State] = {}

    @property
    def host(self) -> str:
        """Name of this host: what telemetry says as `probe_host` of a probe."""
        return self._host

    def allow(self, subject: str, pool: str | None = None, key: str | None = None) -> bool:
        """Whether an ordinary request may use `subject`. Unknown subjects may; it never raises and never waits.

        A half-open subject answers False: it is tried through `probe` alone, until it does well enough to get a growing share
        of its requests back. Where requests are shed, `key` decides which.

        Args:
            subject: Node name, or `session:..`, `request:..`, `pool:` (`slodrift_client.subjects`). Each is judged alone: ask for
                every one that covers the request.
            pool: Needed when the client follows more than one. Of a pool with cells: a node is looked for in its cell; sessions,
                classes and `pool:` are judged by each cell for itself, so name the cell the request goes to (`pool_for`). Asked
                for the whole pool, they are refused where every cell refuses them.
            key: Of the request or its session: the same key is shed on every host or on none. Without one, requests take turns.
        """
        try:
            held = self._blocked.get(subject if pool is None else (pool, subject))
            return held is None or self._admits(held, key, pool or self._only or "")
        except TypeError:  # something that is no name
            return True

    def decide(self, subject: str, pool: str | None = None, key: str | None = None) -> Decision:
        """Everything known about `subject`; for logs, answers to callers, and modes shadow and advise.

        Where a share of the requests is shed, `allowed` is what the breaker says of the request with this `key`; without one it
        is False, because not all are.
        """
        now = self._clock()
        name = pool or self._only or ""
        view = self._view(name, subject)
        if view is None:
            return Decision(pool=name, subject=subject)
        return self._decision(view, subject, now, key)

    def probe(self, subject: str, pool: str | None = None) -> Lease:
        """Ask to try a half-open subject with one request. Always use it as a context manager. Nothing is granted for one that
        gets a share of its ordinary requests again.

        with client.probe("gpu-017") as lease:
            if lease:
                ...send one request there, and mark it as a probe in its telemetry...
        """
        now = self._clock()
        view = self._view(pool or self._only or "", subject)
        held, name = (None, "") if view is None else (view.held.get(subject), view.pool)
        if held is None or held.entry.ramping or held.state_at(now) != "HALF_OPEN" or (name, subject) not in self._blocked:
            return Lease()
        entry = held.entry
        if self._hosts is not None and not chosen(self._host, self._hosts, subject, entry.version, entry.probe_hosts):
            return Lease()
        return self._slots.ask((name, subject), now, per_s=entry.probe_per_s, timeout_s=entry.probe_timeout_s)

    def pool_for(self, pool: str | None, subjects: Iterable[str]) -> str | None:
        """Pool to ask about a request that all of `subjects` cover: of a pool with cells, the cell of the node among them."""
        name = pool or self._only or ""
        if name in self._cells.of:
            return next((owner for subject in subjects if (owner := self._cells.owner(name, subject))), pool)
        return pool

    def status(self) -> Status:
        """How good the answers are; cheap enough for a health page."""
        now = self._clock()
        pools = {name: self._pool_status(view, now) for name, view in self._views.items()}
        degraded = any(p.source not in ("fresh", "late") or p.panic or p.last_refusal for p in pools.values())
        return Status(pools=pools, degraded=degraded, **asdict(self._counters))

    def on_change(self, callback: Callable[[Decision], None]) -> None:
        """Call `callback` for every subject whose state changes, from the reader's thread or task; it should not block."""
        self._callbacks.append(callback)

    def passes(self, subject: str, pool: str | None, key: str | None) -> bool:
        """`allow` without the bound on refusals, which whoever asks about a whole request keeps itself (`may_refuse`)."""
        held = dict.get(self._blocked, subject if pool is None else (pool, subject))
        return held is None or (self._admits(held, key, "") if held is _AMBIGUOUS else self._served(held, key))

    def may_retry(self, pool: str | None = None) -> bool:
        """Whether a request that was refused may be tried at the fallback its decision names: at most a tenth of the requests
        that `asked` counted in the last ten seconds. It is counted as tried then; ask once a request.
        """
        budget = self._retries.get(pool or self._only or "")
        return budget is not None and budget.take(self._clock())

    def asked(self, pool: str | None) -> None:
        """A request for `pool` came: for the retry budget and, while something but a node is blocked, for what may be refused."""
        budget = self._retries.get(pool or self._only or "")
        if budget is not None:
            budget.asked(self._clock())
        if type(self._blocked) is _Counted:
            self._refusals_of(pool or self._only or "").asked(self._clock())

    def may_refuse(self, subject: str, pool: str | None) -> bool:
        """Whether a request may be refused because of a blocked subject; it is counted as refused then."""
        name = pool or self._only or ""
        held = dict.get(self._blocked, (name, subject))
        return held is None or self._bounded(held, name)

    def _admits(self, held: Held, key: str | None, pool: str) -> bool:
        if held is _AMBIGUOUS:
            if not self._counters.ambiguous:
                log.warning("allow() was asked without a pool, but this client follows %d: pass pool=", len(self._views))
            self._counters.ambiguous += 1
            return True
        if self._served(held, key):
            return True
        return not self._bounded(held, pool)

    def _served(self, held: Held, key: str | None) -> bool:
        """What the breaker says, before any bound."""
        entry = held.entry
        if held.state_at(self._clock()) in ("CLOSED", "DISABLED"):
            return True
        if entry.action == "eject" or entry.admit_ratio <= 0.0:
            return False
        if key is None:
            held.asked += 1
            return int(held.asked * entry.admit_ratio) > int((held.asked - 1) * entry.admit_ratio)
        return zlib.crc32(f"{entry.subject}|{entry.opened_ms}|{key}".encode()) < entry.admit_ratio * 2**32

    def _bounded(self, held: Held, pool: str) -> bool:
        entry = held.entry
        if entry.state == "FORCED_OPEN" or entry.scope == "node":  # whoever is refused a node takes another one
            return True
        return self._refusals_of(pool).may_refuse(self._clock(), entry.subject, entry.version)

    def _refusals_of(self, pool: str) -> Refusals:
        refusals = self._refusals.get(pool)
        if refusals is None:
            refusals = self._refusals[pool] = Refusals(self._limits.max_refused_ratio)
        return refusals

    def _note(self, key: Any) -> None:
        """A question while a session, a class or a pool is blocked."""
        pool, subject = key if type(key) is tuple else (self._only, key)
        if type(subject) is str and pool in self._retries and (kind := kind_of(subject)):
            self._refusals_of(pool).asked(self._clock(), kind)

    def _decision(self, view: PoolView, subject: str, now: float, key: str | None = None) -> Decision:
        mode = None if view.head is None else view.head.mode
        held = view.held.get(subject)
        source, age_s = view.source(now), view.age_s(now)
        if held is None:
            return Decision(view.pool, subject, source=source, age_s=age_s, mode=mode)
        entry, state = held.entry, held.state_at(now)
        blocked = (view.pool, subject) in self._blocked
        degraded = mode == "enforce" and entry.action == "degrade" and state in ("OPEN", "FORCED_OPEN") and not view.panic
        admits = entry.action != "eject" and (entry.admit_ratio >= 1.0 if key is None else self._served(held, key))
        allowed = not blocked or state in ("CLOSED", "DISABLED") or admits
        return Decision(
            view.pool, subject, state, allowed, source, age_s, mode, entry.scope, entry.action,
            entry.admit_ratio, entry.reason, entry.version, entry.tx, entry.latched, max(0.0, held.ends_at - now), entry.fallback,
            entry.profile if degraded else None,
        )  # fmt: skip

    def _pool_status(self, view: PoolView, now: float) -> PoolStatus:
        head, states = view.head, {s: h.state_at(now) for s, h in view.held.items()}
        return PoolStatus(
            pool=view.pool,
            source=view.source(now),
            age_s=view.age_s(now),
            mode=None if head is None else head.mode,
            version=None if head is None else head.version,
            hb=-1 if head is None else head.hb,
            n_nonclosed=sum(state != "CLOSED" for state in states.values()),
            n_blocked=sum(s in _BLOCKING and (view.pool, name) in self._blocked for name, s in states.items()),
            panic=view.panic,
            retries_denied=self._retries[view.pool].denied,
            refused=dict(view.refused),
            last_refusal=view.last_refusal,
        )

    def _rebuild(self) -> None:
        """Swap in the map of what is blocked by the states that are believed now."""
        blocked: dict[Any, Held] = {}
        counted = False
        for pool, view in self._views.items():
            if view.head is None or view.head.mode != "enforce" or view.panic:
                continue
            for subject, held in view.held.items():
                if held.entry.state in _BLOCKING and held.entry.action in _REFUSING:
                    blocked[pool, subject] = held
                    counted |= held.entry.scope != "node"
        for pool, subject in [*blocked]:
            whole = self._cells.parent.get(pool)
            if whole is not None:
                owner = self._cells.owner(whole, subject)
                said = blocked.get((owner, subject)) if owner is not None else self._mildest(whole, subject, blocked)
                if said is None:  # some cell serves it; or it is a node, and not of this cell
                    continue
                blocked[whole, subject] = said
            blocked[subject] = blocked[pool if whole is None else whole, subject] if self._only is not None else _AMBIGUOUS
        nodes = Counter(key[0] for key, held in blocked.items() if type(key) is tuple and held.entry.scope == "node")
        for pool in {key[0] for key in blocked if type(key) is tuple} if counted else ():
            names = self._cells.of.get(pool, (pool,))
            views = [self._views[name] for name in names]
            heads = [view.population(view.head) for view in views if view.head is not None]
            self._refusals_of(pool).most = max(0.0, self._limits.max_refused_ratio - nodes[pool] / max(1, sum(heads)))
        self._blocked = _Counted(blocked, self._note) if counted else blocked

    def _mildest(self, pool: str, subject: str, blocked: dict[Any, Held]) -> Held | None:
        """Of a pool with cells, what the cell says that refuses `subject` least; None where one does not refuse it."""
        said = [dict.get(blocked, (name, subject)) for name in self._cells.of[pool]]
        refused = [held for held in said if held is not None]
        return min(refused, key=lambda held: (-held.entry.admit_ratio, held.ends_at)) if len(refused) == len(said) else None

    def _view(self, name: str, subject: str) -> PoolView | None:
        """What speaks about `subject` of a pool; of a pool with cells, the one of the node, else that which refuses least."""
        names = self._cells.of.get(name)
        if names is None:
            return self._views.get(name)
        owner = self._cells.owner(name, subject)
        if owner is None:
            blocked = self._blocked  # which may be replaced meanwhile
            mildest = self._mildest(name, subject, blocked)
            owner = next(cell for cell in names if dict.get(blocked, (cell, subject)) is mildest)
        return self._views[owner]

    def _report(self) -> None:
        """Tell the callbacks what changed since the last call, the ends of stale states included."""
        now = self._clock()
        states = {(p, s): h.state_at(now) for p, view in self._views.items() for s, h in view.held.items()}
        before, self._reported = self._reported, states
        self._slots.forget(key for key, state in states.items() if state == "HALF_OPEN")
        for pool, subject in sorted(before.keys() | states.keys()):
            if before.get((pool, subject), "CLOSED") == states.get((pool, subject), "CLOSED"):
                continue
            decision = self._decision(self._views[pool], subject, now)
            for callback in self._callbacks:
                try:
                    callback(decision)
                except Exception:  # a callback of theirs must not stop the reading; it is counted
                    self._counters.callback_errors += 1


class _Counted(dict[Any, Held]):
    """A map of what is blocked that notes each question; only while something is blocked that no router can walk around."""

    def __init__(self, blocked: dict[Any, Held], note: Callable[[Any], None]) -> None:
        super().__init__(blocked)
        self._note = note

    def get(self, key: Any, default: Any = None) -> Any:
        self._note(key)
        return super().get(key, default)

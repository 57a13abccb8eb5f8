"""Scopes other than nodes in the protocol model: request classes, session buckets, the pool, and what becomes of their requests.

The breakers are the judge's own (`streams.judge.scopes`); what a tick says of a subject is drawn. The bounds are written down
here anew, as docs/breaker.md states them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from slodrift_client import BreakerClient
from slodrift_client.view import Limits

from detectors.breaker import BreakerRecord
from schemas.contract import Entry, build, encode
from schemas.policy import PoolPolicy
from schemas.results import Decision
from schemas.scopes import POOL_SUBJECT, SESSION_BUCKETS, scope_of
from schemas.signing import Signer
from schemas.telemetry import OverrideEvent
from streams.judge.scopes.breakers import Wanted
from streams.judge.scopes.scopes import ScopeActed, Scopes

__all__ = [
    "CLASSES", "FLEET", "LIMITS", "OTHERS", "POLICIES", "POOL", "SESSIONS", "Traffic", "act", "check_scopes", "dress", "order",
    "refusal_limit", "weight", "wrong_state",
]  # fmt: skip

FLEET, POOL = "prod", "llama/eu"
CLASSES = {"request:tenant:a": 0.12, "request:tenant:b": 0.1, "request:adapter:x": 0.08, "request:prompt:4096": 0.2}
"""Request classes, and their share of the traffic."""
SESSIONS = tuple(f"session:{i}" for i in range(5))
OTHERS = (*SESSIONS, *CLASSES, POOL_SUBJECT)
MAX_SESSIONS = 3
"""Fewer than by default, so that few suffice to reach the cap."""
LIMITS = Limits(max_sessions=MAX_SESSIONS)
_ACTIONS: tuple[dict[str, Any], ...] = (
    {"session": {"action": "shed"}, "request": {"action": "shed", "admit_ratio": 0.1},
     "pool": {"action": "degrade", "profile": "short"}},
    {"session": {"action": "fallback", "fallback": "small/eu"}, "request": {"action": "degrade", "profile": "short"},
     "pool": {"action": "shed", "admit_ratio": 0.85}},
    {"session": {"action": "shed"}, "request": {"action": "fallback", "fallback": "small/eu", "admit_ratio": 0.25},
     "pool": {"action": "fallback", "fallback": "small/eu", "admit_ratio": 0.5}},
)  # fmt: skip
POLICIES = tuple(
    PoolPolicy.model_validate({
        "mode": "enforce", "caps": {"velocity_share": 0.1, "session_share": MAX_SESSIONS / SESSION_BUCKETS},
        "breaker": {"scopes": ["node", "request", "session", "pool"], "actions": actions, "max_opens": 1},
    })
    for actions in _ACTIONS
)  # fmt: skip
"""They differ in what is done to requests alone. The second open in ten minutes latches, so that the latch is reached at all."""
_MANY = 20
_BY_ITSELF = {"open_over", "ramp", "probes_good", "probes_bad", "relapse", "no_verdict", "gone"}


def weight(subject: str) -> float:
    """What a subject counts for in the cap of its scope."""
    return CLASSES.get(subject, 1.0 if subject == POOL_SUBJECT else 1 / SESSION_BUCKETS)


def order(subject: str, cause: str, t_s: float, end_s: float) -> OverrideEvent:
    """An operator's order that holds from this tick on."""
    state: Any = {"force_open": "FORCED_OPEN", "disable": "DISABLED", "release": "CLOSED"}[cause]
    return OverrideEvent(
        ts=t_s, pool=POOL, subject=subject, state=state, reason="r", operator="ada", id=f"order-{subject}-{t_s}", start=t_s,
        end=t_s if cause == "release" else end_s,
    )  # fmt: skip


def act(scopes: Scopes, tick: Any) -> ScopeActed:
    """What `Scopes.act` does, with the verdicts of the tick in the place of those of the detectors."""
    acted = ScopeActed()
    for subject, cause, end in tick.orders:
        if scope_of(subject) != "node":
            scopes._obey(tick.t, order(subject, cause, tick.t, end), acted)
    for breakers in scopes.breakers.values():
        acted.decisions += breakers.step(
            tick.t, lambda subject: (_MANY * (subject in tick.good_probes), _MANY * (subject in tick.bad_probes))
        )
    for scope in ("session", "request"):
        wanted = [Wanted(subject, weight(subject), "drawn") for subject in tick.faulty if scope_of(subject) == scope]
        scopes._open(scope, tick.t, wanted, sum(w.weight for w in wanted), tick.n, tick.known, acted)
    if POOL_SUBJECT in tick.faulty:
        opened, held = scopes.breakers["pool"].open(tick.t, [Wanted(POOL_SUBJECT, 1.0, "drawn")])
        acted.decisions += opened
        acted.capped |= held
    return acted


def check_scopes(
    policy: PoolPolicy, tick: Any, decisions: Sequence[Decision], before: Mapping[str, BreakerRecord],
    after: Mapping[str, BreakerRecord],
) -> None:  # fmt: skip
    """What must hold of every tick of every judge, whatever the scope."""
    ordered = {(subject, cause) for subject, cause, _ in tick.orders}
    done = {(decision.scope, decision.evidence["cause"]) for decision in decisions}
    tripped = {scope for scope, cause in done if cause == "trip"}
    for decision in decisions:
        subject, cause = decision.subject, decision.evidence["cause"]
        assert decision.scope == scope_of(subject), f"{subject} was decided as a {decision.scope}"
        was = before.get(subject)
        over = was is not None and was.until_s is not None and was.until_s <= tick.t
        assert cause in _BY_ITSELF or cause == "trip" or (subject, cause) in ordered or (cause == "release" and over), (
            f"{cause} of {subject}: nobody ordered that; ordered was {ordered}"
        )
        if was is not None and was.since_s is not None and cause in ("trip", "open_over"):
            least_s = policy.breaker.min_closed_s if cause == "trip" else policy.breaker.open_s
            assert tick.t - was.since_s >= least_s, f"I7: {cause} of {subject} after {tick.t - was.since_s} s"
        if cause == "gone" and decision.scope != "node":
            assert was is not None
            assert was.since_s is not None
            assert tick.t - was.since_s >= policy.breaker.half_open_max_s, f"{subject} is given up too early"
        action = getattr(policy.breaker.actions, decision.scope)
        if decision.state in ("OPEN", "FORCED_OPEN"):
            assert decision.action == action.action, f"{subject} is to be {decision.action}"
            if decision.scope == "pool":
                assert decision.admit_ratio >= 0.5, "a pool is closed"
        if decision.state == "HALF_OPEN" and action.action != "degrade":
            least = 0.0 if action.action == "eject" else action.admit_ratio
            steps = (least, *(least + (1 - least) * share for share in policy.breaker.close_ramp))
            ratio = steps[after[subject].ramp]
            assert abs(decision.admit_ratio - ratio) < 1e-5, f"{subject} gets {decision.admit_ratio} of its requests, not {ratio}"
    blind = tick.known - tick.n >= 2 and tick.n < 0.85 * tick.known
    assert not (blind and tripped - {"pool"}), f"opens of {tripped} while telemetry is lost"
    for scope, limit in (("session", policy.caps.session_share), ("request", policy.caps.request_share)):
        if scope in tripped:
            taken = {s: weight(s) for s, r in after.items() if scope_of(s) == scope and r.state in ("OPEN", "HALF_OPEN")}
            assert sum(taken.values()) <= limit + 1e-9, f"I2: {taken} is more than {limit} of scope {scope}"
            shared = sum(weight(s) for s in tick.faulty if scope_of(s) == scope)
            assert shared <= policy.caps.freeze_share + 1e-9, "opens while the cause is shared"
    ordered_nodes = ("node", "force_open") in done
    if ordered_nodes or any(d.scope == "node" and d.latched and d.state == "OPEN" for d in decisions):
        forced = [s for s, r in after.items() if scope_of(s) == "node" and r.state == "FORCED_OPEN"]
        latched = [s for s, r in after.items() if scope_of(s) == "node" and r.latched]
        assert len(forced) + len(latched) <= max(1, tick.n // 5), (
            f"orders and the latch hold {forced} and {latched} of {tick.n} nodes"
        )
        assert not ordered_nodes or len(forced) <= max(1, tick.n // 20), (
            f"orders that nobody signed hold {forced} of {tick.n} nodes"
        )
    held = [s for s, r in after.items() if scope_of(s) == "session" and r.state in ("OPEN", "HALF_OPEN", "FORCED_OPEN")]
    assert len(held) <= MAX_SESSIONS, f"{held} are more buckets than hosts take"


def dress(thing: Any) -> tuple[Any, ...]:
    """What decides about requests, of a decision or of what a host holds."""
    return thing.scope, thing.state, thing.tx, thing.action, thing.admit_ratio, thing.fallback or None, thing.profile or None


def refusal_limit(client: BreakerClient, n_requests: int, pool_size: int | None) -> float:
    """Requests of the last ten seconds that a host may refuse because of automation: 15 %, less the share of nodes away."""
    view = client._views[POOL]
    assert view.head is not None
    n = view.head.n_eligible if pool_size is None else min(view.head.n_eligible, pool_size * 11 // 10)
    away = sum(h.entry.scope == "node" and h.entry.state in ("OPEN", "HALF_OPEN", "FORCED_OPEN") and h.entry.action != "degrade"
               for h in view.held.values())  # fmt: skip
    return max(5, max(0.0, 0.15 - away / max(1, n)) * n_requests)


class Traffic:
    """Requests of one host process, and which of them it refused because of automation."""

    def __init__(self) -> None:
        self.asked: list[tuple[float, int]] = []
        self.refused: list[float] = []

    def ask(self, client: BreakerClient, now: float, requests: int, subjects: tuple[str, ...], pool_size: int | None) -> int:
        """Ask about requests, each covered by a session bucket, a class, and the pool; returns how many were refused."""
        sessions = [s for s in subjects if scope_of(s) == "session"] or ["session:900"]
        classes = [s for s in subjects if scope_of(s) == "request"] or ["request:tenant:none"]
        held, blamed = client._views[POOL].held, []
        for i in range(requests):
            covered = (sessions[i % len(sessions)], classes[i % len(classes)], POOL_SUBJECT)
            blamed += [s for s in [next((s for s in covered if not client.allow(s, key=f"r{i}")), None)] if s is not None]
        self._check_free(client, (*sessions, *classes, POOL_SUBJECT), now)
        self.asked = [(t, n) for t, n in self.asked if t > now - 10.0] + [(now, requests)]
        automatic = [s for s in blamed if held[s].entry.state != "FORCED_OPEN"]
        self.refused = [t for t in self.refused if t > now - 10.0] + [now] * len(automatic)
        if automatic:
            limit = refusal_limit(client, sum(n for _, n in self.asked), pool_size)
            assert len(self.refused) <= limit + 1e-9, (
                f"it refuses {len(self.refused)} of {self.asked} requests, {limit} are allowed"
            )
        return len(blamed)

    def _check_free(self, client: BreakerClient, covered: Iterable[str], now: float) -> None:
        """What is closed, disabled or merely degraded takes no request."""
        for subject in covered:
            held = client._views[POOL].held.get(subject)
            free = held is None or held.state_at(client._clock()) in ("CLOSED", "DISABLED") or held.entry.action == "degrade"
            assert not free or client.passes(subject, POOL, "k"), f"{subject} is refused and not open, {now} s"


def wrong_state(
    counts: Mapping[str, int], version: tuple[int, int, int], issued_ms: int, signer: Signer, state: Any = "OPEN", lie: Any = ""
) -> tuple[bytes, bytes]:
    """A state that takes more than any host should allow, signed by the judge: it has a bug, or somebody has its key.

    It claims a population and a cap that would allow everything, and where there is a `lie` that all of it is of that scope.
    """
    listed: list[tuple[Any, ...]] = [
        *((f"w{i}", "node", False, "eject") for i in range(counts["nodes"])),
        *((f"v{i}", "node", True, "eject") for i in range(counts["latched"])),
        *((f"session:{500 + i}", "session", bool(i % 2), "shed") for i in range(counts["sessions"])),
        *((f"request:tenant:w{i}", "request", bool(i % 2), "fallback") for i in range(counts["classes"])),
        *((POOL_SUBJECT, "pool", False, "shed") for _ in range(counts["pools"])),
    ]
    entries = [
        Entry(
            scope=lie or scope, subject=subject, state=state, version=version, tx=f"w{i}", opened_ms=issued_ms,
            not_after_ms=issued_ms + 60_000, latched=latched, action=action, on_stale="hold" if latched else "decay",
        )
        for i, (subject, scope, latched, action) in enumerate(listed)
    ]  # fmt: skip
    head, snapshot = build(
        fleet=FLEET, pool=POOL, version=version, entries=entries, n_eligible=100_000, cap=100_000, mode="enforce",
        issued_ms=issued_ms,
    )  # fmt: skip
    return signer.sign("slodrift-head-v1", encode(head)), snapshot

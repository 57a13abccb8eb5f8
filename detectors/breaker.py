"""State machine of one breaker: CLOSED, OPEN, HALF_OPEN, and what operators may force.

Envoy's back-off, resilience4j's half-open counts and the articles' ratios, in one table of legal moves. Pure: time is an
argument, a record goes in and a new record comes out. Jitter is a hash of the subject, so a replay gives the same bytes.

A subject whose probes succeeded gets its traffic back in steps (`close_ramp`). While it does, it is HALF_OPEN with a share: what
was written before there was a ramp reads that as a breaker that sheds, and is right.

An OPEN or HALF_OPEN record always has an end (`until_s`), whatever is or is not heard: an open breaker starves its own
evidence, and without an end a stale metric would keep it open for ever.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable
from typing import Literal

import msgspec

from schemas.policy import Breaker as BreakerPolicy

__all__ = [
    "CLOSED_STATES",
    "MOVES",
    "BreakerRecord",
    "Cause",
    "IllegalMove",
    "State",
    "admitted",
    "may_trip",
    "move",
    "not_after_s",
    "step",
]

State = Literal["CLOSED", "OPEN", "HALF_OPEN", "FORCED_OPEN", "DISABLED"]
Cause = Literal[
    "trip", "open_over", "ramp", "probes_good", "probes_bad", "relapse", "no_verdict", "gone", "force_open", "disable", "release"
]

MOVES: dict[tuple[State, Cause], State] = {
    ("CLOSED", "trip"): "OPEN",
    ("OPEN", "open_over"): "HALF_OPEN",
    ("HALF_OPEN", "ramp"): "HALF_OPEN",  # the next share of its traffic
    ("HALF_OPEN", "probes_good"): "CLOSED",
    ("HALF_OPEN", "probes_bad"): "OPEN",
    ("HALF_OPEN", "relapse"): "OPEN",  # it failed again while its traffic came back
    ("HALF_OPEN", "no_verdict"): "OPEN",
    ("HALF_OPEN", "gone"): "CLOSED",
    ("CLOSED", "force_open"): "FORCED_OPEN",
    ("OPEN", "force_open"): "FORCED_OPEN",
    ("HALF_OPEN", "force_open"): "FORCED_OPEN",
    ("DISABLED", "force_open"): "FORCED_OPEN",
    ("CLOSED", "disable"): "DISABLED",
    ("OPEN", "disable"): "DISABLED",
    ("HALF_OPEN", "disable"): "DISABLED",
    ("FORCED_OPEN", "disable"): "DISABLED",
    ("FORCED_OPEN", "force_open"): "FORCED_OPEN",  # another end
    ("DISABLED", "disable"): "DISABLED",
    ("OPEN", "release"): "CLOSED",
    ("HALF_OPEN", "release"): "CLOSED",
    ("FORCED_OPEN", "release"): "CLOSED",
    ("DISABLED", "release"): "CLOSED",
}
"""Every legal move; anything else raises `IllegalMove`. `gone`: it left the pool and must not use up the cap for ever."""

CLOSED_STATES: frozenset[State] = frozenset({"CLOSED", "DISABLED"})
"""States in which the subject serves traffic without restriction."""


class IllegalMove(ValueError):
    """The table has no such move from this state."""


class BreakerRecord(msgspec.Struct, frozen=True, kw_only=True):
    """All that is remembered of one subject.

    Attributes:
        subject: Name; also the seed of its jitter.
        state: Current state.
        since_s: When this state began, Unix seconds.
        until_s: When the state ends by itself, Unix seconds; None for CLOSED and for an override without an end.
        streak: Opens in the present bad spell; the open time doubles with it.
        latched: Open because it flapped; stays for `latch_s`.
        trips_s: Recent moves from CLOSED to OPEN, Unix seconds, oldest first.
        probes_ok, probes_bad: Answers since half-open, or the present step of its ramp, began: to probes, in a ramp to all
            requests.
        hosts_ok: Hosts that had a good answer to a probe, as numbers, in order.
        ramp: Steps of the ramp taken, 0 while probes alone go there.
    """

    subject: str
    state: State = "CLOSED"
    since_s: float | None = None
    until_s: float | None = None
    streak: int = 0
    latched: bool = False
    trips_s: tuple[float, ...] = ()
    probes_ok: int = 0
    probes_bad: int = 0
    hosts_ok: tuple[int, ...] = ()
    ramp: int = 0


def may_trip(record: BreakerRecord, t_s: float, rules: BreakerPolicy) -> bool:
    """True when `record` is closed and has been for long enough (a subject that never opened may trip at once)."""
    if record.state != "CLOSED":
        return False
    return record.since_s is None or t_s - record.since_s >= rules.min_closed_s


def move(
    record: BreakerRecord, cause: Cause, t_s: float, rules: BreakerPolicy, *, grace_s: float = 0.0, until_s: float | None = None
) -> BreakerRecord:
    """The record after `cause` at `t_s`.

    Args:
        record: Before.
        cause: Why it moves.
        t_s: Unix seconds.
        rules: Numbers.
        grace_s: Time hosts need to hear of the next state; the longest open time leaves room for it.
        until_s: End of an override, Unix seconds.

    Raises:
        IllegalMove: If the table does not allow it.
    """
    target = MOVES.get((record.state, cause))
    if target is None:
        raise IllegalMove(f"{record.subject}: no move {cause!r} from {record.state}")
    if target == "OPEN":
        return _opened(record, cause, t_s, rules, grace_s)
    if target == "HALF_OPEN":
        if cause == "ramp":
            step_s = rules.close_ramp_s / max(1, len(rules.close_ramp))
            return msgspec.structs.replace(_fresh(record, target, t_s, until_s=t_s + step_s), ramp=record.ramp + 1)
        return _fresh(record, target, t_s, until_s=t_s + rules.half_open_max_s)
    if target == "CLOSED":
        return _fresh(record, target, t_s, until_s=None)
    return _fresh(record, target, t_s, until_s=until_s)


def step(
    record: BreakerRecord, t_s: float, probes_ok: int, probes_bad: int, rules: BreakerPolicy, *,
    hosts_ok: Iterable[int] = (), n_hosts: int = 0, ramps: bool = True,
) -> tuple[BreakerRecord, Cause | None]:  # fmt: skip
    """Count the probes of a tick and say which move is due, if any.

    Args:
        record: Before; only HALF_OPEN counts probes.
        t_s: End of the tick, Unix seconds.
        probes_ok: Good answers to probes in the tick; in a ramp, to all requests.
        probes_bad: Bad ones.
        rules: Numbers.
        hosts_ok: Hosts that the good answers to probes came from, as numbers.
        n_hosts: Hosts that report probes in this pool; more than one must agree, up to `close_hosts`.
        ramps: False closes at once, for what was never without its traffic.

    Returns:
        The record with the probes counted, and the cause of the move to make with `move`, or None.
    """
    if record.state == "HALF_OPEN":
        record = msgspec.structs.replace(
            record, probes_ok=record.probes_ok + probes_ok, probes_bad=record.probes_bad + probes_bad,
            hosts_ok=tuple(sorted({*record.hosts_ok, *hosts_ok})),
        )  # fmt: skip
        if record.ramp:
            return record, _ramp_verdict(record, t_s, rules)
        cause = _half_open_verdict(record, t_s, rules, n_hosts)
        return record, "ramp" if cause == "probes_good" and ramps and rules.close_ramp else cause
    if record.until_s is not None and t_s >= record.until_s:
        return record, "open_over" if record.state == "OPEN" else "release"
    return record, None


def admitted(record: BreakerRecord, least: float, rules: BreakerPolicy) -> float:
    """Share of its requests that goes to a half-open subject: `least` in any case, and of the rest what its ramp gives back."""
    if record.state != "HALF_OPEN" or not 0 < record.ramp <= len(rules.close_ramp):
        return least
    return least + (1.0 - least) * rules.close_ramp[record.ramp - 1]


def not_after_s(record: BreakerRecord, rules: BreakerPolicy, grace_s: float) -> float | None:
    """When hosts drop the entry if they hear nothing more, Unix seconds: the end of the state plus the time the news of the
    next state needs, and never further ahead than the longest open time.
    """
    if record.until_s is None or record.since_s is None:
        return None
    return max(record.until_s, min(record.until_s + grace_s, record.since_s + rules.open_max_s))


def _ramp_verdict(record: BreakerRecord, t_s: float, rules: BreakerPolicy) -> Cause | None:
    """Ordinary requests fail now and then, so here a ratio decides and not a number alone."""
    answers = record.probes_ok + record.probes_bad
    if record.probes_bad >= rules.reopen_failures and record.probes_ok < rules.close_ratio * answers:
        return "relapse"
    if record.until_s is not None and t_s < record.until_s:
        return None
    return "ramp" if record.ramp < len(rules.close_ramp) else "probes_good"


def _half_open_verdict(record: BreakerRecord, t_s: float, rules: BreakerPolicy, n_hosts: int) -> Cause | None:
    if record.probes_bad >= rules.reopen_failures:
        return "probes_bad"
    answers = record.probes_ok + record.probes_bad
    since_s = t_s if record.since_s is None else record.since_s
    if (
        record.probes_ok >= rules.close_successes
        and record.probes_ok >= rules.close_ratio * answers
        and t_s - since_s >= rules.close_after_s
        and (n_hosts < 2 or len(record.hosts_ok) >= min(rules.close_hosts, rules.probe_hosts, n_hosts))
    ):
        return "probes_good"
    if t_s - since_s >= rules.half_open_max_s:
        return "no_verdict"
    return None


def _opened(record: BreakerRecord, cause: Cause, t_s: float, rules: BreakerPolicy, grace_s: float) -> BreakerRecord:
    trips_s = tuple(trip for trip in record.trips_s if t_s - trip < rules.flap_window_s)
    streak, latched = record.streak, False
    if cause == "trip":
        # A long time closed ends the bad spell. `since_s` is when it closed.
        calm = record.since_s is None or t_s - record.since_s >= rules.reset_after_s
        streak = 1 if calm else streak + 1
        latched = len(trips_s) >= rules.max_opens
        trips_s = (*trips_s, t_s)
    elif cause in ("probes_bad", "relapse"):
        streak += 1
    streak = max(streak, 1)
    open_s = rules.latch_s if latched else _open_time_s(record.subject, t_s, streak, rules, grace_s)
    return msgspec.structs.replace(
        _fresh(record, "OPEN", t_s, until_s=t_s + open_s), streak=streak, latched=latched, trips_s=trips_s
    )


def _open_time_s(subject: str, t_s: float, streak: int, rules: BreakerPolicy, grace_s: float) -> float:
    base_s = rules.open_s * 2.0 ** min(streak - 1, 30)
    unit = zlib.crc32(f"{subject}|{t_s:.3f}|{streak}".encode()) / 2**32
    longest_s = max(rules.open_s, rules.open_max_s - grace_s)
    return round(min(base_s * (1.0 + rules.jitter_ratio * unit), longest_s), 3)


def _fresh(record: BreakerRecord, state: State, t_s: float, until_s: float | None) -> BreakerRecord:
    return msgspec.structs.replace(
        record, state=state, since_s=t_s, until_s=until_s, latched=False, probes_ok=0, probes_bad=0, hosts_ok=(), ramp=0
    )

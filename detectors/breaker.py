"""State machine of one breaker: CLOSED, OPEN, HALF_OPEN, and what operators may force.

Envoy's back-off, resilience4j's half-open counts and the articles' ratios, in one table of legal moves. Pure: time is an
argument, a record goes in and a new record comes out. Jitter is a hash of the subject, so a replay gives the same bytes.

An OPEN or HALF_OPEN record always has an end (`until_s`), whatever is or is not heard: an open breaker starves its own
evidence, and without an end a stale metric would keep it open for ever.
"""

from __future__ import annotations

import zlib
from typing import Literal

import msgspec

from schemas.policy import Breaker as BreakerPolicy

__all__ = ["CLOSED_STATES", "MOVES", "BreakerRecord", "Cause", "IllegalMove", "State", "may_trip", "move", "not_after_s", "step"]

State = Literal["CLOSED", "OPEN", "HALF_OPEN", "FORCED_OPEN", "DISABLED"]
Cause = Literal["trip", "open_over", "probes_good", "probes_bad", "no_verdict", "gone", "force_open", "disable", "release"]

MOVES: dict[tuple[State, Cause], State] = {
    ("CLOSED", "trip"): "OPEN",
    ("OPEN", "open_over"): "HALF_OPEN",
    ("HALF_OPEN", "probes_good"): "CLOSED",
    ("HALF_OPEN", "probes_bad"): "OPEN",
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
        probes_ok, probes_bad: Answers to probes since half-open began.
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
        return _fresh(record, target, t_s, until_s=t_s + rules.half_open_max_s)
    if target == "CLOSED":
        return _fresh(record, target, t_s, until_s=None)
    return _fresh(record, target, t_s, until_s=until_s)


def step(
    record: BreakerRecord, t_s: float, probes_ok: int, probes_bad: int, rules: BreakerPolicy
) -> tuple[BreakerRecord, Cause | None]:
    """Count the probes of a tick and say which move is due, if any.

    Args:
        record: Before; only HALF_OPEN counts probes.
        t_s: End of the tick, Unix seconds.
        probes_ok: Good answers to probes in the tick.
        probes_bad: Bad ones.
        rules: Numbers.

    Returns:
        The record with the probes counted, and the cause of the move to make with `move`, or None.
    """
    if record.state == "HALF_OPEN":
        record = msgspec.structs.replace(
            record, probes_ok=record.probes_ok + probes_ok, probes_bad=record.probes_bad + probes_bad
        )
        return record, _half_open_verdict(record, t_s, rules)
    if record.until_s is not None and t_s >= record.until_s:
        return record, "open_over" if record.state == "OPEN" else "release"
    return record, None


def not_after_s(record: BreakerRecord, rules: BreakerPolicy, grace_s: float) -> float | None:
    """When hosts drop the entry if they hear nothing more, Unix seconds: the end of the state plus the time the news of the
    next state needs, and never further ahead than the longest open time.
    """
    if record.until_s is None or record.since_s is None:
        return None
    return max(record.until_s, min(record.until_s + grace_s, record.since_s + rules.open_max_s))


def _half_open_verdict(record: BreakerRecord, t_s: float, rules: BreakerPolicy) -> Cause | None:
    if record.probes_bad >= rules.reopen_failures:
        return "probes_bad"
    answers = record.probes_ok + record.probes_bad
    since_s = t_s if record.since_s is None else record.since_s
    if (
        record.probes_ok >= rules.close_successes
        and record.probes_ok >= rules.close_ratio * answers
        and t_s - since_s >= rules.close_after_s
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
    elif cause == "probes_bad":
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
    return msgspec.structs.replace(record, state=state, since_s=t_s, until_s=until_s, latched=False, probes_ok=0, probes_bad=0)

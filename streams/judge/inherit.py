"""Breakers that the decision log says are not closed, taken over by a judge that has no snapshot of them.

Without one a judge begins with nothing, and reads frames from somewhere in the past. What the log says comes into force at the
first tick after the decision's time, unless the frames led the judge to it by themselves: so a breaker is neither forgotten nor
opened twice, and its end is the one that was decided. How often a subject had opened before, and closed ones, are not known.
"""

from __future__ import annotations

from detectors.breaker import BreakerRecord
from detectors.caps import CapState, after_open
from schemas.results import Decision

__all__ = ["is_news", "record_of", "with_open"]


def record_of(decision: Decision, grace_s: float) -> BreakerRecord:
    """The record behind a decision that did not close its subject."""
    until_s = decision.not_after
    if until_s is not None and decision.state in ("OPEN", "HALF_OPEN") and not decision.latched:
        until_s = max(decision.t, until_s - grace_s)  # `not_after_s` added it, so that hosts hear of what follows
    streak, ramp = decision.evidence.get("streak", 1), decision.evidence.get("ramp", 0)
    return BreakerRecord(
        subject=decision.subject,
        state=decision.state,
        since_s=decision.t,
        until_s=until_s,
        streak=streak if isinstance(streak, int) else 1,
        latched=decision.latched,
        trips_s=(decision.t,) if decision.state == "OPEN" else (),
        ramp=ramp if isinstance(ramp, int) and decision.state == "HALF_OPEN" else 0,
    )


def is_news(record: BreakerRecord | None, decision: Decision) -> bool:
    """Whether a decision says more than the record, which the frames led to: a later state is not undone by an older one."""
    return record is None or record.since_s is None or record.since_s < decision.t


def with_open(state: CapState, decision: Decision, window_s: float) -> CapState:
    """Memory of the caps, which counts the opening too."""
    return after_open(state, decision.t, window_s) if decision.state == "OPEN" else state

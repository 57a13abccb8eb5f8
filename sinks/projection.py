"""Folds the decisions of one pool into its current state: the entries a host must know.

The log is the truth; this is what remains of it when closed subjects are left out. The same fold serves a judge that goes on
and one that rebuilds its state from the log after a restart.
"""

from __future__ import annotations

from schemas.contract import MAX_AHEAD_MS, MAX_REASON, Entry, Probe
from schemas.results import Decision

__all__ = ["Projection"]


class Projection:
    """Current entries of one pool, in memory.

    Args:
        probe: Plan that half-open entries carry.
    """

    def __init__(self, probe: Probe | None = None) -> None:
        self._probe = probe or Probe()
        self._entries: dict[str, Entry] = {}
        self.version: tuple[int, int, int] = (0, 0, 0)
        """Version of the newest decision applied."""

    @property
    def entries(self) -> list[Entry]:
        """Subjects that are not closed."""
        return list(self._entries.values())

    def apply(self, decision: Decision, *, clock_s: float, now_ms: int) -> None:
        """Take one decision into the state; one that is not newer than the state changes nothing.

        Decisions end in event time, hosts count from the moment they hear: so the end moves to the writer's clock by what is
        left of it now.

        Args:
            decision: The transition. One that was held back by the cap (`capped`) took nothing away and is passed over.
            clock_s: The pool's event time now, Unix seconds; for a decision just made, its `t`.
            now_ms: The writer's clock, Unix milliseconds.
        """
        if decision.version <= self.version:
            return
        self.version = decision.version
        if decision.capped:
            return
        if decision.state == "CLOSED":
            self._entries.pop(decision.subject, None)
            return
        self._entries[decision.subject] = self._entry(decision, clock_s, now_ms)

    def _entry(self, decision: Decision, clock_s: float, now_ms: int) -> Entry:
        before = self._entries.get(decision.subject)
        opened_ms = before.opened_ms if before is not None else now_ms
        latched = decision.latched or decision.state in ("FORCED_OPEN", "DISABLED")
        ramping = decision.state == "HALF_OPEN" and bool(decision.evidence.get("ramp"))
        end_ms: int | None = None
        if decision.not_after is not None:
            left_ms = max(0, round((decision.not_after - clock_s) * 1000))
            end_ms = now_ms + (left_ms if latched else min(left_ms, MAX_AHEAD_MS))
        elif not latched:
            end_ms = now_ms + MAX_AHEAD_MS
        return Entry(
            scope=decision.scope,
            subject=decision.subject,
            state=decision.state,
            version=decision.version,
            tx=decision.tx,
            opened_ms=opened_ms,
            not_after_ms=end_ms,
            action=decision.action,
            admit_ratio=decision.admit_ratio,
            reason=decision.reason[:MAX_REASON],
            policy_version=decision.policy_version,
            window_end_ms=max(0, round(decision.window_end * 1000)),
            latched=latched,
            on_stale="hold" if latched else "decay",
            fallback=decision.fallback or None,
            profile=decision.profile or None,
            probe=self._probe if decision.state == "HALF_OPEN" and not ramping else None,
            ramping=ramping,
        )

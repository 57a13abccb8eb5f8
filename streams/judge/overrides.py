"""Orders of operators that wait for their start, each used once.

No caps hold for them, but hosts have caps of their own, and the decision says when ours would have held. An order that comes
behind the clock is not lost like late telemetry: it takes effect in the next tick. Its decision has the same identity whichever
tick that is, so a judge that reads the log again does not say it twice.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Container
from typing import Any

import msgspec

from detectors.breaker import Cause
from schemas.cells import parent_of
from schemas.errors import SchemaError
from schemas.override import keyring_of, override_fault, verify_override
from schemas.policy import PoolPolicy
from schemas.scopes import scope_of, subject_fault
from schemas.telemetry import OverrideEvent

__all__ = ["CAUSES", "Overrides", "operator_evidence"]

CAUSES: dict[str, Cause] = {"FORCED_OPEN": "force_open", "DISABLED": "disable", "CLOSED": "release"}
_MAX_PENDING = 1024
_UNKNOWN_S = 60.0  # an order for a node that nobody heard of waits so long for it: the pool may have just begun

_decode = msgspec.msgpack.Decoder(list[OverrideEvent]).decode


def operator_evidence(order: OverrideEvent) -> dict[str, Any]:
    """Who ordered it, for the decision."""
    who = {"id": order.id, "who": order.operator, "reason": order.reason, "start_s": order.start, "end_s": order.end}
    return who if order.key_id is None else {**who, "key_id": order.key_id}


class Overrides:
    """Orders for one pool.

    Args:
        policy: Of the pool; `override.keys` says whose signature is needed.

    Attributes:
        refused: Orders that were not followed since `take_refused`, by reason.
    """

    def __init__(self, policy: PoolPolicy) -> None:
        self.rules = policy.override
        if self.rules.keys:
            keyring_of(self.rules.keys)  # fails now rather than at the first order
        self.pending: list[OverrideEvent] = []
        self.used: dict[str, float] = {}  # id to the time after which it is void anyway
        self.refused: Counter[str] = Counter()

    def fault(self, event: OverrideEvent) -> str | None:
        """Reason to refuse the order, None when there is none. Depends on the event and the policy alone."""
        if override_fault(event, self.rules.max_s) or subject_fault(event.subject):
            return "bad_override"
        if self.rules.keys:
            try:
                verify_override(event, keyring_of(self.rules.keys))
            except SchemaError:
                if not self._signed_for_the_pool(event):
                    return "unsigned_override"
        return None

    def _signed_for_the_pool(self, event: OverrideEvent) -> bool:
        """Whether the pool is a cell, and the order was signed for the whole before the framer gave it to each cell."""
        whole = parent_of(event.pool)
        if whole == event.pool:
            return False
        try:
            verify_override(msgspec.structs.replace(event, pool=whole), keyring_of(self.rules.keys))
        except SchemaError:
            return False
        return True

    def add(self, event: OverrideEvent) -> None:
        """An order whose tick closes."""
        if event.id in self.used or any(event.id == other.id for other in self.pending):
            self.refused["used_override"] += 1
        elif len(self.pending) >= _MAX_PENDING:
            self.refused["too_many_overrides"] += 1
        else:
            self.pending.append(event)

    def due(self, t_s: float, known: Container[str]) -> list[OverrideEvent]:
        """Orders whose start has come, by the time they were given; those that are over already are refused.

        Args:
            t_s: End of the tick, Unix seconds.
            known: Nodes of the pool.
        """
        if not self.pending and not self.used:
            return []
        self.used = {name: until for name, until in self.used.items() if until > t_s}
        waits = {e.id for e in self.pending if e.start > t_s or (self._unheard(e, known) and t_s < e.start + _UNKNOWN_S)}
        due = sorted((e for e in self.pending if e.id not in waits), key=lambda e: (e.ts, e.id))
        self.pending = [e for e in self.pending if e.id in waits]
        for event in due:
            self.used[event.id] = self._over_s(event)
        over = [e for e in due if t_s >= self._over_s(e)]
        self.refused["expired_override"] += len(over)
        return [e for e in due if e not in over]

    def _unheard(self, event: OverrideEvent, known: Container[str]) -> bool:
        return scope_of(event.subject) == "node" and event.subject not in known

    def _over_s(self, event: OverrideEvent) -> float:
        """When it is void, used or not; its id need not be kept for longer."""
        return event.start + self.rules.max_s if event.state == "CLOSED" else event.end

    def take_refused(self) -> Counter[str]:
        """What was refused since the last call."""
        refused, self.refused = +self.refused, Counter()
        return refused

    def dump(self) -> dict[str, Any]:
        """State for a snapshot."""
        return {"pending": msgspec.msgpack.encode(self.pending), "used": dict(self.used)}

    def load(self, raw: dict[str, Any] | None) -> None:
        """What `dump` wrote; None where an older judge knew no orders."""
        if raw is not None:
            self.pending, self.used = _decode(raw["pending"]), dict(raw["used"])

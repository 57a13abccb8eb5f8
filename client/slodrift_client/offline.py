"""A client without Redis: the same answers from decisions that a test or a dry run sets."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from slodrift_client.client import BreakerClient
from slodrift_client.contract import Entry, Head, State
from slodrift_client.gate import Gate
from slodrift_client.subjects import scope_of
from slodrift_client.view import Limits

__all__ = ["OfflineClient"]


class OfflineClient(BreakerClient):
    """Follows nothing; `set` changes what it answers. Its state never grows old.

    Args:
        decisions: State of every subject that is not closed.
        pool: The one pool it answers for.
    """

    def __init__(self, decisions: Mapping[str, State] | None = None, *, pool: str = "default") -> None:
        unlimited = Limits(
            max_open_ratio=1.0, max_open=1 << 31, max_latched_ratio=1.0, panic_ratio=1.0, max_sessions=1024, max_requests=1 << 31,
            max_refused_ratio=1e9, max_retry_ratio=1e9,
        )  # fmt: skip
        Gate.__init__(self, "offline", [pool], limits=unlimited)
        self._entries: dict[str, Entry] = {}
        self._seq = 0
        for subject, state in (decisions or {}).items():
            self._put(subject, state)
        self._publish(pool)

    def set(self, subject: str, state: State, **fields: Any) -> None:
        """Change one subject; `fields` are those of an `Entry`, for example `action="shed", admit_ratio=0.5`."""
        self._put(subject, state, **fields)
        self._publish(next(iter(self._views)))

    def close(self) -> None:
        """Nothing to stop."""

    def wait(self, timeout_s: float) -> bool:
        """Always there."""
        return True

    def _put(self, subject: str, state: State, **fields: Any) -> None:
        self._seq += 1
        if state == "CLOSED":
            self._entries.pop(subject, None)
        else:
            self._entries[subject] = Entry(
                fields.pop("scope", None) or scope_of(subject), subject, state, (0, 0, self._seq), **fields
            )

    def _publish(self, pool: str) -> None:
        n = len(self._entries)
        head = Head("offline", pool, (0, 0, self._seq), 0, 0, max(3, 10 * n), n, n, "enforce", 1, "")
        self._views[pool].install(head, self._entries.values(), self._clock())
        self._views[pool].pin()
        self._rebuild()
        self._report()

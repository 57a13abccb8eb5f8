"""How a request ended, and whether that counts against the node that served it."""

from __future__ import annotations

import enum

__all__ = ["COUNTS_AGAINST_NODE", "OUTCOME_CODES", "Outcome"]


class Outcome(enum.IntEnum):
    """Outcome of one request; the codes are part of the frame format and are never renumbered."""

    OK = 0
    CLIENT_ERROR = 1
    """The caller's fault (4xx): says nothing about the node."""
    CANCELLED = 2
    """The caller went away."""
    BACKPRESSURE = 3
    """429 or 503 with a full queue: load, not a fault of the node."""
    SERVER_ERROR = 4
    MIDSTREAM_ERROR = 5
    """Failed after the first token."""
    EMPTY = 6
    """HTTP 200 without a token."""
    TIMEOUT = 7


OUTCOME_CODES: dict[str, int] = {o.name.lower(): int(o) for o in Outcome}
"""Spelling on the wire (lower case) to frame code."""

COUNTS_AGAINST_NODE: frozenset[Outcome] = frozenset(
    {Outcome.SERVER_ERROR, Outcome.MIDSTREAM_ERROR, Outcome.EMPTY, Outcome.TIMEOUT}
)

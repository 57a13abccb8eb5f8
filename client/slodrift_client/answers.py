"""What a client answers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from slodrift_client.contract import Action, Mode, Scope, State, Version
from slodrift_client.view import Source

__all__ = ["Decision", "PoolStatus", "Status"]


@dataclass(frozen=True, slots=True)
class Decision:
    """What is known about one subject, and why.

    Attributes:
        allowed: What `allow` answers. Only mode "enforce" makes it False.
        state: CLOSED when nothing else is known.
        source: fresh, late (3 to 5 s old), stale, lkg (from the last-known-good file), default (nothing known yet).
        age_s: Since the pool's heartbeat last advanced; infinite before the first.
        ends_in_s: Until the state ends by itself on this host; infinite without an end.
        admit_ratio: Share of the requests that still goes, for `shed` and `fallback`.
        fallback: Pool or service to try instead of a refusal, at most once, if the decision says so.
        profile: Cheaper profile to serve under, if the action is `degrade`: the request is allowed.
    """

    pool: str
    subject: str
    state: State = "CLOSED"
    allowed: bool = True
    source: Source = "default"
    age_s: float = float("inf")
    mode: Mode | None = None
    scope: Scope = "node"
    action: Action = "none"
    admit_ratio: float = 1.0
    reason: str = ""
    version: Version | None = None
    tx: str = ""
    latched: bool = False
    ends_in_s: float = float("inf")
    fallback: str | None = None
    profile: str | None = None


@dataclass(frozen=True, slots=True)
class PoolStatus:
    """How good this host's knowledge of one pool is.

    Attributes:
        version, hb: Of the state that is believed.
        n_nonclosed, n_blocked: Subjects that are not closed, and those that `allow` refuses now.
        panic: More is not closed than this host believes of anybody: nothing is obeyed.
        retries_denied: Refused requests that were told of no fallback, because the retry budget was spent.
        refused: Heads and snapshots that were not applied, by reason.
        last_refusal: Why the newest one was not; "" when it was.
    """

    pool: str
    source: Source
    age_s: float
    mode: Mode | None
    version: Version | None
    hb: int
    n_nonclosed: int
    n_blocked: int
    panic: bool
    refused: Mapping[str, int]
    last_refusal: str
    retries_denied: int = 0


@dataclass(frozen=True, slots=True)
class Status:
    """State of the client.

    Attributes:
        degraded: Some pool's state is stale, from a file, missing, in panic, or was refused last.
        polls, errors: Attempts to read, and those that failed.
        file_errors: Last-known-good files that could not be written or believed.
        ambiguous: Calls of `allow` without a pool, about a subject that is blocked in one of several pools.
        callback_errors: Exceptions of `on_change` callbacks.
        last_error: The newest failure, "" after a success.
    """

    pools: Mapping[str, PoolStatus]
    degraded: bool
    polls: int = 0
    errors: int = 0
    file_errors: int = 0
    ambiguous: int = 0
    callback_errors: int = 0
    last_error: str = ""

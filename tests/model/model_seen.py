"""How often the protocol model got where faults matter, and where it must have been: what is never reached proves nothing."""

from __future__ import annotations

from collections import Counter

__all__ = ["SEEN", "rare"]

SEEN: Counter[str] = Counter()

_SCOPES = ("node", "session", "request", "pool")
_MOVES = (
    "trip", "latched", "open_over", "ramp", "probes_good", "probes_bad", "relapse", "no_verdict", "force_open", "disable",
    "release",
)  # fmt: skip
_WANTED = (
    *(f"{scope} {move}" for scope in _SCOPES for move in _MOVES), *(f"{scope} gone" for scope in _SCOPES[1:]),
    # the judge's caps
    "scope cap held back", "scope frozen", "latch without a place", "order over cap", "bucket order over cap",
    # crashes, zombies, Redis
    "void decision", "fenced", "scopes taken over", "state lost while nodes were away",
    # what a host refuses, and why
    "rollback", "bad_signature", "unknown_key", "unsigned", "mismatch", "over_cap", "foreign",
    # hosts
    "node taken away", "from a file", "probe", "probes at once", "forgot in time", "nothing shown while something is refused",
    "panic", "refused", "refusal bound held",
    # a judge that signs what is wrong
    "wrong state obeyed", "wrong state refused", "wrong state bounded", "wrong orders", "lie about scopes refused",
    # faults end, and hosts say what the log says, of
    "healed with nodes away", "healed with session refused", "healed with request refused", "healed with request degraded",
    "healed with pool refused", "healed with pool degraded",
)  # fmt: skip


def rare(least: int) -> dict[str, int]:
    """What happened less often."""
    return {what: SEEN[what] for what in _WANTED if SEEN[what] < least}

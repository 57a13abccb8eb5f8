"""Blast radius: how many subjects of a pool automation may take away, and when it must not take any.

Counts are those *after* the action, on eligible nodes. Caps and the freeze hold back opens alone: closing, half-opening and
expiring never ask here. (Envoy's pre-ejection check let one host too many through; a breaker that also held back closes
turned a small outage into a long one.)
"""

from __future__ import annotations

import math
from typing import Literal

import msgspec

from schemas.policy import Caps

__all__ = [
    "CapState",
    "FreezeCause",
    "after_open",
    "latch_limit",
    "may_open",
    "may_take",
    "open_limit",
    "step_freeze",
    "velocity_limit",
]

FreezeCause = Literal["correlated", "telemetry"]


class CapState(msgspec.Struct, frozen=True, kw_only=True):
    """Memory of one pool's caps.

    Attributes:
        opens_s: Moves to OPEN in the velocity window, Unix seconds, oldest first.
        frozen_since_s: Start of the present freeze, None when not frozen.
        cause: Why it froze.
        normal_since_s: Since when nothing asks for the freeze any more.
    """

    opens_s: tuple[float, ...] = ()
    frozen_since_s: float | None = None
    cause: FreezeCause | None = None
    normal_since_s: float | None = None


def open_limit(n_eligible: int, caps: Caps) -> int:
    """Most subjects that may be open or half-open together, of `n_eligible` nodes with fresh telemetry.

    Below `small_pool` nodes a share means nothing: one node if there are at least `min_pool`, else none (alarm only).
    """
    if n_eligible < caps.min_pool or caps.share == 0.0:
        return 0
    if n_eligible < caps.small_pool:
        return 1
    return min(math.floor(caps.share * n_eligible + 1e-9), caps.absolute)


def latch_limit(n_eligible: int, share: float) -> int:
    """Most nodes that may be held beyond their evidence, by the flap latch or an operator: a share, and at least one."""
    return max(1, math.floor(share * n_eligible + 1e-9))


def velocity_limit(n_eligible: int, caps: Caps) -> int:
    """New opens per `velocity_window_s`: the smaller of the count and the share, and at least one."""
    return min(caps.velocity, max(1, math.floor(caps.velocity_share * n_eligible + 1e-9)))


def may_open(state: CapState, t_s: float, n_eligible: int, n_away: int, caps: Caps) -> str:
    """Why one more subject may not open, or "" when it may.

    Args:
        state: Memory of the pool.
        t_s: Unix seconds.
        n_eligible: Nodes with fresh telemetry.
        n_away: Subjects that are open, half-open or forced open now.
        caps: Numbers.
    """
    if state.frozen_since_s is not None:
        return f"opens are frozen since {t_s - state.frozen_since_s:g} s ({state.cause})"
    limit = open_limit(n_eligible, caps)
    if n_away + 1 > limit:
        return f"{n_away} of {n_eligible} nodes are away already, the cap is {limit}"
    recent = sum(1 for opened in state.opens_s if t_s - opened < caps.velocity_window_s)
    if recent + 1 > velocity_limit(n_eligible, caps):
        return f"{recent} opened in the last {caps.velocity_window_s:g} s, the cap is {velocity_limit(n_eligible, caps)}"
    return ""


def may_take(state: CapState, t_s: float, taken: float, more: float, limit: float, what: str, caps: Caps) -> str:
    """Why no subject with a weight of `more` may open beside those that take `taken` already, or "": for scopes other than nodes.

    Args:
        state: Memory of the scope.
        t_s: Unix seconds.
        taken: Share of whatever the scope is counted in that is open already.
        more: What the subject would add.
        limit: Most they may take together.
        what: Words for that.
        caps: Numbers.
    """
    if state.frozen_since_s is not None:
        return f"opens are frozen since {t_s - state.frozen_since_s:g} s ({state.cause})"
    if taken + more > limit + 1e-9:
        return f"{taken:.1%} of {what} is taken already and this is {more:.1%}, the cap is {limit:.1%}"
    recent = sum(1 for opened in state.opens_s if t_s - opened < caps.velocity_window_s)
    if recent + 1 > caps.velocity:
        return f"{recent} opened in the last {caps.velocity_window_s:g} s, the cap is {caps.velocity}"
    return ""


def after_open(state: CapState, t_s: float, window_s: float = 60.0) -> CapState:
    """The memory after one subject opened at `t_s`; opens older than the velocity window are dropped."""
    recent = tuple(opened for opened in state.opens_s if t_s - opened < window_s)
    return msgspec.structs.replace(state, opens_s=(*recent, t_s))


def step_freeze(state: CapState, t_s: float, n_eligible: int, n_bad: int, n_fresh: int, n_known: int, caps: Caps) -> CapState:
    """Freeze or unfreeze opens at the end of a tick.

    Args:
        state: Memory of the pool.
        t_s: Unix seconds.
        n_eligible: Nodes with fresh telemetry.
        n_bad: Of these, how many meet the open condition now, away or not.
        n_fresh: Nodes heard of lately.
        n_known: Nodes that should be heard.
        caps: Numbers.
    """
    cause: FreezeCause | None = None
    if max(n_eligible, n_known) < caps.min_pool:
        pass  # nothing is ever opened here
    elif n_bad >= 2 and n_bad > caps.freeze_share * n_eligible:
        cause = "correlated"
    elif n_known - n_fresh >= 2 and n_fresh < caps.min_fresh_ratio * n_known:
        cause = "telemetry"  # one silent node is a node that died; two of a few hint at the way the telemetry takes
    if cause is not None:
        if state.frozen_since_s is None:
            return msgspec.structs.replace(state, frozen_since_s=t_s, cause=cause, normal_since_s=None)
        return msgspec.structs.replace(state, normal_since_s=None)
    if state.frozen_since_s is None:
        return state
    if state.normal_since_s is None:
        return msgspec.structs.replace(state, normal_since_s=t_s)
    if t_s - state.normal_since_s >= caps.unfreeze_s:
        return msgspec.structs.replace(state, frozen_since_s=None, cause=None, normal_since_s=None)
    return state

"""What slodrift says: verdicts, findings, decisions, rejections and the summary of a replay.

Encoded as one JSON object a line with `encode_line`; field order is fixed, so equal results are equal bytes.
Times named `t` and `not_after` are Unix seconds of event time.
"""

from __future__ import annotations

from typing import Any, Literal

import msgspec

__all__ = [
    "BreakerState",
    "Decision",
    "Direction",
    "Finding",
    "Mode",
    "Rejected",
    "Result",
    "Scope",
    "Status",
    "Summary",
    "Verdict",
    "encode_line",
]

Status = Literal["OK", "LEARNING", "INSUFFICIENT_DATA", "DEGRADED", "STALLED", "IDLE", "STALE"]
BreakerState = Literal["CLOSED", "OPEN", "HALF_OPEN", "FORCED_OPEN", "DISABLED"]
Scope = Literal["node", "session", "request", "pool"]
Mode = Literal["shadow", "advise", "enforce"]
TailKind = Literal["empirical", "extrapolated", "censored"]
Direction = Literal["slower", "faster", "none"]


class Verdict(msgspec.Struct, tag_field="kind", tag="verdict", kw_only=True):
    """State of one series (pool, node, SLI) at the end of a tick."""

    t: float
    pool: str
    node: str
    sli: str
    status: Status
    n: int
    """Samples in the detection window."""
    kl_nats: float | None = None
    kl_mix_nats: float | None = None
    kl_service_nats: float | None = None
    direction: Direction = "none"
    evidence: float | None = None
    """Shiryaev-Roberts statistic (alarm when it passes the target's threshold); a likelihood ratio, no unit."""
    p999_s: float | None = None
    p999_kind: TailKind | None = None
    threshold_s: float | None = None
    """Adaptive threshold that P99.9 is compared with, seconds."""
    slo_s: float | None = None
    """Contractual SLO of the SLI, seconds; nothing moves it."""
    dynamic_slo_s: float | None = None
    """Internal threshold that follows the workload below it, seconds; None without a contractual SLO."""
    extra: dict[str, bool] | msgspec.UnsetType = msgspec.UNSET
    """Further detectors that the policy names: whether one saw a drift in the last minute. Absent where it names none."""


class Finding(msgspec.Struct, tag_field="kind", tag="finding", kw_only=True):
    """Something worth telling a person."""

    t: float
    pool: str
    finding: str
    node: str | None = None
    cause: str | None = None
    score: float | None = None
    evidence: dict[str, Any] = {}


class Decision(msgspec.Struct, tag_field="kind", tag="decision", kw_only=True):
    """One breaker transition. `version` is (generation, epoch, sequence) and only grows."""

    t: float
    pool: str
    scope: Scope
    subject: str
    state: BreakerState
    version: tuple[int, int, int]
    tx: str
    """Identity: the same evidence replayed gives the same tx."""
    action: Literal["eject", "shed", "fallback", "degrade", "none"] = "eject"
    admit_ratio: float = 0.0
    """Share of the requests that still goes to the subject."""
    fallback: str | msgspec.UnsetType = msgspec.UNSET
    """Pool or service to try instead, once."""
    profile: str | msgspec.UnsetType = msgspec.UNSET
    """Cheaper profile to serve under."""
    reason: str = ""
    mode: Mode = "shadow"
    capped: bool = False
    latched: bool = False
    not_after: float | None = None
    """When the state ends by itself if nothing is heard, Unix seconds; None for CLOSED."""
    policy_version: str = ""
    window_end: float = 0.0
    evidence: dict[str, Any] = {}


class Rejected(msgspec.Struct, tag_field="kind", tag="rejected", kw_only=True):
    """Input that was refused, counted by reason since the last such line."""

    t: float
    reason: str
    count: int


class Summary(msgspec.Struct, tag_field="kind", tag="summary", kw_only=True):
    """Last line of a replay."""

    events: int
    rejected: int
    ticks: int
    pools: dict[str, Any] = {}
    labels: dict[str, Any] = {}
    against: dict[str, Any] = {}
    """The same events under another policy, when two are compared."""


Result = Verdict | Finding | Decision | Rejected | Summary

_encoder = msgspec.json.Encoder(order=None)


def encode_line(result: Result) -> bytes:
    """JSON of one result, without a newline; NaN and infinities become null."""
    return _encoder.encode(result)

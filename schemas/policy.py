"""The policy: every number that decides something, with its default and its reason.

A policy file extends a preset and overrides settings per pool or glob; `schemas.policy_file` loads it and reports every fault
with file, line and column. Here are the settings themselves.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

from schemas.cells import MAX_CELLS
from schemas.policy_extra import Extra
from schemas.policy_scopes import Actions

__all__ = ["Breaker", "Budget", "Caps", "Detection", "Health", "Override", "PoolPolicy", "Series", "Slo"]

Positive = Annotated[float, Field(gt=0)]
Ratio = Annotated[float, Field(ge=0, le=1)]
Count = Annotated[int, Field(ge=1)]


class _Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False, use_attribute_docstrings=True)


class Slo(_Section):
    """Contractual objective of one SLI. Nothing in slodrift moves it."""

    threshold: Annotated[float, Field(gt=0, le=3600)]
    """Seconds a request may take; longer latencies than an hour are refused as rubbish."""
    objective: Annotated[float, Field(gt=0, lt=1)] = 0.99
    """Share of requests that must stay within the threshold."""


class Detection(_Section):
    """When a series has drifted."""

    method: Literal["evidence", "seed"] = "evidence"
    """`evidence`: calibrated e-detector. `seed`: the published formulas to the letter."""
    false_alarms_per_day: Positive = 0.01
    """Target per series; the alarm threshold follows from it."""
    kl_warn_nats: Positive = 0.12
    """Published drift threshold; by itself it never alarms in `evidence`."""
    kl_periods: Count = 3
    """Consecutive periods above `kl_warn_nats` after which the threshold is recalibrated."""
    period_s: Positive = 60.0
    """Length of such a period and of the displayed detection window, seconds."""
    long_drift_s: Positive = 300.0
    """A drift this old starts root-cause analysis, seconds."""
    kappa: Positive | None = None
    """Tail threshold = mean + kappa * sd of the window P99.9s; None derives it from `false_alarms_per_day`."""
    slo_gain: Positive = 2.5
    slo_cap_nats: Positive = 0.15
    """Dynamic SLO = base * (1 + slo_gain * min(KL, slo_cap_nats)), never above the contractual SLO."""
    wobble_floor_ratio: Positive = 0.02
    """Least width of the tolerance band for ordinary wobble of a latency, as a ratio (2 %)."""
    learning_samples: Count = 300
    """Samples before a baseline may be used at all."""
    learning_s: Positive = 120.0
    """Event time before a baseline may be used at all, seconds."""
    min_samples: Count = 100
    """Samples in the longest window below which the verdict is INSUFFICIENT_DATA."""
    longest_window_s: Positive = 86400.0
    """How far back the window of a sparse series may reach for `min_samples`, seconds."""
    half_life_s: Positive = 86400.0
    """Half-life of the baseline's memory, seconds."""
    hour_of_day: bool = True
    """Baselines follow the hour of the day (UTC) once a series has learned for two days; 0.23 KB a series more. Without, a daily
    rhythm is taken for wobble: no false alarms, but a slowdown no larger than the rhythm goes unseen."""
    lag_s: Positive = 300.0
    """The baseline learns a window only after this long without an alarm, seconds."""
    max_strata: Count = 16
    """Request strata (prompt length x cache hit x adapter) per pool."""
    extra: tuple[Extra, ...] = ()
    """Further detectors of the library river, for example {river: drift.ADWIN, on: mean_log_latency, delta: 0.002}: shown in
    verdicts, they open no breaker."""


class Health(_Section):
    """Rules that need no statistics."""

    stale_after_s: Positive = 15.0
    """A node from which nothing was heard this long is STALE."""
    stalled_after_s: Positive = 20.0
    """A node with requests running and no token generated this long is STALLED."""
    fatal_xids: tuple[int, ...] = (48, 62, 63, 64, 74, 79, 92, 94, 95, 119, 120)
    """NVIDIA XIDs after which a GPU cannot be trusted (double-bit ECC, fallen off the bus, NVLink, GSP, ...)."""
    immediate: bool = False
    """A fatal XID and a stall open when their event arrives, not when its tick closes. Caps hold for them as always; only the
    freeze for correlated failures is then as old as the last tick."""


class Breaker(_Section):
    """Life of one open breaker (Envoy, resilience4j and the articles; docs/architecture.md says which is whose)."""

    scopes: tuple[Literal["node", "session", "request", "pool"], ...] = ("node", "session", "request")
    """What may be opened. `pool` sheds users of a healthy gateway, so it must be asked for."""
    actions: Actions = Actions()
    """What an open breaker of each scope does."""
    breach_ticks: Count = 3
    """Consecutive ticks whose evidence holds before a breaker opens."""
    min_failures: Annotated[int, Field(ge=0)] = 3
    """More than this many recent failures must be seen: users are hurt, not merely different."""
    min_failure_ratio: Ratio = 0.01
    """... and they must be at least this share of the node's requests, in the window or in the last `breach_ticks` ticks."""
    min_requests: Count = 20
    """Requests in the failure window below which statistics open nothing."""
    failure_window_s: Positive = 60.0
    open_s: Positive = 30.0
    """First open time, seconds; doubles with each re-opening."""
    open_max_s: Positive = 300.0
    jitter_ratio: Ratio = 0.10
    """Open times are lengthened by up to this share, so that subjects do not come back together."""
    min_closed_s: Positive = 60.0
    """Least time closed before the same subject may open again, seconds."""
    probes_per_s: Positive = 1.0
    """Probe budget while half-open, per host."""
    probe_hosts: Count = 3
    probe_timeout_s: Positive = 30.0
    close_successes: Count = 10
    close_ratio: Ratio = 0.95
    close_after_s: Positive = 15.0
    """Close after at least this many probe successes, at this success ratio, after this long half-open ..."""
    close_hosts: Count = 2
    """... from at least this many hosts, where so many report probes in the pool; telemetry that names no host cannot tell."""
    close_ramp: tuple[Annotated[float, Field(gt=0, lt=1)], ...] = (0.1, 0.5)
    """Shares of its traffic that a subject gets back one after the other before it closes; none closes at once."""
    close_ramp_s: Positive = 30.0
    """Time they take together, seconds."""
    reopen_failures: Count = 2
    half_open_max_s: Positive = 120.0
    """Half-open without a verdict this long re-opens with the same back-off."""
    reset_after_s: Positive = 600.0
    """Back-off starts again after this long closed, seconds."""
    max_opens: Count = 3
    flap_window_s: Positive = 600.0
    latch_s: Positive = 300.0
    """More than `max_opens` opens in the flap window latch the subject open for `latch_s`."""


class Caps(_Section):
    """Blast radius: how much automation may take away, computed after the action."""

    share: Ratio = 0.10
    """Open + half-open nodes as a share of eligible nodes."""
    absolute: Count = 20
    velocity: Count = 5
    """New opens of a scope per `velocity_window_s`."""
    velocity_window_s: Positive = 60.0
    velocity_share: Ratio = 0.02
    """... and as a share of the pool's nodes (at least one)."""
    min_pool: Count = 3
    """Pools smaller than this are never touched: alarm only."""
    small_pool: Count = 10
    """Below so many nodes one may be away, whatever the share says."""
    latched_share: Ratio = 0.20
    """Nodes that orders of operators hold open, as a share (at least one): hosts refuse more. Above, force the pool open."""
    latched_unsigned_share: Ratio = 0.05
    """Nodes that the flap latch, or orders that nobody signed, may hold (at least one); see `override.keys`."""
    session_share: Ratio = 0.05
    """Session buckets open or half-open, as a share of all 1,024."""
    request_share: Ratio = 0.25
    """Share of the pool's traffic that open request classes may hold together."""
    own_fault_ratio: Annotated[float, Field(ge=1)] = 2.0
    """A class or session is at fault when so many times the share of the other requests on the same nodes fails."""
    pool_share: Ratio = 0.20
    pool_min_nodes: Count = 3
    """The pool's own breaker needs this share of its nodes degraded, and this many."""
    freeze_share: Ratio = 0.30
    """More than this share of eligible nodes bad at once freezes opens: the cause is shared."""
    min_fresh_ratio: Ratio = 0.85
    """Telemetry fresh from fewer nodes than this freezes opens, if at least two are silent."""
    unfreeze_s: Positive = 120.0


class Series(_Section):
    """Recordings with one value a row at a steady cadence (docs/detection.md, series mode)."""

    false_alarms_per_day: Positive = 0.5
    """Target per series."""
    days: Count = 7
    """Days of which the same time is compared, and length of the reference distribution."""
    beside_rows: Annotated[int, Field(ge=0)] = 2
    """Neighbourhood of "the same time", rows to both sides."""
    fast_half_life_s: Positive = 4 * 3600.0
    slow_half_life_s: Positive = 72 * 3600.0
    """Memory of the two means that are compared, seconds."""
    recent_rows: Count = 12
    """Rows whose distribution is compared with the days before."""
    min_rows: Count = 60
    """Rows before anything alarms."""
    peaks: Annotated[int, Field(ge=5)] = 30
    """Largest values kept for calibration."""
    max_shape: Annotated[float, Field(gt=0, lt=0.5)] = 0.2
    """Heaviest tail believed."""
    refractory_rows: Annotated[int, Field(ge=0)] = 20
    """Rows after an alarm in which only stronger evidence alarms."""


class Budget(_Section):
    """Error budget accounting, against the contractual SLO alone."""

    min_events: Count = 100
    """Requests in a burn-rate window below which it says nothing."""


PublicKey = Annotated[str, Field(pattern=r"^MCowBQYDK2VwAyEA[A-Za-z0-9+/]{43}=$")]


class Override(_Section):
    """Orders of operators (`slodrift override`)."""

    max_s: Annotated[float, Field(gt=0, le=4 * 3600)] = 4 * 3600.0
    """Longest override, seconds; four hours is the most."""
    keys: tuple[PublicKey, ...] = ()
    """Ed25519 public keys of operators, each the base64 line of a PEM file. With any, an order must be signed with one of them;
    with none, whoever may write telemetry may give orders."""


class PoolPolicy(_Section):
    """All settings of one pool."""

    mode: Literal["shadow", "advise", "enforce"] = "shadow"
    """`shadow` decides and logs, `advise` tells hosts, `enforce` makes them obey."""
    tick_s: Annotated[float, Field(ge=1, le=60)] = 5.0
    """Length of a tick, seconds."""
    lateness_s: Annotated[float, Field(ge=0, le=600)] = 10.0
    """How late an event may arrive behind the pool's clock and still count, seconds."""
    slo: dict[Literal["ttft_s", "tpot_s", "queue_s", "e2e_s"], Slo] = {}
    cells: Annotated[int, Field(ge=1, le=MAX_CELLS)] = 1
    """Judge the pool as so many pools, each with the nodes whose hash falls into it (docs/performance.md, hot pools). 2, 4 and 8
    fill evenly; a cell should have 50 nodes and takes none away below `caps.small_pool`."""
    inventory: tuple[str, ...] | None = None
    """Nodes that exist; others are counted under `__other__` and never ejected. None accepts all."""
    detection: Detection = Detection()
    health: Health = Health()
    breaker: Breaker = Breaker()
    caps: Caps = Caps()
    budget: Budget = Budget()
    series: Series = Series()
    override: Override = Override()

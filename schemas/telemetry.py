"""Telemetry events: one vocabulary for JSON topics and replay files. `kind` says which event it is.

Unknown fields are ignored; a missing optional field is unknown (None), never zero. Times are Unix seconds in JSON.
"""

from __future__ import annotations

from typing import Annotated, Literal, Union

import msgspec

__all__ = ["DeployEvent", "Event", "GpuEvent", "NodeEvent", "OverrideEvent", "RequestEvent", "StateEvent", "to_ns"]

Name = Annotated[str, msgspec.Meta(min_length=1, max_length=256)]


def to_ns(ts_s: float) -> int:
    """Unix seconds to integer nanoseconds, rounded to a microsecond (a float64 holds no more at today's dates)."""
    return round(ts_s * 1e6) * 1000


class RequestEvent(msgspec.Struct, tag_field="kind", tag="request", kw_only=True, gc=False):
    """One finished request, as the serving host saw it. Latencies in seconds, token counts in tokens."""

    ts: float
    """Unix seconds at which the request finished."""
    pool: Name
    node: Name
    outcome: str
    request_id: str | None = None
    tenant: str | None = None
    session: str | None = None
    adapter: str | None = None
    prompt_tokens: int | None = None
    output_tokens: int | None = None
    cached_tokens: int | None = None
    queue_s: float | None = None
    ttft_s: float | None = None
    tpot_s: float | None = None
    e2e_s: float | None = None
    batch_size: int | None = None
    probe: bool | None = None
    """True for a half-open probe; None where the source does not say."""
    probe_host: str | None = None
    """Name of the serving host that sent the probe; a breaker closes when two of them agree."""
    kv_slot_expected: int | None = None
    kv_slot_actual: int | None = None


class NodeEvent(msgspec.Struct, tag_field="kind", tag="node", kw_only=True, gc=False):
    """State of one serving node, usually once a second."""

    ts: float
    pool: Name
    node: Name
    boot_id: str | None = None
    engine: str | None = None
    running: int | None = None
    waiting: int | None = None
    kv_cache_usage_ratio: float | None = None
    generated_tokens_total: int | None = None
    preemptions_total: int | None = None


class GpuEvent(msgspec.Struct, tag_field="kind", tag="gpu", kw_only=True, gc=False):
    """State of one GPU. None where the device does not support a field."""

    ts: float
    pool: Name
    node: Name
    gpu: Name
    sm_util_ratio: float | None = None
    mem_used_bytes: float | None = None
    mem_total_bytes: float | None = None
    mem_free_bytes: float | None = None
    mem_largest_free_bytes: float | None = None
    pcie_tx_bytes_per_s: float | None = None
    pcie_rx_bytes_per_s: float | None = None
    nvlink_tx_bytes_per_s: float | None = None
    nvlink_rx_bytes_per_s: float | None = None
    sm_clock_hz: float | None = None
    throttle_reasons: int | None = None
    temp_celsius: float | None = None
    power_watts: float | None = None
    xid: int | None = None


class DeployEvent(msgspec.Struct, tag_field="kind", tag="deploy", kw_only=True, gc=False):
    """A change was rolled out to a pool, or to one node of it (`node` set)."""

    ts: float
    pool: Name
    node: str | None = None
    what: str = ""


class OverrideEvent(msgspec.Struct, tag_field="kind", tag="override", kw_only=True, gc=False):
    """An operator's order about one subject's breaker, in force in [start, end); rules and signature in schemas/override.py."""

    ts: float
    """When it was given, Unix seconds."""
    pool: Name
    subject: Name
    """A node, or scope-qualified (`schemas.scopes`)."""
    state: Literal["FORCED_OPEN", "DISABLED", "CLOSED"]
    reason: Annotated[str, msgspec.Meta(min_length=1, max_length=512)]
    operator: Annotated[str, msgspec.Meta(min_length=1, max_length=256)]
    id: Annotated[str, msgspec.Meta(min_length=8, max_length=64)]
    """Used once."""
    start: float
    """Unix seconds."""
    end: float
    """Unix seconds; for CLOSED, which is done at once, the same as `start`."""
    key_id: Annotated[str, msgspec.Meta(max_length=64)] | None = None
    sig: Annotated[str, msgspec.Meta(max_length=128)] | None = None

    @property
    def node(self) -> None:
        """It says nothing about whether a node is alive."""


StateEvent = Union[NodeEvent, GpuEvent, DeployEvent, OverrideEvent]
Event = Union[RequestEvent, NodeEvent, GpuEvent, DeployEvent, OverrideEvent]

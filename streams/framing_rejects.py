"""Why an event was refused: a stable word for counters and a sentence for people."""

from __future__ import annotations

import re
from typing import NamedTuple

import msgspec

from schemas.batch import LATENCY_SLIS
from schemas.outcome import OUTCOME_CODES
from schemas.override import override_fault
from schemas.telemetry import OverrideEvent, RequestEvent, StateEvent
from streams.framing_values import MAX_TS_S

__all__ = ["MAX_EVENT_BYTES", "Reject", "StateEvent", "request_detail", "state_fault", "why"]

MAX_EVENT_BYTES = 65_536
"""A longer event is refused unread."""


class Reject(NamedTuple):
    """A refused event: its bytes, a word of `REASONS`, a sentence, and the offset given for it (or its position)."""

    raw: bytes
    reason: str
    detail: str
    offset: int


_NAN_TOKEN = re.compile(rb"[:\[,]\s*[-+]?(?:NaN|nan|Infinity|inf)\b")


def why(raw: bytes, exc: Exception) -> tuple[str, str]:
    """Reason and sentence for an event that did not decode."""
    text = str(exc)
    if len(raw) > MAX_EVENT_BYTES:
        return "too_large", f"{len(raw)} bytes, at most {MAX_EVENT_BYTES} are read"
    if isinstance(exc, RecursionError):
        return "too_deep", "nested too deeply"
    if isinstance(exc, msgspec.ValidationError):
        if "required field" in text:
            return "missing_field", text
        if text.startswith("Invalid value") and text.endswith("`$.kind`"):
            return "unknown_kind", text
        if "out of range" in text:
            return "nan_or_inf", text
        return ("bad_value" if "length" in text else "bad_type"), text
    if _NAN_TOKEN.search(raw):
        return "nan_or_inf", "NaN and Infinity are not JSON; leave an unknown value out"
    try:
        raw.decode()
    except UnicodeDecodeError as bad:
        return "bad_utf8", str(bad)
    return "bad_json", text


def state_fault(event: StateEvent) -> tuple[str, str] | None:
    if not 0 <= event.ts < MAX_TS_S:
        return "bad_timestamp", _ts_detail(event.ts)
    for name in event.__struct_fields__:
        value = getattr(event, name)
        if isinstance(value, int | float) and name not in ("ts", "temp_celsius") and not 0 <= value < 2**63:
            return "bad_value", f"{name} = {value!r}"
    if isinstance(event, OverrideEvent) and (fault := override_fault(event)):
        return "bad_value", fault
    return None


def _ts_detail(ts: float) -> str:
    hint = "; is it milliseconds? ts is Unix seconds" if 1e11 < ts < 1e14 else ""
    return f"ts = {ts!r} is no time in Unix seconds{hint}"


def request_detail(event: RequestEvent, reason: str) -> str:
    if reason == "bad_timestamp":
        return _ts_detail(event.ts)
    if reason == "unknown_outcome":
        return f"outcome = {event.outcome[:64]!r}, known are {', '.join(OUTCOME_CODES)}"
    names = LATENCY_SLIS if "latency" in reason else ("prompt_tokens", "output_tokens", "cached_tokens", "batch_size")
    return ", ".join(f"{name} = {getattr(event, name)!r}" for name in names if getattr(event, name) is not None)

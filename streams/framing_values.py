"""Which values of a finished request are believable, as one vectorised check for JSON events and for frames alike.

A value that cannot be true is refused, never repaired: a negative latency that is clipped to zero would look like a fast
node. Unknown is not refused: NaN latencies and `UNKNOWN_TOKENS` pass.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from schemas.batch import MAX_HOST, NO_CODE, RequestBatch
from schemas.outcome import Outcome

__all__ = ["MAX_LATENCY_S", "MAX_TS_NS", "MAX_TS_S", "REASONS", "UNKNOWN_OUTCOME_CODE", "blank_tpot", "row_faults", "valid_rows"]

MAX_LATENCY_S = 3600.0
"""Longest latency that is believed, seconds."""
MAX_TS_S = 9.0e9
"""Timestamps from here on (year 2255) are milliseconds or nonsense; nanoseconds still fit int64 below it."""
MAX_TS_NS = int(MAX_TS_S) * 1_000_000_000
UNKNOWN_OUTCOME_CODE = 255
"""Code of an outcome word that is not in the taxonomy."""

REASONS: tuple[str, ...] = (
    "",  # code 0: nothing wrong
    "bad_timestamp",  # negative, or too far in the future to be seconds
    "nan_or_inf",
    "negative_latency",
    "latency_too_large",
    "unknown_outcome",
    "bad_count",  # a token count or a batch size that is negative or does not fit 32 bits
    "bad_value",  # any other number or name outside its range
    "bad_json",
    "bad_utf8",
    "bad_type",
    "missing_field",
    "unknown_kind",
    "too_deep",
    "too_large",
)
"""Stable words for refused input; the position is the code used in masks."""
CODE: dict[str, int] = {reason: code for code, reason in enumerate(REASONS)}

_MAX_OUTCOME = max(Outcome)
_MAX_LATENCY_BITS = np.float32(MAX_LATENCY_S).view(np.uint32)


def row_faults(ts_bad: NDArray[np.bool_], latency_s: NDArray[np.floating], outcome: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """What is wrong with each row.

    Args:
        ts_bad: Rows whose timestamp is out of range, bool (n,).
        latency_s: Seconds, (4, n); NaN where unknown.
        outcome: Outcome codes, uint8 (n,).

    Returns:
        Index into `REASONS` of the first fault, uint8 (n,); 0 where there is none.
    """
    faults = np.zeros(latency_s.shape[1], np.uint8)
    # Common case first: one pass says that nothing is wrong at all. Comparisons with NaN are False, so unknown passes.
    out_of_range = (latency_s < 0) | (latency_s > MAX_LATENCY_S)
    if out_of_range.any():
        faults[(latency_s > MAX_LATENCY_S).any(axis=0)] = CODE["latency_too_large"]
        faults[(latency_s < 0).any(axis=0)] = CODE["negative_latency"]
        faults[np.isinf(latency_s).any(axis=0)] = CODE["nan_or_inf"]
    bad_outcome = outcome > _MAX_OUTCOME
    if bad_outcome.any():
        faults[bad_outcome] = CODE["unknown_outcome"]
    if ts_bad.any():
        faults[ts_bad] = CODE["bad_timestamp"]
    return faults


def blank_tpot(latency_s: NDArray[np.floating], output_tokens: NDArray[np.uint32]) -> NDArray[np.bool_]:
    """Rows whose time per output token means nothing: one token or none has no gap between tokens (engines report 0 there)."""
    blank: NDArray[np.bool_] = (output_tokens <= 1) & ~np.isnan(latency_s[1])
    return blank


def _plain(batch: RequestBatch) -> bool:
    """True for a batch without any fault and any blank time per token, found by extremes alone; False when in doubt.

    The bits of float32 numbers from 0 on are in their order; those of negative numbers, infinity and NaN are beyond.
    """
    if not len(batch) or batch.latency_s.dtype != np.float32 or not batch.latency_s.flags.c_contiguous:
        return False
    if np.maximum.reduce(batch.latency_s.view(np.uint32), axis=None) > _MAX_LATENCY_BITS:
        out_of_range = batch.latency_s < 0
        out_of_range |= batch.latency_s > MAX_LATENCY_S
        if out_of_range.any():
            return False
    return bool(
        _least(batch.output_tokens) > 1
        and _most(batch.outcome) <= _MAX_OUTCOME
        and _least(batch.ts_ns) >= 0
        and _most(batch.ts_ns) < MAX_TS_NS
        and _most(batch.node) < len(batch.nodes)
        and _within(batch.adapter, len(batch.adapters))
        and _within(batch.tenant, len(batch.tenants))
        and _least(batch.probe) >= -1
        and _most(batch.probe) <= MAX_HOST
    )


def _least(column: NDArray[Any]) -> Any:
    """Smallest value; a column of one value with a stride of zero (one that a frame leaves out) is asked for that alone."""
    return np.minimum.reduce(column) if column.strides[0] else column[0]


def _most(column: NDArray[Any]) -> Any:
    return np.maximum.reduce(column) if column.strides[0] else column[0]


def _within(codes: NDArray[np.uint32], n_words: int) -> bool:
    """Whether all codes name one of the words, or none at all."""
    if _least(codes) == NO_CODE or _most(codes) < n_words:
        return True
    return not ((codes >= n_words) & (codes != NO_CODE)).any()


def valid_rows(batch: RequestBatch) -> tuple[RequestBatch, dict[str, int]]:
    """The believable rows of a batch that did not come through a framer, and how many requests were refused for which reason.

    Costs one pass over the columns when nothing is wrong. The input is not modified.
    """
    if _plain(batch):
        return batch, {}
    faults = row_faults((batch.ts_ns < 0) | (batch.ts_ns >= MAX_TS_NS), batch.latency_s, batch.outcome)
    for words, codes, optional in (
        (batch.nodes, batch.node, False),
        (batch.adapters, batch.adapter, True),
        (batch.tenants, batch.tenant, True),
    ):
        outside = codes >= len(words)
        if optional:
            outside &= codes != NO_CODE
        faults[outside] = CODE["bad_value"]
    faults[(batch.probe < -1) | (batch.probe > MAX_HOST)] = CODE["bad_value"]
    rejects: dict[str, int] = {}
    if faults.any():
        counts = np.bincount(faults, weights=batch.weight).astype(np.int64)
        rejects = {REASONS[code]: int(counts[code]) for code in np.flatnonzero(counts[1:]) + 1}
        batch = batch.take(faults == 0)
    blank = blank_tpot(batch.latency_s, batch.output_tokens)
    if blank.any():
        latency_s = batch.latency_s.copy()
        latency_s[1, blank] = np.nan
        batch = replace(batch, latency_s=latency_s)
    return batch, rejects

"""Rows of the ClickHouse tables, as columns, from what the pipeline says. Unknown numbers are None, never NaN or zero.

Each builder takes the origin of the message the rows came in; the index of a row counts within that message.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any, NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from schemas.results import Decision, Finding, encode_line
from sinks.base import Columns

__all__ = ["Origin", "decision_columns", "finding_columns", "to_ms", "unknown_to_none", "with_origin"]

_SAME_IN_TABLE = (
    "pool", "scope", "subject", "state", "tx", "action", "admit_ratio", "reason", "mode", "capped", "latched", "policy_version",
)  # fmt: skip
_json = msgspec.json.Encoder(order="sorted")


class Origin(NamedTuple):
    """Message that rows came in."""

    topic: str
    partition: int
    offset: int


def to_ms(t_s: float) -> int:
    """Unix seconds to milliseconds."""
    return round(t_s * 1000)


def unknown_to_none(values: NDArray[np.floating[Any]]) -> list[float | None]:
    """Values of a column whose NaNs mean "unknown". Infinities stay: a sink refuses them."""
    column: list[float | None] = values.tolist()
    for i in np.flatnonzero(np.isnan(values)):
        column[i] = None
    return column


def with_origin(columns: Columns, origin: Origin) -> Columns:
    """The same columns with those of the origin."""
    n = len(columns["t"])
    return columns | {
        "src_topic": [origin.topic] * n,
        "src_partition": [origin.partition] * n,
        "src_offset": [origin.offset] * n,
        "src_idx": list(range(n)),
    }


def finding_columns(findings: Sequence[Finding], origin: Origin) -> Columns:
    """Columns of table `findings`."""
    columns: Columns = {
        "t": [to_ms(f.t) for f in findings],
        "pool": [f.pool for f in findings],
        "finding": [f.finding for f in findings],
        "node": [f.node or "" for f in findings],
        "cause": [f.cause or "" for f in findings],
        "score": [f.score for f in findings],
        "evidence": [_json.encode(f.evidence).decode() for f in findings],
        "id": [int.from_bytes(hashlib.sha256(encode_line(f)).digest()[:8], "big") for f in findings],
    }
    return with_origin(columns, origin)


def decision_columns(decisions: Sequence[Decision], origin: Origin) -> Columns:
    """Columns of table `decisions`."""
    plain = (
        "pool",
        "scope",
        "subject",
        "state",
        "tx",
        "action",
        "admit_ratio",
        "reason",
        "mode",
        "capped",
        "latched",
        "policy_version",
    )
    columns: Columns = {name: [getattr(d, name) for d in decisions] for name in plain}
    columns |= {
        "t": [to_ms(d.t) for d in decisions],
        "gen": [d.version[0] for d in decisions],
        "epoch": [d.version[1] for d in decisions],
        "seq": [d.version[2] for d in decisions],
        "not_after": [None if d.not_after is None else to_ms(d.not_after) for d in decisions],
        "window_end": [to_ms(d.window_end) for d in decisions],
        "evidence": [_json.encode(d.evidence).decode() for d in decisions],
    }
    return with_origin(columns, origin)

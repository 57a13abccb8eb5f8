"""Rows of the ClickHouse tables, as columns, from what the pipeline says. Unknown numbers are None, never NaN or zero.

Each builder takes the origin of the message the rows came in; the index of a row counts within that message.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from schemas.deadletter import DeadLetter
from schemas.results import Decision, Finding, encode_line
from sinks.base import Columns

__all__ = ["Origin", "dead_letter_columns", "decision_columns", "finding_columns", "to_ms", "window_columns", "with_origin"]

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


def dead_letter_columns(letter: DeadLetter, received_ms: int, origin: Origin) -> Columns:
    """Columns of table `dead_letters`: one row, since a dead letter is a message of its own.

    Args:
        letter: What was refused.
        received_ms: Timestamp of the dead letter's message, Unix milliseconds.
        origin: Of the dead letter's message.
    """
    columns: Columns = {
        "t": [received_ms],
        "stage": [letter.stage],
        "reason": [letter.reason],
        "detail": [letter.detail],
        "origin_topic": [letter.topic],
        "origin_partition": [letter.partition],
        "origin_offset": [letter.offset],
        "origin_ms": [letter.timestamp_ms],
        "raw": [letter.raw],
        "size_bytes": [letter.size_bytes],
        "truncated": [letter.truncated],
        "sha256": [letter.sha256],
        "attempts": [letter.attempts],
        "count": [letter.count],
    }
    return with_origin(columns, origin)


def window_columns(arrays: Mapping[str, Sequence[Any] | NDArray[Any]], origin: Origin) -> Columns:
    """Columns of table `windows` from arrays (n,) named like its columns, `t` in Unix milliseconds.

    NaN in a float array means "unknown" and becomes NULL. Infinities stay: the sink refuses them.
    """
    columns: Columns = {}
    for name, values in arrays.items():
        column = values.tolist() if isinstance(values, np.ndarray) else list(values)
        if isinstance(values, np.ndarray) and values.dtype.kind == "f":
            for i in np.flatnonzero(np.isnan(values)):
                column[i] = None
        columns[name] = column
    return with_origin(columns, origin)

"""valid_rows: the same checks for frames that came from elsewhere."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from schemas.batch import RequestBatch
from schemas.frame import FrameHeader, RequestFrame, decode_frame, encode_request_frame
from streams.framing import EventFramer, valid_rows


def batch(n: int = 4) -> RequestBatch:
    lines = [
        json.dumps(
            {"kind": "request", "ts": 1000.0 + i, "pool": "p", "node": "n", "outcome": "ok", "ttft_s": 0.1, "tpot_s": 0.01,
             "output_tokens": 5, "adapter": "a"}
        ).encode()
        for i in range(n)
    ]  # fmt: skip
    return EventFramer().feed(lines).pools["p"].batch


def test_good_rows_pass_untouched() -> None:
    rows = batch()
    assert valid_rows(rows) == (rows, {})


@pytest.mark.parametrize(
    ("column", "value", "reason"),
    [
        ("ts_ns", -1, "bad_timestamp"),
        ("ts_ns", 2**63 - 1, "bad_timestamp"),
        ("ttft", np.inf, "nan_or_inf"),
        ("ttft", -np.inf, "nan_or_inf"),
        ("ttft", -0.5, "negative_latency"),
        ("ttft", 4000.0, "latency_too_large"),
        ("outcome", 8, "unknown_outcome"),
        ("node", 1, "bad_value"),
        ("adapter", 7, "bad_value"),
        ("tenant", 0, "bad_value"),
        ("probe", -2, "bad_value"),
    ],
)
def test_one_bad_row_goes_the_others_stay(column: str, value: Any, reason: str) -> None:
    rows = batch()
    if column == "ttft":
        rows.latency_s[0, 2] = value
    else:
        getattr(rows, column)[2] = value
    kept, rejects = valid_rows(rows)
    assert rejects == {reason: 1}
    assert kept.ts_ns.tolist() == [1000 * 10**9, 1001 * 10**9, 1003 * 10**9]


def test_unknown_is_not_refused() -> None:
    rows = batch()
    rows.latency_s[:] = np.nan
    assert valid_rows(rows)[1] == {}


def test_time_per_token_of_one_token_is_blanked_without_touching_the_input() -> None:
    raw = encode_request_frame(FrameHeader(pool="p", node="n"), replace(batch(), output_tokens=np.array([0, 1, 2, 3], np.uint32)))
    frame = decode_frame(raw)
    assert isinstance(frame, RequestFrame)
    kept, rejects = valid_rows(frame.batch)
    assert not rejects
    assert np.isnan(kept.latency_s[1]).tolist() == [True, True, False, False]
    assert not np.isnan(frame.batch.latency_s[1]).any()

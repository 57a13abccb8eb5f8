"""The short cut of `valid_rows` is taken only where the long way finds nothing, and it is taken for an ordinary frame."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from schemas.batch import NO_CODE, UNKNOWN_TOKENS, RequestBatch
from streams import framing_values
from streams.framing import valid_rows

N = 50


def batch(**columns: Any) -> RequestBatch:
    unknown = np.full(N, UNKNOWN_TOKENS, np.uint32)
    plain = RequestBatch(
        pool="p", nodes=["n"], node=np.zeros(N, np.uint32), ts_ns=np.arange(N, dtype=np.int64) + 10**18,
        latency_s=np.full((4, N), 0.5, np.float32), outcome=np.zeros(N, np.uint8), prompt_tokens=unknown,
        output_tokens=np.full(N, 20, np.uint32), cached_tokens=unknown, batch_size=unknown, probe=np.full(N, -1, np.int8),
        adapters=["a"], adapter=np.zeros(N, np.uint32), tenants=[], tenant=np.full(N, NO_CODE, np.uint32),
        session=np.zeros(N, np.uint32), kv_mismatch=np.zeros(N, np.bool_),
    )  # fmt: skip
    return replace(plain, **columns)


def with_one(array: Any, value: Any) -> Any:
    array[..., 7] = value
    return array


ODD: dict[str, dict[str, Any]] = {
    "negative": {"latency_s": with_one(np.full((4, N), 0.5, np.float32), -0.1)},
    "infinite": {"latency_s": with_one(np.full((4, N), 0.5, np.float32), np.inf)},
    "too long": {"latency_s": with_one(np.full((4, N), 0.5, np.float32), 3601.0)},
    "outcome": {"outcome": with_one(np.zeros(N, np.uint8), 99)},
    "before time": {"ts_ns": with_one(np.full(N, 10**18), -1)},
    "milliseconds": {"ts_ns": with_one(np.full(N, 10**18), 9_000_000_000 * 10**9)},
    "adapter": {"adapter": with_one(np.zeros(N, np.uint32), 3)},
    "tenant": {"tenant": with_one(np.full(N, NO_CODE, np.uint32), 0)},
    "probe": {"probe": with_one(np.zeros(N, np.int8), -2)},
    "one token": {"output_tokens": with_one(np.full(N, 20, np.uint32), 1)},
}


@pytest.mark.parametrize("name", ODD)
def test_what_is_odd_goes_the_long_way(name: str) -> None:
    odd = batch(**ODD[name])
    assert not framing_values._plain(odd)
    kept, refused = valid_rows(odd)
    assert len(kept) == N - 1 or (name == "one token" and np.isnan(kept.latency_s[1, 7]))
    assert sum(refused.values()) == N - len(kept)


@pytest.mark.parametrize(
    "columns",
    [
        {},
        {"latency_s": with_one(np.full((4, N), 0.5, np.float32), np.nan)},
        {"latency_s": with_one(np.full((4, N), 0.5, np.float32), -0.0)},
        {"latency_s": with_one(np.full((4, N), 0.5, np.float32), 3600.0)},
        {"adapter": with_one(np.zeros(N, np.uint32), NO_CODE)},
        {"tenants": ["t"], "tenant": with_one(np.full(N, NO_CODE, np.uint32), 0)},
    ],
)
def test_what_is_ordinary_takes_the_short_cut(columns: dict[str, Any]) -> None:
    given = batch(**columns)
    assert framing_values._plain(given)
    assert valid_rows(given) == (given, {})

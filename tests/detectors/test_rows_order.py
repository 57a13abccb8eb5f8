"""Rows are sorted by one key and ties by all; the result is what sorting by all keys gives, bit for bit."""

from __future__ import annotations

import numpy as np
import pytest

from detectors.rows import Rows


def rows(kind: str, n: int = 5000) -> Rows:
    rng = np.random.default_rng(3)
    latency_s = np.exp(rng.normal(size=(4, n))).astype(np.float32)
    if kind == "coarse":
        latency_s = np.round(latency_s, 1)
    if kind == "unknown":
        latency_s[3] = np.nan
        latency_s[2, ::2] = np.nan
    if kind == "all unknown":
        latency_s[:] = np.nan
    few = 50 if kind != "distinct" else 2**32 - 1
    return Rows(
        rng.integers(0, 20, n).astype(np.uint32), latency_s, rng.integers(0, few, n).astype(np.uint32),
        rng.integers(0, 9, n).astype(np.uint32), rng.integers(0, 4, n).astype(np.uint8), rng.integers(900, 930, n),
    )  # fmt: skip


def same(a: Rows, b: Rows) -> bool:
    return all(x.tobytes() == y.tobytes() for x, y in zip(a.arrays().values(), b.arrays().values(), strict=True))


@pytest.mark.parametrize("kind", ["distinct", "coarse", "unknown", "all unknown"])
def test_order_is_that_of_all_keys(kind: str) -> None:
    given = rows(kind)
    bits = given.latency_s.view(np.int32)
    assert same(given.canonical(), given.take(np.lexsort((*bits, given.output, given.tokens, given.node, given.slot))))
    most, counts = 20, np.bincount(given.node)
    ordered = given.take(np.lexsort((given.output, given.tokens, *bits, given.node)))
    place = np.arange(len(ordered)) - (np.cumsum(counts) - counts)[ordered.node]
    assert same(given.thinned(most), ordered.take(place % (-(-counts // most))[ordered.node] == 0))
    assert same(given.thinned(10**6), given)
    assert len(Rows.none().canonical()) == 0

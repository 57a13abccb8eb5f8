"""Coalesced rows say what they said in their frames."""

from __future__ import annotations

import numpy as np
import pytest

from schemas.batch import NO_CODE, RequestBatch
from streams.worker.coalesce import concat

WORDS = ["a", "b", "c", "d"]


def batch(rng: np.random.Generator, n: int, node: str) -> RequestBatch:
    words = [str(w) for w in rng.permutation(WORDS)[: rng.integers(0, 4)]]
    codes = rng.integers(0, len(words) + 1, n).astype(np.uint32)
    codes[codes == len(words)] = NO_CODE
    u32 = rng.integers(0, 9, n).astype(np.uint32)
    return RequestBatch(
        pool="p", nodes=[node], node=np.zeros(n, np.uint32), ts_ns=rng.integers(0, 9, n), latency_s=rng.random((4, n), np.float32),
        outcome=np.zeros(n, np.uint8), prompt_tokens=u32, output_tokens=u32 + 1, cached_tokens=u32 + 2, batch_size=u32 + 3,
        probe=np.zeros(n, np.int8), adapters=words, adapter=codes, tenants=words, tenant=codes, session=u32,
        kv_mismatch=np.zeros(n, np.bool_),
    )  # fmt: skip


def spelled(words: list[str], codes: np.ndarray) -> list[str | None]:
    return [None if c == NO_CODE else words[c] for c in codes]


@pytest.mark.parametrize("seed", range(20))
def test_rows_keep_their_words_and_values(seed: int) -> None:
    rng = np.random.default_rng(seed)
    parts = [batch(rng, int(rng.integers(1, 6)), str(rng.choice(["n1", "n2"]))) for _ in range(rng.integers(1, 7))]
    whole = concat(parts)
    assert len(whole) == sum(map(len, parts))
    for words, codes in (("nodes", "node"), ("adapters", "adapter"), ("tenants", "tenant")):
        expected = [w for p in parts for w in spelled(getattr(p, words), getattr(p, codes))]
        assert spelled(getattr(whole, words), getattr(whole, codes)) == expected
        assert len(set(getattr(whole, words))) == len(getattr(whole, words))
    assert np.array_equal(whole.latency_s, np.concatenate([p.latency_s for p in parts], axis=1))
    assert np.array_equal(whole.ts_ns, np.concatenate([p.ts_ns for p in parts]))
    assert np.array_equal(whole.batch_size, np.concatenate([p.batch_size for p in parts]))

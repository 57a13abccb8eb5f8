"""Many frames to one batch: the judge's cost is per call, so calls are made few."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from schemas.batch import NO_CODE, RequestBatch

__all__ = ["concat"]


def concat(batches: Sequence[RequestBatch]) -> RequestBatch:
    """One batch with the rows of all, in order, and merged dictionaries.

    Args:
        batches: At least one, all of the same pool.
    """
    if len(batches) == 1:
        return batches[0]
    nodes, node = _merge([b.nodes for b in batches], [b.node for b in batches])
    adapters, adapter = _merge([b.adapters for b in batches], [b.adapter for b in batches])
    tenants, tenant = _merge([b.tenants for b in batches], [b.tenant for b in batches])
    return RequestBatch(
        pool=batches[0].pool,
        nodes=nodes,
        node=node,
        ts_ns=np.concatenate([b.ts_ns for b in batches]),
        latency_s=np.concatenate([b.latency_s for b in batches], axis=1),
        outcome=np.concatenate([b.outcome for b in batches]),
        prompt_tokens=np.concatenate([b.prompt_tokens for b in batches]),
        output_tokens=np.concatenate([b.output_tokens for b in batches]),
        cached_tokens=np.concatenate([b.cached_tokens for b in batches]),
        batch_size=np.concatenate([b.batch_size for b in batches]),
        probe=np.concatenate([b.probe for b in batches]),
        adapters=adapters,
        adapter=adapter,
        tenants=tenants,
        tenant=tenant,
        session=np.concatenate([b.session for b in batches]),
        kv_mismatch=np.concatenate([b.kv_mismatch for b in batches]),
    )


def _merge(words: Sequence[list[str]], codes: Sequence[NDArray[np.uint32]]) -> tuple[list[str], NDArray[np.uint32]]:
    """One dictionary for all, and the codes in it; words in order of first appearance."""
    index: dict[str, int] = {}
    translated = []
    for some, coded in zip(words, codes, strict=True):
        table = np.fromiter((index.setdefault(word, len(index)) for word in some), np.uint32, len(some))
        if len(table) == 1 and not (coded == NO_CODE).any():
            translated.append(np.full(len(coded), table[0], np.uint32))
            continue
        absent = np.minimum(coded, len(table))  # NO_CODE points behind the last word
        translated.append(np.append(table, NO_CODE)[absent])
    return list(index), np.concatenate(translated)

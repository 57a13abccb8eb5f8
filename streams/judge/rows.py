"""Finished requests inside the judge: the columns it needs, with nodes numbered as the pool numbers them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from detectors.weights import Weight, joined, picked
from schemas.batch import NO_CODE, RequestBatch
from schemas.scopes import SESSION_BUCKETS
from streams.framing import stable_key
from streams.judge.columns import constant, is_constant, join

__all__ = ["Rows", "adapter_keys"]

_BUCKETS = np.uint32(SESSION_BUCKETS)
_COLUMNS: dict[str, type[np.generic]] = {
    "node": np.uint32,
    "ts_ns": np.int64,
    "outcome": np.uint8,
    "prompt_tokens": np.uint32,
    "cached_tokens": np.uint32,
    "output_tokens": np.uint32,
    "adapter_key": np.uint32,
    "adapter_no": np.uint16,
    "tenant_no": np.uint16,
    "session": np.uint16,
    "probe": np.int8,
    "kv_mismatch": np.bool_,
}


@dataclass(slots=True)
class Rows:
    """`n` requests in arrival order; columns as in `RequestBatch`, `node` is the pool's node index, `adapter_key` a stable
    hash (0 = none), `adapter_no` and `tenant_no` the pool's numbers of names (0 = none, or one too many), `session` the hash
    bucket of the session (`SESSION_BUCKETS` = none).
    """

    node: NDArray[np.uint32]
    ts_ns: NDArray[np.int64]
    outcome: NDArray[np.uint8]
    prompt_tokens: NDArray[np.uint32]
    cached_tokens: NDArray[np.uint32]
    output_tokens: NDArray[np.uint32]
    adapter_key: NDArray[np.uint32]
    adapter_no: NDArray[np.uint16]
    tenant_no: NDArray[np.uint16]
    session: NDArray[np.uint16]
    probe: NDArray[np.int8]
    kv_mismatch: NDArray[np.bool_]
    latency_s: NDArray[np.float32]
    """(4, n)."""
    weight: Weight = None
    """Requests that each row stands for; None where all stand for one."""

    def __len__(self) -> int:
        return len(self.ts_ns)

    @property
    def requests(self) -> int:
        """Requests that the rows stand for."""
        return len(self.ts_ns) if self.weight is None else int(self.weight.sum(dtype=np.int64))

    def take(self, rows: slice | NDArray[np.bool_] | NDArray[np.intp]) -> Rows:
        """The chosen rows."""
        columns = {name: getattr(self, name)[rows] for name in _COLUMNS}
        return Rows(**columns, latency_s=self.latency_s[:, rows], weight=picked(self.weight, rows))

    @classmethod
    def of_batch(
        cls, batch: RequestBatch, node: NDArray[np.uint32], adapter_key: NDArray[np.uint32], adapter_no: NDArray[np.uint16],
        tenant_no: NDArray[np.uint16],
    ) -> Rows:  # fmt: skip
        """Rows of `batch` with the pool's numbers of nodes, adapters and tenants."""
        if is_constant(batch.session) and batch.session[0] == 0:
            session = constant(np.uint16(SESSION_BUCKETS), len(batch))
        else:
            session = (batch.session % _BUCKETS).astype(np.uint16)
            session[batch.session == 0] = SESSION_BUCKETS
        return cls(
            node, batch.ts_ns, batch.outcome, batch.prompt_tokens, batch.cached_tokens, batch.output_tokens, adapter_key,
            adapter_no, tenant_no, session, batch.probe, batch.kv_mismatch, batch.latency_s, batch.weight,
        )  # fmt: skip

    @classmethod
    def concat(cls, parts: Sequence[Rows]) -> Rows:
        """All rows of `parts`, in order."""
        if len(parts) == 1:
            return parts[0]
        columns = {name: join([getattr(part, name) for part in parts]) for name in _COLUMNS}
        latency_s = np.concatenate([part.latency_s for part in parts], axis=1)
        return cls(**columns, latency_s=latency_s, weight=joined((part, part.weight) for part in parts))

    def dump(self) -> dict[str, bytes]:
        """Columns as bytes, for a snapshot."""
        names = (*_COLUMNS, "latency_s") if self.weight is None else (*_COLUMNS, "latency_s", "weight")
        return {name: np.ascontiguousarray(getattr(self, name)).tobytes() for name in names}

    @classmethod
    def load(cls, raw: dict[str, bytes]) -> Rows:
        """What `dump` wrote."""
        columns = {name: np.frombuffer(raw[name], dtype) for name, dtype in _COLUMNS.items()}
        weight = np.frombuffer(raw["weight"], np.uint32) if "weight" in raw else None
        return cls(**columns, latency_s=np.frombuffer(raw["latency_s"], np.float32).reshape(4, -1), weight=weight)


def adapter_keys(batch: RequestBatch, cache: dict[str, int]) -> NDArray[np.uint32]:
    """Stable key of the adapter of each row, uint32 (n,); 0 where there is none."""
    if not batch.adapters:
        return constant(np.uint32(0), len(batch))
    if len(cache) > 100_000:
        cache.clear()
    table = np.zeros(len(batch.adapters) + 1, np.uint32)
    for i, word in enumerate(batch.adapters):
        key = cache.get(word)
        if key is None:
            key = cache[word] = stable_key(word)
        table[i] = key
    return table[np.where(batch.adapter == NO_CODE, np.uint32(len(batch.adapters)), batch.adapter)]

"""Finished requests as columns: what frames decode to and what the judge folds into histograms."""

from __future__ import annotations

import zlib
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

__all__ = ["CONTRARY_ROUNDING", "LATENCY_SLIS", "MAX_HOST", "NO_CODE", "UNKNOWN_TOKENS", "RequestBatch", "host_number"]

LATENCY_SLIS: tuple[str, ...] = ("ttft_s", "tpot_s", "queue_s", "e2e_s")
"""Latency SLIs in column order; seconds."""

UNKNOWN_TOKENS = np.uint32(0xFFFFFFFF)
"""A token count that the source did not give."""

NO_CODE = np.uint32(0xFFFFFFFF)
"""Dictionary code of an absent string (no adapter, unknown tenant)."""

CONTRARY_ROUNDING = np.float32(1.01), np.float32(0.01)
"""A first token may seem later than the end by 1 % and 10 ms: the two are often rounded, or measured in different places."""

MAX_HOST = 127
"""Largest number of a host in the column `probe`."""


def host_number(host: str) -> int:
    """Number of a serving host, 2 to `MAX_HOST`, by CRC-32 of its name; two of a few hosts seldom share one."""
    return 2 + zlib.crc32(host.encode()) % (MAX_HOST - 1)


@dataclass(slots=True)
class RequestBatch:
    """`n` rows of one pool, in arrival order: finished requests, or groups of requests that are alike where there are weights.

    Attributes:
        pool: Pool of all rows.
        nodes: Node names; `node` indexes this list.
        node: Node of each row, uint32 (n,).
        ts_ns: Finish time, Unix nanoseconds, int64 (n,).
        latency_s: Seconds, float32 (4, n), rows in the order of `LATENCY_SLIS`; NaN where unknown.
        outcome: `Outcome` codes, uint8 (n,).
        prompt_tokens, output_tokens, cached_tokens: uint32 (n,), `UNKNOWN_TOKENS` where unknown.
        batch_size: uint32 (n,), `UNKNOWN_TOKENS` where unknown.
        probe: int8 (n,): 0 not a probe, -1 the source does not say; a probe is the number of the host that sent it
            (`host_number`, from 2), 1 where that is not named.
        adapters, tenants: Dictionaries of strings; `adapter`, `tenant` uint32 (n,) index them, `NO_CODE` where absent.
        session: 32-bit hash of the session, uint32 (n,); 0 where absent.
        kv_mismatch: bool (n,): the request read a KV slot that was not its own.
        weight: uint32 (n,), from 1: how many requests that are alike a row stands for (`schemas.sketch`); None where every
            row is one request.
    """

    pool: str
    nodes: list[str]
    node: NDArray[np.uint32]
    ts_ns: NDArray[np.int64]
    latency_s: NDArray[np.float32]
    outcome: NDArray[np.uint8]
    prompt_tokens: NDArray[np.uint32]
    output_tokens: NDArray[np.uint32]
    cached_tokens: NDArray[np.uint32]
    batch_size: NDArray[np.uint32]
    probe: NDArray[np.int8]
    adapters: list[str]
    adapter: NDArray[np.uint32]
    tenants: list[str]
    tenant: NDArray[np.uint32]
    session: NDArray[np.uint32]
    kv_mismatch: NDArray[np.bool_]
    weight: NDArray[np.uint32] | None = None

    def __len__(self) -> int:
        return len(self.ts_ns)

    @property
    def requests(self) -> int:
        """Requests that the rows stand for."""
        return len(self.ts_ns) if self.weight is None else int(self.weight.sum(dtype=np.int64))

    def take(self, rows: slice | NDArray[np.intp] | NDArray[np.bool_]) -> RequestBatch:
        """The chosen rows, with the same dictionaries."""
        return RequestBatch(
            pool=self.pool,
            nodes=self.nodes,
            node=self.node[rows],
            ts_ns=self.ts_ns[rows],
            latency_s=self.latency_s[:, rows],
            outcome=self.outcome[rows],
            prompt_tokens=self.prompt_tokens[rows],
            output_tokens=self.output_tokens[rows],
            cached_tokens=self.cached_tokens[rows],
            batch_size=self.batch_size[rows],
            probe=self.probe[rows],
            adapters=self.adapters,
            adapter=self.adapter[rows],
            tenants=self.tenants,
            tenant=self.tenant[rows],
            session=self.session[rows],
            kv_mismatch=self.kv_mismatch[rows],
            weight=None if self.weight is None else self.weight[rows],
        )

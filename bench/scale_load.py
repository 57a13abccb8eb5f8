"""Telemetry of a made-up fleet as frames, tick by tick: what the growth and archive benchmarks feed to the judge.

Four latencies, lognormal, each node with a level of its own that wobbles by some per cent; prompt lengths spread over as many
strata as asked for. Everything follows from the seed.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from schemas.batch import NO_CODE, UNKNOWN_TOKENS, RequestBatch
from schemas.frame import FrameHeader, encode_request_frame

__all__ = ["LoadShape", "batches", "frames"]

T0_S = 1_796_000_000.0
_MEDIAN_S = np.log(np.array([0.2, 0.02, 0.01, 2.0], np.float32))[:, None]


@dataclass(frozen=True)
class LoadShape:
    """One pool's traffic.

    Attributes:
        pool: Name.
        nodes: Nodes.
        requests_per_tick: Requests of a node in a tick, and so the rows of its frame.
        slis: Latencies that are reported, 1 to 4; the others are unknown (NaN).
        adapters: LoRA adapters; with prompt lengths they make the strata.
        tick_s: Length of a tick, seconds.
        first_node: Number of the first node.
    """

    pool: str
    nodes: int
    requests_per_tick: int
    slis: int = 4
    adapters: int = 0
    tick_s: float = 5.0
    first_node: int = 0


def batches(shape: LoadShape, ticks: range, seed: int) -> Iterator[tuple[int, int, RequestBatch]]:
    """(tick, node, its requests of that tick), in the order of time; nodes in turn."""
    rng = np.random.default_rng([seed, shape.nodes, shape.first_node])
    n = shape.requests_per_tick
    level = rng.normal(0.0, 0.1, (shape.nodes, 4, 1)).astype(np.float32)
    unknown = np.full(n, UNKNOWN_TOKENS, np.uint32)
    adapters = [f"lora-{i}" for i in range(shape.adapters)]
    for tick in ticks:
        wobble = 0.03 * np.sin(tick / 40.0 + np.arange(shape.nodes))
        for node in range(shape.nodes):
            noise = rng.standard_normal((4, n), dtype=np.float32) * np.float32(0.35)
            latency_s = np.exp(_MEDIAN_S + level[node] + np.float32(wobble[node]) + noise)
            latency_s[shape.slis :] = np.nan
            offset_ns = np.sort(rng.integers(0, int(shape.tick_s * 999_000_000), n))
            tokens = rng.lognormal(6.3, 0.8, (2, n)).astype(np.uint32) + 2
            adapter = rng.integers(0, shape.adapters, n).astype(np.uint32) if adapters else np.full(n, NO_CODE, np.uint32)
            yield (
                tick,
                node,
                RequestBatch(
                    pool=shape.pool, nodes=[f"gpu-{shape.first_node + node:05d}"], node=np.zeros(n, np.uint32),
                    ts_ns=round((T0_S + tick * shape.tick_s) * 1e9) + offset_ns, latency_s=latency_s,
                    outcome=np.zeros(n, np.uint8), prompt_tokens=tokens[0], output_tokens=tokens[1], cached_tokens=unknown,
                    batch_size=unknown, probe=np.full(n, -1, np.int8), adapters=adapters, adapter=adapter, tenants=[],
                    tenant=unknown, session=rng.integers(1, 1 << 30, n).astype(np.uint32), kv_mismatch=np.zeros(n, np.bool_),
                ),
            )  # fmt: skip


def frames(shape: LoadShape, ticks: range, seed: int, split: int = 1) -> Iterator[tuple[int, bytes]]:
    """(tick, frame) in the order of time; a node's requests of a tick in `split` frames."""
    for tick, _, batch in batches(shape, ticks, seed):
        for part, rows in enumerate(np.array_split(np.arange(len(batch)), split)):
            header = FrameHeader(pool=shape.pool, node=batch.nodes[0], boot_id="b", seq=tick * split + part)
            yield tick, encode_request_frame(header, batch.take(slice(int(rows[0]), int(rows[-1]) + 1)))

"""Episodes of benchmark A: one node for 40 minutes, healthy or with a fault in the last ten.

Ticks of 10 s: 180 to get used to the node, then 60 that are scored. Requests a tick are Poisson(10 * rate); latency is
lognormal with median 40 ms and sigma 0.45, times exp(z), z an AR(1) per node (0.95 a tick, stationary sd = wobble); one request
in 1,000 fails. An episode is a node of a pool: each pool has 50 healthy nodes and one of each of eight faults, all independent.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from schemas.batch import LATENCY_SLIS, NO_CODE, UNKNOWN_TOKENS, RequestBatch
from schemas.outcome import Outcome

__all__ = ["FAULTS", "HEALTHY", "POOL_NODES", "SCORED", "SLO_S", "START_S", "TICK_S", "WARM", "Tick", "episodes", "to_batch"]

TICK_S = 10.0
WARM, SCORED = 180, 60
SLO_S = 0.2
START_S = 1_767_225_600.0
HEALTHY = 50
_MEDIAN_S, _SIGMA, _RHO, _ERRORS = 0.04, 0.45, 0.95, 0.001

Floats32 = NDArray[np.float32]
Bools = NDArray[np.bool_]
Fault = Callable[[Floats32, Bools, np.random.Generator], None]


def _scale(factor: float) -> Fault:
    def apply(latency: Floats32, failed: Bools, rng: np.random.Generator) -> None:
        latency *= factor

    return apply


def _tail(share: float) -> Fault:
    def apply(latency: Floats32, failed: Bools, rng: np.random.Generator) -> None:
        latency[rng.random(len(latency)) < share] *= 15

    return apply


def _errors(share: float) -> Fault:
    def apply(latency: Floats32, failed: Bools, rng: np.random.Generator) -> None:
        failed |= rng.random(len(latency)) < share

    return apply


def _stall(share: float) -> Fault:
    def apply(latency: Floats32, failed: Bools, rng: np.random.Generator) -> None:
        stalled = rng.random(len(latency)) < share
        latency[stalled] += 2.0
        failed |= stalled & (rng.random(len(latency)) < 0.5)

    return apply


FAULTS: dict[str, Fault] = {
    "x2": _scale(2), "x4": _scale(4), "tail 2 %": _tail(0.02), "tail 10 %": _tail(0.10),
    "errors 5 %": _errors(0.05), "errors 20 %": _errors(0.20), "stall 5 %": _stall(0.05), "stall 30 %": _stall(0.30),
}  # fmt: skip
"""Each changes latencies (seconds) and failures of a node's requests in place."""

POOL_NODES = HEALTHY + len(FAULTS)
"""Nodes from `HEALTHY` onwards are the faulty ones, in the order of `FAULTS`."""


@dataclass(frozen=True)
class Tick:
    """Requests of one tick of a pool, in order of time.

    Attributes:
        index: From 0; the faults begin at `WARM`.
        node: uint32 (n,).
        ts_s: Seconds since the start, float64 (n,).
        latency_s: float32 (n,).
        failed: bool (n,).
    """

    index: int
    node: NDArray[np.uint32]
    ts_s: NDArray[np.float64]
    latency_s: Floats32
    failed: Bools


def episodes(rate: float, wobble: float, seed: int, pool: int) -> Iterator[Tick]:
    """The ticks of pool number `pool`."""
    rng = np.random.default_rng([seed, pool, round(rate * 1000), round(wobble * 1000)])
    z = wobble * rng.standard_normal(POOL_NODES)
    for index in range(WARM + SCORED):
        n = int(rng.poisson(TICK_S * rate * POOL_NODES))
        node = rng.integers(0, POOL_NODES, n, dtype=np.uint32)
        latency = np.exp(_SIGMA * rng.standard_normal(n, np.float32) + (math.log(_MEDIAN_S) + z)[node].astype(np.float32))
        failed = rng.random(n) < _ERRORS
        if index >= WARM:
            for i, fault in enumerate(FAULTS.values()):
                rows = np.flatnonzero(node == HEALTHY + i)
                its_latency, its_failed = latency[rows], failed[rows]
                fault(its_latency, its_failed, rng)
                latency[rows], failed[rows] = its_latency, its_failed
        yield Tick(index, node, (index + (np.arange(n) + 0.5) / max(n, 1)) * TICK_S, latency, failed)
        z = _RHO * z + math.sqrt(1 - _RHO**2) * wobble * rng.standard_normal(POOL_NODES)


def to_batch(tick: Tick, pool: str) -> RequestBatch:
    """The tick as the judge takes it; the latency is `e2e_s`, other columns are unknown."""
    n = len(tick.node)
    latency = np.full((len(LATENCY_SLIS), n), np.nan, np.float32)
    latency[LATENCY_SLIS.index("e2e_s")] = tick.latency_s
    unknown = np.full(n, UNKNOWN_TOKENS, np.uint32)
    absent = np.full(n, NO_CODE, np.uint32)
    return RequestBatch(
        pool=pool,
        nodes=[f"node-{i:03d}" for i in range(POOL_NODES)],
        node=tick.node,
        ts_ns=np.round((START_S + tick.ts_s) * 1e6).astype(np.int64) * 1000,
        latency_s=latency,
        outcome=np.where(tick.failed, int(Outcome.SERVER_ERROR), int(Outcome.OK)).astype(np.uint8),
        prompt_tokens=unknown,
        output_tokens=unknown,
        cached_tokens=unknown,
        batch_size=unknown,
        probe=np.full(n, -1, np.int8),
        adapters=[],
        adapter=absent,
        tenants=[],
        tenant=absent,
        session=np.zeros(n, np.uint32),
        kv_mismatch=np.zeros(n, np.bool_),
    )

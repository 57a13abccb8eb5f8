"""The intervals of a comparison hold the truth as often as they say, also when requests of the same minute share congestion."""

from __future__ import annotations

import numpy as np
import pytest

from schemas.policy import PoolPolicy
from streams.compare.judge import compare, parse_tolerances
from streams.compare.recording import Recording

PAIRS = 40
N, SECONDS = 4000, 1200


def recording(rng: np.random.Generator, wobble: float, longer_nats: float = 0.0) -> Recording:
    """Latency grows with the prompt; log-latency also follows an AR(1) with a memory of 50 s and the deviation `wobble`."""
    ts = np.sort(rng.uniform(0, SECONDS, N))
    congestion = np.zeros(SECONDS + 1)
    for t in range(1, SECONDS + 1):
        congestion[t] = 0.98 * congestion[t - 1] + wobble * np.sqrt(1 - 0.98**2) * rng.normal()
    tokens = np.exp(rng.normal(6 + longer_nats, 0.8, N))
    latency = np.full((4, N), np.nan, np.float32)
    latency[0] = (0.02 + 2e-4 * tokens) * np.exp(0.2 * rng.normal(size=N) + congestion[ts.astype(int)])
    no = np.zeros(N, np.bool_)
    output = np.zeros(N, np.uint32)
    return Recording((ts * 1e9).astype(np.int64), latency, ~no, no, no, tokens.astype(np.uint32), output, no)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("wobble", "longer_nats"), [(0.0, 0.0), (0.15, 0.0), (0.15, 0.3)], ids=["independent", "congestion", "longer prompts"]
)
def test_intervals_hold_together(wobble: float, longer_nats: float) -> None:
    by_service = longer_nats > 0
    held = outside = 0
    for seed in range(PAIRS):
        rng = np.random.default_rng(seed)
        sides = [{"p": recording(rng, wobble, longer)} for longer in (0.0, longer_nats)]
        found = compare(
            *sides, lambda pool: PoolPolicy(), names=("a", "b"), tolerances=parse_tolerances(["p50=0,p95=0,p99=0"]),
            confidence=0.95, by_service=by_service, rng=rng,
        )  # fmt: skip
        rows = [m for m in found.pools[0].measures if m.unit == "ratio"]
        bounds = [(m.service_low, m.service_high) if by_service else (m.change_low, m.change_high) for m in rows]
        held += all((low is None or low <= 0) and (high is None or high >= 0) for low, high in bounds)
        outside += found.verdict == "outside"
    assert held >= 0.9 * PAIRS  # 95 % wanted, less two standard errors of so few pairs
    assert outside <= 0.1 * PAIRS

"""Nodes get their baselines from a set of requests: the order in which these arrived is no part of it."""

from __future__ import annotations

import numpy as np

from detectors.learning import graduate
from detectors.model import PoolModel
from detectors.rows import Rows
from detectors.state import BankState

M = 5
N = 25_000
"""More than a fit reads: it takes every so many-th row."""


def learned(log: Rows) -> tuple[PoolModel, BankState]:
    state, model, ready = BankState.empty(M, 2, 8), PoolModel(8), np.ones(M, np.bool_)
    ready[0] = False
    state.born[:M] = 0
    assert len(graduate(state, model, log, ready, 5.0)) == 0
    return model, state


def test_a_baseline_does_not_depend_on_the_order_of_requests() -> None:
    rng = np.random.default_rng(7)
    tokens = rng.integers(1, 4000, N).astype(np.uint32)
    latency_s = (np.exp(rng.normal(0, 0.4, (4, N))) * (0.05 + tokens * 1e-4)).astype(np.float32)
    log = Rows(
        rng.integers(0, M - 1, N).astype(np.uint32), latency_s, tokens, rng.integers(1, 900, N).astype(np.uint32),
        rng.integers(0, 8, N).astype(np.uint8), rng.integers(0, 60, N),
    )  # fmt: skip
    (model, state), (other_model, other_state) = learned(log), learned(log.take(rng.permutation(N)))
    assert model.coefficients.tobytes() == other_model.coefficients.tobytes()
    assert state.base.any()
    for name in ("base", "base_sum", "offset", "wobble"):
        assert getattr(state, name).tobytes() == getattr(other_state, name).tobytes(), name

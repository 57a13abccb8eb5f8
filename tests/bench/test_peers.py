"""Peers see what anyone would see, and the dummy sees nothing."""

from __future__ import annotations

import numpy as np
import pytest

from bench.nab_published import relative_entropy, windowed_gaussian
from bench.peers import PEERS, every, grimshaw


@pytest.fixture
def shifted() -> np.ndarray:
    rng = np.random.default_rng(1)
    return np.r_[rng.normal(0, 1, 700), rng.normal(8, 1, 100)]


@pytest.mark.parametrize("name", [n for n in PEERS if "KSWIN" not in n])
def test_peers_score_a_large_shift_above_what_came_before(name: str, shifted: np.ndarray) -> None:
    scores = PEERS[name](shifted)
    assert scores.shape == shifted.shape
    assert np.isfinite(scores).all()
    assert scores[700:760].max() > np.quantile(scores[200:700], 0.99)


@pytest.mark.parametrize("shape", [0.0, 0.3, -0.2])
def test_grimshaw_recovers_the_law(shape: float) -> None:
    u = np.random.default_rng(3).random(5000)
    excess = -2.0 * np.log(u) if shape == 0 else 2.0 * (u**-shape - 1.0) / shape
    assert grimshaw(excess) == pytest.approx((shape, 2.0), abs=0.15)


def test_dummy_alarms_on_a_timer() -> None:
    assert np.flatnonzero(every(10)(np.zeros(35))).tolist() == [9, 19, 29]


def test_rebuilt_published_detectors(shifted: np.ndarray) -> None:
    assert windowed_gaussian(shifted)[700] > 0.9999
    assert relative_entropy(shifted)[700:740].max() == 1.0
    assert not relative_entropy(np.ones(100)).any()

"""Tail probabilities from the largest values: calibrated on exchangeable data, silent without enough of it."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from detectors.peaks import Peaks


@pytest.mark.parametrize("draw", [np.random.Generator.standard_normal, np.random.Generator.standard_exponential])
def test_surprise_is_calibrated_on_exchangeable_values(draw: object) -> None:
    rng = np.random.default_rng(7)
    peaks = Peaks(400, k=30, min_n=100)
    surprises = np.array([peaks.update(draw(rng, 400)) for _ in range(1500)])[200:]  # type: ignore[operator]
    for p in (1e-2, 1e-3):
        assert (surprises >= np.log(1 / p)).mean() == pytest.approx(p, rel=0.5), p
    assert (surprises >= np.log(1 / 1e-4)).mean() < 2.5e-4


def test_heavier_tails_are_told_apart_from_outliers() -> None:
    rng = np.random.default_rng(1)
    heavy, light = Peaks(1, max_shape=0.5), Peaks(1, max_shape=0.5)
    for _ in range(2000):
        heavy.update(rng.pareto(3.0, 1))
        light.update(rng.exponential(1.0, 1))
    assert light.update(np.array([25.0]))[0] > heavy.update(np.array([25.0]))[0] + 2


def test_silent_while_there_is_too_little_and_for_unknown_values() -> None:
    peaks = Peaks(2, k=10, min_n=50)
    rng = np.random.default_rng(0)
    for _ in range(49):
        assert peaks.update(np.array([rng.normal(), np.nan])).tolist() == [0.0, 0.0]
    assert peaks.update(np.array([1e9, 1e9]))[1] == 0.0, "the second series has no history yet"
    assert peaks.update(np.array([1e12, np.nan]))[0] > 5


def test_a_constant_statistic_is_never_surprising_until_it_moves() -> None:
    peaks = Peaks(1)
    for _ in range(500):
        assert peaks.update(np.zeros(1))[0] == 0.0
    assert np.isfinite(peaks.update(np.ones(1))[0])


@settings(max_examples=60, deadline=None)
@given(arrays(np.float64, (80, 3), elements=st.floats(allow_nan=True, allow_infinity=True)))
def test_any_input_gives_finite_surprise_of_at_least_zero(values: np.ndarray) -> None:
    peaks = Peaks(3, k=5, min_n=10)
    surprise = np.array([peaks.update(v) for v in values])
    assert np.isfinite(surprise).all()
    assert (surprise >= 0).all()

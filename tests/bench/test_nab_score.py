"""The NAB scorer: against a slow transcription of the rules, against hand-made cases, and against published results."""

from __future__ import annotations

import math
import os
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bench.nab_corpus import NabFile, load_corpus
from bench.nab_score import PROFILES, Profile, join_rows, normalise, rows_of, score_at, sweep

STANDARD = PROFILES[0]


def file_of(n: int, windows: tuple[tuple[int, int], ...]) -> NabFile:
    return NabFile("f", np.arange(n, dtype=np.float64), np.zeros(n), windows)


def sigmoid_gain(x: float) -> float:
    return -1.0 if x >= 3.0 else 2.0 / (1.0 + math.exp(5.0 * x)) - 1.0


def slow_score(file: NabFile, scores: np.ndarray, threshold: float, profile: Profile) -> float:
    """The rules, row by row."""
    n = len(scores)
    probation = min(math.floor(0.15 * n), 0.15 * 5000)
    total, best = 0.0, {}
    for a, b in file.windows:
        if any(i >= probation for i in range(a, b + 1)):
            best[a, b] = -profile.fn
    for i in range(n):
        if i < probation or scores[i] < threshold:
            continue
        inside = next(((a, b) for a, b in file.windows if a <= i <= b), None)
        if inside:
            a, b = inside
            gain = sigmoid_gain(-(b - i + 1) / (b - a + 1)) / sigmoid_gain(-1.0)
            best[inside] = max(best[inside], gain)
        else:
            before = [(a, b) for a, b in file.windows if b < i]
            distance = (i - before[-1][1]) / (before[-1][1] - before[-1][0]) if before else 3.0
            total += profile.fp * sigmoid_gain(distance)
    return total + sum(best.values())


windows = st.sampled_from([(), ((40, 49),), ((0, 5), (60, 80)), ((30, 40), (45, 60), (90, 99)), ((10, 20),)])


@settings(max_examples=80, deadline=None)
@given(windows, st.integers(0, 2**32 - 1), st.sampled_from(PROFILES), st.integers(2, 12))
def test_equals_the_rules_row_by_row(spans: tuple[tuple[int, int], ...], seed: int, profile: Profile, levels: int) -> None:
    file = file_of(100, spans)
    scores = np.random.default_rng(seed).integers(0, levels, 100) / levels
    rows = rows_of(file, scores)
    outcomes = {1.1: slow_score(file, scores, 1.1, profile)}
    for t in np.unique(scores):
        outcomes[float(t)] = slow_score(file, scores, float(t), profile)
        assert score_at(rows, float(t), profile)[0] == pytest.approx(outcomes[float(t)], abs=1e-9)
    best = sweep(rows, profile)
    assert best.raw == pytest.approx(max(outcomes.values()), abs=1e-9)
    assert outcomes[best.threshold] == pytest.approx(best.raw, abs=1e-9)


def test_silence_is_0_and_a_detection_at_every_window_start_is_100() -> None:
    file = file_of(100, ((40, 49), (70, 79)))
    assert sweep(rows_of(file, np.zeros(100)), STANDARD).normalised == 0.0
    perfect = np.zeros(100)
    perfect[[40, 70]] = 1.0
    best = sweep(rows_of(file, perfect), STANDARD)
    assert best.normalised == pytest.approx(100.0)
    assert score_at(rows_of(file, perfect), 1.0, STANDARD)[1:] == (2, 0, 18)


def test_files_are_joined_with_one_threshold_and_their_own_windows() -> None:
    one, two = file_of(100, ((40, 49),)), file_of(100, ((40, 49),))
    a, b = np.zeros(100), np.zeros(100)
    a[40], b[40] = 0.9, 0.5
    joined = join_rows([rows_of(one, a), rows_of(two, b)])
    assert joined.n_windows == 2
    assert sweep(joined, STANDARD).threshold == 0.5
    assert score_at(joined, 0.9, STANDARD)[0] == pytest.approx(0.0)
    assert normalise(0.0, 2, STANDARD) == 50.0


def test_dropping_quiet_rows_changes_nothing_above_the_floor() -> None:
    file = file_of(400, ((100, 130), (300, 320)))
    rows = rows_of(file, np.random.default_rng(1).random(400))
    for t in (0.7, 0.9, 0.99):
        assert score_at(rows.loud(0.7), t, STANDARD)[0] == pytest.approx(score_at(rows, t, STANDARD)[0])


def test_one_score_a_row() -> None:
    with pytest.raises(ValueError, match="99 anomaly scores for 100 rows"):
        rows_of(file_of(100, ()), np.zeros(99))


@pytest.mark.data
@pytest.mark.slow
def test_published_results_are_reproduced() -> None:
    from bench.nab import prove_scorer

    root = os.environ.get("SLODRIFT_DATA")
    if not root:
        pytest.skip("SLODRIFT_DATA is not set")
    folder = Path(root) / "nab"
    worst, different = prove_scorer(load_corpus(folder), folder)
    assert worst < 1e-6
    assert different == 0

"""Running series mode over recordings, and thinning."""

from __future__ import annotations

import numpy as np

from bench.series_mode import step_of, surprises, thin
from detectors.series import SeriesDetector, SeriesSettings

SMALL = SeriesSettings(min_rows=20, peaks=10)


def test_thinning_keeps_the_alarms_of_a_detector_with_that_threshold() -> None:
    rng = np.random.default_rng(4)
    for _ in range(50):
        scores = np.round(rng.exponential(1.0, 200), 1)
        for threshold in (1.0, 2.0, 3.0):
            expected, quiet_until, level = [], -1, 0.0
            for i, s in enumerate(scores):
                if s >= threshold and (i > quiet_until or s > level):
                    expected.append(i)
                    quiet_until, level = i + 10, s
            assert np.flatnonzero(thin(scores, 10, 1.0) >= threshold).tolist() == expected


def test_recordings_with_other_steps_and_lengths_run_side_by_side() -> None:
    rng = np.random.default_rng(2)
    series = [(np.arange(n) * step, rng.normal(size=n)) for n, step in ((400, 300.0), (300, 3600.0), (350, 300.0))]
    found = surprises(series, SMALL)
    assert [f.shape for f in found] == [(400, 3), (300, 3), (350, 3)]
    detector = SeriesDetector(1, 3600.0, SMALL)
    alone = [detector.update(np.array([i]), np.array([v])).surprise_nats[0] for i, v in enumerate(series[1][1])]
    np.testing.assert_array_equal(found[1], np.array(alone))


def test_clocks_put_back_do_not_stop_it() -> None:
    times = np.r_[np.arange(100), np.arange(90, 300)] * 300.0
    assert step_of(times) == 300.0
    assert len(surprises([(times, np.random.default_rng(0).normal(size=len(times)))], SMALL)[0]) == 310

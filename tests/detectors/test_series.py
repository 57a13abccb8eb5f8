"""Series mode: sees spikes, level shifts, missing peaks and changed spread; silent on what it has seen before."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from detectors.series import VIEWS, SeriesDetector, SeriesSettings

STEP_S = 300.0
DAY = 288


def world(days: int, seed: int = 3, season: float = 0.0) -> NDArray[np.float64]:
    rng = np.random.default_rng(seed)
    rows = np.arange(days * DAY)
    return 10.0 + season * np.sin(2 * np.pi * rows / DAY) + rng.normal(0, 0.5, len(rows))


def run(values: NDArray[np.float64], settings: SeriesSettings | None = None) -> tuple[NDArray[np.bool_], NDArray[np.float64]]:
    detector = SeriesDetector(1, STEP_S, settings)
    ticks = [detector.update(np.array([i]), np.array([v])) for i, v in enumerate(values)]
    return np.array([t.alarm[0] for t in ticks]), np.array([t.surprise_nats[0] for t in ticks])


def test_alarms_on_a_quiet_series_keep_near_the_target() -> None:
    detector = SeriesDetector(60, STEP_S)
    rng = np.random.default_rng(5)
    alarms = sum(int(detector.update(np.full(60, i), 10 + rng.normal(0, 0.5, 60)).alarm.sum()) for i in range(8 * DAY))
    assert alarms / (60 * 8) <= 2 * SeriesSettings().false_alarms_per_day


def test_spike_is_seen_at_once_by_the_point_view() -> None:
    values = world(6, season=3.0)
    values[5 * DAY + 100] += 5.0
    alarm, surprise = run(values)
    assert alarm[5 * DAY + 100]
    assert surprise[5 * DAY + 100].argmax() == VIEWS.index("point")


def test_a_missing_daily_peak_is_odd_although_the_value_is_common() -> None:
    values = world(7, season=3.0)
    noon = 6 * DAY + DAY // 4
    values[noon - 20 : noon + 20] = 10.0
    alarm, _ = run(values)
    assert alarm[noon - 20 : noon + 20].any()


def test_small_level_shift_is_seen_by_the_level_view_within_hours() -> None:
    values = world(6)
    values[5 * DAY :] += 1.0  # two standard deviations: no single value is out of the ordinary
    alarm, surprise = run(values)
    first = 5 * DAY + int(np.argmax(alarm[5 * DAY :]))
    assert first < 5 * DAY + 48
    level = surprise[:, VIEWS.index("level")]
    assert level[5 * DAY : 5 * DAY + 48].max() > level[: 5 * DAY].max() + 1


def test_changed_spread_at_the_same_mean_is_seen_by_the_distribution_view() -> None:
    values = world(6)
    rng = np.random.default_rng(9)
    values[5 * DAY : 5 * DAY + 24] = 10.0 + rng.choice([-0.9, 0.9], 24)  # inside the usual range, never in its middle
    _, surprise = run(values)
    during = surprise[5 * DAY : 5 * DAY + 24]
    assert during[:, VIEWS.index("distribution")].max() > 6
    assert during[:, VIEWS.index("point")].max() < 4


def test_a_refractory_alarm_is_only_overruled_by_a_stronger_one() -> None:
    values = world(6)
    values[5 * DAY + np.array([10, 12, 14])] += np.array([6.0, 5.0, 60.0])
    alarm, _ = run(values)
    assert alarm[5 * DAY + np.array([10, 12, 14])].tolist() == [True, False, True]


def test_direction() -> None:
    detector = SeriesDetector(2, STEP_S)
    for i, v in enumerate(world(2)):
        detector.update(np.array([i, i]), np.array([v, v]))
    tick = detector.update(np.array([2 * DAY, 2 * DAY]), np.array([30.0, -30.0]))
    assert tick.above.tolist() == [True, False]
    assert tick.alarm.tolist() == [True, True]


def test_series_are_independent_and_gaps_change_nothing_else() -> None:
    a, b = world(3, seed=1), world(3, seed=2)
    both = SeriesDetector(2, STEP_S)
    alone = SeriesDetector(1, STEP_S)
    for i in range(3 * DAY):
        value_b = b[i] if i % 3 else np.nan
        pair = both.update(np.array([i, i]), np.array([a[i], value_b]))
        single = alone.update(np.array([i]), np.array([a[i]]))
        np.testing.assert_array_equal(pair.surprise_nats[0], single.surprise_nats[0])
        assert i % 3 or not pair.surprise_nats[1].any()


def test_a_silent_week_leaves_no_reference_to_compare_with() -> None:
    detector = SeriesDetector(1, STEP_S)
    for i, v in enumerate(world(3)):
        detector.update(np.array([i]), np.array([v]))
    later = 3 * DAY + 20 * DAY
    tick = detector.update(np.array([later]), np.array([500.0]))
    assert tick.surprise_nats[0, VIEWS.index("point")] == 0.0
    assert tick.surprise_nats[0, VIEWS.index("level")] > 5, "the level still tells"


def test_hourly_and_constant_series() -> None:
    hourly = SeriesDetector(1, 3600.0)
    for i in range(24 * 30):
        assert not hourly.update(np.array([i]), np.array([5.0])).alarm[0]
    assert hourly.update(np.array([24 * 30]), np.array([6.0])).alarm[0]


@pytest.mark.parametrize("step_s", [0.0, 5.0, 59.0, 90_000.0])
def test_steps_it_is_not_made_for_are_refused(step_s: float) -> None:
    with pytest.raises(ValueError, match="60 s to a day"):
        SeriesDetector(1, step_s)

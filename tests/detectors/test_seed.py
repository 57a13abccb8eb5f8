import numpy as np
import pytest

from detectors import seed


def test_divergence_is_in_the_published_direction():
    base, now = np.array([50, 50]), np.array([90, 10])
    assert seed.kl_nats(base, now) == pytest.approx(0.5 * np.log(0.5 / 0.9) + 0.5 * np.log(0.5 / 0.1), abs=1e-6)


def test_empty_cells_cost_the_published_epsilon():
    assert seed.kl_nats(np.array([50, 50]), np.array([100, 0])) == pytest.approx(
        0.5 * np.log(0.5) + 0.5 * np.log(0.5e10), abs=1e-4
    )


def test_three_periods_in_a_row():
    periods = np.zeros(1, int)
    seen = []
    for kl in (0.2, 0.2, 0.1, 0.2, 0.2, 0.2, 0.2):
        periods = seed.count_periods(periods, np.array([kl]))
        seen.append(int(periods[0]))
    assert seen == [1, 2, 0, 1, 2, 3, 4]


@pytest.mark.parametrize(
    ("periods", "p999", "failures", "trips"), [(3, 2.0, 4, True), (2, 2.0, 4, False), (3, 1.0, 4, False), (3, 2.0, 3, False)]
)
def test_all_three_conditions_are_needed(periods, p999, failures, trips):
    threshold = seed.tail_threshold_s(np.array([1.0]), np.array([0.2]))
    assert threshold[0] == pytest.approx(1.364)
    assert seed.trips(np.array([periods]), np.array([p999]), threshold, np.array([failures]))[0] == trips


def test_small_windows_alarm_without_any_drift():
    """50 samples, 20 bins: the published rule exceeds its threshold in almost every window of an undrifted series."""
    rng = np.random.default_rng(0)
    p = np.full(20, 0.05)
    kl = seed.kl_nats(rng.multinomial(1000, p, 4000), rng.multinomial(50, p, 4000))
    assert (kl > seed.KL_NATS).mean() == pytest.approx(0.97, abs=0.03)

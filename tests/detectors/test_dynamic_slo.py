import numpy as np
import pytest

from detectors import dynamic_slo


def test_published_form():
    found = dynamic_slo.seed_slo_s(np.full(4, 2.0), np.array([0.0, 0.1, 0.15, 3.0]))
    assert found == pytest.approx([2.0, 2.5, 2.75, 2.75])


def test_repaired_form_follows_the_workload_alone_and_stays_under_the_ceiling():
    base, kl_mix = np.full(5, 2.0), np.array([0.0, 0.1, 3.0, -0.02, np.nan])
    calm = np.zeros(5, bool)
    assert dynamic_slo.repaired_slo_s(base, kl_mix, 10.0, tightening=calm) == pytest.approx([2.0, 2.5, 2.75, 2.0, 2.0])
    assert dynamic_slo.repaired_slo_s(base, kl_mix, 2.6, tightening=calm).max() == 2.6
    assert dynamic_slo.repaired_slo_s(base, kl_mix, 10.0, tightening=~calm) == pytest.approx(2.0)


def test_threshold_is_recalibrated_every_third_period_unless_in_alarm():
    periods = np.array([0, 1, 2, 3, 4, 6])
    assert dynamic_slo.recalibrates(periods, np.zeros(6, bool), 3).tolist() == [False, False, False, True, False, True]
    assert not dynamic_slo.recalibrates(periods, np.ones(6, bool), 3).any()


def test_root_cause_after_five_minutes():
    assert dynamic_slo.wants_root_cause(np.array([0.0, 299.0, 300.0]), 300.0).tolist() == [False, False, True]


def test_a_mix_that_makes_requests_shorter_loosens_nothing():
    mix, usual = np.array([0.1, 0.1, 0.1, np.nan]), np.array([1.0, 1.0, np.nan, 1.0])
    signed = dynamic_slo.signed_mix_nats(mix, np.array([1.5, 0.5, 1.5, 1.5]), usual)
    assert signed == pytest.approx([0.1, -0.1, 0.0, 0.0])
    loosened = dynamic_slo.repaired_slo_s(np.full(4, 2.0), signed, 10.0, tightening=np.zeros(4, bool))
    assert loosened == pytest.approx([2.5, 2.0, 2.0, 2.0])

import hypothesis.extra.numpy as hnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import entropy

from detectors import drift

COUNTS = hnp.arrays(np.uint32, 16, elements=st.integers(0, 10**6))
JOINT = hnp.arrays(np.uint32, (5, 8), elements=st.integers(0, 10**5))


@given(COUNTS, COUNTS)
def test_plain_kl_is_finite_and_not_negative(current, baseline):
    value = drift.kl_nats(current, baseline)
    assert np.isfinite(value)
    assert value >= 0
    bare = drift.kl_nats(current, baseline, add=0.0)
    assert np.isfinite(bare)
    assert bare >= 0


@given(COUNTS, COUNTS)
def test_plain_kl_is_scipys_on_the_same_smoothed_counts(current, baseline):
    assert drift.kl_nats(current, baseline) == pytest.approx(entropy(current + 0.5, baseline + 0.5), abs=1e-4)


@given(COUNTS, COUNTS)
def test_fast_kl_agrees_to_a_ten_thousandth(current, baseline):
    window = current.astype(np.float32)
    fast = drift.kl_of_window(window, window.sum(axis=-1), drift.log_smoothed(baseline.astype(np.float32)))
    assert fast == pytest.approx(entropy(current + 0.5, baseline + 0.5), abs=1e-4)


@given(COUNTS)
def test_equal_counts_have_no_drift(counts):
    assert drift.kl_nats(counts, counts) == 0


@given(JOINT, JOINT)
def test_chain_rule_is_exact(current, baseline):
    parts = drift.chain_rule(current, baseline)
    assert parts.total == pytest.approx(parts.mix + parts.service, abs=1e-9)
    assert parts.mix >= -1e-12
    assert parts.service >= -1e-12
    flat = drift.kl_nats(current.reshape(-1), baseline.reshape(-1))
    assert parts.total == pytest.approx(flat, abs=1e-9)


@given(JOINT, st.lists(st.integers(1, 50), min_size=5, max_size=5))
def test_a_mere_change_of_mix_is_no_service_drift(baseline, times):
    current = baseline * np.array(times, np.uint32)[:, None]
    assert drift.chain_rule(current, baseline, add=0.0).service == pytest.approx(0, abs=1e-9)


def test_what_happens_within_a_stratum_is_no_mix_drift():
    baseline = np.array([[80, 20], [50, 50]])
    parts = drift.chain_rule(np.array([[20, 80], [50, 50]]), baseline, add=0.0)
    assert parts.mix == pytest.approx(0, abs=1e-12)
    assert parts.service > 0.3


@pytest.mark.parametrize(("n", "cells"), [(100, 16), (300, 16), (1000, 40)])
def test_correction_takes_the_bias_off(n, cells):
    rng = np.random.default_rng(1)
    p = np.full(cells, 1 / cells)
    current, baseline = rng.multinomial(n, p, 4000), rng.multinomial(20 * n, p, 4000)
    plain = drift.kl_nats(current, baseline).mean()
    corrected = plain - drift.bias_nats(cells, np.array(n), np.array(20 * n))
    assert plain > 0.4 * drift.bias_nats(cells, np.array(n), np.array(20 * n))
    assert abs(corrected) < 0.25 * plain


def test_undrifted_series_exceed_the_published_threshold_as_published():
    """40 bins and 100 samples: the published KL > 0.12 is exceeded by four undrifted windows in five."""
    rng = np.random.default_rng(0)
    p = np.full(40, 1 / 40)
    kl = drift.kl_nats(rng.multinomial(100, p, 20_000), rng.multinomial(2000, p, 20_000))
    assert (kl > 0.12).mean() == pytest.approx(0.82, abs=0.02)


@pytest.mark.parametrize(
    ("cells", "smallest"),
    [
        (10, (95, 148, 196, 265)),
        (16, (134, 194, 247, 322)),
        (20, (158, 222, 279, 357)),
        (40, (273, 353, 421, 512)),
        (64, (403, 497, 575, 678)),
    ],
)
def test_sample_count_guard(cells, smallest):
    found = tuple(drift.smallest_n(cells, 0.12, p) for p in (1e-2, 1e-4, 1e-6, 1e-9))
    assert found == pytest.approx(smallest, abs=1)


def test_no_samples_no_bias():
    assert drift.bias_nats(16, np.array([0, 5]), np.array([5, 0])).tolist() == [0, 0]

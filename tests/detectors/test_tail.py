import numpy as np
import pytest
from scipy.stats import norm

from detectors import histogram, tail

RNG_N = 400
WORLDS = {
    "lognormal 0.5": (lambda rng, n: rng.lognormal(-2, 0.5, n), np.exp(-2 + 0.5 * norm.isf(1e-3))),
    "lognormal 0.125": (lambda rng, n: rng.lognormal(-4, 0.125, n), np.exp(-4 + 0.125 * norm.isf(1e-3))),
    "lognormal 1": (lambda rng, n: rng.lognormal(-2, 1.0, n), np.exp(-2 + norm.isf(1e-3))),
    "pareto 3": (lambda rng, n: 0.1 * (1 + rng.pareto(3, n)), 0.1 * 10.0),
    "pareto 1.5": (lambda rng, n: 0.1 * (1 + rng.pareto(1.5, n)), 0.1 * 100.0),
}


def windows(draw, n, rows=RNG_N, seed=0):
    counts = np.zeros((rows, histogram.BUCKETS), np.uint16)
    values = draw(np.random.default_rng(seed), rows * n).astype(np.float32)
    histogram.add(counts, np.repeat(np.arange(rows), n), np.minimum(values, 4000))
    return counts


@pytest.mark.parametrize("world", WORLDS)
@pytest.mark.parametrize("n", [100, 300, 900, 1500, 6000])
def test_intervals_cover_the_truth(world, n):
    draw, truth = WORLDS[world]
    found = tail.p999(windows(draw, n))
    grain = 1 + histogram.MAX_ERROR_RATIO
    covered = (found[:, 1] <= truth * grain) & (found[:, 2] * grain >= truth)
    assert covered.mean() >= 0.9
    assert (found[:, 1] <= found[:, 0] * grain).all()
    assert (found[:, 0] <= found[:, 2] * grain).all()
    assert (found[:, 3] == (tail.EMPIRICAL if n >= 1000 else tail.EXTRAPOLATED)).all()


@pytest.mark.parametrize("world", WORLDS)
def test_extrapolation_is_about_right(world):
    draw, truth = WORLDS[world]
    ratio = tail.p999(windows(draw, 300))[:, 0] / truth
    assert 0.8 < np.median(ratio) < 1.25


def test_with_enough_samples_it_is_the_order_statistic():
    values = np.random.default_rng(0).lognormal(-2, 1, 5000).astype(np.float32)
    counts = np.zeros((1, histogram.BUCKETS), np.uint32)
    histogram.add(counts, np.zeros(5000, np.intp), values)
    exact = np.quantile(values, 0.999, method="inverted_cdf")
    assert tail.p999(counts)[0, 0] == pytest.approx(exact, rel=histogram.MAX_ERROR_RATIO)


def test_too_few_samples_only_bound_it_from_below():
    value, low, high, kind = tail.p999(windows(WORLDS["pareto 3"][0], 20, rows=1))[0]
    assert kind == tail.CENSORED
    assert value == low
    assert high == np.inf


def test_timeouts_at_the_end_of_the_scale_are_censored():
    counts = np.zeros((1, histogram.BUCKETS), np.uint32)
    counts[0, 400], counts[0, -1] = 990, 10
    value, low, high, kind = tail.p999(counts)[0]
    assert kind == tail.CENSORED
    assert value == low == histogram.HIGHEST_S
    assert high == np.inf


def test_no_samples():
    found = tail.p999(np.zeros((2, histogram.BUCKETS), np.uint16))
    assert np.isnan(found[:, :3]).all()
    assert (found[:, 3] == tail.CENSORED).all()


def test_published_kappa_covers_far_less_than_was_claimed():
    assert tail.coverage(1.82, "gumbel") == pytest.approx(0.94706, abs=1e-5)
    assert tail.coverage(1.82, "gumbel_mode") == pytest.approx(0.8504, abs=1e-4)
    assert tail.coverage(1.82, "normal") == pytest.approx(0.96562, abs=1e-5)
    periods_a_day = 86400 / 10
    assert (1 - tail.coverage(1.82, "gumbel")) * periods_a_day == pytest.approx(457, abs=1)


@pytest.mark.parametrize(("assume", "kappa"), [("gumbel", 5.875), ("gumbel_mode", 8.11), ("normal", 3.43)])
def test_kappa_for_the_claimed_coverage(assume, kappa):
    assert tail.kappa_for(1 - 0.9997, assume) == pytest.approx(kappa, abs=5e-3)
    assert tail.coverage(tail.kappa_for(1 - 0.9997, assume), assume) == pytest.approx(0.9997, abs=1e-9)


def test_coverage_of_kappa_on_simulated_gumbel_windows():
    maxima = np.random.default_rng(0).gumbel(0, 1, 2_000_000)
    above = (maxima > maxima.mean() + 1.82 * maxima.std()).mean()
    assert above == pytest.approx(1 - tail.coverage(1.82, "gumbel"), abs=1e-3)


def test_threshold_settles_and_one_bad_window_does_not_set_it():
    rng = np.random.default_rng(0)
    level = np.zeros((1, 4), np.float32)
    for _ in range(500):
        tail.threshold_update(level, rng.normal(-1, 0.2, 1), np.array([2000]), 0.9995)
    assert level[0, 0] == pytest.approx(-1, abs=0.05)
    assert np.sqrt(level[0, 1]) == pytest.approx(0.2, rel=0.1)
    assert level[0, 3] == pytest.approx(2000)
    before = tail.threshold_s(level, 5.0)[0]
    tail.threshold_update(level, np.array([6.0]), np.array([2000]), 0.9995)
    assert tail.threshold_s(level, 5.0)[0] < before * 1.05


def test_no_threshold_before_the_first_window():
    assert np.isnan(tail.threshold_s(np.zeros((1, 4)), 5.0))[0]


def test_published_level_is_plain_mean_and_sd():
    values = np.random.default_rng(1).lognormal(0, 1, 40)
    level = np.zeros((1, 4))
    for value in values:
        tail.level_update(level, np.array([value]), 1.0)
    assert level[0, 0] == pytest.approx(values.mean())
    assert level[0, 1] == pytest.approx(values.var())


@pytest.mark.parametrize("k", [1, 2, 3, 20])
def test_derived_kappa_is_that_of_the_kth_largest_value(k):
    logs = -np.log(np.random.default_rng(k).gamma(k, 1.0, 300_000))  # k-th largest of many exponentials, less its centre
    limit = logs.mean() + tail.derived_kappa(np.array([1000 * (k - 1) + 500]), 1e-3)[0] * logs.std()
    assert (logs > limit).mean() == pytest.approx(1e-3, abs=3e-4)


def learned(draw, n, rows=60, past=40):
    level = np.zeros((rows, 4), np.float32)
    for i in range(past):
        found = tail.p999(windows(draw, n, rows, seed=i))
        tail.threshold_update(level, np.log(found[:, 0]), np.full(rows, n), 1.0)
    return level


@pytest.mark.parametrize(("world", "most"), [("lognormal 0.5", 2.1), ("lognormal 1", 3.6), ("pareto 3", 4.2)])
def test_a_threshold_is_near_enough_to_be_of_use(world, most):
    draw, truth = WORLDS[world]
    level = learned(draw, 2000)
    ratio = tail.threshold_s(level, tail.derived_kappa(level[:, 3], 7e-6)) / truth
    assert 1.2 < np.median(ratio) < most


@pytest.mark.parametrize("world", ["lognormal 0.5", "lognormal 1", "pareto 3"])
@pytest.mark.parametrize("n", [300, 2000])
def test_as_many_windows_exceed_the_threshold_as_the_target_says(world, n):
    draw, _ = WORLDS[world]
    level = learned(draw, n)
    limit = tail.threshold_s(level, tail.derived_kappa(level[:, 3], 0.01))
    above = np.mean([(tail.p999(windows(draw, n, 60, seed=100 + i))[:, 0] > limit).mean() for i in range(30)])
    assert 0.003 < above < 0.02


def test_no_tail_is_fitted_where_the_sample_holds_the_interval():
    mixed = np.concatenate([windows(WORLDS["lognormal 0.5"][0], n, rows=3, seed=n) for n in (300, 4999, 5000, 20_000)])
    apart = np.concatenate([tail.p999(mixed[i : i + 1]) for i in range(len(mixed))])
    assert tail.p999(mixed) == pytest.approx(apart, rel=1e-9)
    assert np.isfinite(apart).all()
    ordered = (apart[:, 1] <= apart[:, 0]) & (apart[:, 0] <= apart[:, 2])
    assert ordered.all()

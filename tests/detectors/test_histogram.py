import hypothesis.extra.numpy as hnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from detectors import histogram
from detectors.histogram import BUCKETS, HIGHEST_S, LOWEST_S, MAX_ERROR_RATIO

DISTRIBUTIONS = {
    "lognormal": lambda rng, n: rng.lognormal(-2, 0.5, n),
    "wide lognormal": lambda rng, n: rng.lognormal(-3, 2.0, n),
    "pareto": lambda rng, n: 0.01 * (1 + rng.pareto(1.5, n)),
    "uniform": lambda rng, n: rng.uniform(0.001, 5, n),
    "bimodal": lambda rng, n: np.where(rng.random(n) < 0.9, rng.lognormal(-3, 0.1, n), rng.lognormal(2, 0.3, n)),
    "ticks of a millisecond": lambda rng, n: np.ceil(rng.lognormal(-4, 0.5, n) * 1000) / 1000,
}
LATENCIES = st.floats(LOWEST_S, 4095.0, width=32)


def counted(values):
    counts = np.zeros((1, BUCKETS), np.uint32)
    histogram.add(counts, np.zeros(len(values), np.intp), values)
    return counts


@pytest.mark.parametrize("name", DISTRIBUTIONS)
@pytest.mark.parametrize("n", [1, 7, 300, 20_000])
def test_quantiles_are_within_the_promised_error(name, n):
    values = np.maximum(DISTRIBUTIONS[name](np.random.default_rng(n), n), LOWEST_S).astype(np.float32)
    q = [0.0, 0.1, 0.5, 0.9, 0.99, 0.999, 1.0]
    exact = np.quantile(values.astype(np.float64), q, method="inverted_cdf")
    assert np.abs(histogram.quantiles(counted(values), q)[0] / exact - 1).max() <= MAX_ERROR_RATIO + 1e-9


def test_promised_error_is_one_sixty_fifth():
    assert pytest.approx(1 / 65) == MAX_ERROR_RATIO


@given(hnp.arrays(np.float32, st.integers(1, 200), elements=LATENCIES), st.floats(0, 1))
def test_any_quantile_of_any_values(values, q):
    exact = np.sort(values)[max(int(np.ceil(q * len(values) - 1e-9)), 1) - 1]
    assert abs(histogram.quantiles(counted(values), [q])[0, 0] / exact - 1) <= MAX_ERROR_RATIO + 1e-9


@given(st.lists(hnp.arrays(np.float32, st.integers(0, 50), elements=LATENCIES), min_size=1, max_size=6), st.randoms())
def test_merging_in_any_grouping_counts_everything_once(parts, random):
    whole = counted(np.concatenate(parts))
    shards = [counted(p) for p in parts]
    random.shuffle(shards)
    middle = len(shards) // 2
    grouped = [histogram.merge(g) for g in (shards[:middle], shards[middle:]) if g]
    assert np.array_equal(histogram.merge(grouped), whole)


@given(hnp.arrays(np.float32, st.integers(1, 100), elements=LATENCIES), st.randoms())
def test_order_of_values_does_not_matter(values, random):
    order = list(range(len(values)))
    random.shuffle(order)
    assert np.array_equal(counted(values), counted(values[order]))


def test_values_fall_into_the_bucket_of_their_edges():
    values = np.exp(np.random.default_rng(0).uniform(np.log(1e-5), np.log(3600), 10_000)).astype(np.float32)
    bucket = histogram.bucket_of(values)
    assert (histogram.EDGES_S[bucket] <= values).all()
    assert (values < histogram.EDGES_S[bucket + 1]).all()


@pytest.mark.parametrize(
    ("value", "bucket"), [(-1.0, 0), (0.0, 0), (LOWEST_S * 0.999, 0), (HIGHEST_S, BUCKETS - 1), (np.inf, BUCKETS - 1)]
)
def test_what_lies_outside_is_counted_at_the_ends(value, bucket):
    assert histogram.bucket_of(np.array([value], np.float32))[0] == bucket


def test_rows_are_separate_and_accumulate():
    counts = np.zeros((3, BUCKETS), np.uint16)
    histogram.add(counts, np.array([0, 2, 2]), np.array([1.0, 1.0, 2.0], np.float32))
    histogram.add(counts, np.array([2]), np.array([1.0], np.float32))
    assert counts.sum(axis=1).tolist() == [1, 0, 3]


def test_empty_histograms_have_no_quantiles():
    assert np.isnan(histogram.quantiles(np.zeros((2, BUCKETS), np.uint32), [0.5])).all()


def test_counts_that_are_not_contiguous_are_refused():
    with pytest.raises(ValueError, match="contiguous"):
        histogram.add(np.zeros((BUCKETS, 2), np.uint32).T, np.array([0]), np.array([1.0], np.float32))


@settings(max_examples=30)
@given(st.integers(1, 40), st.integers(0, 2**32 - 1))
def test_bucket_at_counts_from_the_smallest(n, seed):
    values = np.random.default_rng(seed).lognormal(0, 2, n).astype(np.float32)
    counts = counted(values)
    octaves = histogram.octave_counts(counts)
    found = [histogram.bucket_at(counts, octaves, np.array([rank]))[0] for rank in range(1, n + 1)]
    assert found == histogram.bucket_of(np.sort(values)).tolist()

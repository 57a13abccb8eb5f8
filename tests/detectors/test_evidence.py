import numpy as np
import pytest

from detectors import evidence, ranks
from detectors.evidence import FAMILY, FASTER, SLOWER
from detectors.ranks import BINS, CODES

WIDTH = np.array([0.025])
SHIFTS = [d for share, d in FAMILY if share == 1.0]


@pytest.fixture(scope="module")
def shapes():
    """Templates of a lognormal SLI, the same for all four."""
    codes = np.clip(np.random.default_rng(0).normal(CODES / 2, 0.5 / WIDTH[0], 100_000), 0, CODES - 1).astype(int)
    hist = np.bincount(codes, minlength=CODES)[None].astype(float)
    one = ranks.templates(hist, ranks.cut(hist, WIDTH), WIDTH, FAMILY)[0]
    return np.tile(one, (4, 1, 1))


@pytest.fixture(scope="module")
def tilted(shapes):
    base = (100_000 * shapes[:, None, SHIFTS.index(0.0)]).astype(np.float32)
    return evidence.tilt(shapes, base)


def log_e(counts, tilted, band):
    """log e of every alternative for counts (m, BINS) of one SLI, (FAMILY, m)."""
    log_shapes, log_z = tilted
    m = len(counts)
    c = np.broadcast_to(np.asarray(counts, np.float32), (4, m, BINS))
    z = np.broadcast_to(log_z, (4, log_z.shape[1], m))
    bands = np.full((4, m), band, np.float32)
    log_p = evidence.log_likelihood(c, c.sum(axis=-1), log_shapes, z)
    null = evidence.band_null(log_p, bands)[0]
    null = null + evidence.tail_allowance(c[0], log_p[0].T, bands[0], np.repeat(log_shapes[:1], m, axis=0), z[0].T)
    return log_p[0] - null


@pytest.mark.parametrize("band", [0.02, 0.1, 0.15, 0.45])
def test_e_values_average_to_at_most_one_inside_the_band(shapes, tilted, band):
    e = np.exp(log_e(np.eye(BINS), tilted, band)).T
    for i, d in enumerate(SHIFTS):
        if abs(d) <= band + 1e-6:
            assert (shapes[0, i] @ e)[SLOWER + FASTER].max() <= 1 + 1e-3


@pytest.mark.parametrize("n", [1, 5, 50, 500])
def test_shiryaev_roberts_grows_no_faster_than_time_under_the_null(shapes, tilted, n):
    rng = np.random.default_rng(n)
    series, ticks, band = 2000, 40, 0.1
    edge = SHIFTS.index(0.1)
    r = np.zeros((len(SLOWER), series), np.float32)
    for _ in range(ticks):
        counts = rng.multinomial(n, shapes[0, edge], series)
        evidence.update(r, log_e(counts, tilted, band)[SLOWER], np.ones(series, bool), 1e15)
    average = np.exp(evidence.mixture_log(r, evidence.SLOWER_WEIGHTS[: len(SLOWER)]))
    assert average.mean() <= ticks * 1.5
    assert (average > 1e4).mean() <= 40 / 1e4 + 5e-4  # Markov


@pytest.mark.parametrize(("n", "d", "ticks"), [(1, 1.1, 30), (25, 1.1, 2), (50, 0.6, 3), (500, 0.2, 5)])
def test_a_slowdown_is_seen_soon(shapes, tilted, n, d, ticks):
    rng = np.random.default_rng(0)
    r = np.zeros((len(SLOWER), 200), np.float32)
    for _ in range(ticks):
        counts = rng.multinomial(n, shapes[0, SHIFTS.index(d)], 200)
        evidence.update(r, log_e(counts, tilted, 0.1)[SLOWER], np.ones(200, bool), 1e15)
    seen = evidence.mixture_log(r, evidence.SLOWER_WEIGHTS[: len(SLOWER)]) >= evidence.log_threshold(17280, 0.01)
    assert seen.mean() > 0.9


def test_faster_is_no_evidence_of_slower(shapes, tilted):
    counts = np.random.default_rng(0).multinomial(200, shapes[0, SHIFTS.index(-0.6)], 100)
    e = log_e(counts, tilted, 0.1)
    assert (e[SLOWER] < 0).all()
    assert (e[FASTER].max(axis=0) > 20).all()


def test_a_tail_twice_as_heavy_is_tolerated_and_one_ten_times_is_not(shapes, tilted):
    p0 = shapes[0, SHIFTS.index(0.0)]

    def heavier(times):
        p = p0.copy()
        p[-ranks.TAIL_BINS :] *= times
        return 5000 * p / p.sum()

    assert log_e(heavier(2)[None], tilted, 0.02)[SLOWER].max() < 3
    assert log_e(heavier(10)[None], tilted, 0.02)[SLOWER].max() > 50


def test_band_null_is_the_best_shift_in_the_band():
    log_p = -np.square(np.array(SHIFTS) - 0.3)[None, :, None].astype(np.float32)
    full = np.concatenate([log_p, np.zeros((1, len(FAMILY) - len(SHIFTS), 1), np.float32)], axis=1)
    for band, best in ((0.02, -(0.28**2)), (0.45, -(0.03**2)), (0.8, -(0.03**2))):
        assert evidence.band_null(full, np.array([[band]], np.float32))[0, 0] == pytest.approx(best, abs=2e-4)
    between = evidence.band_null(full, np.array([[0.125]], np.float32))[0, 0]
    assert -(0.2**2) < between < -(0.15**2)
    mirrored = evidence.band_null(np.concatenate([full[:, 28::-1], full[:, 29:]], axis=1), np.array([[0.125]], np.float32))
    assert mirrored[0, 0] == pytest.approx(between, abs=1e-5)


def test_ticks_without_samples_do_not_count():
    r = np.full((3, 2), 5.0, np.float32)
    evidence.update(r, np.zeros((3, 2), np.float32), np.array([True, False]), 1e15)
    assert r.tolist() == [[6.0, 5.0]] * 3


def test_statistics_are_capped():
    r = np.zeros((1, 1), np.float32)
    for _ in range(100):
        evidence.update(r, np.full((1, 1), 1e4, np.float32), np.ones(1, bool), 1e9)
    assert r[0, 0] == np.float32(1e9)


def test_own_baseline_is_believed_where_it_has_samples(shapes):
    base = np.zeros((4, 2, BINS), np.float32)
    base[:, 0] = 10_000 * shapes[0, SHIFTS.index(0.0)]
    base[:, 1] = base[:, 0]
    base[:, 1, -2] *= 20  # a node with a chronic tail
    log_shapes, log_z = evidence.tilt(shapes, base)
    zero = SHIFTS.index(0.0)
    log_ratio = log_z[0, len(FAMILY) :, 1] - log_z[0, zero, 1]
    assert np.exp(log_shapes[0, zero, -2] + log_ratio[-2]) == pytest.approx(base[0, 1, -2] / base[0, 1].sum(), rel=0.2)
    assert np.abs(log_z[0, :, 0]).max() < 0.01
    share = evidence.tail_share(log_shapes, log_z)
    own = base[..., -ranks.TAIL_BINS :].sum(axis=-1) / base.sum(axis=-1)
    assert share == pytest.approx(own, rel=0.2)


@pytest.mark.parametrize(("limit", "n"), [(0.01, 20), (0.01, 500), (0.2, 50), (1e-4, 1000)])
def test_binomial_e_values_average_to_at_most_one_up_to_the_limit(limit, n):
    from scipy.stats import binom

    k = np.arange(n + 1)
    e = np.exp(np.minimum(evidence.binomial_log_e(k, np.full(n + 1, n), np.full(n + 1, limit)), 700))
    for share in (limit, limit / 2, limit / 10):
        assert binom.pmf(k, n, share) @ e <= 1 + 1e-9


def test_binomial_e_value_sees_a_raised_share():
    log_e = evidence.binomial_log_e(np.array([1, 20, 0]), np.array([100, 100, 0]), np.full(3, 0.02))
    assert log_e[0] < 1
    assert log_e[1] > 15
    assert log_e[2] == 0


def test_upper_share_shrinks_to_the_tolerance_with_samples():
    wide, narrow = evidence.upper_share(np.array([0.01, 0.01]), np.array([200, 10**7]), 2.0)
    assert wide > 0.03
    assert narrow == pytest.approx(0.02)

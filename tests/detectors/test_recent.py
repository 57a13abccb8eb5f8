"""A recent place makes jumps and thin tails visible that a wide band hides, and is no licence for false alarms."""

import numpy as np
import pytest

from detectors import evidence, ranks, recent
from detectors.evidence import FAMILY, JUMPS, SHIFTS, TAILS
from detectors.model import Scale
from detectors.ranks import BINS, CODES
from detectors.recent import Recent
from detectors.state import BankState

WIDTH = 0.025
WIDE = 0.6
LEVEL = evidence.log_threshold(17280, 0.01)


@pytest.fixture(scope="module")
def shapes():
    """Bin probabilities of a lognormal SLI under every template, (FAMILY, BINS)."""
    codes = np.clip(np.random.default_rng(0).normal(CODES / 2, 0.5 / WIDTH, 100_000), 0, CODES - 1).astype(int)
    hist = np.bincount(codes, minlength=CODES)[None].astype(float)
    width = np.array([WIDTH])
    return ranks.templates(hist, ranks.cut(hist, width), width, FAMILY)[0]


@pytest.fixture(scope="module")
def tilted(shapes):
    four = np.tile(shapes, (4, 1, 1))
    return evidence.tilt(four, (100_000 * four[:, None, evidence.ZERO]).astype(np.float32))


def log_e(counts, tilted, place, reach=0.25, band=WIDE):
    """log e of jumps and tails for counts (m, BINS) of one SLI, (JUMPS + TAILS, m)."""
    log_shapes, log_z = tilted
    m = len(counts)
    c = np.broadcast_to(np.asarray(counts, np.float32), (4, m, BINS))
    n = c.sum(axis=-1)
    z = np.ascontiguousarray(np.broadcast_to(log_z, (4, log_z.shape[1], m)))
    full = [
        np.full((4, m), v, np.float32) for v in (place, max(place + reach, band / 6), reach / 3, band, 2 * (1.5 / reach) ** 2)
    ]
    now = Recent(*full)
    log_p = evidence.log_likelihood(c, n, log_shapes, z)
    ways = evidence.outward(log_p, now.band, recent.most_steps(now))
    allowance = np.broadcast_to(
        evidence.tail_allowance(c[0], log_p[0].T, now.band[0], np.repeat(log_shapes[:1], m, axis=0), z[0].T), (4, m)
    )
    null = evidence.band_null(log_p, now.band, ways) + allowance
    out = np.empty((4, len(JUMPS) + len(TAILS), m), np.float32)
    recent.log_e(c, n, log_p, null, allowance, ways, log_shapes, z, now, out)
    return out[0]


def at(shapes, d):
    return shapes[list(SHIFTS).index(d)]


@pytest.mark.parametrize("place", [-0.27, 0.0, 0.2])
def test_e_values_of_one_request_average_to_at_most_one(shapes, tilted, place):
    e = np.exp(log_e(np.eye(BINS), tilted, place))
    for d in SHIFTS:
        if abs(d) <= WIDE:
            assert (e[len(JUMPS) :] @ at(shapes, d)).max() <= 1 + 1e-3  # tails: any shift inside the band
        if d <= place + 0.25:
            assert (e[: len(JUMPS)] @ at(shapes, d)).max() <= 1 + 1e-3  # jumps: any shift up to the edge


@pytest.mark.parametrize("n", [10, 100, 400])
@pytest.mark.parametrize("d", [-0.27, 0.15, 0.2])
def test_shiryaev_roberts_grows_no_faster_than_time_while_a_series_wanders_within_its_reach(shapes, tilted, n, d):
    rng = np.random.default_rng(n)
    series, ticks = 1500, 20
    heavy = at(shapes, d).copy()
    heavy[-ranks.TAIL_BINS :] *= 1.9  # and its tail is nearly twice as heavy
    heavy /= heavy.sum()
    r = np.zeros((len(JUMPS) + len(TAILS), series), np.float32)
    for _ in range(ticks):
        evidence.update(r, log_e(rng.multinomial(n, heavy, series), tilted, 0.0), np.ones(series, bool), 1e15)
    average = np.exp(evidence.mixture_log(r))
    assert (average > 1e4).mean() <= ticks / 1e4 + 1e-3  # Markov
    assert np.minimum(average, 1e5).mean() <= 1.5 * ticks


@pytest.mark.parametrize(("n", "ticks"), [(25, 15), (250, 1)])
def test_twice_as_slow_is_a_jump_though_the_band_would_hide_it(shapes, tilted, n, ticks):
    rng = np.random.default_rng(1)
    r = np.zeros((len(JUMPS) + len(TAILS), 200), np.float32)
    for _ in range(ticks):
        counts = rng.multinomial(n, at(shapes, 0.45), 200)  # from -0.27 that is twice as slow
        evidence.update(r, log_e(counts, tilted, -0.27), np.ones(200, bool), 1e15)
    assert (evidence.mixture_log(r) >= LEVEL).mean() > 0.9


@pytest.mark.parametrize("place", [-0.27, 0.0, 0.15])
def test_one_request_in_fifty_that_stalls_is_seen_wherever_the_bulk_is(shapes, tilted, place):
    rng = np.random.default_rng(2)
    sick = 0.98 * at(shapes, place)
    sick[-1] += 0.02
    r = np.zeros((len(JUMPS) + len(TAILS), 200), np.float32)
    for _ in range(5):
        evidence.update(r, log_e(rng.multinomial(250, sick, 200), tilted, place - 0.03), np.ones(200, bool), 1e15)
    assert (evidence.mixture_log(r) >= LEVEL).mean() > 0.9


@pytest.mark.parametrize("n", [20, 300])
def test_a_service_that_became_faster_has_no_tail(shapes, tilted, n):
    counts = np.random.default_rng(3).multinomial(n, at(shapes, -0.8), 200)
    assert (log_e(counts, tilted, -0.1, band=0.1)[len(JUMPS) :] < 0).all()


class Series:
    """One series of a bank's state with a settled baseline, fed with ticks of `n` requests at a shift."""

    def __init__(self, seed=0, n=200):
        self.state, self.n, self.rng = BankState.empty(1, 2, 1), n, np.random.default_rng(seed)
        self.state.base[..., 5] = 100_000
        self.scale = Scale(np.full(4, WIDTH), np.full(4, 0.5), np.zeros((4, 1)), np.zeros(4))

    def tick(self, d, n=None, suspect=False):
        n = self.n if n is None else n
        codes = np.rint(self.rng.normal(d, 0.5, (4, 1, n)) / WIDTH).sum(axis=-1).astype(np.int64)
        recent.follow(self.state, codes, np.full((4, 1), n, np.float32), self.scale, 5.0, 86400.0, np.full((4, 1), suspect))

    def now(self, band=WIDE):
        return recent.place_nats(self.state, 1, np.full((4, 1), band, np.float32), np.full((4, 1), 1e5, np.float32), self.scale)


def test_the_place_follows_a_series_that_wanders_and_lingers_when_it_jumps():
    series = Series()
    for step in range(60):
        series.tick(0.005 * step)
    assert series.now().place == pytest.approx(0.28, abs=0.05)
    for _ in range(6):
        series.tick(0.3 + 0.7, suspect=True)
    assert (series.now().place < 0.45).all()


def test_the_reach_is_what_the_series_has_shown():
    steady, restless = Series(), Series()
    for _ in range(400):
        steady.tick(0.0)
        restless.tick(0.15 * restless.rng.standard_normal())
    assert (steady.now().edge < 0.15 + WIDE / 10).all()
    reach = restless.now().edge - np.maximum(restless.now().place, 0)
    assert ((reach > 0.35) & (reach < 0.7)).all()


def test_without_samples_the_band_decides_and_empty_ticks_change_nothing():
    series = Series()
    assert (series.now().place == 0).all()
    assert (series.now().edge >= WIDE).all()
    for _ in range(50):
        series.tick(0.1)
    before = (series.state.recent.copy(), series.state.jitter.copy())
    series.tick(0.0, n=0)
    np.testing.assert_array_equal(series.state.recent, before[0])
    np.testing.assert_array_equal(series.state.jitter, before[1])


def test_a_small_service_that_wobbles_does_not_alarm_and_is_caught_when_it_breaks(fleet):
    pool = fleet(nodes=4, rate=80)
    z, alarms = np.zeros(4), 0
    for _ in range(240):
        z = 0.975 * z + 0.15 * np.sqrt(1 - 0.975**2) * pool.rng.standard_normal(4)
        alarms += int(pool.tick(np.exp(z)).alarm[:, 0].sum())
    assert alarms == 0
    sick = np.array([2.0, 1, 1, 1])
    alarm = [pool.tick(np.exp(z) * sick).alarm[:, 0] for _ in range(4)][-1]
    assert alarm.tolist() == [True] + [False] * 3

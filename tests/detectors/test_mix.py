import numpy as np
import pytest

from detectors import evidence, mix

USUAL = np.array([100, 300, 400, 150, 50]) * 20
SHARE = USUAL / USUAL.sum()


def run(shares, n, ticks, seed=0, radius=0.03):
    """Log of the statistic after every tick under (ticks, S) shares."""
    rng = np.random.default_rng(seed)
    r, recent, out = np.zeros((1, 1), np.float32), np.zeros((1, 5)), []
    for share in np.broadcast_to(shares, (ticks, 5)):
        counts = rng.multinomial(n, share)[None]
        log_e = mix.log_e(counts, USUAL[None], recent, np.array([radius]))
        evidence.update(r, log_e[None], np.array([True]), 1e15)
        recent = recent * mix.RECENT_KEEP + counts
        out.append(float(evidence.mixture_log(r)[0]))
    return out


@pytest.mark.parametrize("n", [1, 20, 500])
def test_the_usual_mix_gives_no_evidence(n):
    assert max(run(SHARE, n, 500)) < 8


def test_a_slightly_different_mix_is_tolerated():
    near = SHARE * [1.15, 1.05, 0.95, 0.9, 1.1]
    assert max(run(near / near.sum(), 500, 200)) < 10


@pytest.mark.parametrize("n", [5, 20, 500])
def test_a_shift_to_long_prompts_is_seen_in_a_minute(n):
    long = np.array([0.0, 0.05, 0.15, 0.4, 0.4])
    assert run(long, n, 12)[-1] > 14.4


def test_strata_never_seen_before_are_seen():
    assert run(np.array([0, 0, 0, 0, 1.0]), 20, 4)[-1] > 14.4


def test_radius_grows_with_wobble_and_shrinks_with_samples():
    calm, wobbly = mix.radius_nats(np.array([[0.0, 50.0], [5.0, 50.0]]), np.array([1e6, 1e6]), 5)
    few = mix.radius_nats(np.array([[0.0, 50.0]]), np.array([100]), 5)[0]
    assert calm == pytest.approx(0.03, rel=0.05)
    assert wobbly > 0.3
    assert few > calm

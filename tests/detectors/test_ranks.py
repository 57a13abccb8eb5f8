import numpy as np
import pytest

from detectors import ranks
from detectors.evidence import FAMILY
from detectors.ranks import BINS, CODES

WIDTH = np.array([0.025])


def residuals(rng, n, sigma=0.5, shift=0.0):
    per_octave = np.array([np.log(2) / WIDTH[0]], np.float32)
    logs = (rng.normal(shift, sigma, (1, n)) / np.log(2)).astype(np.float32)
    return ranks.code_of(logs, per_octave)[0]


def hist_of(codes):
    return np.bincount(codes, minlength=CODES)[None].astype(np.float64)


def shares(codes, edges):
    table = ranks.bin_table(edges, np.array([True]))[0]
    return np.bincount(table[codes], minlength=BINS) / len(codes)


def test_bins_of_a_large_baseline_have_their_nominal_shares():
    codes = residuals(np.random.default_rng(0), 200_000)
    edges = ranks.cut(hist_of(codes), WIDTH)
    fresh = residuals(np.random.default_rng(1), 200_000)
    assert np.abs(shares(fresh, edges) - ranks.nominal())[:-3].max() < 0.03  # a code is 2.5 % wide
    assert shares(fresh, edges)[-3:].sum() == pytest.approx(0.01, rel=0.2)


@pytest.mark.parametrize(("share", "shift"), [(1.0, 0.35), (1.0, -0.35), (1.0, 1.1), (0.05, 2.1), (0.2, 2.3)])
def test_templates_say_what_a_slowdown_looks_like(share, shift):
    rng = np.random.default_rng(0)
    hist = hist_of(residuals(rng, 100_000))
    edges = ranks.cut(hist, WIDTH)
    template = ranks.templates(hist, edges, WIDTH, FAMILY)[0, FAMILY.index((share, shift))]
    slow = rng.random(200_000) < share
    codes = np.where(slow, residuals(rng, 200_000, shift=shift), residuals(rng, 200_000))
    assert np.abs(template - shares(codes, edges)).max() < 0.01


def test_templates_are_positive_distributions_whatever_the_histogram():
    for hist in (np.zeros((1, CODES)), np.eye(1, CODES, 128) * 500, np.ones((1, CODES))):
        template = ranks.templates(hist, ranks.cut(hist, WIDTH), WIDTH, FAMILY)
        assert (template > 0).all()
        assert template.sum(axis=-1) == pytest.approx(1.0)


def test_a_constant_series_still_tells_slowdowns_apart():
    hist = np.eye(1, CODES, CODES // 2) * 1000
    table = ranks.bin_table(ranks.cut(hist, WIDTH), np.array([True]))[0]
    bins = [table[CODES // 2 + round(np.log(x) / WIDTH[0])] for x in (1.0, 1.4, 1.8, 3.0)]
    assert len(set(bins)) == 4


def test_edges_ascend():
    rng = np.random.default_rng(3)
    for sigma in (0.001, 0.03, 0.2, 1.0, 3.0):
        for n in (10, 300, 10_000):
            edges = ranks.cut(hist_of(residuals(rng, n, sigma)), WIDTH)[0]
            assert (np.diff(edges.astype(int)) >= 0).all()
            assert edges[0] >= 1


def test_a_stratum_without_baseline_has_no_bins():
    table = ranks.bin_table(np.zeros((2, BINS - 1), np.int16), np.array([True, False]))
    assert (table[1] == ranks.UNKNOWN_BIN).all()
    assert (table[0] < BINS).all()


def test_pooled_ranks_do_not_move_with_the_mix():
    """Two strata of quite different shape, each cut at its own quantiles: the mix cannot be seen in the ranks."""
    rng = np.random.default_rng(5)
    narrow, wide = residuals(rng, 50_000, 0.2), residuals(rng, 50_000, 0.8)
    tables = [ranks.bin_table(ranks.cut(hist_of(c), WIDTH), np.array([True]))[0] for c in (narrow, wide)]
    pooled = []
    for share in (0.1, 0.9):
        few, many = residuals(rng, int(100_000 * share), 0.2), residuals(rng, int(100_000 * (1 - share)), 0.8)
        bins = np.concatenate([tables[0][few], tables[1][many]])
        pooled.append(np.bincount(bins, minlength=BINS) / len(bins))
    assert np.abs(pooled[0] - pooled[1]).max() < 0.05
    apart = [np.bincount(tables[0][residuals(rng, 50_000, s)], minlength=BINS) / 50_000 for s in (0.2, 0.8)]
    assert np.abs(apart[0] - apart[1]).max() > 0.2

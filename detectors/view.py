"""The histograms that are compared, for people to look at: baseline and window of every series over the same rank bins."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from detectors import baseline
from detectors.bank import SeriesBank

__all__ = ["BinView", "bin_view", "contributions_nats", "usual_p999_s"]

_HALF = 0.5


class BinView(NamedTuple):
    """Counts by rank bin, (nodes, 4, BINS): the baseline's (forgotten slowly, so not whole) and the detection window's.

    `edges_ratio` (4, BINS - 1): where the bins of the busiest kind of request are cut, as a ratio of a latency to the usual one
    of a request of its size; NaN before anything is learned.
    """

    base: NDArray[np.float64]
    window: NDArray[np.int64]
    edges_ratio: NDArray[np.float64]


def bin_view(bank: SeriesBank) -> BinView:
    """What the bank compares at the end of the last closed tick."""
    state, model, m = bank._state, bank.model, bank.n_nodes + 1
    counts, _, _ = baseline.window(state, m, bank.detection.min_samples)
    slis = np.arange(len(counts))
    edges = np.full((len(counts), model.edges.shape[-1]), np.nan)
    if model.taught:
        busiest = np.where(model.known, model.hist.sum(axis=-1), -1.0).argmax(axis=1)
        codes = model.edges[slis, busiest] - model.centre[slis, busiest][:, None]
        edges = np.exp(codes * model.nats_per_code[:, None])
        edges[~np.asarray(model.known.any(axis=1))] = np.nan
    base, window = (a[:, 1:m].transpose(1, 0, 2) for a in (state.base, counts))
    return BinView(base.astype(np.float64), window.astype(np.int64), np.asarray(edges))


def usual_p999_s(bank: SeriesBank) -> NDArray[np.float64]:
    """Usual P99.9 of each series: the geometric mean of past windows, seconds (nodes, 4); NaN before the first."""
    mean, _, weight = (bank._state.tail_level[:, 1 : bank.n_nodes + 1, i].T.astype(np.float64) for i in range(3))
    if bank.detection.method == "seed":
        return np.where(weight > 0, mean, np.nan)
    return np.where(weight > 0, np.exp(np.minimum(mean, 50.0)), np.nan)


def contributions_nats(window: NDArray[np.integer], base: NDArray[np.floating]) -> NDArray[np.float64]:
    """What each bin adds to KL(window || baseline), nats (..., BINS): their sum is `drift.kl_nats`, single ones may be negative.

    >>> import numpy as np
    >>> contributions_nats(np.array([90, 10]), np.array([50.0, 50.0])).round(3).tolist()
    [0.523, -0.163]
    """
    p, q = window + _HALF, base + _HALF
    p, q = p / p.sum(axis=-1, keepdims=True), q / q.sum(axis=-1, keepdims=True)
    return np.asarray(p * np.log(p / q))

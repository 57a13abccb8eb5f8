"""Rank bins: where a latency falls among the baseline latencies of its own stratum.

A latency divided by what was expected (`detectors.expected`) is coded as a residual, 20 codes for each standard deviation.
Each stratum's residuals are cut at its own baseline quantiles into K = 16 bins, 11 of equal probability and 5 in the tail
(up to 0.96, 0.99, 0.999, 0.9999 and beyond). By the probability integral transform all strata then share one distribution
over bins, so counts pooled over strata do not move when the mix does (Rosenblatt 1952).

What a slowdown would look like is read off the same residual histograms: shift a stratum's histogram by `d` (in log-latency)
and see how much lands in each bin. These templates are small tables shared by all nodes, so evidence for thousands of series
is one matrix product.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

__all__ = [
    "BINS",
    "CODES",
    "LEVELS",
    "TAIL_BINS",
    "UNKNOWN_BIN",
    "Template",
    "bin_table",
    "code_of",
    "cut",
    "nominal",
    "templates",
]

CODES = 256
"""Residual codes; what lies beyond is counted at the ends."""
_MIDDLE = CODES // 2
_BIN_PRIOR = 0.5
_FAR_NATS = (0.25, 0.5, 0.9)
_PER_SD = 20.0
_FINEST_NATS = 0.01
_COARSEST_NATS = 0.05

LEVELS: NDArray[np.float64] = np.concatenate([np.arange(1, 12) / 12, [0.96, 0.99, 0.999, 0.9999]])
"""Baseline quantiles at which the bins are cut, (BINS - 1,)."""
BINS = len(LEVELS) + 1
TAIL_BINS = 3
"""Bins above the baseline's q0.99."""
UNKNOWN_BIN = 255
"""Bin of a request whose stratum has no baseline; it proves nothing."""

Template = tuple[float, float]
"""(share of requests that are slower, by how many nats of log-latency)."""


def nominal() -> NDArray[np.float64]:
    """Probability of each bin when the cuts are exact, (BINS,).

    >>> nominal()[-4:].round(4).tolist()
    [0.03, 0.009, 0.0009, 0.0001]
    """
    return np.diff(LEVELS, prepend=0.0, append=1.0)


def codes_per_octave(sd_nats: float) -> float:
    """Resolution for residuals of this standard deviation: 20 codes for each, so that 256 codes reach past six of them.

    >>> round(codes_per_octave(0.25), 2), round(codes_per_octave(0.0), 1)
    (55.45, 69.3)
    """
    return float(np.log(2) / np.clip(sd_nats / _PER_SD, _FINEST_NATS, _COARSEST_NATS))


def code_of(ratio_log2: NDArray[np.float32], per_octave: NDArray[np.float32]) -> NDArray[np.int16]:
    """Residual codes of log2(latency / expected), int16 (4, n); NaN gives an arbitrary code that the caller masks.

    Args:
        ratio_log2: (4, n), overwritten.
        per_octave: Codes per octave of each SLI, (4,).
    """
    ratio_log2 *= per_octave[:, None]
    ratio_log2 += np.float32(_MIDDLE + 0.5)
    if np.isnan(np.maximum.reduce(ratio_log2, axis=None, initial=0.0)):
        np.nan_to_num(ratio_log2, copy=False, nan=0.0)
    np.clip(ratio_log2, 0, CODES - 1, out=ratio_log2)
    return ratio_log2.astype(np.int16)


def _smoothed(hist: NDArray[np.floating]) -> NDArray[np.float64]:
    """Probability of each code: the histogram, plus two observations' worth of a Laplace density with its centre and
    spread.

    Few samples say nothing of the tail beyond them; the Laplace prior (heavier than a lognormal's) says it is not
    impossible.
    """
    counts = hist.astype(np.float64)
    total = counts.sum(axis=-1, keepdims=True)
    share = counts / np.maximum(total, 1.0)
    codes = np.arange(CODES)
    centre = _quantile(share, 0.5)[..., None]
    spread = np.maximum((np.abs(codes - centre) * share).sum(axis=-1, keepdims=True), 1.0)
    prior = np.exp(-np.abs(codes - centre) / spread)
    prior /= prior.sum(axis=-1, keepdims=True)
    mixed: NDArray[np.float64] = (counts + 2.0 * prior) / (total + 2.0)
    return mixed


def _quantile(share: NDArray[np.float64], level: float) -> NDArray[np.intp]:
    return np.asarray((np.cumsum(share, axis=-1) < level).sum(axis=-1))


def cut(hist: NDArray[np.floating], width_nats: NDArray[np.float64]) -> NDArray[np.int16]:
    """Upper edges of the bins, int16 (..., BINS - 1): bin k holds the codes from edge k - 1 up to, not including, edge k.

    The outermost edges are at least 0.25, 0.5 and 0.9 nats from the median, so that a very steady series, whose quantiles all
    lie together, still tells a slowdown of 20 % from one of 50 % and from one of 150 %.

    Args:
        hist: Residual counts, (..., CODES).
        width_nats: Width of a residual code in log-latency, (...).
    """
    share = _smoothed(hist)
    upto = np.cumsum(share, axis=-1)
    # The edge after which the cumulated share is nearest to the level: narrow distributions have few codes to choose from.
    edges = (upto[..., None, :] + np.diff(upto, append=1.0)[..., None, :] / 2 < LEVELS[:, None]).sum(axis=-1) + 1
    middle = _quantile(share, 0.5)[..., None]
    far = np.rint(np.array(_FAR_NATS) / width_nats[..., None]).astype(np.intp)
    edges[..., -len(_FAR_NATS) :] = np.maximum(edges[..., -len(_FAR_NATS) :], middle + far)
    edges[..., :1] = np.minimum(edges[..., :1], middle - far[..., :1])
    return np.asarray(np.clip(edges, 1, CODES - 1).astype(np.int16))


def bin_table(edges: NDArray[np.int16], known: NDArray[np.bool_]) -> NDArray[np.uint8]:
    """Residual code to bin, uint8 (..., CODES); UNKNOWN_BIN throughout where the stratum is not known.

    Args:
        edges: Result of `cut`, (..., BINS - 1).
        known: (...).
    """
    codes = np.arange(CODES)
    table = (codes >= edges[..., :, None]).sum(axis=-2).astype(np.uint8)
    table[~known] = UNKNOWN_BIN
    return np.asarray(table)


def templates(
    hist: NDArray[np.floating], edges: NDArray[np.int16], width_nats: NDArray[np.float64], family: list[Template]
) -> NDArray[np.float64]:
    """Bin probabilities under each alternative, (..., len(family), BINS); every entry is positive and rows sum to 1.

    A template (share, d) says: this share of the requests has its log-latency moved by d nats, the others are as the
    baseline.

    Args:
        hist: (..., CODES) residual counts of a stratum.
        edges: (..., BINS - 1), from `cut`.
        width_nats: Width of a residual code in log-latency, (...).
        family: Alternatives; (1.0, 0.0) is the baseline itself.
    """
    lead = hist.shape[:-1]
    upto = np.concatenate([np.zeros((*lead, 1)), np.cumsum(_smoothed(hist), axis=-1)], axis=-1).reshape(-1, CODES + 1)
    flat_edges = edges.reshape(-1, BINS - 1).astype(np.float64)
    grid = np.arange(CODES + 1)
    shift = np.array([d for _, d in family])
    width = width_nats.reshape(-1)
    share = np.array([s for s, _ in family])[:, None]
    out = np.empty((len(upto), len(family), BINS))
    for row, cdf in enumerate(upto):
        at = np.interp(flat_edges[row] - shift[:, None] / width[row], grid, cdf)
        still = np.interp(flat_edges[row], grid, cdf)
        out[row] = np.diff(share * at + (1 - share) * still, axis=1, prepend=0.0, append=1.0)
    # Half an observation a bin: beyond the largest of n samples lies about 1 / n of the truth, not nothing.
    total = hist.sum(axis=-1, dtype=np.float64).reshape(-1, 1, 1)
    out = np.maximum(out, 0.0) * total + _BIN_PRIOR
    out /= out.sum(axis=-1, keepdims=True)
    return np.asarray(out.reshape(*lead, len(family), BINS))

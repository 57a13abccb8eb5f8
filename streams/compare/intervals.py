"""Confidence intervals of quantiles and shares, of one recording and of the change between two.

Requests that share a minute share its congestion, so intervals that take them for independent are too narrow. Each interval
here is the wider of two: the classical one for independent requests (order statistics; Wilson), which knows how little a
small sample says of its tail, and one from resampling blocks of consecutive requests (Kuensch, Annals of Statistics 1989),
which knows how much the recording moved. The bootstrap's standard error is widened for the number of blocks by Student's t and
sqrt(b / (b - 1)) (Hesterberg, The American Statistician 2015). Two intervals make one of a difference by the method of variance
estimates recovery (Zou and Donner, Statistics in Medicine 2008; for shares it is Newcombe's).
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.special import bdtrik, ndtri, stdtrit

__all__ = ["Interval", "block_count", "blocks_of", "change", "order_ranks", "spread", "wilson"]

BLOCK_S = 60.0
FEWEST_BLOCKS, MOST_BLOCKS = 16, 64


class Interval(NamedTuple):
    """An estimate between two bounds; a bound that is not known is infinite."""

    value: float
    low: float
    high: float


def block_count(n: int, span_s: float) -> int:
    """Blocks of a recording: about a minute each, 16 to 64 of them; 0 when there are too few requests for any.

    >>> block_count(5000, 600.0), block_count(5000, 7200.0), block_count(10, 600.0)
    (16, 64, 0)
    """
    return 0 if n < 2 * FEWEST_BLOCKS else int(np.clip(round(span_s / BLOCK_S), FEWEST_BLOCKS, MOST_BLOCKS))


def blocks_of(n: int, blocks: int) -> NDArray[np.intp]:
    """Block of each of `n` requests in order of time, (n,): runs of equal length."""
    return np.arange(n) * max(blocks, 1) // max(n, 1)


def spread(replicates: NDArray[np.float64], blocks: int, alpha: float) -> NDArray[np.float64]:
    """Half-width of a two-sided interval of level 1 - alpha from bootstrap replicates (R, ...) of `blocks` blocks, (...)."""
    if blocks < 2:
        return np.zeros(replicates.shape[1:])
    factor = float(stdtrit(blocks - 1, 1 - alpha / 2)) * np.sqrt(blocks / (blocks - 1))
    return np.asarray(factor * replicates.std(axis=0))


def order_ranks(n: int, q: float, alpha: float) -> tuple[int, int]:
    """Ranks (from 1) of the order statistics that hold the q-quantile with probability 1 - alpha; 0 and n + 1 mean that none
    of the sample does.

    >>> order_ranks(100, 0.5, 0.05), order_ranks(100, 0.99, 0.05)
    ((40, 61), (97, 101))
    """
    low = int(np.ceil(bdtrik(alpha / 2, n, q) - 1e-9)) if alpha / 2 > (1 - q) ** n else 0
    high = int(np.ceil(bdtrik(1 - alpha / 2, n, q) - 1e-9)) + 1
    return max(low, 0), min(high, n + 1)


def wilson(bad: int, n: int, alpha: float) -> Interval:
    """Wilson's interval of a share; unknown (0 to 1) without trials.

    >>> wilson(0, 100, 0.05).high < 0.04
    True
    """
    if n == 0:
        return Interval(float("nan"), 0.0, 1.0)
    z2 = float(ndtri(alpha / 2)) ** 2
    p = bad / n
    centre, half = p + z2 / (2 * n), np.sqrt(z2 * (p * (1 - p) / n + z2 / (4 * n * n)))
    return Interval(p, max(float(centre - half) / (1 + z2 / n), 0.0), min(float(centre + half) / (1 + z2 / n), 1.0))


def change(a: Interval, b: Interval) -> Interval:
    """Interval of b - a for independent a and b."""
    return Interval(
        b.value - a.value,
        b.value - a.value - float(np.hypot(b.value - b.low, a.high - a.value)),
        b.value - a.value + float(np.hypot(b.high - b.value, a.value - a.low)),
    )

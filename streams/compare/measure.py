"""What is measured of two recordings of a pool: latency quantiles and what of their change is the workload's, and shares.

Latencies are counted in bins of 0.14 % (512 an octave) by block and by *kind of request*, so that resampled recordings are
matrix products. The kind is where a request's expected latency, by the model that the detectors fit (`detectors.expected`) to
recording A, falls among those of A, apart for requests with an adapter. A's requests, weighted so that their kinds are as
frequent as in B, say what A's quantile would have been under B's workload: from there to B it is the service that changed, from
A to there the workload. Kinds that A hardly has accuse nobody: such requests are left out of the service's part.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from detectors.expected import expected_log2, fit
from detectors.ranks import BINS, LEVELS
from schemas.batch import LATENCY_SLIS
from streams.compare.intervals import Interval, block_count, blocks_of, change, order_ranks, spread, wilson
from streams.compare.recording import Recording

__all__ = ["FLOOR_S", "MOST_UNCOVERED", "QUANTILES", "Latency", "Share", "latency", "share"]

QUANTILES = (0.5, 0.95, 0.99)
FLOOR_S = {"ttft_s": 1e-3, "tpot_s": 1e-4, "queue_s": 1e-3, "e2e_s": 1e-3}
"""Latencies below this are equal: nobody is hurt when 0.1 ms of queueing becomes 0.2 ms."""

MOST_UNCOVERED = 0.5
"""With more of B's requests like none of A's, nothing is said of the service."""

_PER_OCTAVE = 512
_KINDS = 2 * (BINS + 1)
_UNCOVERED = BINS  # expected latency outside what A has, without and with an adapter
_FEWEST_OF_KIND = 20
_REPLICATES = 400
_CHUNK = 50


@dataclass(slots=True)
class Latency:
    """A quantile of a latency. `a`, `b` in seconds; changes are natural logarithms of ratios b / a."""

    a: Interval
    b: Interval
    change: Interval
    service: Interval
    uncovered_ratio: float
    """Share of B's requests that A has nothing to compare with."""


@dataclass(slots=True)
class Share:
    """A share of requests, 0 to 1; `change` is b - a."""

    a: Interval
    b: Interval
    change: Interval


def share(a: tuple[Recording, NDArray[np.bool_], NDArray[np.bool_]], b: tuple[Recording, NDArray[np.bool_], NDArray[np.bool_]],
          alpha: float, rng: np.random.Generator) -> Share | None:  # fmt: skip
    """Change of a share; each side is (recording, the requests that count, the bad ones among them). None where none count."""
    ends = []
    for recording, counted, bad in (a, b):
        bad = bad[counted]
        n = len(bad)
        if n == 0:
            return None
        blocks = block_count(n, recording.span_s)
        independent = wilson(int(bad.sum()), n, alpha)
        block = blocks_of(n, blocks)
        per_block = np.stack([np.bincount(block, weights=bad), np.bincount(block)])
        weights = _resample(max(blocks, 1), rng)
        half = float(spread(weights @ per_block[0] / (weights @ per_block[1]), blocks, alpha))
        p = independent.value
        ends.append(Interval(p, max(min(independent.low, p - half), 0.0), min(max(independent.high, p + half), 1.0)))
    return Share(ends[0], ends[1], change(ends[0], ends[1]))


def latency(a: Recording, b: Recording, sli: int, alpha: float, rng: np.random.Generator) -> list[Latency] | None:
    """Change of each of `QUANTILES` of a latency; None where either recording does not have it.

    Args:
        a: Recording of a pool.
        b: Another one.
        sli: Row of `latency_s`.
        alpha: One less the level of each interval.
        rng: For the bootstrap.
    """
    known = [np.isfinite(r.latency_s[sli]) for r in (a, b)]
    if not (known[0].any() and known[1].any()):
        return None
    values, expected, adapted = [], [], []
    coefficients = fit(a.latency_s[sli : sli + 1, known[0]], a.tokens[known[0]], a.output[known[0]])
    for r, some in zip((a, b), known, strict=True):
        values.append(np.maximum(r.latency_s[sli, some].astype(np.float64), FLOOR_S[LATENCY_SLIS[sli]]))
        expected.append(expected_log2(coefficients, r.tokens[some], r.output[some])[0])
        adapted.append(r.adapted[some])
    kinds = [kind_of(x, expected[0], has) for x, has in zip(expected, adapted, strict=True)]
    codes = [np.rint(np.log2(v) * _PER_OCTAVE).astype(np.int64) for v in values]
    levels, place = np.unique(np.concatenate(codes), return_inverse=True)
    places = place[: len(codes[0])], place[len(codes[0]) :]
    sides = [
        _Side(p, kind, len(levels), block_count(len(p), r.span_s))
        for p, kind, r in zip(places, kinds, (a, b), strict=True)
    ]  # fmt: skip
    covered = np.bincount(kinds[0], minlength=_KINDS) >= _FEWEST_OF_KIND
    covered[[_UNCOVERED, _UNCOVERED + _KINDS // 2]] = False
    log_levels = levels * (np.log(2) / _PER_OCTAVE)
    point = log_levels[_triple(sides, covered, [np.ones((1, max(s.blocks, 1)), np.float32) for s in sides])][:, 0]
    draws = [_resample(max(s.blocks, 1), rng) for s in sides]
    replicates = np.concatenate(
        [log_levels[_triple(sides, covered, [d[i : i + _CHUNK] for d in draws])] for i in range(0, _REPLICATES, _CHUNK)], axis=1
    )
    uncovered = 1 - float(covered[kinds[1]].mean())
    return [
        _quantile(i, point[..., i], replicates[..., i], sides, log_levels, alpha, uncovered) for i in range(len(QUANTILES))
    ]  # fmt: skip


def _quantile(
    i: int, point: NDArray[np.float64], replicates: NDArray[np.float64], sides: list[_Side], log_levels: NDArray[np.float64],
    alpha: float, uncovered: float,
) -> Latency:  # fmt: skip
    """One quantile from its logs: of A, of B, of A under B's workload, of B's covered requests, (4,) and replicates (4, R)."""
    ends = []
    for s, side in enumerate(sides):
        half = float(spread(replicates[s], side.blocks, alpha))
        low, high = side.bounds(QUANTILES[i], alpha, log_levels)
        ends.append(Interval(float(point[s]), min(low, float(point[s]) - half), max(high, float(point[s]) + half)))
    total = change(ends[0], ends[1])
    moved = float(point[3] - point[2])
    blocks = min(side.blocks for side in sides)
    half = float(spread(replicates[3] - replicates[2], blocks, alpha))
    if uncovered > MOST_UNCOVERED:
        service = Interval(float("nan"), -np.inf, np.inf)
    else:  # at least as wide as what so many requests can tell at all
        service = Interval(
            moved, moved - max(half, total.value - total.low), moved + max(half, total.high - total.value)
        )  # fmt: skip
    a, b = (Interval(*(float(np.exp(v)) for v in end)) for end in ends)
    return Latency(a, b, total, service, uncovered)


def kind_of(expected: NDArray[np.float32], reference: NDArray[np.float32], adapted: NDArray[np.bool_]) -> NDArray[np.intp]:
    """Kind of each request, (n,): rank bin of its expected latency among the `reference` ones, apart with an adapter."""
    cuts = np.unique(np.quantile(reference, LEVELS))
    slack = 0.05  # octaves beyond the extremes of A that are still like A
    kind = np.searchsorted(cuts, expected, side="left")
    kind[(expected < reference.min() - slack) | (expected > reference.max() + slack)] = _UNCOVERED
    return np.asarray(kind + adapted * (_KINDS // 2))


class _Side:
    """One recording: counts by block, kind and level."""

    def __init__(self, place: NDArray[np.intp], kind: NDArray[np.intp], levels: int, blocks: int) -> None:
        self.blocks, self.levels, self.n = blocks, levels, len(place)
        rows = max(blocks, 1)
        used, kind = np.unique(kind, return_inverse=True)
        self.kinds = used
        key = (blocks_of(self.n, blocks) * len(used) + kind) * levels + place
        counts = np.bincount(key, minlength=rows * len(used) * levels).astype(np.float32)
        self.counts = counts.reshape(rows, len(used) * levels)

    def drawn(self, weights: NDArray[np.float32]) -> NDArray[np.float32]:
        """Counts of resampled recordings, (R, kinds, levels), from how often each draws each block, (R, blocks)."""
        drawn: NDArray[np.float32] = (weights @ self.counts).reshape(len(weights), len(self.kinds), self.levels)
        return drawn

    def bounds(self, q: float, alpha: float, log_levels: NDArray[np.float64]) -> tuple[float, float]:
        """Logs of the order statistics around the q-quantile; infinite where the sample ends before."""
        upto = np.cumsum(self.counts.sum(axis=0, dtype=np.float64).reshape(len(self.kinds), -1).sum(axis=0))
        low, high = (int(rank) for rank in order_ranks(self.n, q, alpha))
        return (
            float(log_levels[np.searchsorted(upto, low - 0.5)]) if low >= 1 else -np.inf,
            float(log_levels[np.searchsorted(upto, high - 0.5)]) if high <= self.n else np.inf,
        )


def _triple(sides: list[_Side], covered: NDArray[np.bool_], weights: list[NDArray[np.float32]]) -> NDArray[np.intp]:
    """Levels of the quantiles of A, B, A under B's workload, B's covered requests, (4, R, QUANTILES)."""
    a, b = (side.drawn(w) for side, w in zip(sides, weights, strict=True))
    shared = [kind for kind in sides[0].kinds if covered[kind] and kind in sides[1].kinds]
    if not shared:
        plain = [_levels(x.sum(axis=1)) for x in (a, b)]
        return np.stack([*plain, plain[0], plain[0]])
    a_some, b_some = (x[:, [list(side.kinds).index(kind) for kind in shared]] for x, side in zip((a, b), sides, strict=True))
    factor = b_some.sum(axis=2) / np.maximum(a_some.sum(axis=2), 1)
    reweighted = np.einsum("rk,rkl->rl", factor, a_some)
    return np.stack([_levels(a.sum(axis=1)), _levels(b.sum(axis=1)), _levels(reweighted), _levels(b_some.sum(axis=1))])


def _levels(counts: NDArray[np.float32]) -> NDArray[np.intp]:
    """Level that holds each quantile (the ceil(q n)-th smallest), (R, QUANTILES), of counts (R, levels)."""
    upto = np.cumsum(counts, axis=1, dtype=np.float64)
    rank = np.asarray(QUANTILES) * upto[:, -1:]
    found = [(upto < rank[:, i : i + 1] * (1 - 1e-9)).sum(axis=1) for i in range(len(QUANTILES))]
    return np.asarray(np.minimum(np.stack(found, axis=1), counts.shape[1] - 1))


def _resample(blocks: int, rng: np.random.Generator) -> NDArray[np.float32]:
    """How often each of `blocks` blocks is drawn, (R, blocks)."""
    return np.asarray(rng.multinomial(blocks, np.full(blocks, 1 / blocks), size=_REPLICATES), np.float32)

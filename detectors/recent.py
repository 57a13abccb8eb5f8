"""Where a series is now, and what would be news on top of that.

A baseline that has wobbled by 15 % for half an hour must tolerate half a nat for good, and a service twice as slow, or one
request in fifty that stalls, hides in so wide a band. Both are plain against the last minute. So each series also has a *recent
place*, an exponential mean of its last half minute, known before the tick that is judged: whatever it is, an alternative built on
it is a distribution, so its e-value is one (a predictable plug-in).

* A *tail* alternative leaves the bulk near the recent place and raises the share of the farthest bin. Its null is that of all
  other alternatives: any shift inside the tolerance band, and a tail up to twice as heavy.
* A *jump* alternative moves everything to well beyond the recent place. Its null is every shift up to the recent place plus a
  *reach* that is learned from the series' own innovations (ticks against the place before them), as the tolerance band is from
  its wobble: a series that wanders does not jump.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from detectors.baseline import WOBBLE_PRIOR
from detectors.evidence import JUMPS, MAX_BAND, SHIFTS, TAILS, ZERO, Outward, take
from detectors.model import Scale
from detectors.state import BankState

__all__ = ["Recent", "follow", "forget", "log_e", "most_steps", "place_nats"]

_RECENT_S = 30.0
_OUTLIER = 40.0
"""Times as slowly the place follows a tick that is far from it while evidence is up: a fault must not become the place that it is
compared with, and a wandering series must not lose its place."""
_PRIOR_N = 10.0
"""Samples at which half of the recent mean is believed; the rest is the baseline."""
_PRIOR_WEIGHT = 10.0
_PIECE = 5.0
"""Weight of an independent piece of what is known of the innovations."""
_BAND_SD = 3.0
_USUAL_SD = 0.5
"""Standard deviations of a series' wobble up to which a tick is as usual, wherever it was before."""
_REACH_SD = 3.0
_WINSOR = 9.0

F32 = NDArray[np.float32]
F64 = NDArray[np.float64]

_STEP = 0.01  # all shifts of the grid are multiples of it
_FINE = np.arange(round(SHIFTS[0] / _STEP), round(SHIFTS[-1] / _STEP) + 1) * _STEP
_AT_LEAST: NDArray[np.intp] = np.searchsorted(SHIFTS, _FINE - 1e-9)
_NEAREST: NDArray[np.intp] = np.abs(_FINE[:, None] - SHIFTS).argmin(axis=1)
_FIRST = int(np.searchsorted(SHIFTS, -MAX_BAND))
_INNER = len(SHIFTS) - 2 * _FIRST
"""Shifts that a band may hold."""
_SPREADS: F32 = np.array([0.03, 0.05, 0.08, 0.12, 0.2, 0.3], np.float32)
_MOST = np.float32(-0.1)
_NEVER = np.float32(1e4)


def _log_weights() -> F32:
    inner = SHIFTS[_FIRST : _FIRST + _INNER]
    z = (inner[:, None] - inner) / _SPREADS[:, None, None]
    log_weight = -0.5 * np.square(z)
    log_weight -= np.log(np.exp(log_weight).sum(axis=-1, keepdims=True))
    alone = np.where(np.eye(_INNER, dtype=np.bool_), 0.0, -np.inf)
    return np.concatenate([alone[None], log_weight]).astype(np.float32)


_LOG_WEIGHT = _log_weights()
"""(1 + spreads, recent place, place): the recent place alone, then normal laws around it."""
_LOG_MODE: F32 = np.diagonal(_LOG_WEIGHT, axis1=1, axis2=2).reshape(-1)


def _index(table: NDArray[np.intp], d: NDArray[np.floating]) -> NDArray[np.intp]:
    """Index into SHIFTS for shifts `d`, by `table`."""
    at = np.ceil((d - SHIFTS[0]) / _STEP - 1e-3)
    out: NDArray[np.intp] = table[np.clip(at, 0, len(table) - 1).astype(np.intp)]
    return out


class Recent(NamedTuple):
    """Of rows, (4, m) each.

    Attributes:
        place: Recent place against the baseline, nats.
        edge: Largest shift that is no jump, nats: the place and how far from it a tick may be, or what is usual.
        spread: Standard deviation of the place, nats.
        band: Tolerance band, nats.
        few: So few samples in a tick tell no place near the recent one from it.
    """

    place: F32
    edge: F32
    spread: F32
    band: F32
    few: F32


def place_nats(state: BankState, m: int, band: F32, n_base: F32, scale: Scale) -> Recent:
    """Where the series of the first `m` rows are.

    Without recent samples the place is the baseline's, and the tolerance band is left to it.

    Args:
        state: Of the bank.
        m: Rows in use.
        band: Tolerance band, nats (4, m).
        n_base: Samples in the baseline, (4, m).
        scale: Of the pool's model.
    """
    total, n = state.recent[:, :m, 0], state.recent[:, :m, 1]
    width, spread = (a.astype(np.float32)[:, None] for a in (scale.width, scale.spread))
    believed = n / (n + np.float32(_PRIOR_N))
    mean = total / np.maximum(n, np.float32(1e-6))
    mean -= state.base_sum[:, :m].astype(np.float32) / np.maximum(n_base, np.float32(1))
    band = np.minimum(band, np.float32(MAX_BAND))
    place = np.clip(mean * width * believed, -band, band)
    jitter = state.jitter[:, :m]
    weight = jitter[..., 1]
    variance = (jitter[..., 0] + np.float32(_PRIOR_WEIGHT * WOBBLE_PRIOR**2)) / (weight + np.float32(_PRIOR_WEIGHT))
    variance = np.maximum(variance, 0) * np.square(1 + 1 / np.sqrt(1 + weight / np.float32(_PIECE)))
    reach = np.float32(_REACH_SD) * np.sqrt(variance) + band * (1 - believed)
    edge = np.maximum(place + reach, band * np.float32(_USUAL_SD / _BAND_SD))  # back to usual is no jump
    deviation = reach / np.float32(_REACH_SD)
    few = 2 * np.square(spread / deviation)
    return Recent(*(a.astype(np.float32, copy=False) for a in (place, edge, deviation, band, few)))


def log_e(
    counts: F32, n: F32, log_p: F32, null: F32, allowance: F32, ways: Outward, log_shapes: F32, log_z: F32, now: Recent, out: F32
) -> None:
    """Log e of the jumps, then of the tails.

    Args:
        counts: (4, m, BINS).
        n: Their sums, (4, m).
        log_p: Of `evidence.log_likelihood`, (4, FAMILY, m).
        null: Log-likelihood of the tolerant null, (4, m), with the `allowance` for a heavier tail in it.
        allowance: (4, m).
        ways: Of `evidence.outward`, at least `most_steps` up.
        log_shapes: Of `evidence.tilt`, like `log_z`.
        log_z: (4, FAMILY + TAIL_BINS, m).
        now: Where the series were.
        out: (4, JUMPS + TAILS, m), written.
    """
    _jumps(log_p, allowance, ways, now, out)
    _tails(counts, n, log_p, null, log_shapes, log_z, now, out[:, len(JUMPS) :])


def most_steps(now: Recent) -> int:
    """Steps up the grid that the null of the jumps may reach."""
    return int(_index(_AT_LEAST, now.edge.max(keepdims=True)).max()) - ZERO


def _jumps(log_p: F32, allowance: F32, ways: Outward, now: Recent, out: F32) -> None:
    upper = _index(_AT_LEAST, now.edge)
    inside = _index(_NEAREST, now.band)  # no shift below the band is nearer to a jump than the band's lower end
    up_to = np.maximum(take(ways.up, upper - ZERO), take(ways.down, inside - ZERO))
    up_to += allowance
    for a, beyond in enumerate(JUMPS):
        there = np.maximum(_index(_AT_LEAST, now.edge + np.float32(beyond)), upper)
        np.subtract(take(log_p, there), up_to, out=out[:, a])


def _tails(counts: F32, n: F32, log_p: F32, null: F32, log_shapes: F32, log_z: F32, now: Recent, out: F32) -> None:
    """The bulk lies on the grid: at the recent place when the tick has too few samples to tell, else near it, with the weights
    of a normal law (a mixture of alternatives).

    Without requests in the farthest bin, only the mixture's largest term is looked at: that makes e smaller, not larger.
    """
    sli = np.arange(len(log_p))[:, None]
    # Inside the band: a service that became faster than any null must not count as one with a tail.
    here = ZERO + np.sign(now.place).astype(np.intp) * (ZERO - _index(_AT_LEAST, -np.abs(now.place)))
    spread = np.zeros(here.shape, np.intp)
    many = n > now.few
    if many.any():
        spread[many] = 1 + np.searchsorted(_SPREADS[:-1], now.spread[many])
    far = counts[..., -1]
    log_share = log_shapes[:, :, -1].reshape(-1).take(sli * log_shapes.shape[1] + here)
    log_share += log_z[:, -1] - log_z[sli, here, np.arange(n.shape[1])]
    share = np.exp(np.minimum(log_share, _MOST, out=log_share))
    rest = np.log(1 - share)
    still = take(log_p, here) - null
    still += _LOG_MODE.take(spread * _INNER + here - _FIRST)
    for a, wanted in enumerate(TAILS):
        np.add(still, n * (np.log(1 - np.maximum(share, np.float32(wanted))) - rest), out=out[:, a])
    some, row = np.nonzero(far)
    if len(some) == 0:
        return
    grid = slice(_FIRST, _FIRST + _INNER)
    k, others = far[some, row][:, None], (n - far)[some, row][:, None]
    log_share = np.minimum(log_shapes[some, grid, -1] + log_z[some, -1, row][:, None] - log_z[some, grid, row], _MOST)
    log_rest = np.log1p(-np.exp(log_share))
    terms = log_p[some, grid, row] - null[some, row][:, None]
    terms += _LOG_WEIGHT[spread[some, row], here[some, row] - _FIRST]
    terms[np.abs(SHIFTS[grid]) > now.band[some, row][:, None]] = -_NEVER
    for a, wanted in enumerate(TAILS):
        log_higher = np.maximum(log_share, np.float32(np.log(wanted)))
        each = terms + k * (log_higher - log_share) + others * (np.log1p(-np.exp(log_higher)) - log_rest)
        top = each.max(axis=1)
        out[some, a, row] = top + np.log(np.exp(each - top[:, None]).sum(axis=1))


def follow(
    state: BankState, sums: NDArray[np.int64], n: F32, scale: Scale, tick_s: float, half_life_s: float, suspect: NDArray[np.bool_]
) -> None:
    """Learns from a tick that has been judged. Series without samples in it stay as they are.

    Args:
        state: Of the bank, changed in place.
        sums: Sums of the tick's residual codes, (4, m).
        n: Their numbers, (4, m).
        scale: Of the pool's model.
        tick_s: Length of a tick, seconds.
        half_life_s: Of the memory of innovations, seconds.
        suspect: (4, m): evidence is up, or the node is held.
    """
    m = n.shape[1]
    recent, jitter = state.recent[:, :m], state.jitter[:, :m]
    total, before = recent[..., 0], recent[..., 1]
    noise = np.square(scale.spread.astype(np.float32))[:, None] / np.maximum(n, np.float32(1))
    some = n > 0
    usable = some & (before > _PRIOR_N)
    width = scale.width.astype(np.float32)[:, None]
    innovation = (sums / np.maximum(n, np.float32(1)) - total / np.maximum(before, np.float32(1e-6))) * width
    prior = np.float32(_PRIOR_WEIGHT * WOBBLE_PRIOR**2)
    usual = np.maximum((jitter[..., 0] + prior) / (jitter[..., 1] + np.float32(_PRIOR_WEIGHT)), 0)
    limit = np.float32(_WINSOR) * (usual + noise)
    square = np.square(innovation)
    weight = np.where(usable & ~suspect, np.square(WOBBLE_PRIOR**2 / (WOBBLE_PRIOR**2 + noise)), 0).astype(np.float32)
    jitter *= np.where(some, np.float32(np.exp2(-tick_s / half_life_s)), np.float32(1))[..., None]
    jitter[..., 0] += weight * (np.minimum(square, limit) - noise)
    jitter[..., 1] += weight
    slowly = suspect & usable & (square > limit)
    share = np.where(slowly, np.float32(1 / _OUTLIER), np.float32(1))
    keep = np.exp(np.where(some, np.float32(-tick_s / _RECENT_S) * share, np.float32(0)))
    total *= keep
    total += share * sums
    before *= keep
    before += share * n


def forget(state: BankState, where: NDArray[np.bool_]) -> None:
    """Series (4, r) that were away are not where they were."""
    state.recent[where] = 0

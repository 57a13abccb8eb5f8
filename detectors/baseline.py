"""What is normal for a series: learned, slowly forgotten, frozen while something is wrong.

A series is LEARNING until it has enough samples over enough time, then ACTIVE. Blocks (detection periods) become part of
the baseline only after the lag, and only if the series neither alarmed nor was held since the block began: the run-up to an
incident is dropped, the incident itself never becomes normal (FROZEN). Old counts are forgotten exponentially.

The tolerance band is learned too: how much the series' own mean log-latency wobbles from tick to tick and from block to
block beyond what the sample sizes explain (a method-of-moments variance component), at least the policy's floor, plus three
standard errors of the baseline.

Once there are two days of history the hour of the day is taken off (`detectors.hours`); from then on everything here is about
what is left, and what a series that has a daily rhythm was believed to wobble because of it is forgotten quickly.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from detectors import drift, hours
from detectors.model import Scale
from detectors.state import BankState

__all__ = [
    "ACTIVE",
    "FROZEN",
    "LEARNING",
    "add_wobble",
    "band_nats",
    "follow_hours",
    "learn_block",
    "mix_window",
    "turn_blocks",
    "window",
    "wobble_sd",
]  # fmt: skip

LEARNING, ACTIVE, FROZEN = 0, 1, 2

WOBBLE_PRIOR = 0.05
_PRIOR_WEIGHT = 10.0
_BAND_SD = 3.0
_CORRELATION_S = 300.0
"""Wobble is believed to last about this long, so a baseline of T seconds averages T / 300 independent pieces of it."""
_WINSOR = 9.0
_LONG_MOST = np.float32(30000)
_HOURS_AFTER_S = 3600.0
"""A bank that lives shorter needs no hours of the day."""
_KEPT_OF_DAY = np.float32(0.1)
"""What an all-day baseline still weighs when the hour of the day is taken off for the first time."""


def wobble_sd(state: BankState, m: int) -> NDArray[np.float64]:
    """Standard deviation of the series' own wobble, nats (4, m): the larger of tick to tick and block to block."""
    w = state.wobble[:, :m]
    prior = _PRIOR_WEIGHT * WOBBLE_PRIOR**2
    ticks = (w[..., 0] + prior) / (w[..., 1] + _PRIOR_WEIGHT)
    blocks = (w[..., 2] + prior) / (w[..., 3] + _PRIOR_WEIGHT)
    return np.sqrt(np.maximum(np.maximum(ticks, blocks), 0.0))


def band_nats(state: BankState, m: int, floor: float, scale: Scale) -> NDArray[np.float32]:
    """Half-width of the band of shifts that are not news, nats (4, m).

    Args:
        state: Of the bank.
        m: Rows in use.
        floor: Least width.
        scale: Of the pool's model.
    """
    sd = wobble_sd(state, m)
    n = np.maximum(state.base[:, :m].sum(axis=-1, dtype=np.float64), 1.0)
    pieces = np.maximum(state.base_s[:, :m] / _CORRELATION_S, 1.0)
    sd = sd * (1 + 1 / np.sqrt(pieces))  # few pieces may have shown too little of the wobble
    error = np.square(scale.spread)[:, None] / n + scale.place[:, None] + np.square(sd) / pieces
    error += hours.variance(state.hour[:, :m])
    return np.asarray(np.maximum(floor, _BAND_SD * sd) + _BAND_SD * np.sqrt(error), np.float32)


def _excess(
    state: BankState, m: int, sums: NDArray[np.int64], n: NDArray[np.float32], scale: Scale
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Weighted squared deviation from the baseline beyond sampling noise, and the weight, both (4, m)."""
    base_n = state.base[:, :m].sum(axis=-1, dtype=np.float64)
    usable = (n > 0) & (base_n > 0)
    safe = np.where(usable, n, 1)
    deviation = (sums / safe - state.base_sum[:, :m] / np.where(usable, base_n, 1.0)) * scale.width[:, None]
    noise = np.square(scale.spread)[:, None] / safe
    limit = _WINSOR * (np.square(wobble_sd(state, m)) + noise)
    weight = np.where(usable, np.square(WOBBLE_PRIOR**2 / (WOBBLE_PRIOR**2 + noise)), 0.0)
    return weight * (np.minimum(np.square(deviation), limit) - noise), weight


def add_wobble(state: BankState, sums: NDArray[np.int64], n: NDArray[np.float32], scale: Scale) -> None:
    """Adds a tick's deviation to the running block.

    Args:
        state: Of the bank, changed in place.
        sums: Sums of the tick's residual codes, (4, m).
        n: Their numbers, (4, m).
        scale: Of the pool's model.
    """
    m = n.shape[1]
    square, weight = _excess(state, m, sums, n, scale)
    state.block_wobble[0, :, :m, 0] += square.astype(np.float32)
    state.block_wobble[0, :, :m, 1] += weight.astype(np.float32)


def learn_block(state: BankState, block: int, block_s: float, half_life_s: float, scale: Scale) -> bool:
    """The oldest block leaves the lag: it becomes baseline where nothing happened since it began. True where it did.

    Args:
        state: Of the bank, changed in place.
        block: Number of the newest block.
        block_s: Length of a block, seconds.
        half_life_s: Of the baseline's memory.
        scale: Of the pool's model.
    """
    keep = float(np.exp2(-block_s / half_life_s))
    leaving, sums = state.blocks[-1], state.block_sum[-1]
    if not leaving.any() and not state.block_mix[-1].any():
        return False
    n = leaving @ np.ones(leaving.shape[-1], np.float32)
    good = state.learned & (state.bad_block < block + 1 - len(state.blocks))
    some = good & (n > 0)
    if some.any():
        if state.hour.shape[-1]:
            _learn_hour(state, block, block_s, sums, n, some, scale)
        square, weight = _excess(state, state.rows, sums, n, scale)
        state.wobble[some] *= keep
        state.wobble[some, :2] += state.block_wobble[-1][some]
        state.wobble[some, 2] += square[some]
        state.wobble[some, 3] += weight[some]
        state.base[some] = state.base[some] * np.float32(keep) + leaving[some]
        state.base_sum[some] = state.base_sum[some] * keep + sums[some]
        state.base_s[some] = state.base_s[some] * keep + block_s
    mixed = good.any(axis=0) & (state.block_mix[-1].sum(axis=-1) > 0)
    if mixed.any():
        _learn_mix(state, mixed, keep)
    return bool(some.any() or mixed.any())


def _learn_hour(
    state: BankState, block: int, block_s: float, sums: NDArray[np.int64], n: NDArray[np.float32], some: NDArray[np.bool_],
    scale: Scale,
) -> None:  # fmt: skip
    """The block that leaves the lag, as history of its hour."""
    base_n = state.base.sum(axis=-1, dtype=np.float64)
    some = some & (base_n > 0)
    safe = np.where(some, n, 1)
    deviation = (sums / safe - state.base_sum / np.where(some, base_n, 1.0)) * scale.width[:, None]
    noise = np.square(scale.spread)[:, None] / safe
    middle_s = (block - len(state.blocks) + 1.5) * block_s
    hours.learn(state.hour, middle_s, block_s, deviation + hours.applied_nats(state.hour), noise, some)


def follow_hours(state: BankState, block: int, block_s: float) -> bool:
    """Takes the hour of the day off the series that have one, in the block that begins. True when the state has changed.

    Args:
        state: Of the bank, changed in place.
        block: The one that begins.
        block_s: Its length, seconds.
    """
    if not state.hour.shape[-1]:
        if not (state.base_s >= _HOURS_AFTER_S).any():
            return False
        state.hour = hours.begin(state.rows, len(state.blocks))
    before = hours.now_nats(state.hour).copy()
    begun = hours.follow(state.hour, (block + 0.5) * block_s, block_s, wobble_sd(state, state.rows))
    state.offset += (hours.now_nats(state.hour) - before) / np.float32(np.log(2))
    for array in (state.base, state.base_sum, state.base_s, state.wobble):
        array[begun] *= _KEPT_OF_DAY
    return bool(state.hour.any())


def _learn_mix(state: BankState, rows: NDArray[np.bool_], keep: float) -> None:
    base, new, wobble = state.base_mix[rows], state.block_mix[-1][rows], state.mix_wobble[rows]
    n, n_base = new.sum(axis=-1), base.sum(axis=-1)
    kl = drift.kl_nats(new, base) - drift.bias_nats(base.shape[-1], n, n_base)
    usual = wobble[:, 0] / np.maximum(wobble[:, 1], 1.0)
    kl = np.where(n_base > 0, np.minimum(kl, np.maximum(4 * usual, 0.1)), 0.0)
    state.mix_wobble[rows] = wobble * keep + np.stack([kl, np.ones_like(kl)], axis=-1)
    state.base_mix[rows] = base * np.float32(keep) + new


def turn_blocks(state: BankState, block: int, enough: int, longest: int) -> None:
    """A block is over: it joins the long window, and the next one begins.

    Args:
        state: Of the bank, changed in place.
        block: Number of the block that is over.
        enough: Samples that fill a generation of the long window.
        longest: Blocks after which a generation is forgotten.
    """
    state.long[0] += np.minimum(state.blocks[0], _LONG_MOST).astype(np.uint16)
    state.long_mix[0] += state.block_mix[0]
    for generation in (0, 1):
        old = state.long_since[generation] <= block - longest
        state.long[generation][old] = 0
        state.long_since[generation][old] = block + 1
    full = state.long[0].sum(axis=-1, dtype=np.int64) >= enough
    state.long[1][full], state.long_since[1][full] = state.long[0][full], state.long_since[0][full]
    state.long[0][full], state.long_since[0][full] = 0, block + 1
    full_mix = state.long_mix[0].sum(axis=-1) >= enough
    state.long_mix[1][full_mix] = state.long_mix[0][full_mix]
    state.long_mix[0][full_mix] = 0
    for array in (state.blocks, state.block_sum, state.block_wobble, state.block_mix):
        array[1:] = array[:-1].copy()
        array[0] = 0


def window(state: BankState, m: int, need: int) -> tuple[NDArray[np.float32], NDArray[np.float32], NDArray[np.int64]]:
    """The shortest run of newest blocks that holds `need` samples, else the long window.

    Returns:
        Counts by rank bin (4, m, BINS), their sums (4, m), sums of residual codes over the blocks (4, m).
    """
    counts, sums = state.blocks[0, :, :m].copy(), state.block_sum[0, :, :m].astype(np.int64)
    ones = np.ones(counts.shape[-1], np.float32)
    n = counts @ ones
    few = n < need
    for older in range(1, len(state.blocks)):
        if not few.any():
            break
        np.add(counts, state.blocks[older, :, :m], out=counts, where=few[..., None])
        np.add(sums, state.block_sum[older, :, :m], out=sums, where=few)
        n = counts @ ones
        few = n < need
    if few.any():
        counts[few] = state.blocks[0, :, :m][few] + state.long[:, :, :m].sum(axis=0, dtype=np.float32)[few]
        n = counts @ ones
    return counts, n, sums


def mix_window(state: BankState, m: int, need: int) -> NDArray[np.int64]:
    """The same of the counts by stratum, (m, S)."""
    mix = state.block_mix[0, :m].astype(np.int64)
    few = mix.sum(axis=-1) < need
    for older in range(1, len(state.block_mix)):
        if not few.any():
            break
        np.add(mix, state.block_mix[older, :m], out=mix, where=few[:, None])
        few = mix.sum(axis=-1) < need
    if few.any():
        mix[few] = state.block_mix[0, :m][few] + state.long_mix[:, :m].sum(axis=0, dtype=np.int64)[few]
    return mix

"""What happens when a detection period is complete: it is compared, its tail is read, and what left the lag becomes
baseline.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from detectors import baseline, drift, dynamic_slo, ranks, seed, tail
from detectors.model import Scale
from detectors.state import SLIS, BankState
from schemas.policy import Detection

__all__ = ["complete", "read_tails"]


def complete(state: BankState, m: int, settings: Detection, over: int, block_s: float, scale: Scale) -> bool:
    """Completes block `over`; the state is changed in place. True when a baseline has changed.

    Args:
        state: Of the bank.
        m: Rows in use.
        settings: Of the detection.
        over: Number of the block.
        block_s: Its length, seconds.
        scale: Of the pool's model.
    """
    _count_periods(state, m, settings)
    learned = baseline.learn_block(state, over, block_s, settings.half_life_s, scale)
    baseline.turn_blocks(state, over, settings.min_samples, max(1, round(settings.longest_window_s / block_s)))
    if settings.hour_of_day and settings.method == "evidence":
        learned |= baseline.follow_hours(state, over + 1, block_s)
    return learned


def _count_periods(state: BankState, m: int, settings: Detection) -> None:
    done, base = state.blocks[0, :, :m], state.base[:, :m]
    n, n_base = done.sum(axis=-1), base.sum(axis=-1)
    counted = state.learned[:, :m] & (n > 0)
    if settings.method == "seed":
        kl = seed.kl_nats(base, done)
    else:
        kl = drift.kl_nats(done, base) - drift.bias_nats(ranks.BINS, n, n_base)
        counted &= n >= settings.min_samples
    periods = seed.count_periods(state.periods[:, :m], kl, settings.kl_warn_nats)
    state.periods[:, :m] = np.where(counted, periods, state.periods[:, :m])


def read_tails(
    state: BankState, m: int, settings: Detection, slot: int, per_block: int, block_s: float, urgent: NDArray[np.bool_]
) -> None:
    """Reads P99.9 of the fine histograms whose turn it is.

    Rows take turns, one in `per_block` each tick. A histogram that is full moves the threshold and starts again; while something
    is wrong, and before there is a threshold, every period is a window of its own. Where evidence is rising the running histogram
    is read as well.

    Args:
        state: Of the bank, changed in place.
        m: Rows in use.
        settings: Of the detection.
        slot: The tick.
        per_block: Ticks in a block.
        block_s: Length of a block, seconds.
        urgent: (4, m).
    """
    turn = state.next_read[:m] <= slot
    state.next_read[:m][turn] = slot + per_block - (np.flatnonzero(turn) + slot) % per_block
    some = np.broadcast_to(turn, (SLIS, m)) | urgent
    sli, row = np.nonzero(some)
    counts = state.fine[sli, row]
    n = counts.sum(axis=-1, dtype=np.int64)
    enough = n >= min(settings.min_samples, tail.ENOUGH)
    sli, row, n = sli[enough], row[enough], n[enough]
    if len(sli) == 0:
        return
    fresh = tail.p999(counts[enough])
    state.tail[sli, row] = fresh
    block = slot // per_block
    calm = state.bad_block[sli, row] < block - 1
    if settings.method == "evidence":
        anew = turn[row] & dynamic_slo.recalibrates(state.periods[sli, row], ~calm, settings.kl_periods)
        state.tail_level[sli[anew], row[anew]] = 0.0
    full = n >= tail.ENOUGH
    lasted_s = (block - state.fine_since[sli, row]) * block_s
    full |= lasted_s >= tail.LONGEST_S
    full |= ~calm | (state.tail_level[sli, row, 2] == 0) | (settings.method == "seed")
    full &= turn[row]
    sli, row, fresh, n, calm, lasted_s = sli[full], row[full], fresh[full], n[full], calm[full], lasted_s[full]
    state.fine[sli, row] = 0
    state.fine_since[sli, row] = block
    good = calm & (fresh[:, 3] != tail.CENSORED)
    sli, row, value, n, lasted_s = sli[good], row[good], fresh[good, 0], n[good], lasted_s[good]
    level = state.tail_level[sli, row]
    keep = np.exp2(-np.maximum(lasted_s, block_s) / settings.half_life_s)
    if settings.method == "seed":
        tail.level_update(level, value, keep)
    else:
        tail.threshold_update(level, np.log(value), n, keep)
    state.tail_level[sli, row] = level

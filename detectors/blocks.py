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

    Rows take turns, one in `per_block` each tick: a histogram with enough samples gives the P99.9 of a full period, moves
    the threshold unless something is wrong, and starts again. Where evidence is rising the running histogram is read as well.

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
    enough = counts.sum(axis=-1, dtype=np.int64) >= settings.min_samples
    sli, row = sli[enough], row[enough]
    if len(sli) == 0:
        return
    fresh = tail.p999(counts[enough])
    state.tail[sli, row] = fresh
    full = turn[row]
    sli, row, fresh = sli[full], row[full], fresh[full]
    state.fine[sli, row] = 0
    calm = state.bad_block[sli, row] < slot // per_block - 1
    if settings.method == "evidence":
        anew = dynamic_slo.recalibrates(state.periods[sli, row], ~calm, settings.kl_periods)
        state.tail_level[sli[anew], row[anew]] = 0.0
    good = calm & (fresh[:, 3] != tail.CENSORED)
    sli, row, value = sli[good], row[good], fresh[good, 0]
    level = state.tail_level[sli, row]
    keep = float(np.exp2(-block_s / settings.half_life_s))
    if settings.method == "seed":
        tail.level_update(level, value, keep)
    else:
        tail.threshold_update(level, np.log(value), keep)
    state.tail_level[sli, row] = level

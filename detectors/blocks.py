"""What happens when a detection period is complete: it is compared, its tail is read, and what left the lag becomes
baseline.
"""

from __future__ import annotations

import numpy as np

from detectors import baseline, drift, dynamic_slo, ranks, seed, tail
from detectors.model import Scale
from detectors.state import SLIS, BankState
from schemas.policy import Detection

__all__ = ["complete"]


def complete(state: BankState, m: int, settings: Detection, over: int, block_s: float, scale: Scale) -> None:
    """Completes block `over`; the state is changed in place.

    Args:
        state: Of the bank.
        m: Rows in use.
        settings: Of the detection.
        over: Number of the block.
        block_s: Its length, seconds.
        scale: Of the pool's model.
    """
    keep = float(np.exp2(-block_s / settings.half_life_s))
    _count_periods(state, m, settings)
    _read_tails(state, m, settings, over, keep)
    baseline.learn_block(state, over, block_s, settings.half_life_s, scale)
    baseline.turn_blocks(state, over, settings.min_samples, max(1, round(settings.longest_window_s / block_s)))


def _count_periods(state: BankState, m: int, settings: Detection) -> None:
    done, base = state.blocks[0, :, :m], state.base[:, :m]
    n, n_base = done.sum(axis=-1, dtype=np.int64), base.sum(axis=-1)
    counted = state.learned[:, :m] & (n > 0)
    if settings.method == "seed":
        kl = seed.kl_nats(base, done)
    else:
        kl = drift.kl_nats(done, base) - drift.bias_nats(ranks.BINS, n, n_base)
        counted &= n >= settings.min_samples
    periods = seed.count_periods(state.periods[:, :m], kl, settings.kl_warn_nats)
    state.periods[:, :m] = np.where(counted, periods, state.periods[:, :m])


def _read_tails(state: BankState, m: int, settings: Detection, over: int, keep: float) -> None:
    """Full fine histograms give a P99.9, which moves the threshold unless something is wrong, and start again."""
    full = state.fine[:, :m].sum(axis=-1, dtype=np.int64) >= settings.min_samples
    if not full.any():
        return
    fresh = np.full((SLIS, m, 4), np.nan)
    fresh[full] = tail.p999(state.fine[:, :m][full])
    state.tail[:, :m][full] = fresh[full]
    state.fine[:, :m][full] = 0
    calm = state.bad_block[:, :m] < over
    if settings.method == "evidence":
        anew = dynamic_slo.recalibrates(state.periods[:, :m], ~calm, settings.kl_periods)
        state.tail_level[:, :m][anew] = 0.0
    good = full & calm & (fresh[..., 3] != tail.CENSORED)
    level = state.tail_level[:, :m][good]
    if settings.method == "seed":
        tail.level_update(level, fresh[good, 0], keep)
    else:
        tail.threshold_update(level, np.log(fresh[good, 0]), keep)
    state.tail_level[:, :m][good] = level

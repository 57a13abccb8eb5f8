"""Turns the state of a bank into the `BankTick` that others read. Nothing here changes the state."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from detectors import baseline, drift, evidence, peers, ranks, seed, tail
from detectors.baseline import ACTIVE, FROZEN, LEARNING
from detectors.result import BankTick
from detectors.state import SLIS, BankState
from schemas.policy import Detection

__all__ = ["Alarms", "report", "tail_threshold_s"]

_TAIL_TOLERANCE = 2.0
_DAY_S = 86400.0


class Alarms:
    """Outcome of the tests of a tick: bool (4, m) slower, faster and bad (slower or held), (m,) mix; float64 (4, m)
    log_evidence.
    """

    __slots__ = ("bad", "faster", "log_evidence", "mix", "slower")

    def __init__(
        self, slower: NDArray[np.bool_], faster: NDArray[np.bool_], mix: NDArray[np.bool_], log_evidence: NDArray[np.float64]
    ) -> None:
        self.slower, self.faster, self.mix, self.log_evidence = slower, faster, mix, log_evidence
        self.bad = slower


def tail_threshold_s(state: BankState, m: int, settings: Detection, kappa: float) -> NDArray[np.float64]:
    """Adaptive threshold of P99.9, seconds (4, m); NaN before there is one."""
    level = state.tail_level[:, :m]
    if settings.method == "seed":
        return seed.tail_threshold_s(np.where(level[..., 2] > 1, level[..., 0], np.nan), np.sqrt(level[..., 1]), kappa)
    return tail.threshold_s(level, kappa)


def report(
    state: BankState, m: int, settings: Detection, kappa: float, log_a: float, tick_s: float, block_s: float, slot: int,
    width: NDArray[np.float64], n_tick: NDArray[np.int64], alarms: Alarms,
) -> BankTick:  # fmt: skip
    """The result of the tick that has just been counted.

    Args:
        state: Of the bank.
        m: Rows in use.
        settings: Of the detection.
        kappa: Of the adaptive tail threshold.
        log_a: Evidence at which a series alarms.
        tick_s: Length of a tick.
        block_s: Length of a block.
        slot: The tick.
        width: Of a residual code, nats (4,).
        n_tick: Samples in the tick, (4, m).
        alarms: Of the tick.
    """
    learned = state.learned[:, :m]
    base, base_mix = state.base[:, :m], state.base_mix[:m]
    counts, sums, mixes = baseline.window(state, m, settings.min_samples)
    n, n_base = counts.sum(axis=-1), base.sum(axis=-1)
    n_mix, n_base_mix = mixes.sum(axis=-1), base_mix.sum(axis=-1)
    usable = learned & (n > 0) & (n_base > 0)
    service = drift.kl_nats(counts, base) - drift.bias_nats(ranks.BINS, n, n_base)
    mixed = drift.kl_nats(mixes, base_mix) - drift.bias_nats(mixes.shape[-1], n_mix, n_base_mix)
    service = np.where(usable, service, np.nan)
    mixed = np.where(usable & (n_base_mix > 0), mixed, np.nan)
    with np.errstate(divide="ignore", invalid="ignore"):
        shift = np.where(usable, (sums / n - state.base_sum[:, :m] / n_base) * width[:, None], np.nan)
    peer = np.full((SLIS, m), np.nan)
    peer[:, 1:] = peers.shift_against_peers(shift[:, 1:], usable[:, 1:])
    p999 = state.tail[:, :m]
    threshold = tail_threshold_s(state, m, settings, kappa)
    log_windows = float(np.log(_DAY_S / block_s / settings.false_alarms_per_day))
    with np.errstate(invalid="ignore"):
        above = (p999[..., 0] > threshold) | (_slowest_log_e(base, counts, n) > log_windows)
    since = state.drift_since[:, :m]
    return BankTick.split(
        n_tick=n_tick,
        n=np.where(learned, n, state.seen[:, :m]),
        baseline=np.where(learned, np.where(alarms.bad, FROZEN, ACTIVE), LEARNING).astype(np.uint8),
        enough=n >= settings.min_samples,
        kl_nats=mixed + service,
        kl_mix_nats=mixed,
        kl_service_nats=service,
        shift_nats=shift,
        peer_shift_nats=peer,
        log_evidence=alarms.log_evidence,
        log_threshold=np.full((SLIS, m), log_a),
        alarm=alarms.slower,
        improved=alarms.faster,
        mix_alarm=np.broadcast_to(alarms.mix, (SLIS, m)),
        p999_s=p999[..., 0],
        p999_lo_s=p999[..., 1],
        p999_hi_s=p999[..., 2],
        p999_kind=np.nan_to_num(p999[..., 3], nan=tail.CENSORED).astype(np.uint8),
        threshold_s=threshold,
        tail_above=learned & above,
        periods=state.periods[:, :m].copy(),
        drift_s=np.where(since >= 0, (slot + 1 - since) * tick_s, 0.0),
    )


def _slowest_log_e(base: NDArray[np.float32], counts: NDArray[np.int64], n: NDArray[np.int64]) -> NDArray[np.float64]:
    """Log e-value against: at most twice the usual share of the window lies above the baseline's q0.99."""
    n_base = np.maximum(base.sum(axis=-1), 1.0)
    share = (base[..., -ranks.TAIL_BINS :].sum(axis=-1) + 1) / n_base
    return evidence.binomial_log_e(
        counts[..., -ranks.TAIL_BINS :].sum(axis=-1), n, evidence.upper_share(share, n_base, _TAIL_TOLERANCE)
    )

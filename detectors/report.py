"""Turns the state of a bank into the `BankTick` that others read. Nothing here changes the state."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from detectors import baseline, drift, evidence, peers, ranks, seed, tail
from detectors.baseline import ACTIVE, FROZEN, LEARNING
from detectors.derived import Derived
from detectors.result import BankTick
from detectors.state import SLIS, BankState
from detectors.weigh import Alarms
from schemas.policy import Detection

__all__ = ["Terms", "report", "tail_threshold_s"]

_DAY_S = 86400.0


class Terms(NamedTuple):
    """What a bank judges by: settings, kappa of the tail threshold, alarm level, lengths of tick and block."""

    settings: Detection
    kappa: float
    log_a: float
    tick_s: float
    block_s: float


def tail_threshold_s(state: BankState, m: int, terms: Terms) -> NDArray[np.float64]:
    """Adaptive threshold of P99.9, seconds (4, m); NaN before there is one."""
    level = state.tail_level[:, :m]
    if terms.settings.method == "seed":
        return seed.tail_threshold_s(np.where(level[..., 2] > 1, level[..., 0], np.nan), np.sqrt(level[..., 1]), terms.kappa)
    if terms.settings.kappa is not None:
        return tail.threshold_s(level, terms.kappa)
    exceed = terms.settings.false_alarms_per_day * terms.block_s / _DAY_S
    return tail.threshold_s(level, tail.derived_kappa(level[..., 3], exceed))


def report(
    state: BankState, derived: Derived, terms: Terms, slot: int, n_tick: NDArray[np.int64], alarms: Alarms, seen: NDArray[np.intp]
) -> BankTick:
    """The result of the tick that has just been counted.

    Args:
        state: Of the bank.
        derived: From its baselines.
        terms: What it judges by.
        slot: The tick.
        n_tick: Samples in the tick, (4, m).
        alarms: Of the tick.
        seen: Strata that have occurred.
    """
    settings, m = terms.settings, n_tick.shape[1]
    learned = state.learned[:, :m]
    counts, n, sums = baseline.window(state, m, settings.min_samples)
    n_base = derived.n_base[:, :m]
    usable = learned & (n > 0) & (n_base > 0)
    service = drift.kl_of_window(counts, n, derived.log_base[:, :m]) - drift.bias_nats(ranks.BINS, n, n_base)
    # Less than the bias is no drift at all: each part ends at zero, so that the sum of both stays exact.
    service = np.where(usable, np.maximum(service, 0.0), np.nan)
    mixed = np.where(usable, np.maximum(_mix_kl(state, m, settings.min_samples, seen), 0.0), np.nan)
    with np.errstate(divide="ignore", invalid="ignore"):
        shift = (sums / n - state.base_sum[:, :m] / n_base) * derived.scale.width[:, None]
    shift = np.where(usable, shift, np.nan)
    peer = np.full((SLIS, m), np.nan)
    peer[:, 1:] = peers.shift_against_peers(shift[:, 1:], usable[:, 1:])
    place = np.full((SLIS, m), np.nan)
    usual = state.offset[:, 1:m].astype(np.float64) * np.log(2)
    place[:, 1:] = peers.shift_against_peers(shift[:, 1:] + usual, usable[:, 1:])
    p999 = state.tail[:, :m]
    threshold = tail_threshold_s(state, m, terms)
    heavy = learned & _heavy(counts, n, derived.tail_limit[:, :m], terms)
    with np.errstate(invalid="ignore"):
        above = heavy | (learned & (p999[..., 0] > threshold))
    since = state.drift_since[:, :m]
    return BankTick.split(
        n_tick=n_tick,
        n=np.where(learned, n, state.seen[:, :m]).astype(np.int64),
        baseline=np.where(learned, np.where(alarms.bad, FROZEN, ACTIVE), LEARNING).astype(np.uint8),
        enough=learned & (n >= settings.min_samples),
        kl_nats=mixed + service,
        kl_mix_nats=mixed,
        kl_service_nats=service,
        shift_nats=shift,
        peer_shift_nats=peer,
        peer_place_nats=place,
        band_nats=derived.band[:, :m],
        log_evidence=alarms.log_evidence,
        log_threshold=np.full((SLIS, m), terms.log_a),
        alarm=alarms.slower,
        sudden=alarms.sudden,
        improved=alarms.faster,
        mix_alarm=np.broadcast_to(alarms.mix, (SLIS, m)),
        p999_s=p999[..., 0].astype(np.float64),
        p999_lo_s=p999[..., 1].astype(np.float64),
        p999_hi_s=p999[..., 2].astype(np.float64),
        p999_kind=np.nan_to_num(p999[..., 3], nan=tail.CENSORED).astype(np.uint8),
        threshold_s=threshold,
        tail_above=above,
        heavy=heavy,
        periods=state.periods[:, :m].copy(),
        drift_s=np.where(since >= 0, (slot + 1 - since) * terms.tick_s, 0.0),
    )


def _mix_kl(state: BankState, m: int, need: int, seen: NDArray[np.intp]) -> NDArray[np.float64]:
    """KL of the window's mix of strata from the usual one without its bias, (m,); NaN without either."""
    now, base = baseline.mix_window(state, m, need)[:, seen], state.base_mix[:m, seen]
    n, n_base = now.sum(axis=1), base.sum(axis=1)
    kl = drift.kl_nats(now, base) - drift.bias_nats(len(seen), n, n_base)
    return np.where((n > 0) & (n_base > 0), kl, np.nan)


def _heavy(counts: NDArray[np.float32], n: NDArray[np.float32], limit: NDArray[np.float32], terms: Terms) -> NDArray[np.bool_]:
    """Whether the window holds more requests above the baseline's q0.99 than is tolerated, calibrated, (4, m)."""
    slowest = counts[..., -ranks.TAIL_BINS :] @ np.ones(ranks.TAIL_BINS, np.float32)
    heavy = slowest > n * limit
    some = np.nonzero(heavy)
    if len(some[0]):
        log_e = evidence.binomial_log_e(slowest[some], n[some], limit[some].astype(np.float64))
        heavy[some] = log_e > np.log(_DAY_S / terms.block_s / terms.settings.false_alarms_per_day)
    return heavy

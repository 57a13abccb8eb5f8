"""One tick of evidence for all series: likelihoods, Shiryaev-Roberts steps, alarms."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from detectors import baseline, evidence, mix, ranks, recent
from detectors.derived import Derived
from detectors.evidence import FASTER, SLOWER, SLOWER_WEIGHTS
from detectors.state import BankState
from schemas.policy import Detection

__all__ = ["Alarms", "weigh", "weigh_mix"]

_CHUNK = 4096
_CAP_NATS = 8.0
"""The statistics are kept at most this far above the threshold, so that a cleared fault is forgotten within a tick or two."""


@dataclass(slots=True)
class Alarms:
    """Outcome of the tests of a tick.

    Attributes:
        slower, faster: bool (4, m).
        sudden: Slower, by what is compared with the recent place alone, bool (4, m).
        mix: bool (m,).
        log_evidence: Of a slowdown, (4, m).
        bad: bool (4, m): slower, or the node is held; the baseline must not learn.
    """

    slower: NDArray[np.bool_]
    faster: NDArray[np.bool_]
    sudden: NDArray[np.bool_]
    mix: NDArray[np.bool_]
    log_evidence: NDArray[np.float64]
    bad: NDArray[np.bool_]


def weigh(
    state: BankState,
    derived: Derived,
    settings: Detection,
    log_a: float,
    counts: NDArray[np.float32],
    n: NDArray[np.float32],
    weight: NDArray[np.float64],
) -> tuple[NDArray[np.bool_], NDArray[np.bool_], NDArray[np.bool_], NDArray[np.float64]]:
    """Tests a tick's counts for slowdowns and improvements.

    Args:
        state: Of the bank, changed in place.
        derived: From its baselines.
        settings: Of the detection.
        log_a: Evidence at which a series alarms.
        counts: Counts by rank bin, (4, m, BINS).
        n: Their sums, (4, m).
        weight: Shares of the strata in the tick, (4, R).

    Returns:
        Alarms slower, faster and sudden, and the log of the statistic for slower, each (4, m).
    """
    m = n.shape[1]
    learned = state.learned[:, :m]
    happened = learned & (n > 0)
    if happened.any():
        scale = derived.scale.at_least_under(weight)
        band = derived.band[:, :m]
        if (scale.place > 1.05 * derived.scale.place).any():  # the tick's mix leans on strata that are less well known
            band = baseline.band_nats(state, m, settings.wobble_floor_ratio, scale)
        now = recent.place_nats(state, m, band, derived.n_base[:, :m], scale)
        for start in range(0, m, _CHUNK):  # what a chunk needs stays in the cache
            rows = slice(start, min(start + _CHUNK, m))
            part = recent.Recent(*(a[:, rows] for a in now))
            _step(state, derived, log_a, counts[:, rows], n[:, rows], part, happened[:, rows], rows)
    slow = evidence.mixture_log(state.slow[:, :, :m], SLOWER_WEIGHTS)
    fast = evidence.mixture_log(state.fast[:, :, :m])
    under_way = state.drift_since[:, :m] >= 0  # an alarm ends when the evidence has fallen to half: no flicker on few samples
    level = np.where(under_way, log_a / 2, log_a)
    slower = learned & (slow >= level)
    sudden = slower
    if slower.any():
        first = len(SLOWER) + 1  # the smallest jump alarms, but a third slower is no sudden fault
        share = SLOWER_WEIGHTS[first:]
        lately = evidence.mixture_log(state.slow[:, first:, :m], share)
        sudden = slower & (lately + np.log(share.sum() / SLOWER_WEIGHTS.sum()) >= level)
    return slower, learned & (fast >= log_a), sudden, slow


def _step(
    state: BankState,
    derived: Derived,
    log_a: float,
    counts: NDArray[np.float32],
    n: NDArray[np.float32],
    now: recent.Recent,
    happened: NDArray[np.bool_],
    rows: slice,
) -> None:
    """One step of the statistics of some rows."""
    log_z = derived.log_z[:, :, rows]
    log_p = evidence.log_likelihood(counts, n, derived.log_shapes, log_z)
    ways = evidence.outward(log_p, now.band, recent.most_steps(now))
    null = evidence.band_null(log_p, now.band, ways)
    allowance = np.zeros_like(null)
    slowest = counts[..., -ranks.TAIL_BINS :] @ np.ones(ranks.TAIL_BINS, np.float32)
    sli, row = np.nonzero(slowest > n * derived.tail_share[:, rows])
    allowance[sli, row] = evidence.tail_allowance(
        counts[sli, row], log_p[sli, :, row], now.band[sli, row], derived.log_shapes[sli], log_z[sli, :, row]
    )
    null += allowance
    cap = float(np.exp(log_a + _CAP_NATS))
    slower = np.empty((len(log_p), len(SLOWER_WEIGHTS), n.shape[1]), np.float32)
    for a, i in enumerate(SLOWER):
        np.subtract(log_p[:, i], null, out=slower[:, a])
    recent.log_e(counts, n, log_p, null, allowance, ways, derived.log_shapes, log_z, now, slower[:, len(SLOWER) :])
    evidence.update(state.slow[:, :, rows], slower, happened, cap)
    faster = np.stack([log_p[:, i] - null for i in FASTER], axis=1)
    evidence.update(state.fast[:, :, rows], faster, happened, cap)


def weigh_mix(state: BankState, log_a: float, mixes: NDArray[np.int64], seen: NDArray[np.intp]) -> NDArray[np.bool_]:
    """Tests a tick's mix of requests, bool (m,); also keeps what recent mixes were.

    Args:
        state: Of the bank, changed in place.
        log_a: Evidence at which a series alarms.
        mixes: Counts by stratum, (m, S).
        seen: Strata that have occurred.
    """
    m = len(mixes)
    base, lately, now = state.base_mix[:m, seen], state.recent_mix[:m], mixes[:, seen]
    n, n_base = now.sum(axis=1), base.sum(axis=1)
    happened = (n > 0) & (n_base > 0)
    if happened.any():
        radius = mix.radius_nats(state.mix_wobble[:m], n_base, max(len(seen), 2))
        log_e = mix.log_e(now, base, lately[:, seen], radius)
        evidence.update(state.mix[:, :m], log_e[None], happened, float(np.exp(log_a + _CAP_NATS)))
        lately *= np.where(happened, np.float32(mix.RECENT_KEEP), np.float32(1))[:, None]
        lately += np.where(happened[:, None], mixes, 0).astype(np.float32)
    return np.asarray(state.mix[0, :m] >= np.exp(log_a))

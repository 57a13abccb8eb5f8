"""What a tick says about every series of a pool."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

__all__ = ["BankTick"]


@dataclass(slots=True)
class BankTick:
    """Result of a tick; arrays (nodes, 4) with SLIs in the order of `schemas.batch.LATENCY_SLIS`.

    Attributes:
        n_tick, n: Samples in the tick and in the detection window, int64.
        baseline: `detectors.baseline` LEARNING, ACTIVE or FROZEN, uint8.
        enough: The window holds at least `min_samples`.
        kl_nats, kl_mix_nats, kl_service_nats: KL(window || baseline) with its bias taken off; the first is the sum of the
            other two. The service part is that of the ranks of latencies within their strata.
        shift_nats: Mean shift of log-latency against the baseline, given each request's size; > 0 is slower.
        peer_shift_nats: The node's shift less the median shift of the other nodes with a baseline; NaN without any.
        peer_place_nats: The same of where the nodes are, whatever is usual for each: what it has learnt in trouble counts, too.
        band_nats: Half-width of the tolerance band.
        log_evidence, log_threshold: log of the Shiryaev-Roberts statistic for a slowdown and the value at which it alarms.
        alarm, improved, mix_alarm: Calibrated alarms: slower, faster, another mix of requests (the node's, the same for all
            its SLIs).
        sudden: In alarm because it left its recent place all at once and far, see `detectors.recent`.
        p999_s, p999_lo_s, p999_hi_s, p999_kind: P99.9, its 95 % interval, and `detectors.tail` EMPIRICAL, EXTRAPOLATED or
            CENSORED (uint8).
        threshold_s: Adaptive threshold of P99.9, NaN before there is one.
        tail_above: P99.9 is above the threshold, or the tail is heavy.
        heavy: The window holds more of the slowest requests than the baseline explains, given each request's size.
        periods: Consecutive detection periods with KL above `kl_warn_nats`, int32.
        drift_s: For how long the series has been in alarm, seconds; 0 when it is not.
        pool: The same for the pool as a whole, arrays (1, 4); None inside itself.
    """

    n_tick: NDArray[np.int64]
    n: NDArray[np.int64]
    baseline: NDArray[np.uint8]
    enough: NDArray[np.bool_]
    kl_nats: NDArray[np.float64]
    kl_mix_nats: NDArray[np.float64]
    kl_service_nats: NDArray[np.float64]
    shift_nats: NDArray[np.float64]
    peer_shift_nats: NDArray[np.float64]
    peer_place_nats: NDArray[np.float64]
    band_nats: NDArray[np.float32]
    log_evidence: NDArray[np.float64]
    log_threshold: NDArray[np.float64]
    alarm: NDArray[np.bool_]
    sudden: NDArray[np.bool_]
    improved: NDArray[np.bool_]
    mix_alarm: NDArray[np.bool_]
    p999_s: NDArray[np.float64]
    p999_lo_s: NDArray[np.float64]
    p999_hi_s: NDArray[np.float64]
    p999_kind: NDArray[np.uint8]
    threshold_s: NDArray[np.float64]
    tail_above: NDArray[np.bool_]
    heavy: NDArray[np.bool_]
    periods: NDArray[np.int32]
    drift_s: NDArray[np.float64]
    pool: BankTick | None = None

    @classmethod
    def split(cls, **columns: NDArray[np.generic]) -> BankTick:
        """From arrays (4, 1 + nodes) whose row 0 is the pool."""
        nodes = cls(**{name: a[:, 1:].T for name, a in columns.items()})  # type: ignore[arg-type]
        nodes.pool = cls(**{name: a[:, :1].T for name, a in columns.items()})  # type: ignore[arg-type]
        return nodes

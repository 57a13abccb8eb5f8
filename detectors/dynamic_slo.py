"""Dynamic SLO: how far an internal threshold may follow a drift, and when a drift is old enough to ask for its cause.

The published form loosens the SLO by up to 37.5 % whenever KL rises, in whatever direction and for whatever reason: exactly
when the service regresses. The repaired form starts at the adaptive threshold of P99.9, follows only what is not the service's
fault (the mix part of the drift) and only while that makes requests slower, and never passes the contractual SLO. Error budgets
are counted against the contractual SLO alone.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

__all__ = ["recalibrates", "repaired_slo_s", "seed_slo_s", "signed_mix_nats", "wants_root_cause"]


def seed_slo_s(
    base_s: NDArray[np.float64], kl_nats: NDArray[np.float64], gain: float = 2.5, cap_nats: float = 0.15
) -> NDArray[np.float64]:
    """Base * (1 + gain * min(KL, cap)), seconds: the published form.

    >>> import numpy as np
    >>> seed_slo_s(np.array([1.0, 1.0]), np.array([0.12, 9.9])).round(3).tolist()
    [1.3, 1.375]
    """
    return base_s * (1 + gain * np.minimum(kl_nats, cap_nats))


def repaired_slo_s(
    base_s: NDArray[np.float64],
    kl_mix_nats: NDArray[np.float64],
    ceiling_s: NDArray[np.float64] | float,
    *,
    tightening: NDArray[np.bool_],
    gain: float = 2.5,
    cap_nats: float = 0.15,
) -> NDArray[np.float64]:
    """The same gain applied to the workload part of the drift alone, under the contractual SLO, seconds.

    Args:
        base_s: Internal threshold while nothing drifts.
        kl_mix_nats: Workload part of the drift; NaN and negative (bias-corrected noise) count as none.
        ceiling_s: Contractual SLO.
        tightening: Where loosening is forbidden: the series is in alarm, or its breaker is not closed.
        gain: SLO per nat.
        cap_nats: Drift beyond which the SLO no longer follows.
    """
    drift = np.clip(np.nan_to_num(kl_mix_nats, nan=0.0), 0.0, cap_nats)
    return np.asarray(np.minimum(base_s * (1 + np.where(tightening, 0.0, gain * drift)), ceiling_s))


def signed_mix_nats(
    kl_mix_nats: NDArray[np.float64], p999_s: NDArray[np.float64], usual_p999_s: NDArray[np.float64]
) -> NDArray[np.float64]:
    """The workload part of the drift where it makes latencies longer than usual, its negative where it makes them shorter.

    A divergence has no sign: without one, a shift to short prompts would loosen the SLO as a shift to long ones does.

    Args:
        kl_mix_nats: (...).
        p999_s: P99.9 of the window, seconds (...).
        usual_p999_s: Its usual place (...); NaN, where there is none yet, gives zero.
    """
    with np.errstate(invalid="ignore"):
        sign = np.sign(np.nan_to_num(p999_s / usual_p999_s - 1.0))
    return np.asarray(sign * np.nan_to_num(kl_mix_nats))


def recalibrates(periods: NDArray[np.integer], alarm: NDArray[np.bool_], kl_periods: int) -> NDArray[np.bool_]:
    """Where the tail threshold (never the baseline) is to be learned anew: `kl_periods` periods of drift that no alarm
    explains.
    """
    return np.asarray((periods > 0) & (periods % kl_periods == 0) & ~alarm)


def wants_root_cause(drift_s: NDArray[np.float64], long_drift_s: float) -> NDArray[np.bool_]:
    """Where a drift has lasted long enough, timed since its alarm against the frozen baseline, so that no recalibration
    resets the clock.
    """
    return drift_s >= long_drift_s

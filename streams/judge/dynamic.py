"""The dynamic SLO of every series: shown in windows and verdicts, counted against by nobody (`detectors.dynamic_slo`)."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from detectors import dynamic_slo
from detectors.bank import BankTick, SeriesBank
from detectors.view import usual_p999_s
from schemas.policy import Detection

__all__ = ["dynamic_slo_s"]


def dynamic_slo_s(
    bank: SeriesBank, tick: BankTick, contract_s: NDArray[np.float64], tightening: NDArray[np.bool_], detection: Detection
) -> NDArray[np.float64]:
    """Seconds (nodes, 4); NaN where an SLI has no contractual SLO, or a series no threshold yet.

    Args:
        bank: After the tick.
        tick: What it said.
        contract_s: Contractual SLO of each SLI, (4,), NaN without one.
        tightening: Where nothing may be loosened: series in alarm, nodes whose breaker is not closed, (nodes, 4).
        detection: Gain and cap.
    """
    gain, cap = detection.slo_gain, detection.slo_cap_nats
    if detection.method == "seed":
        return np.asarray(dynamic_slo.seed_slo_s(contract_s[None], np.nan_to_num(np.maximum(tick.kl_nats, 0.0)), gain, cap))
    signed = dynamic_slo.signed_mix_nats(tick.kl_mix_nats, tick.p999_s, usual_p999_s(bank))
    return dynamic_slo.repaired_slo_s(
        tick.threshold_s,
        signed,
        np.broadcast_to(contract_s, tick.threshold_s.shape),
        tightening=tightening,
        gain=gain,
        cap_nats=cap,
    )

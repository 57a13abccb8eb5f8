"""How much slower than expected the requests of each class were in a tick that is about to close, node by node.

Expected is what the pool's model says of the request's size and the node's usual place; strata without a baseline say nothing.
Sums are of integers, so the order of arrival changes nothing.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from detectors.bank import SeriesBank
from detectors.extra import waiting
from detectors.ranks import CODES
from detectors.state import SLIS
from detectors.weights import count, picked

__all__ = ["STEP_NATS", "class_residuals"]

STEP_NATS = 0.001


def class_residuals(
    bank: SeriesBank, slot: int, codes: list[NDArray[np.int64]], n_cells: int
) -> tuple[NDArray[np.int64], NDArray[np.int64]] | None:
    """Sums of log-latency over its expectation, in steps of `STEP_NATS`, and their counts, (4, n_cells) each.

    Args:
        bank: Before it closes `slot`.
        slot: The tick.
        codes: Cells that each request counts into, in the order in which the bank was given the requests; -1 for none.
        n_cells: How many cells there are.

    Returns:
        None when the bank knows nothing yet.
    """
    rows, m = waiting(bank, slot), bank.n_nodes + 1
    if not bank.model.taught or any(len(code) != len(rows) for code in codes):
        return None
    model = bank.model
    measured = np.isfinite(rows.latency_s)
    octaves = np.log2(np.where(measured, np.maximum(rows.latency_s, np.float32(1e-6)), np.float32(1.0))) - model.expected(rows)
    octaves -= bank._state.offset[:, 1:m][:, rows.node]
    place = model.row_of[rows.stratum].astype(np.intp)
    answering = np.asarray(bank._state.learned[:, 1:m].any(axis=0))[rows.node] & (place >= 0)
    sums, counts = np.zeros((SLIS, n_cells), np.int64), np.zeros((SLIS, n_cells), np.int64)
    for sli in range(SLIS):
        usable = measured[sli] & answering & model.known[sli][np.maximum(place, 0)]
        usual = (model.centre[sli].astype(np.float32) - CODES // 2) / model.per_octave[sli]
        off = np.rint((octaves[sli] - usual[np.maximum(place, 0)]) * (math.log(2) / STEP_NATS))
        for code in codes:
            mine = usable & (code >= 0)
            weight = picked(rows.weight, mine)
            counts[sli] += count(code[mine], weight, n_cells)
            shift = off[mine] if weight is None else off[mine] * weight.astype(np.float64)
            sums[sli] += np.bincount(code[mine], weights=shift, minlength=n_cells).astype(np.int64)
    return sums, counts

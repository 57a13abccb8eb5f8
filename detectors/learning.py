"""From the first requests of a node to its baseline; from the first node's to the pool's model.

Requests of nodes that are still learning are kept as rows, at most a few thousand a node. When a node has enough of them
over enough time, its usual place against the pool's expectation is measured and its rows are counted into its baseline. The
first nodes to get there also teach the pool's model. A node that joins later needs only its place: the shape of its
distribution is borrowed from the pool and gives way to its own as samples come in.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from detectors import baseline, ranks
from detectors.model import PoolModel
from detectors.rows import Rows
from detectors.runs import run_starts, sum_into
from detectors.state import SLIS, BankState
from detectors.weights import count, picked

__all__ = ["Residuals", "Tally", "graduate", "locate", "tally"]

ROWS_PER_NODE = 8192
_CHUNK = 8192


class Residuals(NamedTuple):
    """Residual codes (4, n), which latencies are known (4, n), places of the strata in the model's tables (n,)."""

    codes: NDArray[np.int16]
    measured: NDArray[np.bool_]
    places: NDArray[np.intp]


Tally = tuple[NDArray[np.float32], NDArray[np.int64], NDArray[np.int64]]
"""Counts by rank bin (4, m, BINS), sums of residual codes (4, m), counts by stratum (m, S); row 0 is the pool."""


def tally(model: PoolModel, rows: Rows, offset: NDArray[np.float32], m: int) -> tuple[Tally, Residuals]:
    """Counts rows by node; also returns their residual codes, which latencies are known, and the places of their strata.

    Args:
        model: Of the pool.
        rows: Requests.
        offset: Usual places, (4, m), row 0 unused.
        m: Rows of the state in use.
    """
    places = model.places(rows.stratum)
    node = rows.node.astype(np.intp) + 1
    codes, measured = np.empty(rows.latency_s.shape, np.int16), np.empty(rows.latency_s.shape, np.bool_)
    counts = np.zeros((SLIS, m * ranks.BINS), np.int64)
    sums = np.zeros((SLIS, m), np.int64)
    for start in range(0, len(rows), _CHUNK):  # a chunk stays in the cache; all sums are of integers
        part = slice(start, start + _CHUNK)
        codes[:, part], measured[:, part] = model.codes(rows.take(part), offset[:, 1:m])
        at, who = places[part], node[part]
        weight = picked(rows.weight, part)
        bins = model.bins(codes[:, part], measured[:, part], at)
        starts, first_bin = run_starts(who), who.astype(np.int32) * ranks.BINS
        for sli in range(SLIS):
            bin_of, off = bins[sli], codes[sli, part] - np.take(model.centre[sli], at)
            cell, usable = first_bin + bin_of, bin_of != ranks.UNKNOWN_BIN
            if not usable.all():
                cell = cell[usable]
                off[~usable] = 0
            if weight is None:
                counts[sli] += np.bincount(cell, minlength=m * ranks.BINS)
                sum_into(sums[sli], who, off, starts)
            else:
                counts[sli] += count(cell, weight[usable], m * ranks.BINS)
                sum_into(sums[sli], who, off * weight.astype(np.int64), starts)
    strata = len(model.row_of)
    mix = count(node * strata + rows.stratum, rows.weight, m * strata).reshape(m, strata)
    by_bin = counts.reshape(SLIS, m, ranks.BINS).astype(np.float32)
    by_bin[:, 0] = by_bin[:, 1:].sum(axis=1)
    sums[:, 0] = sums[:, 1:].sum(axis=1)
    mix[0] = mix[1:].sum(axis=0)
    return (by_bin, sums, mix), Residuals(codes, measured, places)


def locate(model: PoolModel, rows: Rows, m: int) -> NDArray[np.float32]:
    """Usual place of each node, octaves (4, m): its median residual; 0 for nodes without rows."""
    codes, measured = model.codes(rows, np.zeros((SLIS, m - 1), np.float32))
    out = np.zeros((SLIS, m), np.float32)
    for sli in range(SLIS):
        node, code = rows.node[measured[sli]].astype(np.intp) + 1, codes[sli][measured[sli]]
        ordered = code[np.lexsort((code, node))]
        n = np.bincount(node, minlength=m)
        start = np.cumsum(n) - n
        some = n > 0
        out[sli, some] = (ordered[(start + n // 2)[some]] - ranks.CODES // 2) / model.per_octave[sli]
    return out


def graduate(state: BankState, model: PoolModel, log: Rows, ready: NDArray[np.bool_], tick_s: float) -> Rows:
    """Gives the nodes `ready` their baselines.

    Args:
        state: Of the bank, changed in place.
        model: Of the pool, taught in place when it knows nothing yet.
        log: Requests of all nodes without a baseline.
        ready: bool (m,), row 0 False.
        tick_s: Length of a tick, seconds.

    Returns:
        The rows of the nodes that are not ready.
    """
    m = len(ready)
    log = log.canonical()
    if not model.taught:
        model.fit(log)
        model.teach(*model.codes(log, locate(model, log, m)[:, 1:]), model.places(log.stratum))
    is_ready = ready[log.node + 1]
    mine = log.take(is_ready)
    state.offset[:, :m][:, ready] = locate(model, mine, m)[:, ready]
    (counts, sums, mix), _ = tally(model, mine, state.offset, m)
    state.base[:, :m] += counts
    state.base_sum[:, :m] += sums
    state.base_mix[:m] += mix
    state.learned[:, :m] |= counts.sum(axis=-1) > 0
    span = np.zeros(m)
    np.maximum.at(span, mine.node + 1, mine.slot.astype(np.float64))
    span[ready] = (span[ready] + 1 - state.born[:m][ready]) * tick_s
    span[0] = span.max()
    fresh = ready.copy()
    fresh[0] = True
    state.base_s[:, :m][:, fresh] = np.maximum(state.base_s[:, :m], span)[:, fresh]
    scale = model.scale(model.weights(state.base_mix[0]))
    for slot in np.unique(mine.slot):
        (counts, sums, _), _ = tally(model, mine.take(mine.slot == slot), state.offset, m)
        baseline.add_wobble(state, sums, counts.sum(axis=-1), scale)
    state.wobble[:, :m, :2] += state.block_wobble[0, :, :m]
    state.block_wobble[0, :, :m] = 0
    return log.take(~is_ready)

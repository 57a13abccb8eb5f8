"""What a pool's latencies are measured against: expected latencies, strata, rank bins and templates, shared by all its nodes.

Tables exist only for the strata that were seen, so a pool whose requests are all alike is small.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from detectors import ranks
from detectors.evidence import FAMILY
from detectors.expected import expected_log2, fit
from detectors.ranks import BINS, CODES
from detectors.rows import Rows
from detectors.state import SLIS
from detectors.weights import Weight, count, picked

__all__ = ["PoolModel", "Scale"]

_STRATUM_SAMPLES = 30
"""Samples of a stratum before it may testify."""
_BORROWED = 100.0
"""Samples' worth of the shape of all strata in each."""
_PLACE_PRIOR = 25.0
"""Samples' worth of the place of all strata in each."""
_TABLES = ("row_of", "coefficients", "per_octave", "hist", "pending", "known", "edges", "centre", "table", "template")


class Scale(NamedTuple):
    """Of each SLI, float64.

    Attributes:
        width: Of a residual code in log-latency, nats (4,).
        spread: Standard deviation of residuals within strata, nats (4,).
        variance: Of the place of each stratum, nats squared (4, R).
        place: Variance of the expectation under a mix of strata, nats squared (4,).
    """

    width: NDArray[np.float64]
    spread: NDArray[np.float64]
    variance: NDArray[np.float64]
    place: NDArray[np.float64]

    def at_least_under(self, weight: NDArray[np.float64]) -> Scale:
        """With the larger of its own variance of the expectation and that under the mix `weight` (4, R)."""
        known = weight[:, : self.variance.shape[1]]  # strata first seen in this tick have no variance, nor a say
        return self._replace(place=np.maximum(self.place, (np.square(known) * self.variance).sum(axis=1)))


class PoolModel:
    """Tables of one pool, for R strata seen so far.

    Attributes:
        row_of: Row of each stratum in the tables, int16 (S,); -1 for strata not seen.
        coefficients: Expected latency, float32 (4, 3).
        per_octave: Residual codes per octave, float32 (4,).
        hist: Baseline residual counts, float32 (4, R, CODES).
        pending: Residual counts of the running and the last block, not yet learned, float32 (2, 4, R, CODES).
        known: bool (4, R): the stratum has a baseline.
        edges, centre, table: Cuts int16 (4, R, BINS - 1), median code int16 (4, R), code to bin uint8 (4, R, CODES).
        template: Bin probabilities of every alternative, float32 (4, R, FAMILY, BINS).
    """

    def __init__(self, strata: int) -> None:
        self.row_of = np.full(strata, -1, np.int16)
        self.coefficients = np.zeros((SLIS, 3), np.float32)
        self.per_octave = np.full(SLIS, ranks.codes_per_octave(0.25), np.float32)
        self._allocate(0)

    def _allocate(self, rows: int) -> None:
        self.hist = np.zeros((SLIS, rows, CODES), np.float32)
        self.pending = np.zeros((2, SLIS, rows, CODES), np.float32)
        self.known = np.zeros((SLIS, rows), np.bool_)
        self.edges = np.zeros((SLIS, rows, BINS - 1), np.int16)
        self.centre = np.zeros((SLIS, rows), np.int16)
        self.table = np.full((SLIS, rows, CODES), ranks.UNKNOWN_BIN, np.uint8)
        self.template = np.tile(ranks.nominal().astype(np.float32), (SLIS, rows, len(FAMILY), 1))

    def arrays(self) -> dict[str, NDArray[Any]]:
        """All tables by name, for a snapshot."""
        return {name: getattr(self, name) for name in _TABLES}

    @classmethod
    def from_arrays(cls, arrays: dict[str, NDArray[Any]]) -> PoolModel:
        """Inverse of `arrays`."""
        model = cls(len(arrays["row_of"]))
        for name in _TABLES:
            setattr(model, name, arrays[name])
        return model

    @property
    def nats_per_code(self) -> NDArray[np.float64]:
        """Width of a residual code in log-latency, nats (4,)."""
        return np.asarray(np.log(2) / self.per_octave.astype(np.float64))

    @property
    def taught(self) -> bool:
        """Whether any stratum has a baseline."""
        return bool(self.known.any())

    def fit(self, rows: Rows) -> None:
        """Learns expected latencies and the resolution of residuals from canonical rows."""
        self.coefficients = fit(rows.latency_s, rows.tokens, rows.output)
        with np.errstate(divide="ignore", invalid="ignore"):
            residual = np.log(rows.latency_s) - np.log(2) * self.expected(rows)
        for sli, values in enumerate(residual):
            usable = values[np.isfinite(values)]
            if len(usable):
                low, high = np.quantile(usable, [0.1, 0.9])
                self.per_octave[sli] = ranks.codes_per_octave(float(high - low) / 2.56)

    def expected(self, rows: Rows) -> NDArray[np.float32]:
        """log2 of expected seconds, (4, n)."""
        return expected_log2(self.coefficients, rows.tokens, rows.output)

    def codes(self, rows: Rows, offset_log2: NDArray[np.float32]) -> tuple[NDArray[np.int16], NDArray[np.bool_]]:
        """Residual codes (4, n) and whether the latency is known; `offset_log2` (4, nodes) is each node's usual place."""
        measured = np.isfinite(rows.latency_s)
        logs = np.maximum(rows.latency_s, np.float32(1e-6))
        if not measured.all():
            logs[~measured] = 1.0
        np.log2(logs, out=logs)
        logs -= self.expected(rows)
        logs -= np.take(offset_log2, rows.node, axis=1)
        return ranks.code_of(logs, self.per_octave), measured

    def places(self, stratum: NDArray[np.uint8]) -> NDArray[np.intp]:
        """Row of each request's stratum in the tables, (n,); strata seen for the first time get one."""
        new = np.flatnonzero((np.bincount(stratum, minlength=len(self.row_of)) > 0) & (self.row_of < 0))
        if len(new):
            old = {name: getattr(self, name) for name in _TABLES[3:]}
            rows = self.known.shape[1]
            self.row_of[new] = rows + np.arange(len(new))
            self._allocate(rows + len(new))
            for name, array in old.items():
                grown: NDArray[Any] = getattr(self, name)
                if name == "pending":
                    grown[:, :, :rows] = array
                else:
                    grown[:, :rows] = array
        return self.row_of[stratum].astype(np.intp)

    def observe(
        self, codes: NDArray[np.int16], measured: NDArray[np.bool_], places: NDArray[np.intp],
        leave_out: NDArray[np.bool_] | None = None, weight: Weight = None,
    ) -> None:  # fmt: skip
        """Counts residuals into the running block, but for the requests to be left out, bool (n,)."""
        if leave_out is not None:
            places = np.where(leave_out, self.known.shape[1], places)
        self.pending[0] += self._count(codes, measured, places, weight)

    def _count(
        self, codes: NDArray[np.int16], measured: NDArray[np.bool_], places: NDArray[np.intp], weight: Weight = None
    ) -> NDArray[np.float32]:
        """Counts by place and code, (4, R, CODES); requests at a place beyond the tables count nowhere."""
        rows = self.known.shape[1]
        start, counts = (places * CODES).astype(np.int32), np.zeros((SLIS, rows * CODES), np.int64)
        for sli in range(SLIS):
            key, of_key = start + codes[sli], weight
            if not measured[sli].all():
                key, of_key = key[measured[sli]], picked(weight, measured[sli])
            counts[sli] = count(key, of_key, rows * CODES)[: rows * CODES]
        return counts.reshape(SLIS, rows, CODES).astype(np.float32)

    def turn(self, keep: float, drop: NDArray[np.bool_]) -> bool:
        """A block is over: the one before it is learned, unless the pool was in trouble. True when something was learned.

        Args:
            keep: What remains of older counts, 0 to 1.
            drop: bool (4,): SLIs whose pending counts are not to be believed.
        """
        self.pending[:, drop] = 0
        learned = bool(self.pending[1].any())
        if learned:
            self._learn(self.pending[1], keep)
        self.pending[1] = self.pending[0]
        self.pending[0] = 0
        return learned

    def teach(self, codes: NDArray[np.int16], measured: NDArray[np.bool_], places: NDArray[np.intp]) -> None:
        """Learns residuals at once: those of the learning phase."""
        self._learn(self._count(codes, measured, places), 1.0)

    def _learn(self, counts: NDArray[np.float32], keep: float) -> None:
        """Adds residual counts; strata that now have enough are cut, once, and all templates follow the histograms."""
        self.hist = self.hist * np.float32(keep) + counts
        total = self.hist.sum(axis=-1)
        fresh = (total >= _STRATUM_SAMPLES) & ~self.known
        for sli in range(SLIS):
            if not self.known[sli].any() and not fresh[sli].any() and total[sli].any():
                fresh[sli, int(total[sli].argmax())] = True
        width = np.broadcast_to(self.nats_per_code[:, None], fresh.shape)
        shape, centre = self._borrowed()
        if fresh.any():
            self.centre[fresh] = centre[fresh]
            self.edges[fresh] = ranks.cut(shape[fresh], width[fresh])
            self.known |= fresh
            self.table = ranks.bin_table(self.edges, self.known)
        known = self.known
        self.template[known] = ranks.templates(shape[known], self.edges[known], width[known], FAMILY)

    def _borrowed(self) -> tuple[NDArray[np.float64], NDArray[np.int16]]:
        """Counts of each stratum helped out with the shape of all, moved to its place, and that place: (4, R, CODES), (4, R).

        The place is the stratum's median, drawn towards that of all: the expectation explains most of the difference.
        """
        hist = self.hist.astype(np.float64)
        total = hist.sum(axis=-1)
        median = _median(hist)
        pooled = hist.sum(axis=1)
        middle = _median(pooled)
        place = np.rint((total * median + _PLACE_PRIOR * middle[:, None]) / (total + _PLACE_PRIOR)).astype(np.int64)
        share = pooled / np.maximum(pooled.sum(axis=-1, keepdims=True), 1.0)
        moved = np.arange(CODES) - (place - middle[:, None])[..., None]
        inside = (moved >= 0) & (moved < CODES)
        shifted = np.take_along_axis(np.broadcast_to(share[:, None], hist.shape), np.clip(moved, 0, CODES - 1), axis=-1)
        return hist + _BORROWED * np.where(inside, shifted, 0.0), place.astype(np.int16)

    def bins(self, codes: NDArray[np.int16], measured: NDArray[np.bool_], places: NDArray[np.intp]) -> NDArray[np.uint8]:
        """Rank bin of each latency, (4, n); UNKNOWN_BIN where it cannot testify."""
        flat = self.table.reshape(SLIS, -1)
        out = np.empty(codes.shape, np.uint8)
        start = (places * CODES).astype(np.int32)
        for sli in range(SLIS):
            np.take(flat[sli], start + codes[sli], out=out[sli])
        if not measured.all():
            out[~measured] = ranks.UNKNOWN_BIN
        return out

    def weights(self, mix: NDArray[np.floating]) -> NDArray[np.float64]:
        """Share of each known row under a mix of strata (S,), rows summing to 1, (4, R); even where nothing is known."""
        seen = np.flatnonzero(self.row_of >= 0)
        share = np.zeros(self.known.shape[1])
        share[self.row_of[seen]] = mix[seen]
        shares = np.where(self.known, share + 1e-9, 0.0)
        total = shares.sum(axis=1, keepdims=True)
        return np.where(total > 0, shares / np.maximum(total, 1e-300), 1 / max(len(seen), 1))

    def variance(self) -> NDArray[np.float64]:
        """Variance of the estimated location of each stratum, nats squared, (4, R); 0 where unknown."""
        total = np.maximum(self.hist.sum(axis=-1, dtype=np.float64), 1e-9)
        codes = np.arange(CODES) * self.nats_per_code[:, None, None]
        mean = (self.hist * codes).sum(axis=-1) / total
        spread = np.maximum((self.hist * codes**2).sum(axis=-1) / total - mean**2, 0.0)
        return np.asarray(np.where(self.known, spread / total, 0.0))

    def shapes(self, weight: NDArray[np.float64]) -> NDArray[np.float64]:
        """Bin probabilities of every alternative under the shares of strata `weight` (4, R), (4, FAMILY, BINS)."""
        if not self.taught:
            return np.tile(ranks.nominal(), (SLIS, len(FAMILY), 1))
        return np.asarray(np.einsum("ls,lsgk->lgk", weight, self.template))

    def scale(self, weight: NDArray[np.float64]) -> Scale:
        """Widths and errors under the shares of strata `weight` (4, R), see `weights`."""
        total = np.where(self.known, self.hist.sum(axis=-1, dtype=np.float64), 0.0)
        variance = self.variance()
        spread = np.sqrt((variance * total**2).sum(axis=-1) / np.maximum(total.sum(axis=-1), 1e-9))
        return Scale(self.nats_per_code, spread, variance, (np.square(weight) * variance).sum(axis=1))


def _median(hist: NDArray[np.float64]) -> NDArray[np.int64]:
    """Median code, (...)."""
    upto = np.cumsum(hist, axis=-1)
    return np.asarray((upto < upto[..., -1:] / 2).sum(axis=-1))

"""What a pool's latencies are measured against: expected latencies, strata, rank bins and templates, shared by all its
nodes.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from detectors import ranks
from detectors.evidence import FAMILY
from detectors.expected import expected_log2, fit
from detectors.rows import Rows
from detectors.state import SLIS

__all__ = ["PoolModel"]

STRATUM_SAMPLES = 200
"""Samples of a stratum before it may testify."""


_TABLES = ("coefficients", "hist", "known", "edges", "table", "centre", "template")


class PoolModel:
    """Tables of one pool.

    Attributes:
        coefficients: Expected latency, (4, 3).
        hist: Baseline residual counts by SLI and stratum, float64 (4, S, CODES).
        known: bool (4, S): the stratum has a baseline.
        edges, table, centre: Cuts (4, S, BINS - 1), code to bin (4, S, CODES), median code (4, S).
        template: Bin probabilities (4, S, family, BINS).
    """

    def __init__(self, strata: int) -> None:
        self.strata = strata
        self.coefficients = np.zeros((SLIS, 3), np.float32)
        self.hist = np.zeros((SLIS, strata, ranks.CODES))
        self.known = np.zeros((SLIS, strata), np.bool_)
        self.edges = np.zeros((SLIS, strata, ranks.BINS - 1), np.int16)
        self.table = np.full((SLIS, strata, ranks.CODES), ranks.UNKNOWN_BIN, np.uint8)
        self.centre = np.zeros((SLIS, strata), np.int16)
        self.template = np.tile(ranks.nominal(), (SLIS, strata, len(FAMILY), 1))

    def arrays(self) -> dict[str, NDArray[Any]]:
        """All tables by name, for a snapshot."""
        return {name: getattr(self, name) for name in _TABLES}

    @classmethod
    def from_arrays(cls, arrays: dict[str, NDArray[Any]]) -> PoolModel:
        """Inverse of `arrays`."""
        model = cls(arrays["hist"].shape[1])
        for name in _TABLES:
            setattr(model, name, arrays[name])
        return model

    def fit(self, rows: Rows) -> None:
        """Learns expected latencies from canonical rows."""
        self.coefficients = fit(rows.latency_s, rows.tokens, rows.output)

    def expected(self, rows: Rows) -> NDArray[np.float32]:
        """log2 of expected seconds, (4, n)."""
        return expected_log2(self.coefficients, rows.tokens, rows.output)

    def codes(self, rows: Rows, offset_log2: NDArray[np.float32]) -> tuple[NDArray[np.int16], NDArray[np.bool_]]:
        """Residual codes (4, n) and whether the latency is known; `offset_log2` (4, nodes) is each node's usual place."""
        measured = np.isfinite(rows.latency_s)
        logs = np.log2(np.where(measured, np.maximum(rows.latency_s, np.float32(1e-6)), np.float32(1.0)))
        return ranks.code_of(logs, self.expected(rows) + offset_log2[:, rows.node]), measured

    def count(self, codes: NDArray[np.int16], measured: NDArray[np.bool_], stratum: NDArray[np.uint8]) -> NDArray[np.int64]:
        """Residual counts by SLI and stratum, (4, S, CODES)."""
        size = self.strata * ranks.CODES
        key = stratum.astype(np.intp) * ranks.CODES + codes
        parts = [np.bincount(key[sli][measured[sli]], minlength=size) for sli in range(SLIS)]
        return np.stack(parts).reshape(SLIS, self.strata, ranks.CODES)

    def learn(self, counts: NDArray[np.integer] | NDArray[np.floating], keep: float = 1.0) -> None:
        """Adds residual counts; strata that now have enough are cut once, and all templates follow the histograms.

        Args:
            counts: (4, S, CODES).
            keep: What remains of the older counts, 0 to 1.
        """
        self.hist = self.hist * keep + counts
        total = self.hist.sum(axis=-1)
        fresh = (total >= STRATUM_SAMPLES) & ~self.known
        for sli in range(SLIS):
            if not self.known[sli].any() and not fresh[sli].any() and total[sli].any():
                fresh[sli, int(total[sli].argmax())] = True
        if fresh.any():
            self.edges[fresh] = ranks.cut(self.hist[fresh])
            self.known |= fresh
            self.table = ranks.bin_table(self.edges, self.known)
            share = np.cumsum(self.hist[fresh], axis=-1) / self.hist[fresh].sum(axis=-1, keepdims=True)
            self.centre[fresh] = (share < 0.5).sum(axis=-1)
        self.template[self.known] = ranks.templates(self.hist[self.known], self.edges[self.known], FAMILY)

    def bins(self, codes: NDArray[np.int16], measured: NDArray[np.bool_], stratum: NDArray[np.uint8]) -> NDArray[np.uint8]:
        """Rank bin of each latency, (4, n); UNKNOWN_BIN where it cannot testify."""
        flat = self.table.reshape(SLIS, -1)
        key = stratum.astype(np.intp) * ranks.CODES + codes
        out = np.stack([flat[sli][key[sli]] for sli in range(SLIS)])
        out[~measured] = ranks.UNKNOWN_BIN
        return out

    def weights(self, mix: NDArray[np.floating]) -> NDArray[np.float64]:
        """Share of each known stratum under a mix (S,), rows summing to 1, (4, S); even shares where nothing is known."""
        share = np.where(self.known, mix.astype(np.float64) + 1e-9, 0.0)
        total = share.sum(axis=1, keepdims=True)
        return np.where(total > 0, share / np.maximum(total, 1e-300), 1 / self.strata)

    def variance(self) -> NDArray[np.float64]:
        """Variance of the estimated location of each stratum, nats squared, (4, S); 0 where unknown."""
        total = np.maximum(self.hist.sum(axis=-1), 1e-9)
        codes = np.arange(ranks.CODES) * ranks.NATS_PER_CODE
        mean = (self.hist * codes).sum(axis=-1) / total
        spread = np.maximum((self.hist * codes**2).sum(axis=-1) / total - mean**2, 0.0)
        return np.where(self.known, spread / total, 0.0)

    def spread(self) -> NDArray[np.float64]:
        """Standard deviation of residuals within strata, nats, (4,)."""
        total = self.hist.sum(axis=-1)
        return np.asarray(
            np.sqrt((self.variance() * total**2).sum(axis=-1) / np.maximum(np.where(self.known, total, 0).sum(axis=-1), 1e-9))
        )

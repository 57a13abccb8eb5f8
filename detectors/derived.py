"""What follows from baselines and the pool's model, kept between the ticks because it changes only with them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from detectors import baseline, drift, evidence, ranks
from detectors.model import PoolModel, Scale
from detectors.state import BankState
from schemas.policy import Detection

__all__ = ["Derived"]

_TAIL_TOLERANCE = 2.0

F32 = NDArray[np.float32]


@dataclass(slots=True)
class Derived:
    """Of all allocated rows r.

    Attributes:
        weight: Shares of the strata that the templates stand for, (4, R).
        scale: Of the pool's model.
        log_shapes, log_z: From `evidence.tilt`.
        tail_share: From `evidence.tail_share`, (4, r).
        band: Tolerance band, nats (4, r).
        n_base: Samples in the baseline, (4, r).
        log_base: Log of the smoothed baseline, (4, r, BINS).
        tail_limit: Share of a window above q0.99 that is not news, (4, r).
    """

    weight: NDArray[np.float64]
    scale: Scale
    log_shapes: F32
    log_z: F32
    tail_share: F32
    band: F32
    n_base: F32
    log_base: F32
    tail_limit: F32

    @classmethod
    def of(cls, state: BankState, model: PoolModel, settings: Detection, weight: NDArray[np.float64]) -> Derived:
        """Computes everything for the shares of strata `weight` (4, R)."""
        later = model.known.shape[1] - weight.shape[1]
        weight = np.pad(weight, ((0, 0), (0, later)))  # strata that came after `weight` was made have no say in it
        scale = model.scale(weight)
        log_shapes, log_z = evidence.tilt(model.shapes(weight), state.base)
        n_base = state.base @ np.ones(ranks.BINS, np.float32)
        slowest = state.base[..., -ranks.TAIL_BINS :].sum(axis=-1, dtype=np.float64)
        share = np.minimum((slowest + 1) / np.maximum(n_base, 1.0), 1.0)
        return cls(
            weight=weight,
            scale=scale,
            log_shapes=log_shapes,
            log_z=log_z,
            tail_share=evidence.tail_share(log_shapes, log_z),
            band=baseline.band_nats(state, state.rows, settings.wobble_floor_ratio, scale),
            n_base=n_base,
            log_base=drift.log_smoothed(state.base),
            tail_limit=evidence.upper_share(share, n_base, _TAIL_TOLERANCE).astype(np.float32),
        )

    @property
    def nbytes(self) -> int:
        """Bytes of all arrays over rows."""
        arrays = (self.log_z, self.tail_share, self.band, self.n_base, self.log_base, self.tail_limit)
        return sum(a.nbytes for a in arrays)

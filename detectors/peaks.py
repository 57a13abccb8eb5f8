"""Tail probability of a statistic from the largest values it has had: peaks over threshold, streaming and vectorised.

The k largest values so far are kept; the smallest of them is the threshold, which k of n values have passed. Beyond it the
excess follows a generalised Pareto law (Pickands 1975, Balkema and de Haan 1974) whose shape and scale come from the mean and
the variance of the excesses (Hosking and Wallis, Technometrics 1987). Compare SPOT (Siffer et al., KDD 2017), which fixes the
threshold at a quantile of a calibration batch; here it moves outward as history grows, so no batch has to be free of incidents.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

__all__ = ["Peaks"]

Floats = NDArray[np.float64]
_MAX_Z = 1e6  # scales beyond the threshold; farther is no more surprising


class Peaks:
    """The k largest values of each of `n_series` statistics, and how surprising the next value is.

    Args:
        n_series: Number of independent statistics.
        k: Values kept for each; about 30 balances the variance of the fit against its reach into the body.
        min_n: Values before anything is called surprising, at least 2 k.
        max_shape: Bound of the Pareto shape; 0 is an exponential tail, 0.5 has no variance.
    """

    def __init__(self, n_series: int, k: int = 30, min_n: int = 60, max_shape: float = 0.2) -> None:
        self.top = np.full((n_series, k), -np.inf)  # each row ascending
        self.n = np.zeros(n_series)
        self.min_n = max(min_n, 2 * k)
        self.max_shape = max_shape

    def update(self, value: Floats) -> Floats:
        """Surprise of each value against all earlier ones, then remember it.

        Args:
            value: float64 (n_series,); NaN where there is none.

        Returns:
            ln(1 / P(as large or larger)), nats, float64 (n_series,): 0 in the body of the distribution, while there are too
            few values, and for NaN. Exchangeable values exceed ln(1 / p) with probability about p.
        """
        x = np.where(np.isfinite(value), value, -np.inf)
        k = self.top.shape[1]
        threshold = self.top[:, 0]
        ready = (x > threshold) & (self.n >= self.min_n)
        surprise = np.zeros(len(x))
        if ready.any():
            with np.errstate(all="ignore"):  # values near the end of float64 may overflow; they are then merely rare
                excess = self.top[ready, 1:] - threshold[ready, None]
                mean, variance = excess.mean(axis=1), excess.var(axis=1)
                shape = np.nan_to_num(0.5 * (1.0 - mean * mean / variance), nan=0.0, neginf=0.0, posinf=0.0)
                shape = np.clip(shape, 0.0, self.max_shape)
                scale = np.maximum(mean * (1.0 - shape), np.maximum(np.abs(threshold[ready]) * 1e-9, 1e-300))
                z = np.clip(np.nan_to_num((x[ready] - threshold[ready]) / scale, nan=0.0), 0.0, _MAX_Z)
            tail = np.where(shape > 1e-6, np.log1p(shape * z) / np.maximum(shape, 1e-6), z)
            surprise[ready] = np.log(self.n[ready] / k) + tail
        grown = np.flatnonzero(x > threshold)
        if len(grown):
            rows = self.top[grown]
            rows[:, 0] = x[grown]
            rows.sort(axis=1)
            self.top[grown] = rows
        self.n += np.isfinite(value)
        return surprise

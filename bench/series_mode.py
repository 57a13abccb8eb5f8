"""Runs series mode over recorded series, and thins alarms the same way for every detector."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from detectors.series import VIEWS, SeriesDetector, SeriesSettings

__all__ = ["step_of", "surprises", "thin"]

Floats = NDArray[np.float64]


def step_of(times: Floats) -> float:
    """Usual distance of the rows, seconds."""
    return float(np.median(np.diff(times)))


def surprises(series: Sequence[tuple[Floats, Floats]], settings: SeriesSettings) -> list[Floats]:
    """Surprise of each row in each view.

    Args:
        series: (Unix seconds, values) of each series.
        settings: One configuration for all.

    Returns:
        Per series float64 (n, 3), nats, in the order of `detectors.series.VIEWS`.
    """
    found = [np.zeros((len(values), len(VIEWS))) for _, values in series]
    steps = np.array([step_of(times) for times, _ in series])
    for step in np.unique(steps):
        members = np.flatnonzero(steps == step)
        n_rows = max(len(series[m][1]) for m in members)
        value = np.full((n_rows, len(members)), np.nan)
        slot = np.zeros((n_rows, len(members)), np.int64)
        for j, m in enumerate(members):
            times, values = series[m]
            value[: len(values), j] = values
            # Clocks put back repeat slots; time never runs backwards in a detector.
            slot[: len(values), j] = np.maximum.accumulate(np.round((times - times[0]) / step).astype(np.int64))
        detector = SeriesDetector(len(members), float(step), settings)
        for row in range(n_rows):
            tick = detector.update(slot[row], value[row])
            for j in np.flatnonzero(tick.evidence_nats > 0):
                found[members[j]][row] = tick.surprise_nats[j]
    return found


def thin(scores: Floats, rows: int, floor: float) -> Floats:
    """Alarms a person would get: for `rows` rows after one, only a stronger one; the others become 0.

    At every threshold from `floor` upwards this leaves exactly the alarms of a detector with that threshold and
    that refractory time.
    """
    out = np.zeros(len(scores))
    quiet_until, level = -1, 0.0
    for i in np.flatnonzero(scores >= floor):
        if i > quiet_until or scores[i] > level:
            out[i] = level = scores[i]
            quiet_until = i + rows
    return out

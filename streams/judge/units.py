"""Latencies that cannot be true: a node whose exporter changed its unit is no slow node.

A request cannot have taken longer than the time since its node last answered as usual, but for those that were in flight then.
So when the *typical* request of a tick claims to have taken longer than that, and ten times what one in a thousand used to take,
it is the number that changed and not the service. After a hang nothing is odd: its node last answered as usual before it.
What was once seen so stays so until the alarm is over, because time makes any latency possible.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from detectors.bank import BankTick, SeriesBank
from detectors.extra import median_s, waiting
from detectors.weights import count, picked
from schemas.batch import LATENCY_SLIS

__all__ = ["ODD_FACTOR", "Units"]

Bools = NDArray[np.bool_]
Floats = NDArray[np.float64]

ODD_FACTOR = 10.0  # the median of a tick against the threshold of P99.9
_LEAST = 3  # requests of a node in a tick before their median is one
_SLACK_TICKS = 2  # an alarm may follow its cause by a tick, and requests belong to the tick in which they ended


class Units:
    """Memory of the nodes of one pool.

    Attributes:
        calm_s: End of the last tick in which the node answered and was not in alarm, Unix seconds, NaN for never, (N,).
        odd: Nodes whose latencies cannot be true, (N,).
    """

    def __init__(self, tick_s: float) -> None:
        self.tick_s = tick_s
        self.calm_s: Floats = np.empty(0)
        self.odd: Bools = np.empty(0, np.bool_)

    def grow(self, n: int) -> None:
        """Make room for `n` nodes."""
        more = n - len(self.odd)
        self.calm_s = np.append(self.calm_s, np.full(more, np.nan))
        self.odd = np.append(self.odd, np.zeros(more, np.bool_))

    def medians_s(self, t_s: float, bank: SeriesBank, slot: int, breach: NDArray[np.int64]) -> Floats | None:
        """Median latencies, (N, 4), of the nodes that were in alarm a tick ago; None when none was.

        NaN where unknown, and where so few requests claim to have taken too long that their median cannot: only what
        may be odd is sorted.
        Call it before the bank closes the tick, which ends at `t_s`.
        """
        if not breach.any():
            return None
        out = np.full((len(breach), len(LATENCY_SLIS)), np.nan)
        rows = waiting(bank, slot)
        elapsed_s = np.where(breach > 0, self._elapsed_s(t_s), np.nan)[rows.node]
        for sli in range(len(LATENCY_SLIS)):
            seconds = rows.latency_s[sli]
            beyond = seconds > elapsed_s
            if not beyond.any():
                continue
            measured = ~np.isnan(seconds)
            known = count(rows.node[measured], picked(rows.weight, measured), len(breach))
            suspect = 2 * count(rows.node[beyond], picked(rows.weight, beyond), len(breach)) >= known
            mine = suspect[rows.node] & (breach > 0)[rows.node]
            medians, n = median_s(rows.node[mine], seconds[mine], len(breach), picked(rows.weight, mine))
            out[:, sli] = np.where(n >= _LEAST, medians, np.nan)
        return out

    def _elapsed_s(self, t_s: float) -> Floats:
        """Longest a request of a node in alarm can have taken, seconds (N,); NaN where it never answered as usual."""
        return t_s - self.calm_s + _SLACK_TICKS * self.tick_s

    def judge(self, t_s: float, tick: BankTick, alarmed: Bools, medians_s: Floats | None) -> Bools:
        """Nodes whose latencies cannot be true, (N,).

        Args:
            t_s: End of the tick, Unix seconds.
            tick: Of the bank.
            alarmed: Nodes with any alarm, (N,).
            medians_s: Of `medians_s`.
        """
        answered = (tick.n_tick > 0).any(axis=1)
        self.calm_s = np.where(answered & ~alarmed, t_s, self.calm_s)
        self.odd &= alarmed
        if medians_s is not None:
            with np.errstate(invalid="ignore"):
                impossible = (medians_s > self._elapsed_s(t_s)[:, None]) & (medians_s > ODD_FACTOR * tick.threshold_s)
            self.odd |= impossible.any(axis=1) & alarmed
        return self.odd

    def dump(self) -> list[Any]:
        """State for a snapshot."""
        return [self.calm_s.tobytes(), self.odd.tobytes()]

    def load(self, raw: list[Any] | None, n: int) -> None:
        """What `dump` wrote."""
        if raw is not None:
            self.calm_s, self.odd = np.frombuffer(raw[0]).copy(), np.frombuffer(raw[1], np.bool_).copy()
        self.grow(n)

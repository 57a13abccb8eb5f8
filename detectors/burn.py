"""Error budgets and burn rates of SLOs (Google SRE workbook, "Alerting on SLOs", multi-window multi-burn-rate).

A burn rate of 1 spends exactly the budget of the period; 14.4 over an hour spends 2 % of a 30-day budget. A pair fires when
both its long and its short window burn that fast: the long one says it matters, the short one that it still goes on. What was
not observed yet counts as good at the present rate, so the first failures of a new pool are not "three days" of trouble; a
window with fewer than `min_events` requests says nothing.

Counts are kept in buckets of a minute for three days, with running sums for every window: a bucket costs the same always.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["BUCKET_S", "PAIRS", "BurnMeter", "BurnPair", "BurnRates"]

BUCKET_S = 60.0


@dataclass(frozen=True)
class BurnPair:
    """Fire when both windows burn at `factor` or faster."""

    factor: float
    long_s: float
    short_s: float


PAIRS: tuple[BurnPair, ...] = (
    BurnPair(14.4, 3600.0, 300.0),
    BurnPair(6.0, 21600.0, 1800.0),
    BurnPair(3.0, 86400.0, 7200.0),
    BurnPair(1.0, 259200.0, 21600.0),
)

_LENGTHS_S = sorted({s for pair in PAIRS for s in (pair.long_s, pair.short_s)})
_BUCKETS = np.array([int(s / BUCKET_S) for s in _LENGTHS_S])
_LONG = np.array([_LENGTHS_S.index(pair.long_s) for pair in PAIRS])
_SHORT = np.array([_LENGTHS_S.index(pair.short_s) for pair in PAIRS])
_FACTOR = np.array([pair.factor for pair in PAIRS])[:, None]
_RING = int(_BUCKETS[-1])


@dataclass(slots=True)
class BurnRates:
    """Per pair of `PAIRS` and SLO: `fires` bool (4, S), burn rates `long`, `short` float (4, S), requests and bad ones in the
    long window int64 (4, S).
    """

    fires: NDArray[np.bool_]
    long: NDArray[np.float64]
    short: NDArray[np.float64]
    total: NDArray[np.int64]
    bad: NDArray[np.int64]


class BurnMeter:
    """Counts of several SLOs.

    Args:
        objectives: Share of requests that must be good, (S,), each in (0, 1).
        min_events: Requests in a window below which it says nothing.
    """

    def __init__(self, objectives: NDArray[np.float64], min_events: int) -> None:
        self.budget = 1.0 - objectives
        self.min_events = min_events
        s = len(objectives)
        self.ring = np.zeros((_RING, 2, s), np.uint32)  # (bucket, total | bad, SLO)
        self.sums = np.zeros((len(_BUCKETS), 2, s), np.int64)
        self.now = np.zeros((2, s), np.int64)
        self.bucket: int | None = None
        self.seen = 0
        """Buckets since the first."""

    def add(self, t_s: float, total: NDArray[np.int64], bad: NDArray[np.int64]) -> bool:
        """Add the requests of a tick that ended at `t_s`; True when a bucket was closed and `rates` may have changed."""
        bucket = int((t_s - 1e-6) // BUCKET_S)
        closed = self.bucket is not None and bucket > self.bucket
        if self.bucket is None:
            self.bucket = bucket
        elif closed:
            self._close_up_to(bucket)
        self.now[0] += total
        self.now[1] += bad
        return closed

    def _close_up_to(self, bucket: int) -> None:
        before = bucket if self.bucket is None else self.bucket
        if bucket - before > _RING:
            self.ring[:] = 0
            self.sums[:] = 0
        else:
            for b in range(before, bucket):
                expired = self.ring[(b - _BUCKETS) % _RING].astype(np.int64)
                self.sums += self.now - expired
                self.ring[b % _RING] = self.now
                self.now = np.zeros_like(self.now)
        self.now[:] = 0
        self.seen = min(self.seen + bucket - before, _RING)
        self.bucket = bucket

    def rates(self) -> BurnRates:
        """Burn rates at the last bucket that was closed."""
        total, bad = self.sums[:, 0], self.sums[:, 1]
        # Requests a full window would hold at the present rate.
        full = total * (_BUCKETS / np.clip(self.seen, 1, _BUCKETS))[:, None]
        ratio = np.divide(bad, full, out=np.zeros(full.shape), where=full > 0)
        burn = ratio / self.budget
        enough = total >= self.min_events
        long, short = burn[_LONG], burn[_SHORT]
        fires = (long >= _FACTOR) & (short >= _FACTOR) & enough[_LONG] & enough[_SHORT]
        return BurnRates(fires, long, short, total[_LONG], bad[_LONG])

    def dump(self) -> dict[str, Any]:
        """State for a snapshot."""
        arrays = {name: getattr(self, name).tobytes() for name in ("ring", "sums", "now")}
        return {**arrays, "bucket": self.bucket, "seen": self.seen}

    def load(self, raw: dict[str, Any]) -> None:
        """What `dump` wrote, for as many SLOs."""
        for name, dtype in (("ring", np.uint32), ("sums", np.int64), ("now", np.int64)):
            setattr(self, name, np.frombuffer(raw[name], dtype).reshape(getattr(self, name).shape).copy())
        self.bucket, self.seen = raw["bucket"], raw["seen"]

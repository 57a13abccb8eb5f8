"""Error rates that rose: a Shiryaev-Roberts e-detector on failed-or-not, one per node.

A ratio of 5 % over 20 requests is one failure and means nothing; over 2,000 it is a hundred and means everything. The
statistic weighs both: a sum of likelihood ratios of a few raised rates against the highest rate that still counts as normal
(twice the learnt one, with a floor). Under normal rates its expectation after n ticks is n, so crossing A = ticks a day /
(false alarms a day) happens at most that often (Shin, Ramdas, Rinaldo, arXiv 2203.03532).

It serves three ratios: outcomes against the node, requests that missed a contractual SLO, and answers without a token. Some
models give such answers by design: the last one is learnt from nothing, and a young node cannot raise it.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

__all__ = ["ErrorRates"]

Floats = NDArray[np.float64]

FLOOR_RATIO = 0.005
BAND = 2.0
PRIOR_REQUESTS = 200.0  # a new node starts as if it had answered this many at PRIOR_RATIO
PRIOR_RATIO = 0.001
MAX_BASE_RATIO = 0.2
RAISED = np.array([2.0, 4.0, 10.0, 40.0])[:, None]
MAX_RATIO = 0.9
HEADROOM_NATS = 4.0  # the statistic is kept this close above the threshold, so that it falls soon after recovery


class ErrorRates:
    """Arrays over the nodes of one pool.

    Args:
        tick_s: Length of a tick, seconds.
        false_alarms_per_day: Target per node.
        half_life_s: Half-life of the learnt rate, seconds.
        floor_ratio: Rates below this are normal for every fleet.
        max_ratio: A learnt rate above this is not believed to be normal.

    Attributes:
        log_sr: Log of the statistic, nats (N,).
        log_threshold: Alarm level, nats.
    """

    def __init__(
        self, tick_s: float, false_alarms_per_day: float, half_life_s: float, floor_ratio: float = FLOOR_RATIO,
        max_ratio: float = MAX_BASE_RATIO,
    ) -> None:  # fmt: skip
        self.floor_ratio, self.max_ratio = floor_ratio, max_ratio
        self.log_threshold = math.log(86400.0 / tick_s / false_alarms_per_day)
        self.keep = 0.5 ** (tick_s / half_life_s)
        self.requests: Floats = np.empty(0)
        self.failures: Floats = np.empty(0)
        self.log_sr: Floats = np.empty(0)

    def grow(self, n: int) -> None:
        """Make room for `n` nodes."""
        more = n - len(self.requests)
        self.requests = np.append(self.requests, np.full(more, PRIOR_REQUESTS))
        self.failures = np.append(self.failures, np.full(more, PRIOR_REQUESTS * PRIOR_RATIO))
        self.log_sr = np.append(self.log_sr, np.full(more, -np.inf))

    def base_ratio(self) -> Floats:
        """Highest error ratio that is normal for each node."""
        return np.clip(BAND * self.failures / self.requests, self.floor_ratio, self.max_ratio)

    def update(
        self, total: NDArray[np.int64], failed: NDArray[np.int64], hold: NDArray[np.bool_], young: NDArray[np.bool_] | None = None
    ) -> NDArray[np.bool_]:
        """Take in the requests and failures of a tick, (N,) each; learn nothing where `hold`. True where the rate rose, which it
        cannot at `young` nodes: what these do is normal.

        Ticks without any request change nothing.
        """
        if not total.any():
            return self.log_sr >= self.log_threshold
        base = self.base_ratio()
        raised = np.maximum(np.minimum(RAISED * base, MAX_RATIO), base)  # what is always bad cannot become worse
        log_ratio = failed * np.log(raised / base) + (total - failed) * np.log((1.0 - raised) / (1.0 - base))
        top = log_ratio.max(axis=0)
        log_e = top + np.log(np.exp(log_ratio - top).mean(axis=0))
        self.log_sr = np.where(total > 0, np.logaddexp(0.0, self.log_sr) + log_e, self.log_sr)
        if young is not None:
            self.log_sr[young] = -30.0
        np.clip(self.log_sr, -30.0, self.log_threshold + HEADROOM_NATS, out=self.log_sr)
        calm = ~hold & (self.log_sr < 1.0)
        self.requests = np.where(calm, self.keep * self.requests + total, self.requests)
        self.failures = np.where(calm, self.keep * self.failures + failed, self.failures)
        return self.log_sr >= self.log_threshold

    def forget(self, nodes: NDArray[np.bool_], *, baseline: bool) -> None:
        """Drop the evidence of `nodes`, and what was learnt too if `baseline`."""
        self.log_sr[nodes] = -30.0
        if baseline:
            self.requests[nodes] = PRIOR_REQUESTS
            self.failures[nodes] = PRIOR_REQUESTS * PRIOR_RATIO

    def dump(self) -> list[bytes]:
        """State for a snapshot."""
        return [self.requests.tobytes(), self.failures.tobytes(), self.log_sr.tobytes()]

    def load(self, raw: list[bytes]) -> None:
        """What `dump` wrote."""
        self.requests, self.failures, self.log_sr = (np.frombuffer(a).copy() for a in raw)

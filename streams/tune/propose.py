"""Which settings a history asks for.

The guarantee of the detector holds as long as latencies stay within the tolerance band. So the wanted rate itself is proposed
when the history's evidence stays below the threshold that it implies; a higher threshold (a smaller `false_alarms_per_day`) when
the history's tail asks for a little more; and a wider band (`wobble_floor_ratio`) when it asks for much more, because then the
latencies wobble outside the band, where evidence grows without end and no threshold helps. A wider band is tried out on the
history again.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import numpy as np

from schemas.policy import PoolPolicy
from streams.tune.history import Excursion, PoolHistory
from streams.tune.rate import DAY_S, Rate, TailFit, fit_tail, rate_at, resampled

__all__ = ["Proposal", "Trial", "propose"]

MOST_EXTRA_LOG = 3.0
"""A threshold raised by more than this (a target divided by 20) is not the way: the band is too narrow."""
WIDER = 1.6
WIDEST_RATIO = 0.5
"""Latencies that swing by half are an incident, or need another look."""
MOST_TRIALS = 5
_SHIFT_Q = 0.999


@dataclass(slots=True)
class Trial:
    """A replay of the history with one width of the band; heights are logs of the statistic."""

    wobble_floor_ratio: float
    wanted_log: float
    needed_log: float
    now: Rate
    """At the threshold that the wanted rate implies."""


@dataclass(slots=True)
class Proposal:
    """Settings for one pool, or the reason why there are none.

    Attributes:
        false_alarms_per_day, wobble_floor_ratio: The settings.
        threshold_log: The threshold that follows.
        rate: What it would have done.
        node_days, series_days, days: Length of the history with a baseline.
        supported: The bound that trusts no tail is within the wanted rate.
        highest: The highest excursions, to look at.
        why_not: Why nothing is proposed; empty when something is.
    """

    pool: str
    wanted_per_day: float
    false_alarms_per_day: float = 0.0
    wobble_floor_ratio: float = 0.0
    threshold_log: float = 0.0
    rate: Rate | None = None
    days: float = 0.0
    node_days: float = 0.0
    series_days: float = 0.0
    shift_nats: float = 0.0
    trials: list[Trial] = field(default_factory=list)
    highest: list[Excursion] = field(default_factory=list)
    why_not: str = ""

    @property
    def supported(self) -> bool:
        """The history alone shows the wanted rate."""
        return self.rate is not None and self.rate.bound_per_day <= self.wanted_per_day

    @property
    def node_days_needed(self) -> float:
        """Node-days without any alarm that would show the wanted rate, by the exact bound."""
        return float(-np.log(0.05)) / self.wanted_per_day


Replayer = Callable[[Mapping[str, PoolPolicy]], Mapping[str, PoolHistory]]


def propose(
    histories: Mapping[str, PoolHistory], policies: Mapping[str, PoolPolicy], wanted_per_day: float, replay: Replayer,
    rng: np.random.Generator,
) -> list[Proposal]:  # fmt: skip
    """One proposal a pool.

    Args:
        histories: Under the present settings.
        policies: The present settings of the same pools.
        wanted_per_day: False alarms a day and series.
        replay: Replays the history of the pools that it is given settings for.
        rng: For resampling.
    """
    proposals = {pool: Proposal(pool, wanted_per_day) for pool in histories}
    ratios = {pool: policies[pool].detection.wobble_floor_ratio for pool in histories}
    todo = dict(histories)
    while todo:
        again: dict[str, PoolPolicy] = {}
        for pool, history in sorted(todo.items()):
            wider = _consider(proposals[pool], history, ratios[pool], wanted_per_day, rng)
            if wider is not None:
                ratios[pool] = wider
                detection = policies[pool].detection.model_copy(update={"wobble_floor_ratio": wider})
                again[pool] = policies[pool].model_copy(update={"detection": detection})
        todo = dict(replay(again)) if again else {}
    return [proposals[pool] for pool in sorted(proposals)]


def _consider(
    proposal: Proposal, history: PoolHistory, ratio: float, wanted_per_day: float, rng: np.random.Generator
) -> float | None:
    """Fill in the proposal; or a wider band that should be tried."""
    proposal.days = (history.last_s - history.first_s) / DAY_S
    proposal.node_days, proposal.series_days = history.node_s / DAY_S, history.series_s / DAY_S
    if history.series_s == 0:
        proposal.why_not = "no series has learned a baseline: the history is too short, or has too few requests"
        return None
    ticks_per_day = DAY_S / history.tick_s
    wanted_log = float(np.log(ticks_per_day / wanted_per_day))
    fits: list[TailFit] = resampled(history, rng)
    own = fit_tail(np.array([e.peak_log for e in history.excursions]), proposal.series_days)
    needed_log = max(own.height_for(wanted_per_day), wanted_log)
    proposal.trials.append(Trial(ratio, wanted_log, needed_log, rate_at(wanted_log, history, fits)))
    proposal.shift_nats = history.shift_quantile_nats(_SHIFT_Q)
    proposal.highest = sorted(history.excursions, key=lambda e: -e.peak_log)[:5]
    if needed_log > wanted_log + MOST_EXTRA_LOG:
        wider = max(ratio * WIDER, proposal.shift_nats / 2) if len(proposal.trials) == 1 else ratio * WIDER
        if len(proposal.trials) < MOST_TRIALS and ratio < WIDEST_RATIO:
            return round(min(wider, WIDEST_RATIO), 3)
        highest = proposal.highest[0].peak_log
        proposal.why_not = (
            f"even with a band of {100 * ratio:.3g} % the history's evidence reaches e^{highest:.1f}: it holds something that is "
            "no wobble; look at the highest excursions, and name incidents with --labels"
        )
        return None
    proposal.why_not = ""
    proposal.wobble_floor_ratio = ratio
    proposal.threshold_log = needed_log
    proposal.false_alarms_per_day = wanted_per_day if needed_log == wanted_log else ticks_per_day * float(np.exp(-needed_log))
    proposal.rate = rate_at(needed_log, history, fits)
    return None

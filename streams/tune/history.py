"""Replays history and notes how high the evidence rose: one *excursion* for each run of a series' statistic above a low level.

The judge that is listened to never alarms (its target is set out of reach), so that nothing is frozen and one replay tells what
any threshold would have done. Runs that are less than ten minutes apart are one excursion: nobody is paged twice for them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from schemas.batch import LATENCY_SLIS, RequestBatch
from schemas.policy import PoolPolicy
from streams.framing import PoolRows, StateEvent
from streams.judge import PoolJudge, TickOutput, TickWindows
from streams.labels import AFTERMATH_S, Incident
from streams.replay import Replay
from streams.sources.inputs import Inputs

__all__ = ["FLOOR_LOG", "SERIES", "Excursion", "PoolHistory", "replay_history"]

SERIES = (*LATENCY_SLIS, "errors")
FLOOR_LOG = 3.0
"""Excursions begin where the log of the statistic passes this: the statistic is then a 20 times its usual value."""
MERGE_S = 600.0
UNREACHABLE_PER_DAY = 1e-9
_SHIFT_BINS = np.concatenate([np.arange(0, 1.0, 0.005), [1.0, np.inf]])


class Excursion(NamedTuple):
    """A run of one series' evidence: where, when (Unix seconds) and how high, log of the statistic."""

    node: str
    sli: str
    start_s: float
    end_s: float
    peak_log: float


@dataclass(slots=True)
class PoolHistory:
    """What the history of one pool says.

    Attributes:
        excursions: Finished ones, in the order in which they ended.
        series_s: Seconds for which series had a baseline, over all series.
        node_s: The same over nodes.
        first_s, last_s: Of the history, Unix seconds.
        shifts: How often a window's mean shift was how large, counts by `shift_quantile_nats`'s bins.
    """

    tick_s: float
    excursions: list[Excursion] = field(default_factory=list)
    series_s: float = 0.0
    node_s: float = 0.0
    first_s: float = 0.0
    last_s: float = 0.0
    shifts: NDArray[np.int64] = field(default_factory=lambda: np.zeros(len(_SHIFT_BINS) - 1, np.int64))

    def shift_quantile_nats(self, q: float) -> float:
        """The q-quantile of a window's absolute shift of mean log-latency against the baseline, nats; 0 without any."""
        if not self.shifts.any():
            return 0.0
        return float(_SHIFT_BINS[int(np.searchsorted(np.cumsum(self.shifts), q * self.shifts.sum())) + 1])


class Listener:
    """A judge whose evidence is noted.

    Args:
        pool: Name.
        policy: With the settings to try.
        incidents: Times that are no healthy history.
    """

    def __init__(self, pool: str, policy: PoolPolicy, incidents: Sequence[Incident] = ()) -> None:
        quiet = policy.detection.model_copy(update={"false_alarms_per_day": UNREACHABLE_PER_DAY, "extra": ()})
        self._judge = PoolJudge(pool, policy.model_copy(update={"detection": quiet}), policy_version="tune")
        self._pool, self._incidents = pool, incidents
        self.history = PoolHistory(policy.tick_s)
        empty = np.empty((0, len(SERIES)))
        self._start, self._last, self._peak = empty, empty.copy(), empty.copy()
        self._names: list[str] = []

    @property
    def late(self) -> int:
        """See `PoolJudge`."""
        return self._judge.late

    @property
    def clock_ns(self) -> int | None:
        """See `PoolJudge`."""
        return self._judge.clock_ns

    def requests(self, batch: RequestBatch) -> None:
        """See `PoolJudge`."""
        self._judge.requests(batch)

    def event(self, event: StateEvent) -> None:
        """See `PoolJudge`."""
        self._judge.event(event)

    def advance(self) -> list[TickOutput]:
        """See `PoolJudge`."""
        return self._noted(self._judge.advance())

    def idle(self, now_ns: int) -> list[TickOutput]:
        """See `PoolJudge`."""
        return self._noted(self._judge.idle(now_ns))

    def finish(self) -> list[TickOutput]:
        """See `PoolJudge`; the excursions that still run end too."""
        out = self._noted(self._judge.finish())
        self._end(np.isfinite(self._start))
        return out

    def _noted(self, outputs: list[TickOutput]) -> list[TickOutput]:
        for out in outputs:
            if out.windows is not None:
                self._note(out.t, out.windows, out is outputs[-1])
        return outputs

    def _note(self, t_s: float, windows: TickWindows, newest: bool) -> None:
        tick, names = windows.tick, windows.nodes[: len(windows.codes)]
        history = self.history
        if len(names) > len(self._names):
            more = len(names) - len(self._names)
            blank = np.full((more, len(SERIES)), np.nan)
            self._start, self._last, self._peak = (
                np.concatenate([a, blank]) for a in (self._start, self._last, self._peak)
            )  # fmt: skip
            self._names = list(names)
        history.first_s = history.first_s or t_s
        history.last_s = t_s
        healthy = np.array([not self._excused(name, t_s) for name in names], np.bool_)
        learned = (tick.baseline != 0) & healthy[:, None]
        history.series_s += float(learned.sum()) * history.tick_s
        history.node_s += float(learned.any(axis=1).sum()) * history.tick_s
        log = np.full((len(names), len(SERIES)), -np.inf)
        log[:, :-1] = np.where(learned, tick.log_evidence, -np.inf)
        if newest:  # of the error ratio only the present statistic can be seen
            errors = self._judge.ticker.errors.log_sr[: len(names)]
            log[:, -1] = np.where(healthy, errors, -np.inf)
        usable = learned & tick.enough & (tick.n_tick > 0)
        history.shifts += np.histogram(np.abs(tick.shift_nats[usable]), _SHIFT_BINS)[0]
        self._follow(t_s, log)

    def _excused(self, node: str, t_s: float) -> bool:
        return any(i.concerns(self._pool, node) and i.from_s <= t_s <= i.to_s + AFTERMATH_S for i in self._incidents)

    def _follow(self, t_s: float, log: NDArray[np.float64]) -> None:
        self._end(np.isfinite(self._start) & (t_s - self._last > MERGE_S))
        above = log >= FLOOR_LOG
        new = above & ~np.isfinite(self._start)
        self._start[new], self._peak[new] = t_s, -np.inf
        self._last[above] = t_s
        self._peak[above] = np.maximum(self._peak[above], log[above])

    def _end(self, which: NDArray[np.bool_]) -> None:
        for node, sli in zip(*np.nonzero(which), strict=True):
            at = node, sli
            self.history.excursions.append(
                Excursion(
                    self._names[node], SERIES[sli], float(self._start[at]), float(self._last[at]), float(self._peak[at])
                )
            )  # fmt: skip
        self._start[which] = np.nan


class _Deaf:
    """Takes the events of a pool that is not asked about."""

    late = 0
    clock_ns: int | None = None

    def requests(self, batch: RequestBatch) -> None: ...

    def event(self, event: StateEvent) -> None: ...

    def advance(self) -> list[TickOutput]:
        return []

    def idle(self, now_ns: int) -> list[TickOutput]:
        return []

    def finish(self) -> list[TickOutput]:
        return []


def replay_history(
    files: Sequence[str],
    mapping: Sequence[str],
    policies: Mapping[str, PoolPolicy] | None,
    policy_of: Callable[[str], PoolPolicy],
    incidents: Sequence[Incident],
    slice_s: float,
    lateness_s: float,
) -> tuple[dict[str, PoolHistory], Inputs]:
    """History of every pool in the files; with `policies` only of the pools named there, under those settings."""
    inputs = Inputs(files, mapping)
    listeners: dict[str, Listener] = {}

    def judge_for(pool: str, rows: PoolRows) -> Listener | _Deaf:
        if pool in inputs.cadence_s or (policies is not None and pool not in policies):
            return _Deaf()
        listeners[pool] = Listener(pool, policies[pool] if policies is not None else policy_of(pool), incidents)
        return listeners[pool]

    for _ in Replay(judge_for, slice_s, lateness_s).run(inputs.slices(slice_s, lateness_s)):
        pass
    return {pool: listener.history for pool, listener in sorted(listeners.items())}, inputs

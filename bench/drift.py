"""B. False alarms and delay of the drift detector, beside others on the same streams.

Each world runs for a day in which the detector learns, and two days that are scored. The series of a world are the nodes and
SLIs of one bank: the pool lends the shape of its distribution, but after a day every series has far more samples of its own. The
world with a daily season is also run for five days, on fewer series, with baselines by hour of day and without.

504 series for two days are 1,008 series-days a world. Fewer series for longer would repeat one baseline's luck, more for a
shorter time spend half of the run on learning; in between the cost is about the same.
"""

from __future__ import annotations

import copy
import os
import sys
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.stats import chi2

from bench.drift_peers import RIVER, Peer, published_rule, river_delay_s, river_false_alarms
from bench.drift_worlds import FAULTS, TICK_S, TICKS_PER_DAY, WORLDS, Fault, Setting, World
from bench.report import Report
from detectors.bank import BankTick, SeriesBank
from schemas.batch import UNKNOWN_TOKENS
from schemas.policy import Detection

__all__ = ["run"]

DELAY_WORLD = "50 a tick, wobble 5 %"
BAR_PER_DAY = 0.01
BAR_DELAY_S = {"x2": 30.0, "x1.5": 60.0, "5 % x8": 60.0, "2 % x8": 180.0}
TIMER_S = 6 * 3600.0
_MOST_TICKS = 360
_DAY_S = 86400.0


class Size(NamedTuple):
    """How much is run: series of a world, ticks that are learned from and scored, series for peers, series for five days."""

    series: int
    warm: int
    scored: int
    peers: int
    daily: int


FULL = Size(504, TICKS_PER_DAY, 2 * TICKS_PER_DAY, 16, 64)
QUICK = Size(64, TICKS_PER_DAY // 4, TICKS_PER_DAY // 12, 1, 0)


class Count(NamedTuple):
    """Alarms that began in so many series-days."""

    alarms: int
    days: float

    def upper_per_day(self) -> float:
        """Exact upper 95 % bound of the rate, if alarms come as a Poisson process.

        >>> round(Count(0, 1000.0).upper_per_day(), 4), round(Count(5, 1000.0).upper_per_day(), 4)
        (0.003, 0.0105)
        """
        return float(chi2.isf(0.05, 2 * (self.alarms + 1)) / 2 / self.days)


class Driven:
    """A bank that judges a world."""

    def __init__(self, world: World, detection: Detection | None = None) -> None:
        self.world = world
        self.bank = SeriesBank(detection or Detection(), TICK_S, open_slots=2)
        for _ in range(world.nodes):
            self.bank.add_node()
        self.unknown = np.full(len(world.node), UNKNOWN_TOKENS)
        self.none = np.zeros(len(world.node), np.uint32)
        self.hold = np.zeros(world.nodes, np.bool_)

    def tick(self, fault: Fault | None = None) -> BankTick:
        slot = self.world.t
        self.bank.ingest(slot, self.world.node, self.world.tick(fault), self.unknown, self.unknown, self.none)
        return self.bank.close(slot, self.hold)

    def twin(self) -> Driven:
        """A copy in the same state, with the same random numbers ahead."""
        other = copy.copy(self)
        other.world = copy.deepcopy(self.world)
        other.bank = SeriesBank.restore(self.bank.state(), self.bank.detection)
        return other

    def delays(self) -> dict[str, NDArray[np.float64]]:
        """Seconds from the onset of each fault to the alarm of each series, from the present state on."""
        found = {}
        for fault in FAULTS:
            twin = self.twin()
            found[fault.name] = _first(twin.tick(fault).alarm for _ in range(_MOST_TICKS))
        return found


def _begun(flags: Iterator[NDArray[np.bool_]]) -> int:
    """How often a flag went from down to up."""
    before = next(flags)
    alarms = int(before.sum())
    for now in flags:
        alarms += int((now & ~before).sum())
        before = now
    return alarms


def _first(flags: Iterator[NDArray[np.bool_]]) -> NDArray[np.float64]:
    """Seconds until each flag is up for the first time, inf where it never is."""
    delay: NDArray[np.float64] | None = None
    for tick, now in enumerate(flags):
        if delay is None:
            delay = np.full(now.shape, np.inf)
        delay[now & np.isinf(delay)] = (tick + 1) * TICK_S
        if np.isfinite(delay).all():
            break
    return np.zeros(0) if delay is None else delay.reshape(-1)


def ours(args: tuple[Setting, Size, int]) -> tuple[Count, dict[str, NDArray[np.float64]]]:
    """False alarms in a world, and in the world of delays the delay of each fault."""
    setting, size, seed = args
    driven = Driven(World(setting, size.series, seed))
    for _ in range(size.warm):
        driven.tick()
    alarms = _begun(driven.tick().alarm for _ in range(size.scored))
    delays = driven.delays() if setting.name == DELAY_WORLD else {}
    return Count(alarms, size.series * size.scored * TICK_S / _DAY_S), delays


def daily(args: tuple[bool, Size, int]) -> tuple[Count, dict[str, NDArray[np.float64]]]:
    """The world with a daily season for longer: what baselines by hour of day are worth."""
    hour_of_day, size, seed = args
    driven = Driven(World(WORLDS[-1], size.daily, seed), Detection(hour_of_day=hour_of_day))
    for _ in range(2 * TICKS_PER_DAY):
        driven.tick()
    scored = 3 * TICKS_PER_DAY
    alarms = _begun(driven.tick().alarm for _ in range(scored))
    return Count(alarms, size.daily * scored * TICK_S / _DAY_S), driven.delays()


def published(args: tuple[Setting, Size, int]) -> tuple[Count, dict[str, NDArray[np.float64]]]:
    """The published rule, baseline of a quarter of a day."""
    setting, size, seed = args
    series = min(size.series, 64 if setting.requests < 500 else 16)
    world = World(setting, series, seed)
    rule = published_rule(world, size.warm // 4)
    alarms = _begun(rule.tick(world.tick()) for _ in range(size.scored))
    delays = {}
    if setting.name == DELAY_WORLD:
        for fault in FAULTS:
            twin, same = copy.deepcopy(rule), copy.deepcopy(world)
            delays[fault.name] = _first(twin.tick(same.tick(fault)) for _ in range(_MOST_TICKS))
    return Count(alarms, series * size.scored * TICK_S / _DAY_S), delays


def river(args: tuple[Peer, Setting, Size, int]) -> tuple[Count, dict[str, NDArray[np.float64]]]:
    """One of river's detectors, fed every request."""
    peer, setting, size, seed = args
    some = peer.series(size.peers)
    count = Count(*river_false_alarms(peer, setting, some, seed))
    delays = {}
    if setting.name == DELAY_WORLD:
        for fault in FAULTS:
            delays[fault.name] = river_delay_s(peer, setting, fault, max(3, some), _MOST_TICKS, seed + 1)
    return count, delays


def timer(size: Size) -> tuple[Count, dict[str, NDArray[np.float64]]]:
    """The dummy: an alarm every six hours, whatever happens."""
    days = size.series * size.scored * TICK_S / _DAY_S
    wait = np.linspace(TICK_S, TIMER_S, 1000)  # from any moment to the next alarm
    return Count(round(days * _DAY_S / TIMER_S), days), {fault.name: wait for fault in FAULTS}


def run(seed: int, *, quick: bool = False) -> Report:
    """Run the benchmark; `quick` takes 64 series for 2 hours (its false-alarm bars are then hardly tested)."""
    size = QUICK if quick else FULL
    columns = ("world and detector", "false/series/day", "95 % below", "series-days", *(f"{f.name}, median s" for f in FAULTS))
    hours = TICK_S / 3600
    title = f"B. Drift detector: {size.series} series, {size.warm * hours:g} h learned, {size.scored * hours:g} h scored"
    report = Report("drift", title, columns, seed)

    def add(name: str, count: Count, delays: dict[str, NDArray[np.float64]]) -> None:
        medians = [float(np.median(delays[f.name])) if f.name in delays else None for f in FAULTS]
        rate, most = count.alarms / count.days, count.upper_per_day()
        report.add(name, f"{rate:.4f}", f"{most:.4f}", _days(count.days), *medians)
        if not quick:  # it takes a while: what is known already
            known = f"{name.strip()}: {count.alarms} alarms in {_days(count.days)} series-days"
            print(known, *(m for m in medians if m is not None), file=sys.stderr, flush=True)

    with ProcessPoolExecutor(max_workers=len(os.sched_getaffinity(0))) as workers:
        mine, rule, others = [], [], []
        for i, world in enumerate(WORLDS):
            mine.append(workers.submit(ours, (world, size, seed + i)))
            rule.append(workers.submit(published, (world, size, seed + i)))
            others.append([workers.submit(river, (peer, world, size, seed + i)) for peer in RIVER])
        longer = [workers.submit(daily, (on, size, seed)) for on in (True, False) if size.daily]
        for i, world in enumerate(WORLDS):
            report.add(world.name, *[None] * (len(columns) - 1))
            if not quick:
                print(world.name, file=sys.stderr, flush=True)
            count, delays = mine[i].result()
            add("  slodrift default", count, delays)
            if world is WORLDS[-1]:
                for name, rhythm in zip(("with", "without"), longer, strict=False):
                    add(f"  the same after 5 days, {name} hour of day", *rhythm.result())
            add("  published rule", *rule[i].result())
            for peer, result in zip(RIVER, others[i], strict=True):
                add(f"  {peer.name}", *result.result())
            timer_count, timer_delays = timer(size)
            add("  dummy, every 6 h", timer_count, timer_delays if delays else {})
            rate = count.alarms / count.days
            report.bar(f"{world.name}: {rate:.4f} false alarms a series and day <= {BAR_PER_DAY}", rate <= BAR_PER_DAY)
            for name, limit in BAR_DELAY_S.items():
                if name in delays:
                    median = float(np.median(delays[name]))
                    report.bar(f"{name}: median delay {median:g} s <= {limit:g} s", median <= limit)
    report.notes.append(
        "river is fed every request (seconds), default settings; it and the published rule get some of the series (series-days)"
    )
    report.notes.append("95 % below: exact Poisson bound on the rate. inf: not within an hour")
    return report


def _days(days: float) -> str:
    return f"{days:.1f}" if days >= 1 else f"{days:.2g}"

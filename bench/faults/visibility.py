"""How soon every serving host knows: from the append of a decision to the log until each of 50 hosts answers by it.

`python -m bench.faults.visibility`. The time of the append is the timestamp of the record, which its producer sets a moment
before; a host's time is that of its `on_change`, or of the look (five a second) that found it at the version of the decision or a
newer one. One machine, one clock. In the second part Redis is killed and comes back empty. The hosts are in ten processes, since
fifty in one starve each other; each follows the four pools of the round.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from bench.faults.case import Case, play
from bench.faults.closing import close
from bench.faults.host_processes import HostLog, HostProcesses
from bench.faults.hosts import Host
from bench.faults.site import N_PARTITIONS, Failed, Site
from bench.report import Report
from schemas.errors import SchemaError
from schemas.topics import DECISIONS
from streams.worker.decision_log import LogReader

__all__ = ["Delays", "delays", "measure", "run"]

_POOLS = 4
_AWAY_S = 2.0


@dataclass(frozen=True)
class Delays:
    """Seconds from append to sight, decisions x hosts; infinite for what a host never saw."""

    seconds: np.ndarray
    decisions: int
    hosts: int

    def within(self, limit_s: float) -> float:
        """Share of pairs."""
        return float((self.seconds <= limit_s).mean())


def delays(site: Site, pools: set[str], hosts: Sequence[Host | HostLog]) -> Delays:
    """Of every decision about some pools that is in the log, to every one of some hosts."""
    appended = []
    for partition in range(N_PARTITIONS):
        reader = LogReader()
        for record in list(site.tail.records[DECISIONS.name, partition]):
            try:
                decision = reader.read(record.offset(), record.value())
            except SchemaError:
                continue
            if decision is not None and decision.pool in pools and not decision.capped:
                appended.append((decision, record.timestamp()[1] / 1000))
    rows = []
    for decision, at_s in appended:
        for host in hosts:
            told = [
                s.at_s
                for s in list(host.seen)
                if s.pool == decision.pool and s.version >= decision.version and s.subject == decision.subject
            ]
            found = [at for at, pool, version in list(host.reached) if pool == decision.pool and version >= decision.version]
            rows.append(min(told + found, default=np.inf) - at_s)
    return Delays(np.array(rows), len(appended), len(hosts))


def measure(n_hosts: int = 50, rounds: int = 2, over_s: float = 16.0) -> tuple[Delays, Delays, float]:
    """(undisturbed, through a restart of Redis, how long Redis was away in seconds)."""
    parts: list[list[Delays]] = [[], []]
    down_at = over_s * 160 / 240  # the first breakers open at 165 s of the story
    for n in range(rounds):
        for through_restart, part in enumerate(parts):
            pools = [f"visible/{through_restart}/{n}/{i}" for i in range(_POOLS)]
            with Site(pools, n_hosts=2) as site, HostProcesses(site, pools, n_hosts) as hosts:
                cases = [Case.plain(site, pool, seed=_POOLS * n + i) for i, pool in enumerate(pools)]
                faults = [(down_at, site.stack.redis_stop), (down_at + _AWAY_S, site.stack.redis_start)]
                play(site, cases, over_s, faults if through_restart else ())
                close(site, cases)
                part.append(delays(site, set(pools), hosts.stop()))
    return _joined(parts[0]), _joined(parts[1]), _AWAY_S


def _joined(some: list[Delays]) -> Delays:
    return Delays(np.concatenate([d.seconds for d in some]), sum(d.decisions for d in some), some[0].hosts)


def run(seed: int = 0, *, quick: bool = False) -> Report:
    """The table with its bars."""
    report = Report(
        "visibility",
        "From the log to the hosts, seconds",
        ("part", "decisions", "hosts", "p50", "p99", "max", "within 2 s"),
        seed,
    )
    first, second, away_s = measure(rounds=1 if quick else 3)
    for name, d in (("undisturbed", first), (f"Redis killed, {away_s:g} s away, back empty", second)):
        p50, p99 = np.quantile(d.seconds, [0.5, 0.99]) if np.isfinite(d.seconds).all() else (np.nan, np.nan)
        report.add(name, d.decisions, d.hosts, f"{p50:.3f}", f"{p99:.3f}", f"{d.seconds.max():.3f}", f"{d.within(2.0):.2%}")
    report.bar("visible on 99 % of 50 hosts within 2 s of the append", first.within(2.0) >= 0.99)
    report.bar("on all within 5 s", first.within(5.0) == 1.0)
    report.bar("through a restart of Redis on all within 10 s", second.within(10.0) == 1.0)
    return report


def main() -> int:
    """Run and print."""
    parser = argparse.ArgumentParser(prog="python -m bench.faults.visibility")
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--json", type=Path)
    chosen = parser.parse_args()
    try:
        report = run(quick=chosen.quick)
    except Failed as exc:
        print(f"failed: {exc}")
        return 1
    report.print()
    if chosen.json:
        chosen.json.write_text(report.to_json())
    return 0 if all(holds for _, holds in report.bars) else 1


if __name__ == "__main__":
    sys.exit(main())

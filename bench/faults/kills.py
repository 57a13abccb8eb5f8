"""Judge, archive and framer killed in turn at random points under load; afterwards the archive is compared row for row.

`python -m bench.faults.kills --kills 200`. Stories are played one round after the other, three pools at a time; after each
round everything comes to rest and the closing checks recompute windows, findings and decisions from the frames that are in the
log, and compare them with ClickHouse. Jobs are stacks side by side, each with its share of the kills and moments of its own.
There is no limit to the time, only to how long nothing gets on (`settle`).
"""

from __future__ import annotations

import argparse
import multiprocessing
import random
import sys
import time
from collections import Counter
from concurrent.futures import ProcessPoolExecutor
from functools import partial

from bench.faults.case import Case, play
from bench.faults.closing import close
from bench.faults.site import Failed, Site

__all__ = ["ROLES", "side_by_side", "soak"]

ROLES = ("judge", "archive", "framer")
_POOLS_A_ROUND = 3
_ROUND_S = 30.0
_PAUSE_S = (0.8, 3.2)


def soak(kills: int, seed: int = 1, *, real_kafka: bool = False, quiet_s: float = 0.0) -> dict[str, int]:
    """Kill so often; totals of what was compared.

    Args:
        kills: How many.
        seed: Of the moments.
        real_kafka: An Apache Kafka instead of the mock cluster.
        quiet_s: How often the archive keeps windows that have nothing to tell, seconds; 0 keeps all.

    Raises:
        Failed: Something was lost, doubled, or differs.
    """
    chance, done = random.Random(seed), 0
    rounds = 1 + int(kills * sum(_PAUSE_S) / 2 / (_ROUND_S - 2))
    total = Counter[str]()
    pools = [[f"kills/{r}/{i}" for i in range(_POOLS_A_ROUND)] for r in range(rounds + 5)]
    environ = {"SLODRIFT_ARCHIVE_QUIET_S": str(quiet_s)}
    with Site([pool for some in pools for pool in some], n_hosts=2, real_kafka=real_kafka, environ=environ) as site:
        while done < kills:
            began, some = time.monotonic(), pools[total["rounds"]]
            cases = [Case.plain(site, pool, seed=1000 * seed + 100 * total["rounds"] + i) for i, pool in enumerate(some)]
            actions, at_s = [], chance.uniform(*_PAUSE_S)
            while at_s < _ROUND_S - 2 and done < kills:
                actions.append((at_s, partial(_kill, site, ROLES[done % 3])))
                done += 1
                at_s += chance.uniform(*_PAUSE_S)
            play(site, cases, _ROUND_S, actions)
            figures = close(site, cases)
            total += Counter(kills=len(actions), rounds=1, requests=sum(len(case.messages) for case in cases))
            for name in ("rows", "decisions", "written_twice"):
                total[name] += sum(f[name] for f in figures.values())
            settled = max(f["settled_s"] for f in figures.values())
            print(
                f"seed {seed}, round {total['rounds']}: {done} kills, {total['rows']} rows equal, at rest after {settled:g} s, "
                f"{time.monotonic() - began:.0f} s",
                flush=True,
            )
    return dict(total)


def side_by_side(kills: int, jobs: int, seed: int = 1, *, real_kafka: bool = False, quiet_s: float = 0.0) -> dict[str, int]:
    """The same in several stacks at once, seeds from `seed` on."""
    shares = [kills // jobs + (i < kills % jobs) for i in range(jobs)]
    with ProcessPoolExecutor(jobs, multiprocessing.get_context("spawn")) as pool:
        runs = [pool.submit(soak, n, seed + i, real_kafka=real_kafka, quiet_s=quiet_s) for i, n in enumerate(shares)]
        return dict(sum((Counter(run.result()) for run in runs), Counter[str]()))


def _kill(site: Site, role: str) -> None:
    getattr(site, role).kill()
    site.restart(role)


def main() -> int:
    """Run and print."""
    parser = argparse.ArgumentParser(prog="python -m bench.faults.kills")
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--jobs", type=int, default=2, help="stacks side by side; %(default)s by default")
    parser.add_argument("--kafka", action="store_true", help="a real Apache Kafka instead of the mock cluster")
    parser.add_argument("--quiet-s", type=float, default=0.0, help="archive_quiet_s; by default every window is a row")
    chosen = parser.parse_args()
    began = time.monotonic()
    try:
        total = side_by_side(chosen.kills, chosen.jobs, chosen.seed, real_kafka=chosen.kafka, quiet_s=chosen.quiet_s)
    except Failed as exc:
        print(f"FAILS after {time.monotonic() - began:.0f} s: {exc}")
        return 1
    print(f"holds: {total}, {time.monotonic() - began:.0f} s, seeds {chosen.seed} to {chosen.seed + chosen.jobs - 1}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
